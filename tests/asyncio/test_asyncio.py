"""The API for asyncio, with real nodes."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
import trio

import dafka.asyncio
from dafka import Config, events
from dafka.errors import RecordError, StorageLostError, UnacknowledgedError, WrongContextError
from tests.clients.each_style import EachStyle
from tests.clients.styles import ASYNCIO
from tests.roles.helpers import contents

DEADLINE_S = 60


def test_a_cancelled_call_loses_no_record(config: Config) -> None:
    async def program() -> None:
        received: list[bytes | None] = []
        async with (
            dafka.asyncio.open_consumer(["hello"], config) as consumer,
            dafka.asyncio.open_producer("hello", config) as producer,
            asyncio.timeout(DEADLINE_S),
            asyncio.TaskGroup() as tasks,
        ):

            async def send() -> None:
                for value in contents(0, 300):
                    await producer.send(value)

            tasks.create_task(send())
            while len(received) < 300:
                try:
                    async with asyncio.timeout(0.0001):
                        received.append((await consumer.next_record()).value)
                except TimeoutError:
                    pass
        assert received == contents(0, 300)

    asyncio.run(program())


def test_batches_of_several_tasks_have_the_sequences_that_are_returned(config: Config) -> None:
    sent: dict[int, bytes] = {}

    async def send(producer: dafka.asyncio.Producer, task: int) -> None:
        for number in range(100):
            values = [b"%d %d %d" % (task, number, each) for each in range(5000 if number == 50 else 5)]
            sent.update(zip(await producer.send_many(values), values, strict=True))

    async def program() -> None:
        async with asyncio.timeout(DEADLINE_S), dafka.asyncio.open_consumer(["hello"], config) as consumer:
            async with dafka.asyncio.open_producer("hello", config) as producer, asyncio.TaskGroup() as tasks:
                for number in range(3):
                    tasks.create_task(send(producer, number))
            found: list[bytes | None] = []
            while len(found) < 3 * (99 * 5 + 5000):
                found += (await consumer.next_batch()).values
            assert dict(enumerate(found)) == sent

    asyncio.run(program())


def test_batches_that_were_handed_over_are_waited_for(config: Config) -> None:
    async def hold(producer: dafka.asyncio.Producer) -> Callable[[], None]:
        """Keep the producer from publishing until the returned function is called; a new partition does the same."""
        may_go_on = trio.Event()

        async def wait() -> None:
            async with producer._role._publishing:
                held.set_result(None)
                await may_go_on.wait()

        held = Future[None]()
        producer._hosted.start(wait)
        await asyncio.wrap_future(held)
        return lambda: producer._hosted.thread.submit(may_go_on.set)

    async def program() -> None:
        producer = await dafka.asyncio.open_producer("hello", config)
        await producer.wait_settled()
        go_on = await hold(producer)
        assert await producer.send_many([b"1", b"2"]) == range(2)
        assert (await producer.statistics()).records == 0
        asyncio.get_running_loop().call_later(0.1, go_on)  # what is handed over is published before it is given up
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.send_many([b"no"]), 0.01)
        await producer.wait_stored()
        statistics = await producer.statistics()
        assert (statistics.records, statistics.unacknowledged) == (2, 0)
        go_on = await hold(producer)
        assert await producer.send_many([b"3"]) == range(2, 3)
        assert (await producer.statistics()).records == 2
        asyncio.get_running_loop().call_later(0.1, go_on)  # while it is closed
        await producer.aclose()
        async with dafka.asyncio.open_consumer(["hello"], config) as consumer:
            assert [(await consumer.next_record()).value for _ in range(3)] == [b"1", b"2", b"3"]

    asyncio.run(program())


def test_tasks_share_a_producer_and_the_loop_stays_free(config: Config) -> None:
    async def program() -> None:
        async with dafka.asyncio.open_producer("hello", config) as producer:
            sequences = await asyncio.gather(*(producer.send(value) for value in contents(0, 200)))
            assert sorted(sequences) == [*range(200)]

    asyncio.run(program())


def test_events_end_with_the_node(config: Config) -> None:
    async def program() -> None:
        consumer = await dafka.asyncio.open_consumer(["hello"], config)

        async def collect() -> list[object]:
            return [event async for event in consumer.events]

        async with asyncio.TaskGroup() as tasks:
            collecting = tasks.create_task(collect())
            async for event in consumer.events:
                if isinstance(event, events.PeerJoined):
                    break
            await consumer.wait_settled()
            health = await consumer.health()
            assert (await consumer.unheard_towers(), health.unready, await consumer.discarded()) == ((), "", {})
            await consumer.aclose()
        assert any(isinstance(event, events.PeerJoined) for event in collecting.result())
        assert await collect() == collecting.result()

    asyncio.run(asyncio.wait_for(program(), DEADLINE_S))


def test_a_node_that_ends_by_itself_says_why(config: Config, tmp_path: Path) -> None:
    async def program() -> None:
        store = await dafka.asyncio.serve_store(config.with_store(storage=f"sqlite:{tmp_path}/s.db"))
        assert (await store.statistics()).records_stored == 0
        (tmp_path / "s.db").unlink()
        with pytest.raises(StorageLostError):
            async for _ in store.events:
                pass
        with pytest.raises(StorageLostError):
            await store.aclose()

    asyncio.run(asyncio.wait_for(program(), DEADLINE_S))


def test_leaving_the_block_waits_for_acks_unless_it_is_left_by_an_exception(
    config: Config, capfd: pytest.CaptureFixture[str]
) -> None:
    alone = config.with_beacon(tower_sub=("tcp://127.0.0.1:1",), tower_pub=("tcp://127.0.0.1:1",))
    left: list[dafka.asyncio.Producer] = []

    async def program() -> None:
        short, long = (alone.with_producer(close_timeout_ms=timeout_ms) for timeout_ms in (200, 1000))
        with pytest.raises(UnacknowledgedError):
            async with dafka.asyncio.open_producer("hello", short) as producer:
                await producer.send(b"1")
        with pytest.raises(RecordError):  # noqa: PT012
            async with dafka.asyncio.open_producer("hello", short) as producer:
                left.append(producer)
                await producer.send_many([b"1"])
                await producer.send("text")  # type: ignore[arg-type]
        with pytest.raises(TimeoutError):  # noqa: PT012
            async with asyncio.timeout(None) as limit, dafka.asyncio.open_producer("hello", long) as producer:
                left.append(producer)
                await producer.send(b"1")
                limit.reschedule(0)  # the time is over while the block is left

    asyncio.run(asyncio.wait_for(program(), DEADLINE_S))
    for producer in left:
        assert isinstance(producer._hosted.closed.exception(DEADLINE_S), UnacknowledgedError)
    assert capfd.readouterr().err.count("dafka: 1 record of topic hello is not stored: ") == 2


def test_an_opening_that_is_cancelled_leaves_nothing_open() -> None:
    late = Config().with_node(bind="tcp://127.0.0.1:*").with_beacon(settle_ms=60_000)

    async def program() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await dafka.asyncio.open_consumer(["hello"], late)

    asyncio.run(program())
    assert not [thread for thread in threading.enumerate() if thread.name == "dafka"]


def test_an_unclosed_node_warns_and_is_closed(config: Config) -> None:
    async def program() -> None:
        consumer = await dafka.asyncio.open_consumer(["hello"], config)
        hosted = consumer._hosted
        with pytest.warns(ResourceWarning, match="unclosed consumer"):  # noqa: PT031
            del consumer
            gc.collect()
        hosted.closed.result(DEADLINE_S)

    asyncio.run(program())


async def test_trio_is_told_to_use_its_own_api() -> None:
    with pytest.raises(WrongContextError, match="programs on Trio use dafka"):
        await dafka.asyncio.open_consumer(["hello"])


class TestAsInEachStyle(EachStyle):
    style = ASYNCIO
