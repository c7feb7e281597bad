from __future__ import annotations

import pytest
import trio
import trio.testing

from dafka import Config, Partition, RecordBatch
from dafka.errors import ConfigError, DiscoveryError, UnansweredError
from dafka.protocol import TowersHeard
from dafka.roles import Reader, open_reader
from dafka.testing import open_cluster
from tests.roles.helpers import DEADLINE_S, assert_run, contents, open_store, wait_event
from tests.waiting import wait_until

ABSENT = Partition("orders", "ABSENT")


async def read(reader: Reader, partition: Partition, first: int, end: int) -> None:
    """Read a range, and check that it is complete."""
    records = reader.read(partition, first, end)
    with trio.fail_after(DEADLINE_S):
        batches = [batch async for batch in records]
    records.close()
    assert_run(batches, first, end)


async def test_records_that_no_store_has_are_not_reported() -> None:
    async with open_cluster(storage=None) as cluster, cluster.producer("orders") as producer:
        await producer.send_many(contents(0, 10))
        async with open_reader(["orders"], cluster.config) as reader:
            impatient = cluster.config.with_node(tower_timeout_ms=300)
            async with open_reader(["orders"], impatient) as other:
                await other.wait_settled()
                with pytest.raises(DiscoveryError, match=r"no store was found within 0\.3 s through the tower at"):
                    await other.wait_ready()
            assert reader.ends() == {}
            async with open_store(cluster.config):
                await wait_until(lambda: reader.ends() == {producer.partition: 10})


async def test_ranges_of_a_partition_whose_producer_is_gone() -> None:
    async with open_cluster() as cluster:
        async with cluster.producer("orders") as producer:
            await producer.send_many(contents(0, 50_000))
        async with open_reader(config=cluster.config) as reader:
            await read(reader, producer.partition, 0, 50_000)
            await read(reader, producer.partition, 777, 778)
            reader.read(ABSENT, 0, 1)
            with pytest.raises(ValueError, match="is being read already"):
                reader.read(ABSENT, 0, 1)
            assert await reader.earliest([producer.partition], DEADLINE_S) == {producer.partition: 0}
            left = reader.read(producer.partition, 0, 1)
    left._runs = iter([RecordBatch(producer.partition, 0, [b"0"])])
    with pytest.raises(trio.ClosedResourceError):
        await left.next_batch()


async def test_the_store_that_holds_most_counts_once_there_are_as_many_as_required() -> None:
    async with (
        open_cluster() as cluster,
        cluster.producer("orders") as producer,
        open_reader(config=cluster.config) as reader,
    ):
        await producer.send_many(contents(0, 100))
        await producer.wait_stored()
        with pytest.raises(UnansweredError, match=r"^1 of 2 stores found within 0\.2 s$") as caught:
            await reader.held_end(producer.partition, 0.2, min_stores=2)
        assert (caught.value.lacking, caught.value.stores) == ("stores", 1)
        async with open_store(cluster.config):
            assert await reader.held_end(producer.partition, DEADLINE_S, min_stores=2) == 100


async def test_a_partition_that_goes_on_growing() -> None:
    async with open_cluster() as cluster, cluster.producer("orders") as producer, trio.open_nursery() as nursery:

        async def go_on() -> None:
            while True:
                await producer.send(b"more")
                await trio.sleep(0.05)

        await producer.send(b"first")
        await producer.wait_stored()
        nursery.start_soon(go_on)
        async with open_reader(config=cluster.config) as reader:
            with pytest.raises(
                UnansweredError, match=r"records of .* are still being added: the stores were not quiet within 1\.5 s"
            ) as caught:
                await reader.held_end(producer.partition, 1.5)
        assert caught.value.lacking == "quiet"
        nursery.cancel_scope.cancel()


async def test_one_question_about_a_partition_at_a_time() -> None:
    async with open_cluster(storage=None) as cluster, open_reader(config=cluster.config) as reader:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.held_end, ABSENT, DEADLINE_S)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(ValueError, match="is being queried already"):
                await reader.held_end(ABSENT, DEADLINE_S)
            nursery.cancel_scope.cancel()
        with pytest.raises(UnansweredError, match=r"0 of 1 store found within 0\.01 s"):
            await reader.held_end(ABSENT, 0.01)


async def test_without_a_tower() -> None:
    config = Config().with_beacon(tower_sub=("tcp://127.0.0.1:2",), tower_pub=("tcp://127.0.0.1:1",))
    async with open_reader(["orders"], config.with_node(tower_timeout_ms=100)) as reader:
        with pytest.raises(DiscoveryError, match=r"no tower answered at tcp://127\.0\.0\.1:1 within 0\.1 s"):
            await reader.wait_ready()
        with pytest.raises(DiscoveryError, match=r"start one with `dafka up`, or name another$"):
            await reader.held_end(ABSENT, DEADLINE_S)


async def test_a_tower_that_does_not_hear() -> None:
    async with open_cluster() as cluster:
        deaf = cluster.config.with_beacon(tower_sub=("tcp://127.0.0.1:2",))
        async with open_reader(["orders"], deaf.with_node(tower_timeout_ms=300)) as reader:
            await wait_event(reader.events, TowersHeard)
            with pytest.raises(DiscoveryError, match=r"is heard, but what is sent to tcp://127\.0\.0\.1:2 did"):
                await reader.wait_ready()


async def test_an_invalid_topic_is_refused_by_the_reader() -> None:
    with pytest.raises(ConfigError, match="topic: expected at least one character"):
        async with open_reader([""]):
            pass


async def test_a_question_that_outlives_the_block() -> None:
    asking = trio.Event()

    async def ask(reader: Reader) -> None:
        asking.set()
        with pytest.raises(trio.ClosedResourceError):
            await reader.held_end(ABSENT, DEADLINE_S)

    async with (
        open_cluster(storage=None) as cluster,
        trio.open_nursery() as nursery,
        open_reader(config=cluster.config) as reader,
    ):
        nursery.start_soon(ask, reader)
        await asking.wait()
        await trio.testing.wait_all_tasks_blocked()
