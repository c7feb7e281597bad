"""A peer that subscribes to too much at a publisher is disconnected; the others are not affected."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio
import zmq

from dafka.config import NodeConfig
from dafka.transport import Mesh, open_mesh
from tests.waiting import DEADLINE_S

LIMITS = NodeConfig(bind="tcp://127.0.0.1:*", subscriptions_max=500, subscription_bytes_max=20_000)


@asynccontextmanager
async def open_publisher(config: NodeConfig = LIMITS) -> AsyncIterator[tuple[Mesh, list[bytes]]]:
    """Open the sockets of a node; yield them, and the list of the subscriptions that reach it."""
    received: list[bytes] = []

    async def listen(mesh: Mesh) -> None:
        while True:
            received.extend(message[0] for message in await mesh.publisher.receive_many())

    with trio.fail_after(DEADLINE_S):
        async with open_mesh(config, 1000) as mesh, trio.open_nursery() as nursery:
            nursery.start_soon(listen, mesh)
            yield mesh, received
            nursery.cancel_scope.cancel()


@contextmanager
def open_subscriber(mesh: Mesh, *prefixes: bytes) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.linger = 0
        subscriber.connect(mesh.endpoint)
        for prefix in prefixes:
            subscriber.subscribe(prefix)
        yield subscriber


async def wait(received: list[bytes], frame: bytes) -> None:
    while frame not in received:  # noqa: ASYNC110
        await trio.sleep(0.01)


async def test_a_peer_with_too_many_subscriptions_is_disconnected_and_others_are_served() -> None:
    async with open_publisher() as (mesh, received):
        with open_subscriber(mesh, b"Mhonest") as honest:
            await wait(received, b"\1Mhonest")
            with open_subscriber(mesh, *(b"M" + b"x" * 200 + b"%d" % number for number in range(2000))):
                while not mesh.publisher.discarded["connection ended: too many subscriptions"]:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                mesh.publisher.send_many([[b"Mhonest", b"served"]])
                while not honest.poll(0):  # noqa: ASYNC110
                    await trio.sleep(0.01)
                assert honest.recv_multipart() == [b"Mhonest", b"served"]
            assert received.count(b"\1Mhonest") == 1
