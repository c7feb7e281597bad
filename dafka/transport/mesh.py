"""The two sockets by which a node stands in the mesh (RFC 46, "Interconnection Model").

An XPUB that others connect to, which also tells who subscribed to what; and a SUB that is connected to the others'.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import zmq

from dafka.config import NodeConfig
from dafka.transport.socket import RunSocket, Socket, read_handshake

SLACK_S = 2.0
"""Seconds beyond the linger that closing waits before it leaves libzmq's threads to finish by themselves."""

SUBSCRIPTION_BYTES_MAX = 4096
"""A publisher hears subscriptions alone: a command and a topic. A peer that sends more is disconnected."""


class Mesh:
    """Attributes:
    publisher: the XPUB socket.
    subscriber: the SUB socket.
    endpoint: where the publisher listens, with its port.
    """

    def __init__(self, publisher: Socket, subscriber: RunSocket, handshakes: Socket, endpoint: str) -> None:
        self.publisher = publisher
        self.subscriber = subscriber
        self.endpoint = endpoint
        self._handshakes = handshakes

    async def receive_connections(self) -> list[str]:
        """Waits until connections of the subscriber are made; gives the endpoints. Each comes again after a loss."""
        return [read_handshake(frames) for frames in await self._handshakes.receive_many()]

    @property
    def port(self) -> int:
        """The publisher's TCP port."""
        return int(self.endpoint.rpartition(":")[2])


@asynccontextmanager
async def open_context(linger_ms: int) -> AsyncIterator[zmq.Context[zmq.Socket[bytes]]]:
    """A ZeroMQ context of its own, whose threads are gone when the block is left.

    Sockets made from it must be closed inside the block.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield context
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + linger_ms / 1000 + SLACK_S):
            await trio.to_thread.run_sync(context.term, abandon_on_cancel=True)


@asynccontextmanager
async def open_mesh(config: NodeConfig, high_watermark: int) -> AsyncIterator[Mesh]:
    """Binds a node's publisher and makes its subscriber; both are closed when the block is left.

    Raises `AddressInUseError` where the publisher cannot listen at the configured endpoint.
    """
    async with open_context(config.linger_ms) as context:
        publisher = Socket(context.socket(zmq.SocketType.XPUB))
        subscriber = RunSocket(context.socket(zmq.SocketType.SUB))
        handshakes = subscriber.monitor_handshakes()
        try:
            publisher.set_options(sndhwm=high_watermark, xpub_verbose=1, maxmsgsize=SUBSCRIPTION_BYTES_MAX)
            subscriber.set_options(rcvhwm=high_watermark, maxmsgsize=config.message_bytes_max)
            endpoint = publisher.bind(config.bind)
            yield Mesh(publisher, subscriber, handshakes, endpoint)
        finally:
            subscriber.close(0)
            handshakes.close(0)
            publisher.close(config.linger_ms)
