"""ZeroMQ sockets that trio tasks can wait for, and that receive and send messages in batches.

libzmq's file descriptor is edge-triggered: it becomes readable when the state of the socket changes, and any call on
the socket, even a send or a subscribe, may reset it. Therefore a reader checks the socket's EVENTS before it waits, and
every other call that finds waiting messages wakes the reader. Sends never block: messages that do not fit into a full
queue are dropped, as PUB sockets do.
"""

from __future__ import annotations

import errno
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import anyio
import trio
import zmq

from dafka.endpoints import MessageSource, is_ipv6_endpoint
from dafka.errors import AddressInUseError, TransportError
from dafka.transport.connections import source_descriptor
from dafka.transport.loops import SourcedMessage, choose_loops
from dafka.wire.batch import EncodedRun

RECEIVE_BYTES_MAX = 16 * 1024 * 1024
"""Bytes received in one call, including the overhead of frames. The message that reaches the limit is the last."""

STREAM_COUNT_MIN = 50
"""The number of records received at once that counts as a stream. libzmq reads 8 KiB at a time from a connection."""

GATHER_S = 0.001
"""Seconds to wait for more messages of a stream. Waking up for a few messages costs more than handling them."""

SLICE_S = 0.002
"""The longest that handling the messages of one call should take, in seconds, so that other tasks can run."""

SLOW_BATCH_ITEMS = 100
"""A slow batch with more items than this is suspicious, since the records of correct nodes mostly form runs."""

ITEMS_MAX = 200
"""The maximum number of runs and single messages received in one call. Records of correct nodes mostly form runs; peers
that flood a node send single messages, which take longer to handle.
"""

COUNT_MIN = 20
"""The minimum number of messages to receive in one call, even if handling them takes long."""

_Item = TypeVar("_Item")

PORT_MAX = 65535

_MONITOR_NUMBERS = itertools.count()

_NOT_AVAILABLE = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)

_BIND_ADVICE = {
    errno.EADDRNOTAVAIL: "; expected an address of this machine, or * for all",
    errno.EACCES: "; choose a port above 1023",
    errno.ENODEV: "; expected an address of this machine, or * for all",
    errno.EINVAL: "; expected tcp://ADDRESS:PORT",
}


class BaseSocket:
    """The base class of ZeroMQ sockets. Subclasses add receiving in batches."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        """Wrap a pyzmq socket. Raises `ConfigError` if the loops that the environment requires are not available."""
        self.endpoint = ""
        """The endpoint that the socket is bound to, with its port; empty before `bind`."""
        self._loops = choose_loops()
        self._socket = socket
        self._fd = self._socket.FD
        self._held: list[list[zmq.Frame]] = []
        self._waiting: anyio.CancelScope | None = None
        self._is_closed = False
        self._is_monitored = False

    def set_options(self, **options: int | bytes) -> None:
        """Set socket options by their ZeroMQ names. Call it before `bind` and `connect`."""
        for name, value in options.items():
            self._socket.setsockopt(getattr(zmq, name.upper()), value)

    def monitor(self, events: int) -> Socket:
        """Return a socket that receives a message for each of these libzmq events. The caller closes it, after this."""
        # pyzmq's default name contains the descriptor, which the next socket may reuse before this one is closed.
        name = f"inproc://dafka-monitor-{next(_MONITOR_NUMBERS)}"
        self._socket.monitor(name, events)
        self._is_monitored = True
        monitor = Socket(self._socket.context.socket(zmq.SocketType.PAIR))
        # libzmq's threads block while a monitor's queue is full, so the queue has no limit.
        monitor.set_options(rcvhwm=0)
        monitor.connect(name)
        return monitor

    def bind(self, endpoint: str) -> str:
        """Listen at an endpoint, and return it with the port chosen for `*`.

        Raises `AddressInUseError` if the endpoint is in use or not an address of this machine, `TransportError` if
        it is invalid.
        """
        _check_port(endpoint, "listen at")
        self._choose_family(endpoint)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            kind = AddressInUseError if error.errno in _NOT_AVAILABLE else TransportError
            advice = _BIND_ADVICE.get(error.errno or 0, "")
            raise kind(f"cannot listen at {endpoint}: {_reason(error)}{advice}") from None
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return self.endpoint

    def unbind(self, endpoint: str) -> None:
        """Stop listening at an endpoint, and end the connections made there. Without a `bind`, do nothing."""
        try:
            self._socket.unbind(endpoint)
        except zmq.ZMQError as error:
            if error.errno != errno.ENOENT:
                raise TransportError(f"cannot stop listening at {endpoint}: {_reason(error)}") from None
        self._wake()

    def connect(self, endpoint: str) -> None:
        """Connect in the background, and again after every loss.

        Raises `TransportError` if the endpoint is invalid.
        """
        _check_port(endpoint, "connect to")
        self._choose_family(endpoint)
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise TransportError(f"cannot connect to {endpoint}: {_reason(error)}; expected tcp://HOST:PORT") from None
        self._wake()

    def disconnect(self, endpoint: str) -> None:
        """Undo `connect`. Without a `connect`, do nothing."""
        # Reading EVENTS makes libzmq take the first frame of a message out of its pipe. If the pipe is then removed
        # with the other frames, receiving aborts the process (`Assertion failed: !_more`). Receive the message first.
        with suppress(zmq.ZMQError):
            self._held.append(self._socket.recv_multipart(zmq.NOBLOCK, copy=False))
        try:
            self._socket.disconnect(endpoint)
        except zmq.ZMQError as error:
            if error.errno != errno.ENOENT:
                raise TransportError(f"cannot disconnect from {endpoint}: {_reason(error)}") from None
        self._wake()

    def subscribe(self, prefix: bytes) -> None:
        """Receive messages whose first frame begins with this prefix, on a SUB socket."""
        self._socket.setsockopt(zmq.SUBSCRIBE, prefix)
        self._wake()

    def unsubscribe(self, prefix: bytes) -> None:
        """Undo one `subscribe`."""
        self._socket.setsockopt(zmq.UNSUBSCRIBE, prefix)
        self._wake()

    def send_many(self, messages: Iterable[Sequence[bytes] | EncodedRun]) -> int:
        """Queue messages for their subscribers, without waiting, and return how many were queued.

        A message is dropped if the socket has no peer or its queue is full.
        """
        count = self._loops.send(self._socket, messages)
        self._wake()
        return count

    async def receive_with_sources(self, count_max: int) -> list[tuple[list[bytes], MessageSource]]:
        """Wait for messages, and return each with the connection on which it arrived. A checkpoint."""
        found = await self._receive(lambda: self._take_frames(count_max))
        return [([frame.bytes for frame in frames], _message_source(frames[0])) for frames in found]

    def close(self, linger_ms: int) -> None:
        """Close the socket. Queued messages are still sent for up to `linger_ms` milliseconds. May be repeated."""
        if not self._is_closed:
            self._is_closed = True
            self.stop_monitor()
            self._socket.close(linger_ms)

    def stop_monitor(self) -> None:
        """Stop the monitor. Call it before the monitor's socket is closed, or libzmq blocks forever."""
        if self._is_monitored:
            self._is_monitored = False
            self._socket.disable_monitor()

    async def _receive(self, drain: Callable[[], list[_Item]]) -> list[_Item]:
        await trio.lowlevel.checkpoint()
        while True:
            items = drain()
            if items:
                return items
            await self._wait_events()

    def _choose_family(self, endpoint: str) -> None:
        """Use IPv6 for IPv6 addresses only.

        With IPv6, libzmq would write IPv4 addresses as `::ffff:127.0.0.1` in the monitor's messages, and would connect
        to the IPv6 address of `localhost`, where a tower at 127.0.0.1 does not listen.
        """
        self._socket.setsockopt(zmq.IPV6, int(is_ipv6_endpoint(endpoint)))

    def _take_frames(self, count_max: int) -> list[list[zmq.Frame]]:
        """Return the waiting messages as uncopied frames, which have libzmq's properties."""
        found, self._held = self._held, []
        with suppress(zmq.Again):
            while len(found) < count_max:
                found.append(self._socket.recv_multipart(zmq.NOBLOCK, copy=False))
        return found

    def _take_held(self) -> list[list[bytes]]:
        held, self._held = self._held, []
        return [[frame.bytes for frame in frames] for frames in held]

    async def _wait_events(self) -> None:
        if self._waiting is not None:
            raise trio.BusyResourceError("another task is receiving from this socket")
        if self._has_messages():
            return
        with anyio.CancelScope() as scope:
            self._waiting = scope
            try:
                await anyio.wait_readable(self._fd)
            finally:
                self._waiting = None

    def _has_messages(self) -> bool:
        return bool(self._held) or bool(int(self._socket.EVENTS) & zmq.POLLIN)

    def _wake(self) -> None:
        """Wake a waiting reader after a call that may have reset its descriptor."""
        if self._waiting is not None and self._has_messages():
            self._waiting.cancel()


class Socket(BaseSocket):
    """A ZeroMQ socket that receives messages in batches. Only one task may receive at a time; any task may send."""

    async def receive_many(self) -> list[list[bytes]]:
        """Wait for messages, and return up to `Loops.receive_count_max` of them. A checkpoint."""
        return await self._receive(self.receive_nowait)

    def receive_nowait(self) -> list[list[bytes]]:
        """Return the waiting messages, up to `Loops.receive_count_max` and `RECEIVE_BYTES_MAX`."""
        if self._held:
            return self._take_held()
        return self._loops.receive(self._socket, self._loops.receive_count_max, RECEIVE_BYTES_MAX)


class RunSocket(BaseSocket):
    """A socket for records: consecutive records of a partition can be received as one `EncodedRun`.

    A run takes the position of its first message. `clock` measures how long handling messages takes.
    """

    def __init__(self, socket: zmq.Socket[bytes], clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(socket)
        self._clock = clock
        self.count_max = self._loops.receive_count_max
        """Messages received in one call; fewer if handling them takes long."""
        self.is_slow_batch = False
        """Whether a batch of many single messages took long to handle. The caller resets it."""
        self._is_streaming = False
        self._returned_at = 0.0
        self._returned_count = 0
        self._returned_items = 0

    async def receive_many(self) -> list[list[bytes] | EncodedRun]:
        """Wait for messages, and return up to `count_max` of them. A checkpoint.

        If records arrive in a stream, and are handled faster than they arrive, wait a moment for more.
        """
        self.adjust_count_max()
        if self._is_streaming:
            await trio.sleep(GATHER_S)
        items = await self._receive(self.receive_nowait)
        self.record_returned(items)
        self._is_streaming = STREAM_COUNT_MIN <= self._returned_count < self.count_max
        return items

    async def receive_sourced(self, count_max: int | None = None) -> list[SourcedMessage]:
        """Wait for messages, and return each with the descriptor on which it arrived. A checkpoint.

        By default, the limit of `receive_many` applies, and the caller passes the messages to `record_returned`.
        """
        if count_max is None:
            self.adjust_count_max()
            count_max = min(self.count_max, ITEMS_MAX)
        return await self._receive(functools.partial(self._receive_sourced_nowait, count_max))

    def receive_nowait(self) -> list[list[bytes] | EncodedRun]:
        """Return the waiting messages, up to `count_max`, `ITEMS_MAX` and `RECEIVE_BYTES_MAX`."""
        if self._held:
            return list(self._take_held())
        return self._loops.receive_runs(self._socket, self.count_max, ITEMS_MAX, RECEIVE_BYTES_MAX)

    def _receive_sourced_nowait(self, count_max: int) -> list[SourcedMessage]:
        if not self._held:
            return self._loops.receive_sourced(self._socket, count_max, RECEIVE_BYTES_MAX)
        held, self._held = self._held, []
        return [(source_descriptor(frames[0]), [frame.bytes for frame in frames]) for frames in held]

    def record_returned(self, items: list[list[bytes] | EncodedRun]) -> None:
        """Record the messages that are being handled until the next call that receives or adjusts `count_max`."""
        self._returned_count = sum(len(item.contents) if isinstance(item, EncodedRun) else 1 for item in items)
        self._returned_items = len(items)
        self._returned_at = self._clock()

    def adjust_count_max(self) -> None:
        """Receive fewer messages at once if handling them takes long, so that other tasks can run."""
        if not self._returned_count:
            return
        spent = self._clock() - self._returned_at
        if spent > SLICE_S:
            self.is_slow_batch = self._returned_items > SLOW_BATCH_ITEMS
            self.count_max = max(int(self._returned_count * SLICE_S / spent), COUNT_MIN)
        elif self._returned_count >= self.count_max:
            self.count_max = min(2 * self.count_max, self._loops.receive_count_max)
        self._returned_count = 0


def _message_source(frame: zmq.Frame) -> MessageSource:
    return MessageSource(_property(frame, "Peer-Address"), _property(frame, "User-Id"), source_descriptor(frame))


def _property(frame: zmq.Frame, name: str) -> str:
    """Return libzmq's property of a frame's connection; empty if it is unknown."""
    try:
        return str(frame.get(name))
    except zmq.ZMQError:
        return ""


def _reason(error: zmq.ZMQError) -> str:
    """Return libzmq's text for an error."""
    return zmq.strerror(error.errno or 0).lower()


def _check_port(endpoint: str, purpose: str) -> None:
    """Check the port, because libzmq accepts any number and silently uses its lowest 16 bits."""
    port = endpoint.rpartition(":")[2]
    if endpoint.startswith("tcp://") and port != "*" and not (port.isdecimal() and int(port) <= PORT_MAX):
        raise TransportError(f"cannot {purpose} {endpoint}: expected a port from 0 to {PORT_MAX}")
