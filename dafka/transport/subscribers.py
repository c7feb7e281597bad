"""A plain node's subscriber: one SUB socket, connected to everybody.

Whose a message is, is not looked at: it costs time, and nothing would follow from it. That changes where many messages
have to be thrown away. Then they are taken one by one, with the descriptor that each came by, and a connection that
brings little else is ended, for a while that doubles each time. Others are served on meanwhile, and by themselves.
"""

from __future__ import annotations

import math
import struct
from collections import Counter, deque
from collections.abc import Callable
from typing import TypeAlias

import trio
import zmq

from dafka.endpoints import PeerEndpoint, is_key
from dafka.errors import TransportError
from dafka.protocol import Event, PeerNotAuthorized, RefusedByPeer
from dafka.protocol.token_bucket import TokenBucket
from dafka.transport.connections import source_descriptor
from dafka.transport.connector import Connector
from dafka.transport.security import Security
from dafka.transport.socket import RunSocket
from dafka.wire.batch import EncodedRun

SUSPICIOUS_PER_S = 500
"""So many messages thrown away in a second, and it is looked at whose they are."""

SUSPICIOUS_S = 5.0
"""For how long it is."""

LOOK_S = 1.0
"""For how long it is looked at whose messages they are where there are many that take long."""

LOOK_AGAIN_S = 20.0
"""How long until that is done again, where it has led to nothing."""

TOLERATED_PER_S = 200
"""So many of one connection's messages may be thrown away in a second, for ever."""

TOLERATED_BURST = 2000
"""So many at once."""

ABSENCE_S = 5.0
"""For how long a connection is ended the first time."""

ABSENCE_MAX_S = 300.0
"""For how long at most."""

UNKNOWN_PEER = PeerEndpoint("")

FLOODS = "messages thrown away: connection ended for a while"

_HEADING = struct.Struct("=Hi")


class PlainSubscriber(RunSocket):
    """Attributes:
    discarded: connections ended, by reason.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        super().__init__(socket)
        self.discarded: Counter[str] = Counter()
        self._handshakes = self.monitor(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_CONNECTED)
        self._endpoints: set[str] = set()
        self._peers: dict[int | None, PeerEndpoint] = {}
        self._waiting_groups: deque[tuple[Messages, PeerEndpoint]] = deque()
        self._suspects: dict[PeerEndpoint, TokenBucket] = {}
        self._absences: dict[str, float] = {}
        self._absent: dict[str, float] = {}
        self._seen = 0
        self._seen_at = 0.0
        self._suspicious_until = float("-inf")
        self._look_again_at = float("-inf")

    def connect_peer(self, peer: PeerEndpoint) -> None:
        """See `Subscriber.connect_peer`. A peer whose connection was ended for a while is connected to later."""
        if peer.endpoint not in self._absent:
            self.connect(peer.endpoint)
        self._endpoints.add(peer.endpoint)

    def disconnect_peer(self, peer: PeerEndpoint) -> None:
        """See `Subscriber.disconnect_peer`."""
        if peer.endpoint in self._endpoints:
            self._endpoints.discard(peer.endpoint)
            if peer.endpoint not in self._absent:
                self.disconnect(peer.endpoint)

    async def receive(self) -> tuple[Messages, PeerEndpoint]:
        """See `Subscriber.receive`; while it is looked at whose messages they are, those of one connection."""
        if self._waiting_groups:
            self._pace()
            await trio.lowlevel.checkpoint()
            return self._give_group()
        now = trio.current_time()
        if self.is_slow_batch and now >= self._look_again_at:
            self._look_again_at = now + LOOK_AGAIN_S
            self._suspicious_until = max(self._suspicious_until, now + LOOK_S)
        self.is_slow_batch = False
        if now >= self._suspicious_until:
            return await self.receive_many(), UNKNOWN_PEER
        self._pace()
        self._waiting_groups.extend(await self._receive(self._receive_groups))
        return self._give_group()

    def report_discards(self, source: PeerEndpoint, count: int) -> None:
        """See `Subscriber.report_discards`."""
        now = trio.current_time()
        if source == UNKNOWN_PEER:
            if now - self._seen_at >= 1.0:
                self._seen, self._seen_at = 0, now
            self._seen += count
            if self._seen >= SUSPICIOUS_PER_S:
                self._suspicious_until = now + SUSPICIOUS_S
            return
        if not count:
            return
        self._suspicious_until = now + SUSPICIOUS_S
        suspect = self._suspects.setdefault(source, TokenBucket(TOLERATED_PER_S, TOLERATED_BURST, now))
        if suspect.spend(now, count) <= 0:
            del self._suspects[source]
            self._suspend(source.endpoint, now)

    async def watch(self) -> None:
        """Connects again, in time, to those whose connection was ended. Runs until cancelled."""
        while True:
            await trio.sleep(1.0)
            now = trio.current_time()
            for endpoint in [endpoint for endpoint, until in self._absent.items() if until <= now]:
                del self._absent[endpoint]
                if endpoint in self._endpoints:
                    self.connect(endpoint)
            for endpoint in [each for each in self._absences if each not in self._endpoints | self._absent.keys()]:
                del self._absences[endpoint]
            if now >= self._suspicious_until:
                self._suspects.clear()

    async def receive_connections(self) -> list[PeerEndpoint]:
        """See `Subscriber.receive_connections`."""
        made: list[PeerEndpoint] = []
        while not made:
            for frames in await self._handshakes.receive_many():
                event, value = _HEADING.unpack(frames[0])
                endpoint = frames[-1].decode("utf-8", "replace")
                if event == zmq.EVENT_CONNECTED:
                    self._peers[value] = PeerEndpoint(endpoint)
                else:
                    made.append(PeerEndpoint(endpoint))
        return made

    def close(self, linger_ms: int) -> None:
        """Closes it, and what tells of its connections."""
        super().close(linger_ms)
        self._handshakes.close(0)

    def _give_group(self) -> tuple[Messages, PeerEndpoint]:
        messages, source = self._waiting_groups.popleft()
        self._note_given(messages)
        return messages, source

    def _receive_groups(self) -> list[tuple[Messages, PeerEndpoint]]:
        """What is here, of each connection by itself; that of a connection just ended is left out."""
        groups: dict[int | None, Messages] = {}
        for frames in self._take_frames(self.count_max):
            groups.setdefault(source_descriptor(frames[0]), []).append([frame.bytes for frame in frames])
        return [(messages, self._peers.get(number, UNKNOWN_PEER)) for number, messages in groups.items()]

    def _suspend(self, endpoint: str, now: float) -> None:
        if endpoint not in self._endpoints or endpoint in self._absent:
            return
        absence = min(2 * self._absences.get(endpoint, ABSENCE_S / 2), ABSENCE_MAX_S)
        try:
            self.disconnect(endpoint)
        except TransportError:
            return
        self._absences[endpoint] = absence
        self._absent[endpoint] = now + absence
        self.discarded[FLOODS] += 1


Messages: TypeAlias = list[list[bytes] | EncodedRun]


class ClosedSubscriber:
    """Many SUB sockets as one. `run` must be running; `connect` and the others may be called at any time.

    Attributes:
        discarded: connections ended, by reason; here there are none.
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
        self._lines: dict[str, _Line] = {}
        self._nursery: trio.Nursery | None = None
        self._deliver, self._deliveries = trio.open_memory_channel[tuple[Messages, PeerEndpoint]](0)
        self._tell_made, self._made = trio.open_memory_channel[PeerEndpoint](math.inf)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Receives from every socket until cancelled; then they are closed."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def subscribe(self, prefix: bytes) -> None:
        """Receives messages whose first frame begins with this."""
        self._prefixes[prefix] += 1
        for line in self._lines.values():
            line.socket.subscribe(prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        """Undoes one `subscribe`."""
        self._prefixes[prefix] -= 1
        self._prefixes += Counter()
        for line in self._lines.values():
            line.socket.unsubscribe(prefix)

    def connect_peer(self, peer: PeerEndpoint) -> None:
        """Connect to a peer, or wait until its key is authorized.

        Raises `TransportError` if the endpoint is invalid or has no key.
        """
        if not is_key(peer.key):
            raise TransportError(
                f"cannot connect to {peer}: expected the node's public key after the endpoint, as in "
                "'tcp://HOST:PORT KEY': the cluster is closed ([security])"
            )
        line = self._lines.get(peer.key) or self._open(peer.key)
        try:
            line.connect(peer.endpoint)
        except TransportError:
            self._close_idle(line)
            raise

    def disconnect_peer(self, peer: PeerEndpoint) -> None:
        """Undo `connect`. Without an earlier `connect`, do nothing."""
        line = self._lines.get(peer.key)
        if line is not None:
            line.disconnect(peer.endpoint)
            self._close_idle(line)

    async def receive(self) -> tuple[Messages, PeerEndpoint]:
        """Waits for messages of any one key, and tells which."""
        return await self._deliveries.receive()

    def report_discards(self, source: PeerEndpoint, count: int) -> None:
        """See `Subscriber.report_discards`. An authorized peer is trusted not to flood, and has a queue of its own."""

    async def watch(self) -> None:
        """See `Subscriber.watch`."""

    async def receive_connections(self) -> list[PeerEndpoint]:
        """Wait until connections are made, or are known to fail for now. Return their endpoints."""
        peers = [await self._made.receive()]
        while True:
            try:
                peers.append(self._made.receive_nowait())
            except trio.WouldBlock:
                return peers

    def authorized_keys_changed(self) -> None:
        """Connects to those who are authorized now, disconnects from those who are no longer."""
        for line in self._lines.values():
            line.review()

    def _open(self, key: str) -> _Line:
        socket = RunSocket(self._context.socket(zmq.SocketType.SUB))
        socket.set_options(**self._options)
        line = _Line(socket, key, self._security, self._report, self._tell_made.send_nowait)
        for prefix in self._prefixes.elements():
            socket.subscribe(prefix)
        self._lines[key] = line
        assert self._nursery is not None, "run() comes first"
        self._nursery.start_soon(self._receive_from, line)
        return line

    async def _receive_from(self, line: _Line) -> None:
        try:
            with line.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(line.connector.watch)
                    while True:
                        await self._deliver.send((await line.socket.receive_many(), PeerEndpoint("", line.key)))
        finally:
            line.socket.close(0)
            line.connector.close()

    def _close_idle(self, line: _Line) -> None:
        if not line.endpoints:
            del self._lines[line.key]
            line.scope.cancel()


class _Line:
    """The socket that is connected to the holders of one key."""

    def __init__(
        self,
        socket: RunSocket,
        key: str,
        security: Security,
        report: Callable[[Event], None],
        made: Callable[[PeerEndpoint], None],
    ) -> None:
        self.socket = socket
        self.key = key
        self.endpoints: dict[str, bool] = {}
        """Whether each is connected to, or was to be."""
        self.scope = trio.CancelScope()
        self.connector = Connector(socket, security, lambda endpoint: made(PeerEndpoint(endpoint, key)), self._refused)
        self._security = security
        self._report = report
        self._made = made

    def connect(self, endpoint: str) -> None:
        if self.key in self._security.authorized:
            self.connector.connect(endpoint, self.key)
            self.endpoints[endpoint] = True
            return
        self.endpoints[endpoint] = False
        self._report(PeerNotAuthorized(endpoint, self.key, str(self._security.authorized.path)))
        self._made(PeerEndpoint(endpoint, self.key))

    def disconnect(self, endpoint: str) -> None:
        if self.endpoints.pop(endpoint, False):
            self.connector.disconnect(endpoint)

    def review(self) -> None:
        is_authorized = self.key in self._security.authorized
        for endpoint, is_connected in list(self.endpoints.items()):
            if is_connected and not is_authorized:
                self.disconnect(endpoint)
                self.connect(endpoint)  # which bars it
            elif is_authorized and not is_connected:
                self.connect(endpoint)

    def _refused(self, event: RefusedByPeer) -> None:
        self._report(event)
        self._made(PeerEndpoint(event.endpoint, self.key))
