"""The two sockets by which a node stands in the mesh (RFC 46, "Interconnection Model").

An XPUB that others connect to, which also tells who subscribed to what; and a SUB that is connected to the others'. In
a closed cluster the first is guarded, and the second is many (`ClosedSubscriber`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

import trio
import zmq

from dafka.config import NodeConfig
from dafka.endpoints import PeerEndpoint
from dafka.protocol import Event
from dafka.transport.publisher import PublisherSocket
from dafka.transport.security import Security
from dafka.transport.subscribers import ClosedSubscriber, Messages, PlainSubscriber
from dafka.transport.zap import open_zap_handler

SLACK_S = 2.0
"""Seconds beyond the linger that closing waits before it leaves libzmq's threads to finish by themselves."""

SOCKETS_MAX = 60_000
"""Of a node in a closed cluster, which has three for each key that it is connected to; libzmq can have 65,535."""

SUBSCRIPTION_BYTES_MAX = 1024
"""A publisher hears subscriptions alone: a command and a topic. A peer that sends more is disconnected."""

RECONNECT_MAX_MS = 2000
"""Whoever does not answer is tried ever more rarely, at last so often."""

HANDSHAKE_MS = 10_000
"""How long a connection may take to become one."""


class Subscriber(Protocol):
    """What is connected to others' publishers.

    Attributes:
        discarded: connections ended, by reason.
    """

    discarded: Counter[str]

    def subscribe(self, prefix: bytes) -> None:
        """Receives messages whose first frame begins with this."""

    def unsubscribe(self, prefix: bytes) -> None:
        """Undoes one `subscribe`."""

    def connect_peer(self, peer: PeerEndpoint) -> None:
        """Connect in the background, and again after every loss.

        Raises `TransportError` if the endpoint is invalid.
        """

    def disconnect_peer(self, peer: PeerEndpoint) -> None:
        """Undo `connect_peer`. Without an earlier `connect_peer`, do nothing."""

    async def receive(self) -> tuple[Messages, PeerEndpoint]:
        """Wait for messages, and return them with the peer that sent them.

        In a closed cluster the peer's key is known, in a plain one its endpoint, and that only while `report_discards`
        has led to a closer look. Both are empty otherwise.
        """

    def report_discards(self, source: PeerEndpoint, count: int) -> None:
        """Report how many of the messages that `receive` returned last had to be discarded."""

    async def watch(self) -> None:
        """Looks after the connections until cancelled."""

    async def receive_connections(self) -> list[PeerEndpoint]:
        """Wait until connections are made, and return their peers. A peer is returned again after each loss."""


class Mesh:
    """Attributes:
    publisher: the XPUB socket.
    subscriber: what is connected to others.
    endpoint: where the publisher listens, with its port.
    """

    def __init__(self, publisher: PublisherSocket, subscriber: Subscriber, endpoint: str) -> None:
        self.publisher = publisher
        self.subscriber = subscriber
        self.endpoint = endpoint

    @property
    def port(self) -> int:
        """The publisher's TCP port."""
        return int(self.endpoint.rpartition(":")[2])


@asynccontextmanager
async def open_context(linger_ms: int, sockets_max: int = 0) -> AsyncIterator[zmq.Context[zmq.Socket[bytes]]]:
    """A ZeroMQ context of its own, whose threads are gone when the block is left.

    Sockets made from it must be closed inside the block. `sockets_max` where libzmq's own limit (1023) may not do.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    if sockets_max:
        context.set(zmq.MAX_SOCKETS, sockets_max)
    try:
        yield context
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + linger_ms / 1000 + SLACK_S):
            await trio.to_thread.run_sync(context.term, abandon_on_cancel=True)


@asynccontextmanager
async def open_mesh(
    config: NodeConfig,
    high_watermark: int,
    security: Security | None = None,
    report: Callable[[Event], None] = lambda _: None,
) -> AsyncIterator[Mesh]:
    """Binds a node's publisher and makes its subscriber; both are closed when the block is left.

    With `security` it is closed to strangers, and `report` is told of them.

    Raises `AddressInUseError` where the publisher cannot listen at the configured endpoint.
    """
    options = {
        "rcvhwm": min(high_watermark or config.receive_messages_max, config.receive_messages_max),
        "maxmsgsize": config.message_bytes_max,
        "reconnect_ivl_max": RECONNECT_MAX_MS,
        "connect_timeout": HANDSHAKE_MS,
        "handshake_ivl": HANDSHAKE_MS,
    }
    async with open_context(config.linger_ms, SOCKETS_MAX if security else 0) as context:
        publisher = PublisherSocket(context.socket(zmq.SocketType.XPUB), config)
        try:
            publisher.set_options(
                sndhwm=high_watermark, xpub_verbose=1, maxmsgsize=SUBSCRIPTION_BYTES_MAX, handshake_ivl=HANDSHAKE_MS
            )
            if security is None:
                with _open_plain(context, options) as plain:
                    yield Mesh(publisher, plain, publisher.bind(config.bind))
            else:
                async with open_zap_handler(context, security, report) as guard, trio.open_nursery() as nursery:
                    closed = ClosedSubscriber(context, security, options, report)
                    guard.on_change(closed.authorized_keys_changed)
                    endpoint = guard.bind(publisher, config.bind)
                    await nursery.start(closed.run)
                    yield Mesh(publisher, closed, endpoint)
                    nursery.cancel_scope.cancel()
        finally:
            publisher.close(config.linger_ms)


@contextmanager
def _open_plain(context: zmq.Context[zmq.Socket[bytes]], options: dict[str, int]) -> Iterator[PlainSubscriber]:
    subscriber = PlainSubscriber(context.socket(zmq.SocketType.SUB))
    try:
        subscriber.set_options(**options)
        yield subscriber
    finally:
        subscriber.close(0)
