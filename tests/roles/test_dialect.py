"""Nodes with default settings beside a scripted store of libdafka, which requests in RFC 46's dialect end."""

from __future__ import annotations

import pytest
import trio

from dafka import Config, Partition, open_consumer, open_observer, open_producer, wire
from dafka.endpoints import PeerEndpoint
from dafka.events import DialectAdopted, ForeignDialect
from dafka.protocol import Event
from dafka.protocol.machines import producer as producer_machine
from dafka.roles.events import EventFeed
from dafka.roles.sockets import open_sockets
from dafka.testing import open_cluster
from dafka.transport import open_mesh
from dafka.wire import Dialect, Role, codec
from dafka.wire.batch import iter_frames
from tests.roles.helpers import DEADLINE_S, contents, receive_partition, wait_event
from tests.roles.libdafka_consumer import LibdafkaConsumer, open_libdafka_consumer
from tests.roles.libdafka_store import READER, LibdafkaStore, open_libdafka_store
from tests.waiting import wait_until

FAST = Config().with_beacon(interval_ms=100)
GONE = Partition("hello", "GONE")
ADOPTED = DialectAdopted("libdafka")


def made_store(count: int) -> LibdafkaStore:
    """Return a store with records of a producer that has left."""
    return LibdafkaStore(records={GONE: contents(0, count)})


def events_so_far(feed: EventFeed) -> list[Event]:
    return list(feed._events)


async def test_a_consumer_and_an_observer_do_not_end_a_libdafka_store_erratum_30() -> None:
    async with (
        open_cluster(FAST, storage=None) as cluster,
        open_libdafka_store(cluster.config, made_store(300)) as store,
    ):
        async with open_observer(config=cluster.config) as observer:
            with trio.fail_after(DEADLINE_S):
                await observer.wait_settled()
                survey = await observer.survey(DEADLINE_S)
        (partition,) = survey.partitions
        assert (partition.partition, partition.end_sequence, partition.lag) == (GONE, 300, 0)
        assert list(survey.faults(0)) == []
        earliest = cluster.config.with_consumer(offset_reset="earliest")
        async with open_consumer(["hello"], earliest) as consumer:
            await receive_partition(consumer, 0, 300)
            assert await wait_event(consumer.events, DialectAdopted) == ADOPTED
            assert ForeignDialect not in map(type, events_so_far(consumer.events))
        assert store.unreadable == []
        assert {type(each) for each in store.requests} == {wire.GetHeads, wire.ConsumerHello, wire.Fetch}


async def test_a_libdafka_store_that_joins_later_is_not_ended_erratum_30() -> None:
    async with (
        open_cluster(FAST) as cluster,
        cluster.producer("orders") as producer,
        cluster.consumer(["orders", "hello"], cluster.config.with_consumer(offset_reset="earliest")) as consumer,
    ):
        assert cluster.store is not None
        await producer.send_many(contents(0, 100))
        await producer.wait_stored()
        await receive_partition(consumer, 0, 100)
        feeds = (cluster.store.events, producer.events, consumer.events)
        assert DialectAdopted not in {type(event) for feed in feeds for event in events_so_far(feed)}
        async with open_libdafka_store(cluster.config, made_store(50)) as store:
            await receive_partition(consumer, 0, 50)
            await producer.send_many(contents(100, 200))
            await producer.wait_stored()
            # The store's writing half has missed records, and understands the producer's heads.
            await wait_until(lambda: len(store.records.get(producer.partition, [])) == 200)
            await wait_until(lambda: cluster.store.statistics().records_stored == 250)  # type: ignore[union-attr]
            for feed in feeds:
                assert await wait_event(feed, DialectAdopted) == ADOPTED
            assert store.unreadable == []
            assert store.records[producer.partition] == contents(0, 200)


async def test_a_subscription_that_waits_counts_before_a_request_is_sent() -> None:
    config = Config()
    async with open_sockets("ME", config, Role.CONSUMER, 0) as sockets, open_mesh(config.node, 0) as reader:
        for prefix in READER:
            reader.subscriber.subscribe(prefix.replace(b"*", b"READER"))
        reader.subscriber.connect_peer(PeerEndpoint(sockets.endpoint))
        request = wire.GetHeads("hello", "ME")
        with trio.fail_after(DEADLINE_S):
            # No task reads the subscriptions of this node; it publishes until one has come.
            while not sockets._early_subscriptions:
                sockets.publish([request])
                await trio.sleep(0.001)
            sockets.publish([request])
            items, _ = await reader.subscriber.receive()
        assert {codec.decode(frames)[1] for frames in iter_frames(items)} == {Dialect.LIBDAFKA}


# A producer among nodes of libdafka leaves when their consumers have everything (erratum 17)

COUNT = 200
PRODUCERS = 3
SECOND_S = 0.3
"""How long the second is in which the scripted consumer asks once for a page."""


async def test_a_libdafka_consumer_that_is_behind_gets_everything_of_producers_that_leave_erratum_17(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_machine, "LEAVING_HEAD_S", SECOND_S)
    consumer = LibdafkaConsumer("hello", second_s=SECOND_S, page=50)
    async with (
        open_cluster(Config().with_beacon(interval_ms=100), storage=None) as cluster,
        open_libdafka_store(cluster.config) as store,
        trio.open_nursery() as nursery,
    ):
        has_begun = trio.Event()

        async def publish() -> None:
            async with open_producer("hello", cluster.config) as producer:
                await producer.send_many(contents(0, COUNT))
                await producer.wait_stored()
                await has_begun.wait()

        for _ in range(PRODUCERS):
            nursery.start_soon(publish)
        await wait_until(lambda: [len(each) for each in store.records.values()] == [COUNT] * PRODUCERS)
        async with open_libdafka_consumer(cluster.config, consumer):
            await wait_until(lambda: len(consumer.records) == PRODUCERS)
            has_begun.set()
            await wait_until(lambda: [len(each) for each in consumer.records.values()] == [COUNT] * PRODUCERS)
            assert [*consumer.records.values()] == [contents(0, COUNT)] * PRODUCERS
            nursery.cancel_scope.cancel()
