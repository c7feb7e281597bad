"""The API for asyncio, with real nodes."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import trio

import dafka.asyncio
from dafka import Config, Partition, ProducerRecord, events
from dafka.errors import ConfigError, RecordError, StorageLostError, UnacknowledgedError, WrongContextError
from tests.roles.helpers import contents

DEADLINE_S = 60


@asynccontextmanager
async def stored(config: Config) -> AsyncIterator[Partition]:
    """Store 100 records of a producer that runs while the block does."""
    async with asyncio.timeout(2 * DEADLINE_S), dafka.asyncio.open_producer("hello", config) as producer:
        assert await producer.send(b"0") == 0
        assert await producer.send_many(contents(1, 100)) == range(1, 100)
        await producer.wait_stored()
        assert (await producer.statistics()).unacknowledged == 0
        yield producer.partition


def test_records_are_received_one_by_one_and_in_batches_each_once(config: Config) -> None:
    async def program() -> None:
        async with stored(config) as partition, dafka.asyncio.open_consumer(["hello"], config) as consumer:
            found = []
            async for record in consumer:
                found.append(record.value)
                if len(found) == 10:
                    break
            assert await consumer.positions() == {partition: 10}
            batch = await consumer.next_batch(5)
            assert (batch.first_sequence, len(batch)) == (10, 5)
            found += batch.values
            async for batch in consumer.batches():
                found += batch.values
                if len(found) == 100:
                    break
            assert found == contents(0, 100)
            assert (await consumer.statistics()).positions == {partition: 100}
            await consumer.unsubscribe("hello")
            await consumer.subscribe("other")
            assert consumer.topics == ("other",)

    asyncio.run(program(), debug=True)


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
    async def hold(producer: dafka.asyncio.Producer) -> None:
        """Let the producer publish nothing for a moment, as while it begins a new partition."""

        async def wait() -> None:
            async with producer._role._publishing:
                held.set_result(None)
                await trio.sleep(0.5)

        held = Future[None]()
        producer._hosted.start(wait)
        await asyncio.wrap_future(held)

    async def program() -> None:
        producer = await dafka.asyncio.open_producer("hello", config)
        await producer.wait_settled()
        await hold(producer)
        assert await producer.send_many([b"1", b"2"]) == range(2)
        assert (await producer.statistics()).records == 0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.send_many([b"no"]), 0.01)
        await producer.wait_stored()
        statistics = await producer.statistics()
        assert (statistics.records, statistics.unacknowledged) == (2, 0)
        await hold(producer)
        assert await producer.send_many([b"3"]) == range(2, 3)
        assert (await producer.statistics()).records == 2
        await producer.aclose()
        async with dafka.asyncio.open_consumer(["hello"], config) as consumer:
            assert [(await consumer.next_record()).value for _ in range(3)] == [b"1", b"2", b"3"]

    asyncio.run(program())


def test_consumers_and_readers_begin_at_a_time(config: Config) -> None:
    hour = timedelta(hours=1)

    async def program() -> None:
        async with stored(config) as partition, dafka.asyncio.open_consumer(["hello"], config, start=hour) as consumer:
            assert (await consumer.next_record()).sequence == 0
            assert await consumer.positions_at(-hour) == {partition: 100}
            await consumer.seek_time(hour)
            assert (await consumer.next_record()).sequence == 0
            async with dafka.asyncio.open_reader(["hello"], config) as reader:
                assert await reader.positions_at(hour) == {partition: 0}

    asyncio.run(program())


def test_conveniences_are_those_of_trio(config: Config) -> None:
    async def program() -> None:
        async with stored(config) as partition, dafka.asyncio.open_consumer(["hello"], config) as consumer:
            assert await consumer.ends() == {partition: 100}
            await consumer.seek_tail(3)
            assert (await consumer.next_record()).sequence == 97
            assert await consumer.lag() == {partition: 2}
            await consumer.pause("hello")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.next_record(), 0.1)
            assert consumer.paused == {"hello"}
            await consumer.resume("hello")
            await consumer.seek({partition: 1})
            found = [value async for batch in consumer.batches(until={partition: 90}) for value in batch.values]
            assert found == contents(1, 90)

    asyncio.run(program())


def test_whole_records_keep_their_parts(config: Config) -> None:
    async def program() -> None:
        async with dafka.asyncio.open_producer("hello", config) as producer:
            await producer.send(b"v", key=b"k", headers=[("h", b"1")], timestamp=5)
            await producer.send_many([ProducerRecord(None, b"k")])
        async with dafka.asyncio.open_consumer(["hello"], config) as consumer:
            first, second = await consumer.next_record(), await consumer.next_record()
            assert (first.value, first.key, first.headers, first.timestamp) == (b"v", b"k", (("h", b"1"),), 5)
            assert (second.value, second.key) == (None, b"k")

    asyncio.run(asyncio.wait_for(program(), DEADLINE_S))


def test_tasks_share_a_producer_and_the_loop_stays_free(config: Config) -> None:
    async def program() -> None:
        async with dafka.asyncio.open_producer("hello", config) as producer:
            sequences = await asyncio.gather(*(producer.send(value) for value in contents(0, 200)))
            assert sorted(sequences) == [*range(200)]

    asyncio.run(program())


def test_reader_and_observer_see_what_is_stored(config: Config) -> None:
    async def program() -> None:
        async with stored(config) as partition:
            async with dafka.asyncio.open_reader(["hello"], config) as reader:
                await reader.wait_ready()
                await reader.check_settled()
                assert await reader.ends() == {partition: 100}
                assert await reader.held_end(partition, DEADLINE_S) == 100
                assert await reader.earliest([partition], DEADLINE_S) == {partition: 0}
                found = reader.read(partition, 10, 20)
                assert await found.first_sequence() == 10
                with pytest.raises(ValueError, match="close that range first"):
                    await reader.read(partition, 0, 1).next_batch()
                assert [record.value async for batch in found for record in batch] == contents(10, 20)
                await found.close()
                await found.close()
            async with dafka.asyncio.open_observer([], config) as observer:
                assert await observer.list_topics(DEADLINE_S) == ("hello",)
                assert [topic.name for topic in (await observer.survey(DEADLINE_S)).topics] == ["hello"]

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


def test_exceptions_keep_their_types(config: Config, tmp_path: Path) -> None:
    async def program() -> None:
        with pytest.raises(ConfigError, match="expected several"):
            await dafka.asyncio.open_consumer("hello", config)
        async with dafka.asyncio.open_producer("hello", config) as producer:
            with pytest.raises(RecordError, match="encode it first"):
                await producer.send("text")  # type: ignore[arg-type]
        with pytest.raises(trio.ClosedResourceError, match="this producer is closed"):
            await producer.send(b"late")
        await producer.aclose()
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
            async with asyncio.timeout(0.5), dafka.asyncio.open_producer("hello", long) as producer:
                left.append(producer)
                await producer.send(b"1")  # the time is over while the block is left

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
