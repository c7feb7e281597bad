"""The tests that hold for the styles whose nodes run in a thread of their own: for threads and for asyncio."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from dafka import Config, events
from dafka.errors import StorageLostError
from dafka.records import new_address
from dafka.roles.producer import RUN_RECORDS_MAX
from tests.clients.each_style import EachStyle, in_style
from tests.clients.styles import DEADLINE_S
from tests.roles.helpers import contents


def hold(producer: Any) -> Callable[[], None]:
    """Keep a producer from publishing until the returned function is called; a new partition does the same."""
    may_go_on = trio.Event()

    async def wait() -> None:
        async with producer._role._publishing:
            held.set()
            await may_go_on.wait()

    held = threading.Event()
    producer._hosted.start(wait)
    held.wait()
    return lambda: producer._hosted.thread.submit(may_go_on.set)


class EachHostedStyle(EachStyle):
    """A subclass says which style its tests use."""

    @in_style
    async def test_a_call_that_is_given_up_loses_no_record(self, config: Config) -> None:
        received: list[bytes | None] = []

        async def send(producer: Any) -> None:
            for value in contents(0, 100):
                await self.style.call(producer.send, value)

        async def receive(consumer: Any) -> None:
            while len(received) < 100:
                try:
                    received.append((await self.style.call_within(0.0001, consumer.next_record)).value)
                except TimeoutError:
                    continue

        async with (
            self.style.opened("open_consumer", ["hello"], config) as consumer,
            self.style.opened("open_producer", "hello", config) as producer,
        ):
            with pytest.raises(TimeoutError):
                await self.style.call_within(0.01, consumer.next_record)
            await self.style.together([partial(send, producer), partial(receive, consumer)])
        assert received == contents(0, 100)

    @in_style
    async def test_batches_of_several_callers_have_the_sequences_that_are_returned(self, config: Config) -> None:
        sent: dict[int, bytes] = {}

        async def send(producer: Any, caller: int) -> None:
            for number in range(30):
                values = [b"%d %d %d" % (caller, number, each) for each in range(5000 if number == 15 else 5)]
                sent.update(zip(await self.style.call(producer.send_many, values), values, strict=True))
                single = b"%d %d" % (caller, number)
                sent[await self.style.call(producer.send, single)] = single

        async with self.style.opened("open_consumer", ["hello"], config) as consumer:
            async with self.style.opened("open_producer", "hello", config) as producer:
                await self.style.together([partial(send, producer, caller) for caller in range(3)])
            found: list[bytes | None] = []
            while len(found) < 3 * (29 * 5 + 5000 + 30):
                found += (await self.style.call(consumer.next_batch)).values
        assert dict(enumerate(found)) == sent

    @in_style
    async def test_batches_that_were_handed_over_are_waited_for(self, config: Config) -> None:
        producer = await self.style.call(self.style.module.open_producer, "hello", config)
        await self.style.call(producer.wait_settled)
        go_on = hold(producer)
        assert await self.style.call(producer.send_many, [b"1", b"2"]) == range(2)
        assert (await self.style.call(producer.statistics)).records == 0
        with pytest.raises(TimeoutError):
            await self.style.call_within(0.01, producer.send_many, [b"no"], on_timeout=go_on)
        await self.style.call(producer.wait_stored)
        statistics = await self.style.call(producer.statistics)
        assert (statistics.records, statistics.unacknowledged) == (2, 0)
        go_on = hold(producer)
        assert await self.style.call(producer.send_many, [b"3"]) == range(2, 3)
        threading.Timer(0.1, go_on).start()  # while it is closed
        await self.style.close(producer)
        async with self.style.opened("open_consumer", ["hello"], config) as consumer:
            found = [(await self.style.call(consumer.next_record)).value for _ in range(3)]
        assert found == [b"1", b"2", b"3"]

    @pytest.mark.parametrize("reason", ["a spool", "an address", "many records"])
    @in_style
    async def test_what_could_fail_or_wait_is_not_handed_over(
        self, reason: str, config: Config, tmp_path: Path
    ) -> None:
        changed = config.with_producer(spool=f"sqlite:{tmp_path}/spool.db") if reason == "a spool" else config
        address = new_address() if reason == "an address" else None
        count = RUN_RECORDS_MAX + 1 if reason == "many records" else 1

        async with self.style.opened("open_producer", "hello", changed, address=address) as producer:
            go_on = hold(producer)
            with pytest.raises(TimeoutError):
                await self.style.call_within(0.01, producer.send_many, [b"1"] * count)
            go_on()

    @in_style
    async def test_events_end_with_the_node(self, config: Config) -> None:
        found: list[object] = []

        async def collect(consumer: Any) -> None:
            found.extend([event async for event in self.style.each(consumer.events)])

        async def use(consumer: Any) -> None:
            async for event in self.style.each(consumer.events):
                if isinstance(event, events.PeerJoined):
                    break
            await self.style.call(consumer.wait_settled)
            health = await self.style.call(consumer.health)
            others = await self.style.call(consumer.unheard_towers), await self.style.call(consumer.discarded)
            assert (health.unready, *others) == ("", (), {})
            await self.style.close(consumer)

        consumer = await self.style.call(self.style.module.open_consumer, ["hello"], config)
        await self.style.together([partial(collect, consumer), partial(use, consumer)])
        await self.style.close(consumer)
        assert any(isinstance(event, events.PeerJoined) for event in found)
        assert [event async for event in self.style.each(consumer.events)] == found

    @in_style
    async def test_a_node_that_ends_by_itself_says_why(self, config: Config, tmp_path: Path) -> None:
        own = config.with_store(storage=f"sqlite:{tmp_path}/s.db")
        store = await self.style.call(self.style.module.serve_store, own)
        assert (await self.style.call(store.statistics)).records_stored == 0
        (tmp_path / "s.db").unlink()
        with pytest.raises(StorageLostError):
            async for _ in self.style.each(store.events):
                pass
        with pytest.raises(StorageLostError):
            await self.style.call(store.statistics)
        with pytest.raises(StorageLostError):
            await self.style.close(store)

    @in_style
    async def test_an_unclosed_node_warns_and_is_closed(self, config: Config) -> None:
        consumer = await self.style.call(self.style.module.open_consumer, ["hello"], config)
        hosted = consumer._hosted
        with pytest.warns(ResourceWarning, match="unclosed consumer"):  # noqa: PT031
            del consumer
            gc.collect()
        hosted.closed.result(DEADLINE_S)
