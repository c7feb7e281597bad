"""Nodes with keys: which ones connect, which are disconnected, what they may send, and which events report it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from dafka import Config, Partition, RecordBatch, wire
from dafka.config import DialectName
from dafka.discovery import Advertisement, open_discovery
from dafka.protocol import PeerNotAuthorized, RefusedByPeer
from dafka.protocol.presence.identity import WRONG_SENDER
from dafka.records import new_address
from dafka.testing import open_cluster
from dafka.transport import Mesh, open_mesh, open_security
from tests.roles.closed_cluster import Keys
from tests.roles.helpers import DEADLINE_S, assert_run, contents, open_store, receive, receive_partition, wait_event
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


async def test_a_node_of_unknown_address_cannot_take_the_receivers(keys: Keys) -> None:
    async with open_cluster(keys.config("tower"), storage=None) as cluster, trio.open_nursery() as nursery:
        mesh = await nursery.start(open_insider, keys, cluster.config, new_address())
        discovery = f"static:tcp://127.0.0.1:{mesh.port} {keys.pairs['other'].public}"
        async with open_store(keys.config("store", cluster.config.with_node(discovery=discovery))) as store:
            await publish(mesh, wire.Head(store.address, "t", 1000))
            await wait_until(lambda: store.statistics().discarded.get(WRONG_SENDER) == 1)
        nursery.cancel_scope.cancel()
