"""The two sockets of a node in the mesh (RFC 46, "Interconnection Model").

An XPUB, which other nodes connect to and which receives their subscriptions; and a subscriber, which connects to the
publishers of other nodes. In a closed cluster the XPUB accepts authorized peers only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

import attrs
import trio
import zmq

from dafka.config import NodeConfig
from dafka.protocol import Event
from dafka.records import BATCH_OVERHEAD_BYTES
from dafka.transport.plain_subscriber import PlaintextSubscriber
from dafka.transport.publisher import PublisherSocket
from dafka.transport.security import Security
from dafka.transport.subscribers import CurveSubscriber, Subscriber
from dafka.transport.zap import open_zap_handler

SLACK_S = 2.0
"""Seconds beyond the linger time that closing waits for libzmq's threads before it abandons them."""

SOCKETS_MAX = 60_000
"""The maximum number of sockets of a closed node, which has three for each key. libzmq allows 65,535."""

SUBSCRIPTION_BYTES_MAX = 1024
"""The largest subscription, in bytes: a command and a topic. A peer that sends more is disconnected."""

HANDSHAKE_MS = 10_000
"""Milliseconds after which a handshake has failed."""

KEEPALIVE = {"tcp_keepalive": 1, "tcp_keepalive_idle": 3, "tcp_keepalive_intvl": 1, "tcp_keepalive_cnt": 3}
"""TCP's keepalives, in seconds: a connection to a peer whose machine is down or cut off is lost after six seconds.

ZMTP's heartbeats cannot be used: libzmq reads none from a peer while many of its messages wait for this node, and it
aborts the process if it must send one on such a connection after the peer has died.
"""

CONNECTING = {**KEEPALIVE, "tcp_maxrt": 6000, "connect_timeout": 2000, "reconnect_ivl_max": 2000}
"""The options of sockets that connect and send little. Data that is not acknowledged for `tcp_maxrt` milliseconds also
ends a connection, and libzmq reconnects every few seconds. TCP alone retransmits at growing intervals, and would notice
late that a network works again."""


@attrs.define(eq=False, slots=False)
class Mesh:
    """The two sockets of a node: the bound publisher, and the connections to the publishers of peers."""

    publisher: PublisherSocket
    subscriber: Subscriber
    endpoint: str
    """The endpoint of the publisher, with its port."""

    @property
    def port(self) -> int:
        """The publisher's TCP port."""
        return int(self.endpoint.rpartition(":")[2])


@asynccontextmanager
async def open_context(linger_ms: int, sockets_max: int = 0) -> AsyncIterator[zmq.Context[zmq.Socket[bytes]]]:
    """Open a ZeroMQ context for the duration of a block, and then wait until its threads have ended.

    Its sockets must be closed inside the block; they can still send for `linger_ms`. With `sockets_max` 0, libzmq's own
    limit applies (1023).
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
    """Open the sockets of a node for the duration of a block. Raise the exceptions of `BaseSocket.bind`.

    At most `high_watermark` messages are queued for each peer, beyond which more are dropped; 0: no limit. `report` is
    called with events about refused peers, and about peers that refuse this node.
    """
    options = {
        "rcvhwm": min(high_watermark or config.receive_messages_max, config.receive_messages_max),
        "maxmsgsize": config.message_bytes_max + BATCH_OVERHEAD_BYTES,
        "handshake_ivl": HANDSHAKE_MS,
        **CONNECTING,
    }
    async with open_context(config.linger_ms, SOCKETS_MAX if security else 0) as context:
        publisher = PublisherSocket(
            context.socket(zmq.SocketType.XPUB), config, sends_batches=config.record_batches == "on"
        )
        try:
            publisher.set_options(
                sndhwm=high_watermark, xpub_verbose=1, maxmsgsize=SUBSCRIPTION_BYTES_MAX, handshake_ivl=HANDSHAKE_MS
            )
            if security is None:
                with closing(PlaintextSubscriber(context, options)) as plain:
                    yield Mesh(publisher, plain, publisher.bind(config.bind))
            else:
                async with open_zap_handler(context, security, report) as handler, trio.open_nursery() as nursery:
                    closed = CurveSubscriber(context, security, options, report)
                    handler.on_keys_changed(closed.review_keys)
                    endpoint = handler.bind(publisher.accepted, config.bind)
                    await nursery.start(closed.run)
                    yield Mesh(publisher, closed, endpoint)
                    nursery.cancel_scope.cancel()
        finally:
            publisher.close(config.linger_ms)
