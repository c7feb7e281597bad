"""Random histories of a consumer against lists of records: which records it returns, whatever was called before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from dafka import Config, Consumer, Partition, Producer, Record, RecordBatch
from dafka.testing import Cluster, open_cluster
from tests.roles.helpers import DEADLINE_S
from tests.roles.test_commits import CancelAt
from tests.waiting import wait_until

TOPICS = ("a", "ab")
"""A subscription to the first brings the records of the second, too."""
STEPS = 60
BEGIN_MS = 1_700_000_000_000


class History:
    """A cluster with producers and a consumer, and what the consumer must return.

    Attributes:
        times: By partition, the minute at which each record was made; no two records have the same.
        positions: The next record of each partition of the consumer's topics, and 0 for those not listed.
        reported: The position of each partition of which the program has received records or sought one.
    """

    def __init__(self, cluster: Cluster, seed: int, folder: Path) -> None:
        self.draw = Random(seed)
        self.cluster = cluster
        self.times: dict[Partition, list[int]] = {}
        self.positions: dict[Partition, int] = {}
        self.reported: dict[Partition, int] = {}
        self.saved: dict[Partition, int] = {}
        self.paused: set[str] = set()
        self.topics = ["a"]
        self.taken: list[bytes] = []
        self.consumer: Consumer
        self._minutes = 0
        self._since = 0
        self._given: dict[Partition, int] = {}
        self._producers: list[Producer] = []
        self._config = cluster.config.with_consumer(
            offset_reset="earliest", name="billing", positions=f"sqlite:{folder}/{seed}.db"
        )
        self._opened = AsyncExitStack()

    async def run(self) -> None:
        steps: dict[Callable[[], Awaitable[None]], int] = {
            self._take: 6, self._publish: 4, self._seek: 2, self._seek_tail: 1,
            self._seek_time: 1, self._read_to_the_ends: 1, self._pause_or_resume: 2, self._change_topics: 2,
            self._open_again: 1,
        }  # fmt: skip
        async with AsyncExitStack() as producing, self._opened:
            for topic in ("a", "ab", "a"):
                self._producers.append(await producing.enter_async_context(self.cluster.producer(topic)))
            await self._open()
            for _ in range(STEPS):
                (step,) = self.draw.choices(list(steps), [*steps.values()])
                await step()
                await self._check()

    def followed(self) -> dict[Partition, list[int]]:
        return {each: times for each, times in self.times.items() if each.topic in self.topics}

    def lag(self, *, paused: bool) -> dict[Partition, int]:
        """Return how many records the consumer must still return, with or without those that are paused."""
        followed = self.followed()
        lag = {each: len(times) - self.positions.get(each, 0) for each, times in followed.items()}
        return {each: left for each, left in lag.items() if paused or each.topic not in self.paused}

    async def _check(self) -> None:
        lag = self.lag(paused=True)
        await wait_until(lambda: self.consumer.lag() == lag, f"the lag is not {lag}")
        assert self.consumer.positions() == self.reported
        found = self.consumer.statistics()
        assert found.positions == {each: self.positions.get(each, 0) for each in lag}
        assert found.lag == {each: left for each, left in lag.items() if left}
        assert self.consumer.paused == self.paused
        assert self.consumer.topics == tuple(self.topics)
        if not found.lag:
            taken = len(self.taken), sum(map(len, self.taken))
            assert (found.records, found.bytes, found.buffered_bytes) == (*taken, 0)

    def _took(self, partition: Partition, first_sequence: int, values: list[bytes | None]) -> None:
        assert partition.topic in self.topics
        assert partition.topic not in self.paused
        assert first_sequence == self.positions.get(partition, 0), partition
        assert values == [b"%d" % (first_sequence + each) for each in range(len(values))]
        self._moved({partition: first_sequence + len(values)})
        self.taken += [value for value in values if value is not None]

    async def _take(self) -> None:
        """Take some of the records that are there: one by one or in batches; some calls are cancelled."""
        at_most_3 = partial(self.consumer.next_batch, 3)
        for _ in range(self.draw.randrange(1, 5)):
            if not sum(self.lag(paused=False).values()):
                break
            call: Callable[[], Awaitable[Record | RecordBatch]] = self.draw.choice(
                (
                    self.consumer.next_record, self.consumer.next_batch, at_most_3,
                    lambda: anext(aiter(self.consumer)), lambda: anext(self.consumer.batches()),
                )
            )  # fmt: skip
            with trio.move_on_after(DEADLINE_S) as scope:
                instrument = CancelAt(scope, self.draw.choice((1, 2, 3, 10**6)))
                trio.lowlevel.add_instrument(instrument)
                try:
                    found = await call()
                finally:
                    trio.lowlevel.remove_instrument(instrument)
                if isinstance(found, Record):
                    self._took(found.partition, found.sequence, [found.value])
                else:
                    assert call is not at_most_3 or len(found) <= 3
                    self._took(found.partition, found.first_sequence, list(found.values))

    async def _publish(self) -> None:
        producer = self.draw.choice(self._producers)
        times = self.times.setdefault(producer.partition, [])
        for _ in range(self.draw.choice((1, 3, 30))):
            self._minutes += 1
            times.append(self._minutes)
            timestamp = BEGIN_MS + 60_000 * self._minutes
            assert await producer.send(b"%d" % (len(times) - 1), key=b"", timestamp=timestamp) == len(times) - 1
        with trio.fail_after(DEADLINE_S):
            await producer.wait_stored()

    def _moved(self, positions: dict[Partition, int]) -> None:
        self.positions |= positions
        self.reported |= positions

    async def _seek(self) -> None:
        followed = self.followed()
        chosen = self.draw.sample(list(followed), self.draw.randrange(len(followed) + 1))
        positions = {each: self.draw.randrange(len(followed[each]) + 1) for each in chosen}
        self.consumer.seek(positions)
        self._moved(positions)

    async def _seek_tail(self) -> None:
        if followed := self.followed():
            count = self.draw.choice((0, 1, 7, 99))
            await self.consumer.seek_tail(count)
            self._moved({each: max(len(times) - count, 0) for each, times in followed.items()})

    def _at(self, minute: int) -> dict[Partition, int]:
        return {each: sum(time < minute for time in times) for each, times in self.followed().items()}

    async def _seek_time(self) -> None:
        if self.followed():
            self._since = self.draw.randrange(self._minutes + 2)
            time = BEGIN_MS + 60_000 * self._since
            given: Any = self.draw.choice((time, datetime.fromtimestamp(time / 1000, UTC)))
            assert await self.consumer.positions_at(given) == self._at(self._since)
            await self.consumer.seek_time(given)
            self._moved(self._at(self._since))

    async def _read_to_the_ends(self) -> None:
        """Read what is stored, and not what is published meanwhile."""
        if not self.followed():
            return
        ends = await self.consumer.ends()
        assert ends == {each: len(times) for each, times in self.followed().items()}
        until = {each: end for each, end in ends.items() if each.topic not in self.paused}
        await self._publish()
        with trio.fail_after(DEADLINE_S):
            async for batch in self.consumer.batches(until=until):
                self._took(batch.partition, batch.first_sequence, list(batch.values))
        for each, end in until.items():
            assert self.positions[each] == end

    async def _pause_or_resume(self) -> None:
        topic = self.draw.choice(TOPICS)
        if topic in self.paused:
            self.consumer.resume(topic)
        else:
            self.consumer.pause(topic)
        self.paused ^= {topic}

    async def _change_topics(self) -> None:
        topic = self.draw.choice(TOPICS)
        if topic in self.topics:
            self.consumer.unsubscribe(topic)
            self.topics.remove(topic)
            self.positions = {each: position for each, position in self.positions.items() if each.topic != topic}
        else:
            self.consumer.subscribe(topic)
            self.topics.append(topic)
            self._begin()

    def _begin(self) -> None:
        """Let new partitions begin where they were given or saved, or at the time that was given or sought."""
        for each, position in self._at(self._since).items():
            if each not in self.positions:
                self.positions[each] = self._given.pop(each, position)

    async def _open(self, **options: Any) -> None:
        self.consumer = await self._opened.enter_async_context(
            self.cluster.consumer(self.topics, self._config, **options)
        )

    async def _open_again(self) -> None:
        """Close the consumer, and open it at the saved positions; others are given, or found by the time."""
        self.saved |= self.reported
        await self.consumer.save_positions()
        await self._take()
        await self._opened.aclose()
        given = {each: self.draw.randrange(len(times) + 1) for each, times in self.times.items()}
        given = {each: position for each, position in given.items() if self.draw.random() < 0.2}
        self._since = self.draw.choice((0, self.draw.randrange(self._minutes + 2)))
        self._given = {**self.saved, **given}
        self.positions, self.reported, self.paused, self.taken = {}, {}, set(), []
        self._begin()
        options: dict[str, Any] = {"start": BEGIN_MS + 60_000 * self._since} if self._since else {}
        await self._open(positions=given, **options)


@pytest.mark.parametrize("seed", range(6))
async def test_a_consumer_returns_what_it_must_return(seed: int, tmp_path: Path) -> None:
    config = Config().with_node(
        wire="libdafka" if seed % 4 == 1 else "rfc46", record_batches="off" if seed % 4 == 2 else "on"
    )
    async with open_cluster(config) as cluster:
        await History(cluster, seed, tmp_path).run()
