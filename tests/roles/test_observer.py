"""The observer with real nodes of both dialects, with keys and without, and its effect on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from dafka import Config, Partition, wire
from dafka.config import DialectName
from dafka.endpoints import PeerEndpoint
from dafka.errors import ConfigError
from dafka.protocol import ClusterSurvey, PartitionView, PeerJoined, PeerLeft
from dafka.protocol.observer.cluster_survey import NodeState
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING
from dafka.records import new_address
from dafka.roles import Observer, open_observer
from dafka.testing import open_cluster
from dafka.wire import codec
from tests.roles.closed_cluster import Keys
from tests.roles.helpers import DEADLINE_S, contents, open_store
from tests.roles.libdafka_store import run_node
from tests.waiting import wait_until

FAST = Config().with_beacon(interval_ms=200)


@attrs.define
class Played:
    """A scripted node, with the subscriptions and messages that it has received from peers."""

    address: str
    ends: dict[Partition, int]
    subscriptions: list[bytes] = attrs.field(factory=list)
    received: list[wire.Message] = attrs.field(factory=list)

    def answer(self, frames: Sequence[bytes]) -> list[wire.Message]:
        """Return the answers of a store."""
        message, _ = codec.decode(frames)
        self.received.append(message)
        if isinstance(message, wire.GetHeads):
            return [
                wire.DirectHead(message.address, partition.address, partition.topic, end - 1)
                for partition, end in self.ends.items()
                if partition.topic == message.subject
            ]
        if isinstance(message, wire.GetTopics):
            topics = sorted({partition.topic for partition in self.ends})
            return [wire.DirectTopics(message.address, self.address, message.after, topics, 0, len(self.ends))]
        if isinstance(message, wire.Fetch):
            fetch = message
            return [wire.DirectEarliest(fetch.address, self.address, fetch.partition, fetch.subject, HOLDS_NOTHING, 0)]
        return []


@asynccontextmanager
async def play_node(
    config: Config, prefixes: list[bytes], ends: dict[Partition, int] | None = None, address: str = ""
) -> AsyncIterator[Played]:
    """Run a node with these subscriptions (`*` is its address) that answers like a store with these records."""
    played = Played(address or new_address(), ends or {})
    async with trio.open_nursery() as nursery:
        await nursery.start(run_node, config, played.address, prefixes, played.answer, played.subscriptions.append)
        yield played
        nursery.cancel_scope.cancel()


OUR_STORE = [b"G", b"F", b"W*", b"T*", b"D*", b"E*", b"Q*"]


async def survey(observer: Observer) -> ClusterSurvey:
    with trio.fail_after(DEADLINE_S):
        await observer.wait_settled()
        return await observer.survey(DEADLINE_S)


def partition(found: ClusterSurvey, wanted: Partition) -> PartitionView:
    return next(each for each in found.partitions if each.partition == wanted)


def lags(found: ClusterSurvey, wanted: Partition) -> dict[str, int | None]:
    return {holder.store: holder.lag for holder in partition(found, wanted).holders}


@pytest.mark.parametrize("dialect", ["rfc46", "libdafka"])
async def test_it_sees_nodes_topics_and_heads(dialect: DialectName) -> None:
    async with (
        open_cluster(FAST.with_node(wire=dialect)) as cluster,
        open_store(cluster.config) as second,
        cluster.consumer(["orders", "wanted"]) as consumer,
        cluster.producer("orders") as producer,
        cluster.producer("idle") as idle,
    ):
        assert cluster.store is not None
        await producer.send_many(contents(0, 1000))
        await producer.wait_stored()
        for store in (cluster.store, second):
            await wait_until(lambda store=store: store.statistics().records_stored == 1000)  # type: ignore[misc]
        async with open_observer(config=cluster.config) as observer:
            found = await survey(observer)
            assert await observer.list_topics(DEADLINE_S) == ("idle", "orders", "wanted")
        assert list(found.faults(0)) == []
        assert {(each.address, each.roles, each.state) for each in found.nodes} == {
            (cluster.store.address, ("store",), NodeState.UP),
            (second.address, ("store",), NodeState.UP),
            (consumer.address, ("consumer",), NodeState.UP),
            (producer.partition.address, ("producer",), NodeState.UP),
            (idle.partition.address, ("producer",), NodeState.UP),
        }
        assert all(abs(each.last_seen - found.time) < DEADLINE_S for each in found.nodes)
        assert [(each.name, each.partitions, each.is_subscribed) for each in found.topics] == [
            ("idle", 0, False),
            ("orders", 1, True),
            ("wanted", 0, True),
        ]
        (only,) = found.partitions
        assert (only.partition, only.has_producer, only.end_sequence) == (producer.partition, True, 1000)
        assert [(each.end_sequence, each.lag) for each in only.holders] == [(1000, 0), (1000, 0)]


def are_heard(nodes: set[str], played: Played) -> bool:
    """Return whether the subscriptions of all these nodes have arrived: each subscribes to its own address, too."""
    return all(any(address.encode() in each for each in played.subscriptions) for address in nodes)


async def test_an_observer_disturbs_no_node() -> None:
    async with (
        open_cluster(FAST) as cluster,
        cluster.consumer(["orders"]) as consumer,
        cluster.producer("orders") as producer,
        play_node(cluster.config, [b""]) as witness,
        play_node(cluster.config, [*OUR_STORE, b""]) as store,
    ):
        assert cluster.store is not None
        await producer.send_many(contents(0, 100))
        await producer.wait_stored()
        nodes = {consumer.address, producer.address, cluster.store.address}
        await wait_until(lambda: are_heard({*nodes, store.address}, witness))
        await wait_until(lambda: are_heard(nodes, store) and b"\1" in store.subscriptions)
        for played in (witness, store):
            played.subscriptions.clear()
        async with open_observer(config=cluster.config) as observer:
            await survey(observer)
            await survey(observer)
            me = observer.address.encode()
            common = {b"\1H", b"\1T" + me}
            for played, expected in ((witness, common), (store, {*common, b"\1E" + me, b"\1P" + me})):
                await wait_until(partial(expected.issubset, played.subscriptions))
                assert {*played.subscriptions} == expected
        said = [message for message in store.received if getattr(message, "address", "") == observer.address]
        assert {type(message) for message in said} == {wire.GetTopics, wire.GetHeads, wire.Fetch}
        assert {message.partition for message in said if isinstance(message, wire.Fetch)} == {observer.address}
        assert consumer.statistics().discarded == {}
        assert producer.statistics().discarded == {}
        assert cluster.store.statistics().records_stored == 100


async def test_a_store_that_comes_back_elsewhere_is_heard_there() -> None:
    absent = Partition("orders", "ABSENT")
    async with open_cluster(FAST, storage=None) as cluster, open_observer(["orders"], cluster.config) as observer:
        for end in (7, 9):
            async with play_node(cluster.config, OUR_STORE, {absent: end}, address="STORE"):
                with trio.fail_after(DEADLINE_S):
                    while [each.end_sequence for each in (await survey(observer)).partitions] != [end]:
                        pass


async def test_in_a_closed_cluster(tmp_path: Path) -> None:
    keys = Keys(tmp_path, "producer", "store", "operator")
    async with (
        open_cluster(keys.config("tower", FAST), storage=None) as cluster,
        open_store(keys.config("store", cluster.config)) as store,
        cluster.producer("orders", keys.config("producer", cluster.config)) as producer,
    ):
        await producer.send_many(contents(0, 10))
        await producer.wait_stored()
        async with open_observer(config=keys.config("operator", cluster.config)) as observer:
            found = await survey(observer)
            assert lags(found, producer.partition) == {store.address: 0}
            assert [(len(each.sightings), each.state) for each in found.nodes] == [(1, NodeState.UP)] * 2
            assert list(found.faults(0)) == []
            keys.add("stranger")
            async with open_observer(config=keys.config("stranger", cluster.config)) as stranger:
                with trio.fail_after(DEADLINE_S):
                    (tower,) = (await stranger.survey(0.1)).towers
                    while not tower.refusal:
                        (tower,) = (await stranger.survey(0.1)).towers
                assert "its key is not authorized there" in tower.refusal
                found = await stranger.survey(0.1)
                assert (found.nodes, found.topics, found.partitions) == ((), (), ())


@pytest.mark.parametrize(
    ("config", "topics", "expected"),
    [
        (Config().with_node(discovery="static:tcp://127.0.0.1:1"), [], "expected 'tower'"),
        (Config(), [""], "topic: expected at least one character"),
    ],
)
async def test_configurations_that_an_observer_refuses(config: Config, topics: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        async with open_observer(topics, config):
            pass


async def test_an_observer_no_longer_listens_to_a_store_that_has_left() -> None:
    nowhere, address = "tcp://127.0.0.1:9", new_address()
    config = Config().with_node(bind="tcp://127.0.0.1:*").with_beacon(tower_sub=(nowhere,), tower_pub=(nowhere,))
    frames = [b"\1" + prefix.replace(b"*", address.encode()) for prefix in OUR_STORE]
    subscriptions = [each for each in map(wire.decode_subscription, frames) if each is not None]
    async with open_observer((), config) as observer:
        for endpoint in (PeerEndpoint(nowhere), PeerEndpoint("tcp://127.0.0.1:10")):
            observer._node.discovered(PeerJoined(address, endpoint), trio.current_time())
            observer._node.receive_subscriptions(subscriptions, trio.current_time())
            assert {name: peer for name, (peer, _) in observer._listening.items()} == {address: endpoint}
            observer._node.discovered(PeerLeft(address, endpoint), trio.current_time())
            assert observer._listening == {}
