"""The connections that peers make to a listening socket, and the limit on their number.

libzmq reports every connection that it accepts, and every connection that ends, to a monitor. The table is therefore
updated only when peers connect and disconnect. A connection is examined only to end it, or to check whether it is still
open.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import attrs
import trio
import zmq

from dafka.errors import AddressInUseError
from dafka.transport.connections import Connection, connections_max, end_connection, find_connection, is_open
from dafka.transport.connector import EVENT_HEADING, HANDSHAKE_EVENTS, Handshake, decode_handshake
from dafka.transport.socket import BaseSocket

SILENT_S = 10.0
"""Seconds after which a connection that has sent no message may be ended: a node sends one at once."""

REBIND_S = 0.002
"""Initial delay before rebinding, in seconds; it doubles up to a second."""


@attrs.define(eq=False)
class AcceptedConnection:
    """A connection that a peer has made."""

    number: int
    """Its number, unique in its socket even after the descriptor is reused."""
    descriptor: int
    accepted_at: float
    is_silent: bool = True
    """Whether it has sent no message yet."""


class AcceptedConnections:
    """The connections to one listening socket. `watch` must run. `ended_count` counts those ended as too many."""

    _process_count = 0
    """The open connections of all tables in this process, which share its descriptors."""

    def __init__(self, socket: BaseSocket, wanted_max: int) -> None:
        """Monitor a socket that is not bound yet. Fewer connections are accepted if the process has few descriptors."""
        self.socket = socket
        self.ended_count = 0
        self._monitor = socket.monitor(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | HANDSHAKE_EVENTS)
        self._wanted_max = wanted_max
        self._connections: dict[int, AcceptedConnection] = {}
        self._by_number: dict[int, AcceptedConnection] = {}
        self._silent: OrderedDict[int, AcceptedConnection] = OrderedDict()
        self._ending: set[int] = set()
        self._number = 0
        self._timer = trio.CancelScope()
        self._on_ended: Callable[[int], None] = lambda _: None
        self._on_handshake: Callable[[Handshake], None] = lambda _: None
        self._on_first_message: Callable[[AcceptedConnection], None] = lambda _: None

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._connections)

    def __contains__(self, number: int) -> bool:
        """Return whether libzmq has not reported the end of a connection. `is_open` examines the connection instead."""
        return number in self._by_number

    def __iter__(self) -> Iterator[AcceptedConnection]:
        """Iterate over the connections that are open and are not being ended."""
        return (each for each in self._by_number.values() if each.number not in self._ending)

    def on_ended(self, callback: Callable[[int], None]) -> None:
        """Set the function that is called with the number of each connection that ended."""
        self._on_ended = callback

    def on_first_message(self, callback: Callable[[AcceptedConnection], None]) -> None:
        """Set the function that is called with each connection that is no longer silent."""
        self._on_first_message = callback

    def on_handshake(self, callback: Callable[[Handshake], None]) -> None:
        """Set the function that is called with the outcome of each handshake."""
        self._on_handshake = callback

    def find(self, descriptor: int) -> AcceptedConnection | None:
        """Return the connection on which a message arrived, now no longer silent; None if it has ended.

        Call `update` after receiving the messages of a batch, and then this method for each of them.
        """
        connection = self._connections.get(descriptor)
        if connection is not None and connection.is_silent:
            connection.is_silent = False
            self._silent.pop(connection.number, None)
            self._on_first_message(connection)
        return connection

    def is_open(self, number: int) -> bool:
        """Return whether a connection still exists, and its peer has not closed its side. Examines the connection."""
        connection = self._by_number.get(number)
        if connection is None:
            return False
        identity = self.identify(connection)
        return identity is not None and is_open(connection.descriptor, identity)

    def identify(self, connection: AcceptedConnection) -> Connection | None:
        """Return the two ends of a connection; None if it has ended. Examines the connection."""
        identity = find_connection(connection.descriptor)
        # libzmq reports the end of a connection before it closes the descriptor. If no end is reported after the
        # descriptor was examined, it was not reused for another connection.
        self._record_waiting_events()
        return identity if self._by_number.get(connection.number) is connection else None

    def end(self, connection: AcceptedConnection) -> Connection | None:
        """End a connection, and return its two ends; None if it has ended already."""
        identity = self.identify(connection)
        if identity is None or not end_connection(connection.descriptor, identity):
            self._forget(connection)  # its end was not reported, for example because the socket was unbound
            return None
        self._ending.add(connection.number)
        self._silent.pop(connection.number, None)
        return identity

    def update(self) -> None:
        """Process the connections that were accepted and ended since the last call, and enforce the limit."""
        if self._record_waiting_events():
            self._enforce_limit(trio.current_time())

    async def drop_all(self) -> None:
        """End all connections, which libzmq does when a socket is unbound, and listen again."""
        endpoint = self.socket.endpoint
        self.socket.unbind(endpoint)
        self._record_waiting_events()
        self._forget_all()
        pause = REBIND_S
        while True:
            try:
                self.socket.bind(endpoint)
            except AddressInUseError:  # libzmq's thread has not released the port yet
                await trio.sleep(pause)
                pause = min(2 * pause, 1.0)
            else:
                return

    async def watch(self) -> None:
        """Process connections and enforce the limit on their number, until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._silence_deadline()) as self._timer:
                self._record_events(await self._monitor.receive_many())
            self._enforce_limit(trio.current_time())

    def close(self) -> None:
        """Stop monitoring. Call it before or after the socket is closed; it can be repeated."""
        self.socket.stop_monitor()
        self._monitor.close(0)
        self._forget_all()

    def _record_waiting_events(self) -> bool:
        """Process all waiting events; return whether there were any."""
        has_events = False
        while messages := self._monitor.receive_nowait():
            self._record_events(messages)
            has_events = True
        return has_events

    def _record_events(self, messages: Sequence[Sequence[bytes]]) -> None:
        now = trio.current_time()
        for frames in messages:
            event, descriptor = EVENT_HEADING.unpack(frames[0])
            if event == zmq.EVENT_ACCEPTED:
                self._accept(descriptor, now)
            elif event != zmq.EVENT_DISCONNECTED:
                self._on_handshake(decode_handshake(frames))
            elif (connection := self._connections.get(descriptor)) is not None:
                self._forget(connection)
        self._timer.deadline = self._silence_deadline()

    def _accept(self, descriptor: int, now: float) -> None:
        former = self._connections.get(descriptor)
        if former is not None:
            self._forget(former)
        self._number += 1
        connection = AcceptedConnection(self._number, descriptor, now)
        self._connections[descriptor] = self._by_number[self._number] = self._silent[self._number] = connection
        AcceptedConnections._process_count += 1

    def _forget(self, connection: AcceptedConnection) -> None:
        if self._by_number.pop(connection.number, None) is None:
            return
        del self._connections[connection.descriptor]
        self._silent.pop(connection.number, None)
        self._ending.discard(connection.number)
        AcceptedConnections._process_count -= 1
        self._on_ended(connection.number)

    def _forget_all(self) -> None:
        for connection in [*self._connections.values()]:
            self._forget(connection)

    def _limit(self) -> int:
        return connections_max(self._wanted_max, AcceptedConnections._process_count - len(self._connections))

    def _is_crowded(self) -> bool:
        return len(self._connections) > self._limit() // 2

    def _silence_deadline(self) -> float:
        """Return when the first silent connection must end; infinity while there are few connections."""
        if not self._silent or not self._is_crowded():
            return float("inf")
        return next(iter(self._silent.values())).accepted_at + SILENT_S

    def _enforce_limit(self, now: float) -> None:
        """End connections that are silent for too long.

        Above the limit, also end other silent ones, then the newest.
        """
        if not self._is_crowded():
            return
        while self._silent and now - (oldest := next(iter(self._silent.values()))).accepted_at >= SILENT_S:
            self._end_surplus(oldest)
        limit = self._limit()
        while len(self._connections) - len(self._ending) > limit:
            if self._silent:
                self._end_surplus(next(iter(self._silent.values())))
            else:
                newest = next(each for each in reversed(self._by_number.values()) if each.number not in self._ending)
                self._end_surplus(newest)

    def _end_surplus(self, connection: AcceptedConnection) -> None:
        if self.end(connection) is not None:
            self.ended_count += 1
