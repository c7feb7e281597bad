"""Nodes with keys: which ones connect, which are disconnected, what they may send, and which events report it."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio

from dafka import Config, NodeConfig, Partition, RecordBatch, open_producer, wire
from dafka.config import DialectName
from dafka.discovery import Advertisement, open_discovery
from dafka.errors import ConfigError, DiscoveryError
from dafka.protocol import PeerNotAuthorized, PeerRefused, RefusedByPeer
from dafka.protocol.presence.identity import WRONG_SENDER
from dafka.records import new_address
from dafka.testing import open_cluster
from dafka.transport import Mesh, open_mesh, open_security
from tests.roles.closed_cluster import Keys
from tests.roles.helpers import (
    DEADLINE_S,
    assert_run,
    check_leaves_nothing,
    contents,
    open_store,
    receive,
    receive_partition,
    wait_event,
)
from tests.waiting import wait_until

NAMES = ("producer", "consumer", "store", "other")


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path, *NAMES)


@pytest.mark.parametrize("dialect", ["rfc46", "libdafka"])
async def test_records_reach_store_and_consumer(keys: Keys, dialect: DialectName) -> None:
    base = Config().with_node(wire=dialect)
    async with (
        open_cluster(keys.config("tower", base), storage=None) as cluster,
        open_store(keys.config("store", cluster.config)) as store,
    ):
        async with (
            cluster.consumer(["t"], keys.config("consumer", cluster.config)) as live,
            cluster.producer("t", keys.config("producer", cluster.config)) as producer,
        ):
            await producer.send_many(contents(0, 5000))
            await producer.wait_stored()
            assert_run((await receive(live, 5000))[producer.partition], 0, 5000)
            assert producer.statistics().discarded == {}
        late = keys.config("other", cluster.config).with_consumer(offset_reset="earliest")
        async with cluster.consumer(["t"], late) as consumer:
            await receive_partition(consumer, 0, 5000)
        # The live consumer may have asked the store for records before the store had them.
        assert store.statistics().discarded.keys() <= {"beyond the head"}


async def test_nodes_may_share_a_key(keys: Keys) -> None:
    async with (
        open_cluster(keys.config("tower")) as cluster,
        cluster.producer("t") as one,
        cluster.producer("t") as two,
        cluster.consumer(["t"], cluster.config.with_consumer(offset_reset="earliest")) as consumer,
    ):
        for producer in (one, two):
            await producer.send_many(contents(0, 100))
        received = await receive(consumer, 200)
        assert set(received) == {one.partition, two.partition}


async def test_two_closed_clusters_in_one_process_do_not_mix(tmp_path: Path) -> None:
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
    one, two = (Keys(folder, "node") for folder in folders)
    async with open_cluster(one.config("tower")) as first, open_cluster(two.config("tower")) as second:
        async with first.producer("t", one.config("node", first.config)) as producer:
            await producer.send_many(contents(0, 10))
            await producer.wait_stored()
        outsider = two.config("node", first.config).with_security(tower_keys=(one.pairs["tower"].public,))
        outsider = outsider.with_consumer(offset_reset="earliest")
        async with second.consumer(["t"], outsider) as consumer:
            refused = await wait_event(consumer.events, RefusedByPeer)
            assert refused.reason == "key not authorized"
            assert consumer.statistics().peers == 0


async def test_a_refused_node_is_notified_and_connects_once_authorized(
    keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    keys.authorize("tower", "store", "producer")
    async with open_cluster(keys.config("tower"), storage=None) as cluster:
        async with (
            open_store(keys.config("store", cluster.config)),
            cluster.producer("t", keys.config("producer", cluster.config)) as producer,
        ):
            await producer.send_many(contents(0, 10))
            late = keys.config("other", cluster.config).with_consumer(offset_reset="earliest")
            async with cluster.consumer(["t"], late) as consumer:
                refused = await wait_event(consumer.events, RefusedByPeer)
                public = keys.pairs["other"].public
                assert (refused.own_key, refused.reason) == (public, "key not authorized")
                assert "its key is not authorized there" in str(refused)
                assert f"Refused 127.0.0.1: its public key {public} is not authorized here" in caplog.text
                keys.authorize("tower", "store", "producer", "other")
                await receive_partition(consumer, 0, 10)
        secrets = [pair.secret for pair in keys.pairs.values()]
        assert not any(secret in caplog.text for secret in secrets)


async def test_a_node_that_is_no_longer_authorized_is_disconnected(keys: Keys) -> None:
    async with (
        open_cluster(keys.config("tower"), storage=None) as cluster,
        cluster.producer("t", keys.config("producer", cluster.config.with_producer(min_stores=0))) as producer,
        cluster.consumer(
            ["t"], keys.config("consumer", cluster.config).with_consumer(offset_reset="earliest")
        ) as staying,
        cluster.consumer(["t"], keys.config("other", cluster.config).with_consumer(offset_reset="earliest")) as leaving,
    ):
        await producer.send_many(contents(0, 10))
        await receive(staying, 10)
        await receive(leaving, 10)
        keys.authorize("tower", "producer", "consumer", "store")
        await wait_event(producer.events, PeerNotAuthorized)
        await wait_event(producer.events, PeerRefused)
        await producer.send_many(contents(10, 20))
        await receive(staying, 10)
        assert leaving.statistics().records == 10
        assert leaving.statistics().lag == {}


async def test_a_node_does_not_connect_to_a_peer_whose_key_it_does_not_authorize(keys: Keys, tmp_path: Path) -> None:
    """The tower may authorize a key that a node does not."""
    own_list = tmp_path / "own"
    own_list.write_text(f"{keys.pairs['tower'].public}\n")
    async with open_cluster(keys.config("tower"), storage=None) as cluster:
        picky = keys.config("consumer", cluster.config).with_security(authorized_keys=str(own_list))
        picky = picky.with_consumer(offset_reset="earliest")
        async with (
            cluster.producer("t", keys.config("producer", cluster.config.with_producer(min_stores=0))) as producer,
            cluster.consumer(["t"], picky) as consumer,
        ):
            await producer.send_many(contents(0, 10))
            barred = await wait_event(consumer.events, PeerNotAuthorized)
            assert barred.key == keys.pairs["producer"].public
            refused = await wait_event(producer.events, RefusedByPeer)
            assert refused.reason == "key not authorized"
            own_list.write_text("".join(f"{keys.pairs[name].public}\n" for name in ("tower", "producer")))
            await receive_partition(consumer, 0, 10)


async def open_insider(keys: Keys, config: Config, address: str, task_status: trio.TaskStatus[Mesh]) -> None:
    """Open an authorized node that sends arbitrary messages, under an address of its choice."""
    config = keys.config("other", config).with_node(record_batches="off")
    async with open_mesh(config.node, 0, open_security(config)) as mesh, trio.open_nursery() as nursery:
        await nursery.start(open_discovery(config).run, Advertisement(address, "127.0.0.1", mesh.port), lambda _: None)
        task_status.started(mesh)
        await trio.sleep_forever()


async def publish(mesh: Mesh, *messages: wire.BatchedMessage) -> None:
    """Publish messages once each has a subscriber."""
    missing = {
        frames[0][:1] for frames in wire.BatchEncoder(wire.Dialect.RFC46).encode(messages) if isinstance(frames, list)
    }
    missing = {b"\x01" + command for command in missing}
    with trio.fail_after(DEADLINE_S):
        while missing:
            missing -= {frames[0][:2] for frames in await mesh.publisher.receive_many()}
    mesh.publisher.send_many(wire.BatchEncoder(wire.Dialect.RFC46).encode(messages))


async def test_records_and_acks_under_another_nodes_address_are_discarded(keys: Keys) -> None:
    async with open_cluster(keys.config("tower"), storage=None) as cluster, trio.open_nursery() as nursery:
        async with (
            open_store(keys.config("store", cluster.config)) as store,
            cluster.producer("t", keys.config("producer", cluster.config)) as producer,
        ):
            await producer.send_many(contents(0, 10))
            await producer.wait_stored()
            victim = producer.partition
            own = Partition("t", new_address())
            mesh = await nursery.start(open_insider, keys, cluster.config, own.address)
            await publish(
                mesh,
                wire.Head(victim.address, "t", 1000),
                wire.Ack(victim.address, "t", 9, store.address),
                wire.RecordRun(RecordBatch(victim, 10, [b"forged", b"forged"])),
                wire.RecordRun(RecordBatch(own, 0, [b"own"])),
            )
            await wait_until(lambda: store.statistics().records_stored == 11)
            assert store.statistics().discarded[WRONG_SENDER] == 3
            assert store.statistics().lag == {}
            await wait_until(lambda: producer.statistics().discarded.get(WRONG_SENDER) == 1)
            await producer.send_many(contents(10, 20))
            await producer.wait_stored()
            assert store.statistics().records_stored == 21
        nursery.cancel_scope.cancel()


async def test_an_address_belongs_to_the_first_key_that_uses_it(keys: Keys) -> None:
    async with open_cluster(keys.config("tower"), storage=None) as cluster, trio.open_nursery() as nursery:
        async with (
            open_store(keys.config("store", cluster.config)) as store,
            cluster.producer("t", keys.config("producer", cluster.config)) as producer,
        ):
            await producer.send(b"0")
            await producer.wait_stored()
            before = cluster.tower.statistics().discarded
            await nursery.start(open_insider, keys, cluster.config, producer.partition.address)
            await wait_until(lambda: cluster.tower.statistics().discarded > before)
            assert store.statistics().peers == 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_node_with_a_wrong_tower_key_reports_the_refusal(keys: Keys, is_known: bool) -> None:
    wrong = keys.pairs["other"] if is_known else keys.add("unauthorized")
    async with open_cluster(keys.config("tower"), storage=None) as cluster:
        config = keys.config("consumer", cluster.config).with_security(tower_keys=(wrong.public,))
        async with cluster.consumer(["t"], config) as consumer:
            refused = await wait_event(consumer.events, RefusedByPeer)
            assert "it may have another public key than the expected one" in str(refused)


async def test_a_node_without_a_key_reports_the_refusal(keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    async with open_cluster(keys.config("tower"), storage=None) as cluster:
        plain = Config(node=cluster.config.node, beacon=cluster.config.beacon)
        async with cluster.consumer(["t"], plain) as consumer:
            refused = await wait_event(consumer.events, RefusedByPeer)
            assert "it requires a key" in str(refused)
            await wait_until(lambda: "Refused a connection without a key" in caplog.text)


async def test_a_node_with_a_key_reports_a_tower_without_one(keys: Keys) -> None:
    async with (
        open_cluster(storage=None) as cluster,
        cluster.consumer(["t"], keys.config("consumer", cluster.config)) as consumer,
    ):
        refused = await wait_event(consumer.events, RefusedByPeer)
        # Either side may end the handshake first, and only one of them learns the reason.
        assert refused.reason in ("no key", "unknown")
        assert "only one of the two has a key" in str(attrs.evolve(refused, reason="no key"))


async def test_nodes_find_each_other_by_static_discovery(keys: Keys) -> None:
    async with open_mesh(NodeConfig(), 0) as one, open_mesh(NodeConfig(), 0) as two:
        endpoints = one.endpoint, two.endpoint
    here, there = (f"{endpoint} {keys.pairs[name].public}" for endpoint, name in zip(endpoints, NAMES, strict=False))
    base = Config()
    producing = keys.config("producer", base.with_node(bind=endpoints[0], discovery=f"static:{there}"))
    storing = keys.config("store", base.with_node(bind=endpoints[1], discovery=f"static:{here}"))
    storing = storing.with_security(key_file=str(keys.folder / "consumer.key"))
    async with open_store(storing) as store, open_producer("t", producing) as producer:
        await producer.send_many(contents(0, 10))
        await producer.wait_stored()
        assert store.statistics().discarded == producer.statistics().discarded == {}


@pytest.mark.parametrize(
    ("discovery", "error"),
    [
        ("static:tcp://127.0.0.1:7001", "expected a space and the node's public key after tcp://127.0.0.1:7001"),
        ("static:tcp://127.0.0.1:7001 rubbish", "expected a space and the node's public key"),
    ],
)
async def test_static_discovery_without_keys_is_refused(keys: Keys, discovery: str, error: str) -> None:
    config = keys.config("other").with_node(discovery=discovery)
    with pytest.raises(DiscoveryError, match=error):
        open_discovery(config)


def test_static_discovery_with_keys_requires_a_key_file(keys: Keys) -> None:
    place = f"static:tcp://127.0.0.1:7001 {keys.pairs['other'].public}"
    with pytest.raises(DiscoveryError, match=r"a key follows tcp://127\.0\.0\.1:7001, but this node has none"):
        open_discovery(Config().with_node(discovery=place))


def test_each_tower_requires_a_key(keys: Keys) -> None:
    config = keys.config("other").with_beacon(tower_sub=("tcp://a:1", "tcp://b:1", "tcp://c:1"))
    open_discovery(config)
    with pytest.raises(ConfigError, match="expected one key for all towers, or 3, one for each, not 2"):
        open_discovery(config.with_security(tower_keys=(keys.pairs["tower"].public,) * 2))
    with pytest.raises(ConfigError, match="expected the tower's public key, not none"):
        open_discovery(config.with_security(tower_keys=()))


async def test_a_closed_cluster_releases_its_files(keys: Keys) -> None:
    async def cycle() -> None:
        async with open_cluster(keys.config("tower")) as cluster:
            refused_config = cluster.config.with_security(key_file=str(keys.folder / "unauthorized.key"))
            async with (
                cluster.producer("t", keys.config("producer", cluster.config)) as producer,
                cluster.consumer(["t"], refused_config) as refused,
            ):
                await producer.send(b"0")
                await producer.wait_stored()
                await wait_event(refused.events, RefusedByPeer)

    keys.add("unauthorized")
    await check_leaves_nothing(cycle)
