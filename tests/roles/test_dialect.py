"""Nodes with default settings beside a scripted store of libdafka, which requests in RFC 46's dialect end."""

from __future__ import annotations

import trio

from dafka import Config, Partition, open_consumer, open_observer, open_producer, serve_store, wire
from dafka.endpoints import PeerEndpoint
from dafka.events import DialectAdopted, ForeignDialect
from dafka.protocol import Event
from dafka.roles.events import EventFeed
from dafka.roles.sockets import open_sockets
from dafka.testing import open_cluster
from dafka.transport import open_mesh
from dafka.wire import Dialect, Role, codec
from dafka.wire.batch import iter_frames
from tests.roles.helpers import DEADLINE_S, contents, open_store, receive_partition, wait_event
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


async def test_stores_still_count_one_by_one_for_a_producer_beside_libdafka() -> None:
    async with open_cluster(FAST) as cluster, open_store(cluster.config), open_libdafka_store(cluster.config):
        config = cluster.config.with_producer(min_stores=3)
        async with open_producer("hello", config) as producer:
            await producer.send_many(contents(0, 10))
            assert await wait_event(producer.events, DialectAdopted) == ADOPTED
            await producer.send_many(contents(10, 20))
            with trio.fail_after(DEADLINE_S):
                await producer.wait_stored()


async def test_without_libdafka_every_message_is_rfc46_s() -> None:
    """A witness that subscribes to everything hears no other dialect from any role."""
    heard: list[wire.Message] = []
    dialects = set()
    async with open_cluster(FAST) as cluster, open_store(cluster.config), open_mesh(cluster.config.node, 0) as mesh:
        mesh.subscriber.subscribe(b"")
        assert cluster.store is not None

        async def witness() -> None:
            while True:
                items, _ = await mesh.subscriber.receive()
                for frames in iter_frames(items):
                    message, dialect = codec.decode(frames)
                    heard.append(message)
                    dialects.add(dialect)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(witness)
            earliest = cluster.config.with_consumer(offset_reset="earliest")
            async with cluster.producer("hello") as producer, cluster.consumer(["hello"], earliest) as consumer:
                for node in (producer, consumer, cluster.store):
                    mesh.subscriber.connect_peer(PeerEndpoint(node.endpoint))
                await producer.send_many(contents(0, 100))
                await receive_partition(consumer, 0, 100)
                async with open_observer(config=cluster.config) as observer:
                    mesh.subscriber.connect_peer(PeerEndpoint(observer.endpoint))
                    await observer.wait_settled()
                    await observer.survey(DEADLINE_S)
                await wait_until(lambda: {wire.Ack, wire.Head} <= set(map(type, heard)))
            nursery.cancel_scope.cancel()
    assert dialects == {Dialect.RFC46}


async def test_a_subscription_that_waits_counts_before_a_request_is_sent() -> None:
    config = Config()
    async with (
        open_sockets("ME", config, Role.CONSUMER, 0) as sockets,
        open_mesh(config.node, 0) as reader,
    ):
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


async def test_a_store_catches_up_from_a_libdafka_store_and_keeps_it_alive() -> None:
    async with (
        open_cluster(FAST, storage=None) as cluster,
        open_libdafka_store(cluster.config, made_store(5000)) as store,
        trio.open_nursery() as nursery,
    ):
        ours = await nursery.start(serve_store, cluster.config.with_store(storage="memory:"))
        await wait_until(lambda: ours.statistics().records_stored == 5000)
        assert store.unreadable == []
        nursery.cancel_scope.cancel()


async def test_a_lagging_libdafka_store_gets_the_rest_of_a_producer_that_has_left_erratum_32() -> None:
    async with open_cluster(FAST) as cluster:
        async with cluster.producer("hello") as producer:
            await producer.send_many(contents(0, 500))
            await producer.wait_stored()
        lagging = LibdafkaStore(records={producer.partition: contents(0, 100)})
        async with open_libdafka_store(cluster.config, lagging):
            await wait_until(lambda: lagging.records[producer.partition] == contents(0, 500))
            assert lagging.unreadable == []
