"""Who subscribes to too much at a publisher is end_connection off, alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
import trio.lowlevel
import zmq

from dafka.config import NodeConfig
from dafka.transport import Mesh, open_mesh
from dafka.transport.connections import end_connection, find_connection, open_descriptors
from dafka.transport.publisher import NAMES_MAX
from tests.roles.helpers import DEADLINE_S

LIMITS = NodeConfig(bind="tcp://127.0.0.1:*", subscriptions_max=500, subscription_bytes_max=20_000)


@asynccontextmanager
async def open_publisher(config: NodeConfig = LIMITS) -> AsyncIterator[tuple[Mesh, list[bytes]]]:
    """A node's sockets, and the subscriptions that it was told of."""
    told: list[bytes] = []

    async def listen(mesh: Mesh) -> None:
        while True:
            told.extend(message[0] for message in await mesh.publisher.receive_many())

    with trio.fail_after(DEADLINE_S):
        async with open_mesh(config, 1000) as mesh, trio.open_nursery() as nursery:
            nursery.start_soon(listen, mesh)
            yield mesh, told
            nursery.cancel_scope.cancel()


@contextmanager
def open_subscriber(mesh: Mesh, *prefixes: bytes) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.linger = 0
        subscriber.connect(mesh.endpoint)
        for prefix in prefixes:
            subscriber.subscribe(prefix)
        yield subscriber


async def wait(told: list[bytes], frame: bytes) -> None:
    while frame not in told:  # noqa: ASYNC110
        await trio.sleep(0.01)


@pytest.mark.parametrize("prefix", [b"M%d", b"M" + b"x" * 200 + b"%d"], ids=["many", "long"])
async def test_who_subscribes_to_too_much_is_ended_and_others_are_served_on(prefix: bytes) -> None:
    async with open_publisher() as (mesh, told):
        with open_subscriber(mesh, b"Mhonest") as honest:
            await wait(told, b"\1Mhonest")
            with open_subscriber(mesh, *(prefix % number for number in range(2000))):
                while not mesh.publisher.discarded["connection ended: too many subscriptions"]:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                mesh.publisher.send_many([[b"Mhonest", b"served"]])
                while not honest.poll(0):  # noqa: ASYNC110
                    await trio.sleep(0.01)
                assert honest.recv_multipart() == [b"Mhonest", b"served"]
            assert told.count(b"\1Mhonest") == 1


async def test_one_connection_has_few_names() -> None:
    async with open_publisher() as (mesh, told):
        names = [b"E%032X" % number for number in range(NAMES_MAX + 5)]
        with open_subscriber(mesh, *names, b"Hlast"):
            await wait(told, b"\1Hlast")
            assert len([frame for frame in told if frame.startswith(b"\1E")]) == NAMES_MAX
            assert mesh.publisher.discarded == {"too many addresses of one connection": 5}


async def test_of_too_many_connections_those_go_that_have_subscribed_to_nothing() -> None:
    taken = len(open_descriptors())
    limit = max(taken + 20, 30)
    config = NodeConfig(bind="tcp://127.0.0.1:*", connections_max=limit)
    async with open_publisher(config) as (mesh, told):
        with open_subscriber(mesh, b"Mhonest"):
            await wait(told, b"\1Mhonest")
            host, port = mesh.endpoint.removeprefix("tcp://").split(":")
            streams = [await trio.open_tcp_stream(host, int(port)) for _ in range(2 * limit)]
            try:
                while not mesh.publisher.discarded["connection ended: too many connections"]:
                    mesh.publisher.enforce_limits(trio.current_time())
                    await trio.sleep(0.01)
                await trio.lowlevel.checkpoint()
                assert told == [b"\1Mhonest"]
            finally:
                for stream in streams:
                    await stream.aclose()


async def test_a_descriptor_that_has_become_another_connection_is_left_alone() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    one, other = await trio.open_tcp_stream("127.0.0.1", port), await trio.open_tcp_stream("127.0.0.1", port)
    found = find_connection(other.socket.fileno())
    assert found is not None
    assert not end_connection(one.socket.fileno(), found)
    assert end_connection(other.socket.fileno(), found)
    assert await other.receive_some() == b""
    for each in (one, other, *listeners):
        await each.aclose()
    assert find_connection(one.socket.fileno() if one.socket.fileno() >= 0 else 10**6) is None
