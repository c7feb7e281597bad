"""The subscriber of a node, which receives messages from the publishers of its peers.

`PlaintextSubscriber` is the subscriber of a plain cluster. In a closed cluster, libzmq reports the key of a message's
sender only on connections that the sender made, not on those that this node made. A node therefore has one SUB socket
for each key that it connects to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Protocol, TypeAlias

import trio
import zmq

from dafka.endpoints import ConnectionChange, PeerEndpoint, is_key
from dafka.errors import TransportError
from dafka.protocol import Event, PeerNotAuthorized, RefusedByPeer
from dafka.transport.connector import Connector
from dafka.transport.security import Security
from dafka.transport.socket import RunSocket
from dafka.wire.batch import EncodedRun

UNKNOWN_PEER = PeerEndpoint("")
"""The sender of messages whose connection is not identified."""

Messages: TypeAlias = list[list[bytes] | EncodedRun]


class Subscriber(Protocol):
    """The connections of a node to the publishers of its peers."""

    discarded: Counter[str]
    """The number of connections ended, by reason."""

    def subscribe(self, prefix: bytes) -> None:
        """Receive messages whose first frame begins with this prefix."""

    def unsubscribe(self, prefix: bytes) -> None:
        """Undo one `subscribe`."""

    def connect_peer(self, peer: PeerEndpoint) -> None:
        """Connect in the background, and again after every loss.

        Raises `TransportError` if the endpoint is invalid.
        """

    def disconnect_peer(self, peer: PeerEndpoint) -> None:
        """Undo `connect_peer`. Without an earlier `connect_peer`, do nothing."""

    async def receive(self) -> tuple[Messages, PeerEndpoint]:
        """Wait for messages, and return them with the peer that sent them.

        In a closed cluster the peer's key is known. In a plain cluster its endpoint is known while senders are
        identified. Unknown parts are empty.
        """

    async def receive_restricted(self) -> tuple[Messages, PeerEndpoint]:
        """Wait for messages of peers that misbehave, and until they can be handled; see `receive`.

        The time until the next call counts as the time that handling the messages takes.
        """

    def report_discards(self, source: PeerEndpoint, count: int) -> None:
        """Report how many of the last messages from a source were discarded."""

    async def watch(self) -> None:
        """Maintain the connections until cancelled."""

    async def receive_connections(self) -> list[ConnectionChange]:
        """Wait until connections are made or lost, and return the changes in order.

        A lost connection is made again in the background. A loss can be reported more than once, and for disconnected
        peers.
        """


class CurveSubscriber:
    """The `Subscriber` of a closed cluster: one SUB socket for each key. `run` must be running.

    It ends no connections. `report` is called when a peer refuses a connection, or is not authorized.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        security: Security,
        options: dict[str, int],
        report: Callable[[Event], None],
    ) -> None:
        self.discarded: Counter[str] = Counter()
        self._context = context
        self._security = security
        self._options = options
        self._report = report
        self._prefixes: Counter[bytes] = Counter()
        self._sockets: dict[str, _KeySocket] = {}
        self._nursery: trio.Nursery | None = None
        self._deliver, self._deliveries = trio.open_memory_channel[tuple[Messages, PeerEndpoint]](0)
        self._record_change, self._changes = trio.open_memory_channel[ConnectionChange](math.inf)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Receive from every socket until cancelled, and then close them."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def subscribe(self, prefix: bytes) -> None:
        """See `Subscriber.subscribe`."""
        self._prefixes[prefix] += 1
        for each in self._sockets.values():
            each.socket.subscribe(prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        """See `Subscriber.unsubscribe`."""
        self._prefixes[prefix] -= 1
        self._prefixes += Counter()
        for each in self._sockets.values():
            each.socket.unsubscribe(prefix)

    def connect_peer(self, peer: PeerEndpoint) -> None:
        """See `Subscriber.connect_peer`. If the key is not authorized, wait until it is.

        Raises `TransportError` if the endpoint is invalid or has no key.
        """
        if not is_key(peer.key):
            raise TransportError(
                f"cannot connect to {peer}: expected the node's public key after the endpoint, as in "
                "'tcp://HOST:PORT KEY': the cluster is closed ([security])"
            )
        key_socket = self._sockets.get(peer.key) or self._open_socket(peer.key)
        try:
            key_socket.connect(peer.endpoint)
        except TransportError:
            self._close_if_unused(key_socket)
            raise

    def disconnect_peer(self, peer: PeerEndpoint) -> None:
        """See `Subscriber.disconnect_peer`."""
        key_socket = self._sockets.get(peer.key)
        if key_socket is not None:
            key_socket.disconnect(peer.endpoint)
            self._close_if_unused(key_socket)

    async def receive(self) -> tuple[Messages, PeerEndpoint]:
        """See `Subscriber.receive`. All messages come from the holder of one key."""
        return await self._deliveries.receive()

    async def receive_restricted(self) -> tuple[Messages, PeerEndpoint]:
        """Wait until cancelled: authorized peers are trusted not to misbehave."""
        await trio.sleep_forever()
        raise AssertionError

    def report_discards(self, source: PeerEndpoint, count: int) -> None:
        """Do nothing: an authorized peer is trusted not to flood, and its messages have a separate queue."""

    async def watch(self) -> None:
        """Do nothing: `run` maintains the connections."""

    async def receive_connections(self) -> list[ConnectionChange]:
        """See `Subscriber.receive_connections`. A refused or unauthorized connection is reported as made and lost."""
        changes = [await self._changes.receive()]
        while True:
            try:
                changes.append(self._changes.receive_nowait())
            except trio.WouldBlock:
                return changes

    def review_keys(self) -> None:
        """Connect to peers that have become authorized, and disconnect from those that no longer are."""
        for each in self._sockets.values():
            each.review_key()

    def _open_socket(self, key: str) -> _KeySocket:
        socket = RunSocket(self._context.socket(zmq.SocketType.SUB))
        socket.set_options(**self._options)
        key_socket = _KeySocket(socket, key, self._security, self._report, self._record_change.send_nowait)
        for prefix in self._prefixes.elements():
            socket.subscribe(prefix)
        self._sockets[key] = key_socket
        assert self._nursery is not None, "run() comes first"
        self._nursery.start_soon(self._receive_from, key_socket)
        return key_socket

    async def _receive_from(self, key_socket: _KeySocket) -> None:
        source = PeerEndpoint("", key_socket.key)
        try:
            with key_socket.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(key_socket.connector.watch)
                    while True:
                        await self._deliver.send((await key_socket.socket.receive_many(), source))
        finally:
            key_socket.socket.close(0)
            key_socket.connector.close()

    def _close_if_unused(self, key_socket: _KeySocket) -> None:
        if not key_socket.endpoints:
            del self._sockets[key_socket.key]
            key_socket.scope.cancel()


class _KeySocket:
    """The SUB socket that is connected to the holders of one key."""

    def __init__(
        self,
        socket: RunSocket,
        key: str,
        security: Security,
        report: Callable[[Event], None],
        on_change: Callable[[ConnectionChange], None],
    ) -> None:
        self.socket = socket
        self.key = key
        self.endpoints: dict[str, bool] = {}
        """By endpoint, whether it is connected; if not, it waits until the key is authorized."""
        self.scope = trio.CancelScope()
        self.connector = Connector(socket, security, self._record_made, self._on_refused, self._record_lost)
        self._security = security
        self._report = report
        self._on_change = on_change

    def connect(self, endpoint: str) -> None:
        if self.key in self._security.authorized:
            self.connector.connect(endpoint, self.key)
            self.endpoints[endpoint] = True
            return
        self.endpoints[endpoint] = False
        self._report(PeerNotAuthorized(endpoint, self.key, str(self._security.authorized.path)))
        self._record_unusable(endpoint)

    def disconnect(self, endpoint: str) -> None:
        if self.endpoints.pop(endpoint, False):
            self.connector.disconnect(endpoint)

    def review_key(self) -> None:
        is_authorized = self.key in self._security.authorized
        for endpoint, is_connected in list(self.endpoints.items()):
            if is_connected and not is_authorized:
                self.disconnect(endpoint)
                self.connect(endpoint)  # reports the peer, and waits until its key is authorized
            elif is_authorized and not is_connected:
                self.connect(endpoint)

    def _on_refused(self, event: RefusedByPeer) -> None:
        self._report(event)
        self._record_unusable(event.endpoint)

    def _record_made(self, endpoint: str) -> None:
        self._on_change(ConnectionChange(PeerEndpoint(endpoint, self.key), is_made=True))

    def _record_unusable(self, endpoint: str) -> None:
        """Report an impossible connection as made and lost, so that the node does not wait for it."""
        self._record_made(endpoint)
        self._record_lost(endpoint)

    def _record_lost(self, endpoint: str) -> None:
        self._on_change(ConnectionChange(PeerEndpoint(endpoint, self.key), is_made=False))
