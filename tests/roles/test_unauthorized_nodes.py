"""Nodes without an authorized key receive nothing from a closed cluster, at any socket of any role."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import zmq

from dafka import Config, Partition, RecordBatch, wire
from dafka.discovery import Advertisement, open_discovery
from dafka.protocol import RefusedByPeer
from dafka.protocol.presence.identity import WRONG_SENDER
from dafka.records import new_address
from dafka.testing import Cluster, open_cluster
from dafka.transport import KeyPair, Mesh, open_context, open_mesh, open_security
from dafka.wire import NodeBeacon
from tests.roles.closed_cluster import Keys, Tap, open_tap
from tests.roles.helpers import DEADLINE_S, contents, open_store, receive_partition, wait_event
from tests.waiting import wait_until

TOPIC = "salaries-of-the-board"
CONTENT = b"nobody-else-is-to-know-"
ROLES = ("producer", "consumer", "store")
KINDS = ("plain", "unknown key", "wrong server key")


@asynccontextmanager
async def open_busy_cluster(keys: Keys) -> AsyncIterator[tuple[Cluster, dict[str, str]]]:
    """Run a tower and a node of each role, and return their endpoints. The producer publishes without end."""
    async with (
        open_cluster(keys.config("tower"), storage=None) as cluster,
        open_store(keys.config("store", cluster.config)) as store,
        cluster.producer(TOPIC, keys.config("producer", cluster.config)) as producer,
        cluster.consumer([TOPIC], keys.config("consumer", cluster.config)) as consumer,
        trio.open_nursery() as nursery,
    ):

        async def publish() -> None:
            while True:
                await producer.send_many([CONTENT + each for each in contents(0, 10)])
                await trio.sleep(0.01)

        nursery.start_soon(publish)
        with trio.fail_after(DEADLINE_S):
            await consumer.next_batch()
        yield cluster, dict(zip(ROLES, (producer.endpoint, consumer.endpoint, store.endpoint), strict=True))
        # Authorized nodes continue to work.
        seen = producer.statistics().records
        with trio.fail_after(DEADLINE_S):
            while (await consumer.next_batch()).end_sequence <= seen:
                pass
        nursery.cancel_scope.cancel()


def set_keys(socket: zmq.Socket[bytes], kind: str, server: KeyPair) -> None:
    """Give a socket no key, a key that is not authorized, or a wrong server key."""
    if kind != "plain":
        own = KeyPair.generate()
        expected = KeyPair.generate() if kind == "wrong server key" else server
        socket.curve_serverkey = expected.public.encode()
        socket.curve_publickey = own.public.encode()
        socket.curve_secretkey = own.secret.encode()


def assert_nothing_leaks(tap: Tap) -> None:
    for secret in (TOPIC.encode(), CONTENT):
        assert secret not in tap.captured


def has_message(socket: zmq.Socket[bytes]) -> bool:
    return bool(socket.poll(0))


async def listen(context: zmq.Context[zmq.Socket[bytes]], kind: str, server: KeyPair, endpoint: str) -> None:
    """Subscribe to everything through a relay, until the connection is refused or accepted."""
    async with open_tap(endpoint) as tap:
        with context.socket(zmq.SocketType.SUB) as socket:
            set_keys(socket, kind, server)
            socket.subscribe(b"")
            socket.connect(tap.endpoint)
            await wait_until(lambda: tap.ended > 0 or has_message(socket))
            assert not has_message(socket)
        assert tap.received
        assert_nothing_leaks(tap)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_node_without_an_authorized_key_receives_nothing_and_is_not_introduced(
    kind: str, tmp_path: Path
) -> None:
    keys = Keys(tmp_path, *ROLES)
    async with open_context(0) as context, open_busy_cluster(keys) as (cluster, endpoints):
        async with trio.open_nursery() as nursery:
            for role, endpoint in endpoints.items():
                nursery.start_soon(listen, context, kind, keys.pairs[role], endpoint)
            nursery.start_soon(listen, context, kind, keys.pairs["tower"], cluster.tower.pub_endpoint)
        async with open_tap(cluster.tower.sub_endpoint) as tap:
            with context.socket(zmq.SocketType.XPUB) as socket:
                set_keys(socket, kind, keys.pairs["tower"])
                socket.connect(tap.endpoint)
                await wait_until(lambda: tap.ended > 0 or has_message(socket))
                assert not has_message(socket)
                socket.send_multipart(NodeBeacon(new_address(), "127.0.0.1", 9).encode())
            assert_nothing_leaks(tap)
        assert cluster.tower.statistics().nodes == len(ROLES)


# Nodes with keys: which ones connect, which are disconnected, what they may send, and which events report it

NAMES = ("producer", "consumer", "store", "other")


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path, *NAMES)


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
