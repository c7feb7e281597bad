"""A node's sockets in a closed cluster: a guarded publisher, and a subscriber for each key that is connected to.

One SUB socket could connect to everybody, and would not tell whose a message is: libzmq knows of a message what the
other side has proven only where it was bound to. With a socket a key, whose a message is stands beside it. A place to
connect to is an endpoint and, behind a space, the public key to expect there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

import trio
import zmq

from dafka.errors import TransportError
from dafka.protocol import Event, HandshakeRefused, NodeBarred
from dafka.transport.caller import Caller
from dafka.transport.keys import is_key
from dafka.transport.security import Security
from dafka.transport.socket import RunSocket
from dafka.wire.batch import EncodedRun

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
        self._deliver, self._deliveries = trio.open_memory_channel[tuple[Messages, str]](0)
        self._tell_made, self._made = trio.open_memory_channel[str](math.inf)

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

    def connect(self, place: str) -> None:
        """Connects to a place, or waits until its key is authorised.

        Raises `TransportError` where that is no place to connect to: no endpoint, or no key.
        """
        endpoint, key = split_place(place)
        if not is_key(key):
            raise TransportError(f"cannot connect to {place}: in a closed cluster a public key must stand behind it")
        line = self._lines.get(key) or self._open(key)
        try:
            line.connect(endpoint)
        except TransportError:
            self._close_idle(line)
            raise

    def disconnect(self, place: str) -> None:
        """Undoes `connect`; nothing happens where there was none."""
        endpoint, key = split_place(place)
        line = self._lines.get(key)
        if line is not None:
            line.disconnect(endpoint)
            self._close_idle(line)

    async def receive(self) -> tuple[Messages, str]:
        """Waits for messages of any one key, and tells which."""
        return await self._deliveries.receive()

    def judge(self, source: str, discarded: int) -> None:
        """See `Subscriber.judge`. Who is let in here is trusted not to flood; and has a queue of its own."""

    def endpoint_of(self, source: str) -> str:
        """See `Subscriber.endpoint_of`. Here claims are held against keys."""
        return ""

    async def watch(self) -> None:
        """See `Subscriber.watch`."""

    async def receive_connections(self) -> list[str]:
        """Waits until connections are made, or are known not to be made soon; gives their places."""
        places = [await self._made.receive()]
        while True:
            try:
                places.append(self._made.receive_nowait())
            except trio.WouldBlock:
                return places

    def authorised_changed(self) -> None:
        """Connects to those who are authorised now, disconnects from those who are no longer."""
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
                    nursery.start_soon(line.caller.watch)
                    while True:
                        await self._deliver.send((await line.socket.receive_many(), line.key))
        finally:
            line.socket.close(0)
            line.caller.close()

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
        made: Callable[[str], None],
    ) -> None:
        self.socket = socket
        self.key = key
        self.endpoints: dict[str, bool] = {}
        """Whether each is connected to, or was to be."""
        self.scope = trio.CancelScope()
        self.caller = Caller(socket, security, lambda endpoint: made(f"{endpoint} {key}"), self._refused)
        self._security = security
        self._report = report
        self._made = made

    def connect(self, endpoint: str) -> None:
        if self.key in self._security.authorised:
            self.caller.connect(endpoint, self.key)
            self.endpoints[endpoint] = True
            return
        self.endpoints[endpoint] = False
        self._report(NodeBarred(endpoint, self.key, str(self._security.authorised.path)))
        self._made(f"{endpoint} {self.key}")

    def disconnect(self, endpoint: str) -> None:
        if self.endpoints.pop(endpoint, False):
            self.caller.disconnect(endpoint)

    def review(self) -> None:
        is_authorised = self.key in self._security.authorised
        for endpoint, is_connected in list(self.endpoints.items()):
            if is_connected and not is_authorised:
                self.disconnect(endpoint)
                self.connect(endpoint)  # which bars it
            elif is_authorised and not is_connected:
                self.connect(endpoint)

    def _refused(self, event: HandshakeRefused) -> None:
        self._report(event)
        self._made(f"{event.endpoint} {self.key}")


def split_place(place: str) -> tuple[str, str]:
    """The endpoint and the key; the key is empty where none stands there."""
    endpoint, _, key = place.partition(" ")
    return endpoint, key
