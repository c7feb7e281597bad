"""Nodes without an authorized key receive nothing from a closed cluster, at any socket of any role."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import zmq

from dafka import Config
from dafka.records import new_address
from dafka.testing import Cluster, open_cluster
from dafka.transport import KeyPair, open_context
from dafka.wire import NodeBeacon
from tests.roles.closed_cluster import Keys, Tap, open_tap
from tests.roles.helpers import DEADLINE_S, contents, open_store
from tests.waiting import wait_until

TOPIC = "salaries-of-the-board"
CONTENT = b"nobody-else-is-to-know-"
ROLES = ("producer", "consumer", "store")
KINDS = ("plain", "unknown key", "wrong server key")


@asynccontextmanager
async def open_busy_cluster(keys: Keys | None) -> AsyncIterator[tuple[Cluster, dict[str, str]]]:
    """Run a tower and a node of each role, and return their endpoints. The producer publishes without end."""

    def config(name: str, config: Config | None = None) -> Config:
        return keys.config(name, config) if keys is not None else config or Config()

    async with (
        open_cluster(config("tower"), storage=None) as cluster,
        open_store(config("store", cluster.config)) as store,
        cluster.producer(TOPIC, config("producer", cluster.config)) as producer,
        cluster.consumer([TOPIC], config("consumer", cluster.config)) as consumer,
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


@pytest.mark.parametrize("kind", KINDS)
async def test_the_same_nodes_receive_everything_in_a_plain_cluster(kind: str) -> None:
    """Show that the tests above can fail."""
    async with (
        open_context(0) as context,
        open_busy_cluster(None) as (_, endpoints),
        open_tap(endpoints["producer"]) as tap,
    ):
        with context.socket(zmq.SocketType.SUB) as socket:
            set_keys(socket, kind, KeyPair.generate())
            socket.subscribe(b"")
            socket.connect(tap.endpoint)
            await wait_until(lambda: tap.ended > 0 or has_message(socket))
            assert has_message(socket) == (kind == "plain")
        assert (CONTENT in tap.received) == (TOPIC.encode() in tap.received) == (kind == "plain")


async def open_node(cluster: Cluster, role: str, config: Config, task_status: trio.TaskStatus[None]) -> None:
    """Run a node. A producer publishes."""
    if role == "producer":
        async with cluster.producer(TOPIC, config) as producer:
            await producer.send_many([CONTENT])
            task_status.started()
            await trio.sleep_forever()
    elif role == "consumer":
        async with cluster.consumer([TOPIC], config):
            task_status.started()
            await trio.sleep_forever()
    else:
        async with open_store(config):
            task_status.started()
            await trio.sleep_forever()


def make_rogue(context: zmq.Context[zmq.Socket[bytes]], kind: str, type_: zmq.SocketType) -> zmq.Socket[bytes]:
    """Bind a socket with another key, or without one, to impersonate a node or a tower."""
    socket = context.socket(type_)
    if kind != "plain":
        socket.curve_server = 1
        socket.curve_secretkey = KeyPair.generate().secret.encode()
    if type_ == zmq.SocketType.SUB:
        socket.subscribe(b"")
    socket.bind("tcp://127.0.0.1:*")
    return socket


def endpoint_of(socket: zmq.Socket[bytes]) -> str:
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


@pytest.mark.parametrize("kind", ["plain", "wrong server key"])
async def test_nodes_send_nothing_to_an_impostor_at_a_former_nodes_endpoint(kind: str, tmp_path: Path) -> None:
    keys = Keys(tmp_path, *ROLES, "absent")

    async def check(role: str) -> None:
        with make_rogue(context, kind, zmq.SocketType.XPUB) as rogue:
            async with open_tap(endpoint_of(rogue)) as tap, trio.open_nursery() as nursery:
                discovery = f"static:{tap.endpoint} {keys.pairs['absent'].public}"
                config = keys.config(role, cluster.config).with_node(discovery=discovery)
                config = config.with_producer(close_timeout_ms=0, min_stores=0)
                await nursery.start(open_node, cluster, role, config)
                await wait_until(lambda: tap.ended > 0 or has_message(rogue))
                assert not has_message(rogue)
                assert tap.sent
                assert_nothing_leaks(tap)
                nursery.cancel_scope.cancel()

    async with open_context(0) as context, open_busy_cluster(keys) as (cluster, _), trio.open_nursery() as checks:
        for role in ROLES:
            checks.start_soon(check, role)
