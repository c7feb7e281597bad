"""The subscriber of a node in a plain cluster, which serves peers on probation last.

Identifying the sender of each message costs time, so it is only done when many messages must be discarded, or handling
them takes long. Then the connection of each message is known. A peer with too many discarded messages is put on
probation, and so is every new peer of its host for a while. Other peers are not affected.

Peers on probation are connected to a separate socket with short queues. Its messages get a small share of the time, a
few at a time. A peer that sends more waits, because libzmq stops reading from its connection. It leaves probation when
it has sent no messages to discard for a while.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable

import trio
import zmq

from dafka.endpoints import ConnectionChange, PeerEndpoint
from dafka.errors import TransportError
from dafka.protocol.token_bucket import TokenBucket
from dafka.transport.connector import EVENT_HEADING
from dafka.transport.loops import SourcedMessage
from dafka.transport.socket import RunSocket
from dafka.transport.subscribers import UNKNOWN_PEER, Messages
from dafka.transport.suspect_peers import SuspectPeers

DISCARDS_PER_S = 200
"""The number of messages discarded in a second at which identification of senders begins."""

IDENTIFY_S = 5.0
"""Seconds for which senders are identified after many messages were discarded."""

IDENTIFY_SLOW_S = 1.0
"""Seconds for which senders are identified after a batch of many single messages took long to handle."""

IDENTIFY_SLOW_INTERVAL_S = 20.0
"""The shortest interval between two identifications of senders because of slow batches, in seconds."""

TOLERATED_PER_S = 100
"""Discarded messages from one peer that are tolerated per second in the long run."""

TOLERATED_BURST = 500
"""Discarded messages from one peer that are tolerated at once."""

REVIEW_INTERVAL_S = 1.0
"""Seconds between two checks for probations that are over."""

SHARE = 0.05
"""The share of the time that handling the messages of peers on probation may take."""

PROBATION_SLICE_S = 0.0005
"""The longest that handling a batch of messages of peers on probation should take, in seconds."""

PAUSE_S = 0.01
"""The shortest pause between two batches of messages of peers on probation, in seconds."""

PROBATION_COUNT_MAX = 200
"""The maximum number of messages of peers on probation in one batch."""

PROBATION_QUEUE = 100
"""The maximum number of messages of a peer on probation that wait here. More wait at the peer."""

MONITORED_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED
"""The events of a socket's connections that are monitored: made, begun and lost."""

ON_PROBATION = "peer put on probation: too many discarded messages"


class PlaintextSubscriber:
    """The `Subscriber` of a plain cluster: a SUB socket for most peers, and one for peers on probation.

    `watch` must run. The options of the sockets are given by their ZeroMQ names. `clock` measures how long handling
    messages takes.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        options: dict[str, int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.discarded: Counter[str] = Counter()
        self._context = context
        self._options = options
        self._clock = clock
        self._prefixes: Counter[bytes] = Counter()
        self._peers: set[str] = set()
        self._probations = SuspectPeers()
        self._changes: deque[ConnectionChange] = deque()
        self._changes_lot = trio.lowlevel.ParkingLot()
        self._main = _PeerSocket(context, options, self._record_change, clock)
        self._probation: _PeerSocket | None = None
        self._probation_opened = trio.Event()
        self._waiting_groups: deque[tuple[Messages, PeerEndpoint]] = deque()
        self._buckets: dict[PeerEndpoint, TokenBucket] = {}
        self._discards = 0
        self._discards_since = 0.0
        self._identify_until = float("-inf")
        self._identify_slow_at = float("-inf")
        self._restricted_groups: deque[tuple[Messages, PeerEndpoint]] = deque()
        self._restricted_count = PROBATION_COUNT_MAX
        self._restricted_returned: tuple[float, int] | None = None
        self._timer = trio.CancelScope()

    def subscribe(self, prefix: bytes) -> None:
        """See `Subscriber.subscribe`."""
        self._prefixes[prefix] += 1
        for each in self._sockets():
            each.socket.subscribe(prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        """See `Subscriber.unsubscribe`."""
        self._prefixes[prefix] -= 1
        if self._prefixes[prefix] <= 0:
            del self._prefixes[prefix]
        for each in self._sockets():
            each.socket.unsubscribe(prefix)

    def connect_peer(self, peer: PeerEndpoint) -> None:
        """See `Subscriber.connect_peer`. A new peer of a host that misbehaves begins on probation."""
        endpoint, now = peer.endpoint, trio.current_time()
        if endpoint in self._peers:
            return
        is_restricted = self._probations.begin_newcomer(endpoint, now)
        try:
            self._socket_of(endpoint, is_restricted=is_restricted).connect(endpoint)
        except TransportError:
            self._probations.forget_peer(endpoint)
            raise
        self._peers.add(endpoint)
        self._timer.deadline = self._review_due(now)

    def disconnect_peer(self, peer: PeerEndpoint) -> None:
        """See `Subscriber.disconnect_peer`."""
        endpoint = peer.endpoint
        if endpoint in self._peers:
            self._peers.discard(endpoint)
            self._socket_of(endpoint, is_restricted=endpoint in self._probations).disconnect(endpoint)
            self._probations.forget_peer(endpoint)

    async def receive(self) -> tuple[Messages, PeerEndpoint]:
        """See `Subscriber.receive`. While senders are identified, all messages come from one connection."""
        socket, now = self._main.socket, trio.current_time()
        if self._waiting_groups:
            socket.adjust_count_max()
            await trio.lowlevel.checkpoint()
            return self._next_group()
        if socket.is_slow_batch and now >= self._identify_slow_at:
            self._identify_slow_at = now + IDENTIFY_SLOW_INTERVAL_S
            self._identify_until = max(self._identify_until, now + IDENTIFY_SLOW_S)
        socket.is_slow_batch = False
        if now >= self._identify_until:
            self._buckets.clear()
            return await socket.receive_many(), UNKNOWN_PEER
        groups = self._main.group_by_peer(await socket.receive_sourced())
        # Peers that sent messages to discard are served after the others.
        groups.sort(key=lambda group: group[1] in self._buckets)
        self._waiting_groups.extend(groups)
        return self._next_group()

    async def receive_restricted(self) -> tuple[Messages, PeerEndpoint]:
        """See `Subscriber.receive_restricted`. All messages come from one peer on probation."""
        await self._pause_restricted()
        if not self._restricted_groups:
            await self._probation_opened.wait()
            assert self._probation is not None
            messages = await self._probation.socket.receive_sourced(self._restricted_count)
            self._restricted_groups.extend(self._probation.group_by_peer(messages))
        items, source = self._restricted_groups.popleft()
        self._restricted_returned = self._clock(), len(items)
        return items, source

    def report_discards(self, source: PeerEndpoint, count: int) -> None:
        """See `Subscriber.report_discards`."""
        now = trio.current_time()
        if source.endpoint in self._probations:
            self._probations.report_discards(source.endpoint, count, now)
        elif source == UNKNOWN_PEER:
            if now - self._discards_since >= 1.0:
                self._discards, self._discards_since = 0, now
            self._discards += count
            if self._discards >= DISCARDS_PER_S:
                self._identify_until = now + IDENTIFY_S
        elif count:
            self._identify_until = now + IDENTIFY_S
            bucket = self._buckets.setdefault(source, TokenBucket(TOLERATED_PER_S, TOLERATED_BURST, now))
            if bucket.spend(now, count) <= 0:
                del self._buckets[source]
                self._restrict(source.endpoint, now)

    async def watch(self) -> None:
        """See `Subscriber.watch`. End probations that are over."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._main.watch)
            nursery.start_soon(self._watch_probation)
            while True:
                with trio.CancelScope(deadline=self._review_due(trio.current_time())) as self._timer:
                    await trio.sleep_forever()
                for endpoint in self._probations.end_due(trio.current_time()):
                    self._move(endpoint, self._socket_of(endpoint, is_restricted=True), self._main.socket)
                await trio.lowlevel.checkpoint()

    async def receive_connections(self) -> list[ConnectionChange]:
        """See `Subscriber.receive_connections`."""
        while not self._changes:
            await self._changes_lot.park()
        changes = [*self._changes]
        self._changes.clear()
        return changes

    def close(self) -> None:
        """Close the sockets."""
        for each in self._sockets():
            each.close()

    def _sockets(self) -> list[_PeerSocket]:
        return [self._main] if self._probation is None else [self._main, self._probation]

    def _socket_of(self, endpoint: str, *, is_restricted: bool) -> RunSocket:
        """Return the socket that is or will be connected to an endpoint."""
        if not is_restricted:
            return self._main.socket
        if self._probation is None:
            options = self._options | {"rcvhwm": PROBATION_QUEUE}
            self._probation = _PeerSocket(self._context, options, self._record_change, self._clock)
            for prefix in self._prefixes.elements():
                self._probation.socket.subscribe(prefix)
            self._probation_opened.set()
        return self._probation.socket

    def _review_due(self, now: float) -> float:
        return now + REVIEW_INTERVAL_S if len(self._probations) else float("inf")

    def _record_change(self, change: ConnectionChange) -> None:
        self._changes.append(change)
        self._changes_lot.unpark_all()

    def _next_group(self) -> tuple[Messages, PeerEndpoint]:
        messages, source = self._waiting_groups.popleft()
        self._main.socket.record_returned(messages)
        return messages, source

    async def _pause_restricted(self) -> None:
        """Wait until handling the previous messages of peers on probation has not exceeded its share of the time."""
        if self._restricted_returned is None:
            return
        returned_at, count = self._restricted_returned
        self._restricted_returned = None
        spent = self._clock() - returned_at
        if spent > PROBATION_SLICE_S:
            self._restricted_count = max(int(count * PROBATION_SLICE_S / spent), 1)
        elif not self._restricted_groups:
            self._restricted_count = min(2 * self._restricted_count, PROBATION_COUNT_MAX)
        await trio.sleep(max(spent * (1 / SHARE - 1), PAUSE_S))

    async def _watch_probation(self) -> None:
        await self._probation_opened.wait()
        assert self._probation is not None
        await self._probation.watch()

    def _restrict(self, endpoint: str, now: float) -> None:
        if endpoint in self._peers and endpoint not in self._probations:
            restricted = self._socket_of(endpoint, is_restricted=True)
            self._probations.begin_offender(endpoint, now)
            self._move(endpoint, self._main.socket, restricted)
            self._timer.deadline = self._review_due(now)
            self.discarded[ON_PROBATION] += 1

    def _move(self, endpoint: str, origin: RunSocket, destination: RunSocket) -> None:
        origin.disconnect(endpoint)
        destination.connect(endpoint)


class _PeerSocket:
    """A SUB socket, and the endpoints that its connections lead to."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        options: dict[str, int],
        on_change: Callable[[ConnectionChange], None],
        clock: Callable[[], float],
    ) -> None:
        self.socket = RunSocket(context.socket(zmq.SocketType.SUB), clock)
        self.socket.set_options(**options)
        self._monitor = self.socket.monitor(MONITORED_EVENTS)
        self._on_change = on_change
        self._endpoints: dict[int, PeerEndpoint] = {}

    def group_by_peer(self, messages: list[SourcedMessage]) -> list[tuple[Messages, PeerEndpoint]]:
        """Return messages, grouped by the peer that sent them."""
        while events := self._monitor.receive_nowait():
            self._record_events(events)
        groups: dict[int, Messages] = {}
        for descriptor, frames in messages:
            groups.setdefault(descriptor, []).append(frames)
        return [(items, self._endpoints.get(descriptor, UNKNOWN_PEER)) for descriptor, items in groups.items()]

    async def watch(self) -> None:
        """Record new connections, until cancelled."""
        while True:
            self._record_events(await self._monitor.receive_many())

    def close(self) -> None:
        """Close the socket and its monitor."""
        self.socket.close(0)
        self._monitor.close(0)

    def _record_events(self, events: list[list[bytes]]) -> None:
        for frames in events:
            event, descriptor = EVENT_HEADING.unpack(frames[0])
            endpoint = frames[-1].decode("utf-8", "replace")
            if event == zmq.EVENT_CONNECTED:
                self._endpoints[descriptor] = PeerEndpoint(endpoint)
            else:
                self._on_change(ConnectionChange(PeerEndpoint(endpoint), event == zmq.EVENT_HANDSHAKE_SUCCEEDED))
