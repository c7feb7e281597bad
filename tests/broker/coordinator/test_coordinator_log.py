"""The log of a coordinator: any history of changes, leaders and rewrites leaves the values that were put last."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from dafka.batches import encode_batch, encode_marker, read_header
from dafka.batches.header import BatchHeader, with_base_offset
from dafka.broker.coordinator import coordinator_log
from dafka.broker.coordinator.coordinator_log import CoordinatorLog
from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.positions import Offset
from dafka.errors import NotLeaderError, StorageError, TopicDeletedError
from dafka.records import Partition
from tests.seeds import each_seed

OBSOLETE_MAX = 5
KEYS = (b"a", b"b", b"c")


@attrs.frozen
class Appended:
    """Records of the log that are committed later."""

    world: World
    offset: Offset
    end: int

    async def wait_offset(self) -> Offset:
        while self.world.log.high_watermark < self.end:
            await self.world.advanced.wait()
        if self.world.is_deleted:
            raise TopicDeletedError("$test")
        return self.offset


class World:
    """A log in memory, with its leader. Each leader has a coordinator log of its own."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.log: Any = SimpleNamespace(
            topic="$test",
            leader_partition=Partition("$test", "p"),
            index=SimpleNamespace(start_offset=0, end_offset=0),
            high_watermark=0,
            leadership=SimpleNamespace(epoch=0),
        )
        self.advanced = trio.Event()
        self.is_deleted = self.is_rewriting = False
        self.expected: dict[bytes, bytes] = {}
        self.put_ends: list[int] = []
        self.confirmed = 0

    def make(self) -> CoordinatorLog:
        part: Any = self
        return CoordinatorLog(self.log, part, part, part)

    def append(self, _log: object, batches: Sequence[tuple[BatchHeader, bytes]]) -> Appended:
        assert batches
        first = Offset(self.log.index.end_offset)
        for _, data in batches:
            moved = with_base_offset(data, self.log.index.end_offset)
            self.batches.append((read_header(moved), moved))
            self.log.index.end_offset = self.batches[-1][0].end_offset
        return Appended(self, first, self.log.index.end_offset)

    async def read(self, _log: object, offset: Offset, end: Offset, _bytes: int) -> list[bytes]:
        """Return some batches, of which the first one can begin earlier."""
        await trio.lowlevel.checkpoint()
        found = [data for header, data in self.batches if header.end_offset > offset and header.end_offset <= end]
        return found[: self.draw.randint(1, 3)]

    async def delete_before(self, _log: object, offset: Offset) -> None:
        await trio.lowlevel.checkpoint()
        self.is_rewriting = False
        if self.draw.random() < 0.3:
            raise self.draw.choice([StorageError("disk"), NotLeaderError("lost", ""), TopicDeletedError("$test")])
        assert self.log.high_watermark > offset, "what is deleted is in records that are committed"
        self.log.index.start_offset = offset
        self.batches = [each for each in self.batches if each[0].end_offset > offset]

    def commit(self, end: int) -> None:
        self.log.high_watermark = end
        advanced, self.advanced = self.advanced, trio.Event()
        advanced.set()

    def confirm(self, count: int) -> None:
        self.confirmed += count

    async def lead(self, epoch: int) -> CoordinatorLog:
        """Load the values in an epoch. The records that others have appended are committed meanwhile."""
        self.log.leadership.epoch, before = epoch, self.log.index.end_offset
        self.is_rewriting = False
        loaded, has_loaded, is_settled = self.make(), trio.Event(), before == self.log.high_watermark
        assert loaded.is_settled == is_settled

        async def load() -> None:
            await loaded.load()
            has_loaded.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            await wait_all_tasks_blocked()
            needs_mark = epoch > 0 or not is_settled
            assert self.log.index.end_offset - before == needs_mark
            assert has_loaded.is_set() != needs_mark
            self.stray(epoch - 1)
            self.commit(self.log.index.end_offset)
        assert {key: each for key, each in loaded.values.items() if key in KEYS} == self.expected
        assert not needs_mark or loaded.values[b'["slot","leader"]'] == b'{"version":1}'
        return loaded

    def stray(self, epoch: int) -> None:
        """Have records in the log that a former leader has written, or that are none of a coordinator's."""
        headers = [[("leader-epoch", b"%d" % epoch)]] if epoch > 0 else None
        data = encode_batch(0, [b"stray"], keys=[self.draw.choice(KEYS)], headers=headers, timestamps=0)
        if epoch < 0:
            data = encode_marker(7, 0, 0, is_commit=True)
        self.append(self.log, [(read_header(data), data)])

    async def put(self, state: CoordinatorLog) -> None:
        count = self.draw.randint(1, 3)
        before, start = self.log.index.end_offset, self.log.index.start_offset
        for _ in range(count):
            key, value = self.draw.choice(KEYS), b"%d" % self.draw.randrange(10**6)
            is_gone = self.draw.random() < 0.3
            state.put([StateRecord("", key, None if is_gone else value)])
            self.expected[key] = value
            if is_gone:
                del self.expected[key]
        await wait_all_tasks_blocked()
        self.put_ends += [before + count] * count
        current, obsolete = len(state.values), before + count - start - len(state.values)
        is_due = not self.is_rewriting and current > 0 and obsolete > current + OBSOLETE_MAX
        self.is_rewriting |= is_due
        assert self.log.index.end_offset - before == count + is_due * current


@each_seed(15)
def test_any_history_of_changes_leaders_and_rewrites_leaves_the_last_values(seed: int) -> None:
    """Records are confirmed when they are committed, in their order. Strays of former leaders never count."""

    async def run() -> None:
        world, epoch = World(seed), 0
        for _ in range(4):
            async with trio.open_nursery() as nursery:
                state = await world.lead(epoch)
                world.put_ends, world.confirmed = [], 0
                nursery.start_soon(state.write, world.confirm)
                for _ in range(12):
                    match world.draw.choice(["put", "put", "commit", "stray"]):
                        case "put":
                            await world.put(state)
                        case "commit":
                            world.commit(world.draw.randint(world.log.high_watermark, world.log.index.end_offset))
                            await wait_all_tasks_blocked()
                        case "stray" if epoch > 0:
                            world.stray(world.draw.randint(-1, epoch - 1))
                    assert not world.is_rewriting or world.log.high_watermark < world.log.index.end_offset
                    assert world.confirmed == sum(end <= world.log.high_watermark for end in world.put_ends)
                nursery.cancel_scope.cancel()
            epoch += world.draw.choice([0, 1, 2])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(coordinator_log, "REWRITE_RECORDS", OBSOLETE_MAX)
        trio.run(run)


async def test_a_log_whose_topic_is_gone_is_led_no_longer() -> None:
    world = World(0)
    world.log.leadership.epoch, world.is_deleted, world.log.high_watermark = 1, True, 1
    with pytest.raises(NotLeaderError):
        await world.make().load()
