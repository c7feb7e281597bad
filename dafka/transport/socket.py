"""ZeroMQ sockets that trio tasks can wait on, moving messages by the batch.

libzmq's file descriptor is edge-triggered: it becomes readable when something happened to the socket, and any call
on the socket, also a send or a subscribe, may consume that sign. So a reader looks at the socket's EVENTS before it
waits, and every other call that finds messages waiting wakes the reader. Sends never block: what a full queue does
not take is dropped, as PUB sockets do.
"""

from __future__ import annotations

import errno
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import trio
import zmq

from dafka.endpoints import MessageSource
from dafka.errors import AddressInUseError, TransportError
from dafka.transport.connections import source_descriptor
from dafka.transport.loops import choose_loops
from dafka.wire.batch import EncodedRun

RECEIVE_BYTES_MAX = 16 * 1024 * 1024
"""Octets drained in one call, with what keeping each frame costs; the message that reaches them is the last."""

STREAM_COUNT_MIN = 50
"""So many records at once are part of a stream: libzmq hands over eight kilobytes at a time."""

GATHER_S = 0.001
"""While messages stream in, how long more are left to gather: waking up for a few at a time costs more than they do."""

SLICE_S = 0.002
"""So long at a time may be spent on what one call drained."""

SLOW_BATCH_ITEMS = 100
"""Items of one drain that are no stream: of honest nodes' records, most come in runs."""

COUNT_MIN = 20
"""Messages drained in one call, however long working on them takes."""

_Item = TypeVar("_Item")

PORT_MAX = 65535

_MONITOR_NUMBERS = itertools.count()

_NOT_AVAILABLE = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)


def connected_endpoint(frames: Sequence[bytes]) -> str:
    """Return the endpoint that was connected to, from a message of `Socket.monitor_handshakes`."""
    return frames[-1].decode("utf-8", "replace")


class BaseSocket:
    """What every socket can do but receiving by the batch.

    Raises `ConfigError` where the loops that the environment asks for are not to be had (`choose_loops`).
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.endpoint = ""
        self._loops = choose_loops()
        self._socket = socket
        self._fd = self._socket.FD
        self._held: list[list[zmq.Frame]] = []
        self._waiting: trio.CancelScope | None = None
        self._is_closed = False
        self._is_monitored = False

    def set_options(self, **options: int | bytes) -> None:
        """Sets socket options by their ZeroMQ names; before `bind` and `connect`."""
        for name, value in options.items():
            self._socket.setsockopt(getattr(zmq, name.upper()), value)

    def monitor_handshakes(self) -> Socket:
        """A socket that receives a message for every connection made from now on; `connected_endpoint` reads it.

        It is the caller's to close, after this one.
        """
        return self.monitor(zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def monitor(self, events: int) -> Socket:
        """A socket that receives a message for each of these events of libzmq's from now on. It is the caller's."""
        # pyzmq's own name is the file descriptor's, which the next socket may have before this one is quite closed.
        name = f"inproc://dafka-monitor-{next(_MONITOR_NUMBERS)}"
        self._socket.monitor(name, events)
        self._is_monitored = True
        monitor = Socket(self._socket.context.socket(zmq.SocketType.PAIR))
        # libzmq's threads wait where a monitor's queue is full. This one never is.
        monitor.set_options(rcvhwm=0)
        monitor.connect(name)
        return monitor

    def bind(self, endpoint: str) -> str:
        """Listens there; gives the endpoint with the port that was found for `*`.

        Raises `AddressInUseError` where the endpoint is taken or is not this machine's, `TransportError` where it is
        no endpoint at all.
        """
        _check_port(endpoint, "listen at")
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            kind = AddressInUseError if error.errno in _NOT_AVAILABLE else TransportError
            raise kind(f"cannot listen at {endpoint}: {_reason(error)}") from None
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return self.endpoint

    def unbind(self, endpoint: str) -> None:
        """Listens there no longer; connections that were made there end. Nothing happens where it did not listen."""
        try:
            self._socket.unbind(endpoint)
        except zmq.ZMQError as error:
            if error.errno != errno.ENOENT:
                raise TransportError(f"cannot stop listening at {endpoint}: {_reason(error)}") from None
        self._wake()

    def connect(self, endpoint: str) -> None:
        """Connects, in the background and again after every loss.

        Raises `TransportError` where that is no endpoint to connect to.
        """
        _check_port(endpoint, "connect to")
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise TransportError(f"cannot connect to {endpoint}: {_reason(error)}") from None
        self._wake()

    def disconnect(self, endpoint: str) -> None:
        """Undoes `connect`; nothing happens where there was none."""
        # Looking at EVENTS makes libzmq take a message's first frame out of its pipe. If the others then go with the
        # pipe, receiving them ends the process (`Assertion failed: !_more`): so the whole message is taken out before.
        with suppress(zmq.ZMQError):
            self._held.append(self._socket.recv_multipart(zmq.NOBLOCK, copy=False))
        try:
            self._socket.disconnect(endpoint)
        except zmq.ZMQError as error:
            if error.errno != errno.ENOENT:
                raise TransportError(f"cannot disconnect from {endpoint}: {_reason(error)}") from None
        self._wake()

    def subscribe(self, prefix: bytes) -> None:
        """Receives messages whose first frame begins with this, on a SUB socket."""
        self._socket.setsockopt(zmq.SUBSCRIBE, prefix)
        self._wake()

    def unsubscribe(self, prefix: bytes) -> None:
        """Undoes one `subscribe`."""
        self._socket.setsockopt(zmq.UNSUBSCRIBE, prefix)
        self._wake()

    def send_many(self, messages: Iterable[Sequence[bytes] | EncodedRun]) -> int:
        """Queues these messages for whoever subscribed to them; gives how many. Never waits.

        A message that the socket cannot take at all (it has no peer, or its queue is full) is dropped.
        """
        count = self._loops.send(self._socket, messages)
        self._wake()
        return count

    async def receive_with_sources(self, count_max: int) -> list[tuple[list[bytes], MessageSource]]:
        """Waits for messages, and tells of each where it came from. A checkpoint."""
        found = await self._receive(lambda: self._take_frames(count_max))
        return [([frame.bytes for frame in frames], _message_source(frames[0])) for frames in found]

    def close(self, linger_ms: int) -> None:
        """Closes; what is queued goes on being sent for up to `linger_ms` milliseconds. Harmless when repeated."""
        if not self._is_closed:
            self._is_closed = True
            self.stop_monitor()
            self._socket.close(linger_ms)

    def stop_monitor(self) -> None:
        """Comes before the monitor is closed: libzmq's threads would wait for ever for who does not listen any more."""
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

    def _take_frames(self, count_max: int) -> list[list[zmq.Frame]]:
        """The messages that are here, with what libzmq knows of each."""
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
        with trio.CancelScope() as scope:
            self._waiting = scope
            try:
                await trio.lowlevel.wait_readable(self._fd)
            finally:
                self._waiting = None

    def _has_messages(self) -> bool:
        return bool(self._held) or bool(int(self._socket.EVENTS) & zmq.POLLIN)

    def _wake(self) -> None:
        """After a call that may have consumed the sign that a waiting reader waits for."""
        if self._waiting is not None and self._has_messages():
            self._waiting.cancel()


class Socket(BaseSocket):
    """One ZeroMQ socket, owned by one node. Only one task may receive at a time; any may send."""

    async def receive_many(self) -> list[list[bytes]]:
        """Waits for messages and drains up to `Loops.receive_count_max` of them. A checkpoint."""
        return await self._receive(self.receive_nowait)

    def receive_nowait(self) -> list[list[bytes]]:
        """The messages that are here, up to `Loops.receive_count_max` and `RECEIVE_BYTES_MAX`."""
        if self._held:
            return self._take_held()
        return self._loops.receive(self._socket, self._loops.receive_count_max, RECEIVE_BYTES_MAX)


class RunSocket(BaseSocket):
    """A `Socket` for records: consecutive ones of a partition may be drained as one `EncodedRun`.

    A run stands where the first of its messages stood.

    Attributes:
        count_max: how many messages are drained in one call; fewer where working on them takes long.
        is_slow_batch: whether, of late, many single messages have taken long.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        super().__init__(socket)
        self.count_max = self._loops.receive_count_max
        self.is_slow_batch = False
        self._is_streaming = False
        self._given_at = 0.0
        self._given_count = 0
        self._given_items = 0

    async def receive_many(self) -> list[list[bytes] | EncodedRun]:
        """Waits for messages and drains up to `count_max` of them. A checkpoint.

        Where they stream in and this is the faster end, it lets some gather.
        """
        self._pace()
        if self._is_streaming:
            await trio.sleep(GATHER_S)
        items = await self._receive(self.receive_nowait)
        self._note_given(items)
        self._is_streaming = STREAM_COUNT_MIN <= self._given_count < self.count_max
        return items

    def receive_nowait(self) -> list[list[bytes] | EncodedRun]:
        """The messages that are here, up to `count_max` and `RECEIVE_BYTES_MAX`."""
        if self._held:
            return list(self._take_held())
        return self._loops.receive_runs(self._socket, self.count_max, RECEIVE_BYTES_MAX)

    def _note_given(self, items: list[list[bytes] | EncodedRun]) -> None:
        self._given_count = sum(len(item.contents) if isinstance(item, EncodedRun) else 1 for item in items)
        self._given_items = len(items)
        self._given_at = time.perf_counter()

    def _pace(self) -> None:
        """Fewer messages at once where working on them takes long: what else there is to do must not wait for them."""
        if not self._given_count:
            return
        spent = time.perf_counter() - self._given_at
        if spent > SLICE_S:
            self.is_slow_batch = self._given_items > SLOW_BATCH_ITEMS
            self.count_max = max(int(self._given_count * SLICE_S / spent), COUNT_MIN)
        elif self._given_count >= self.count_max:
            self.count_max = min(2 * self.count_max, self._loops.receive_count_max)
        self._given_count = 0


def _message_source(frame: zmq.Frame) -> MessageSource:
    source = source_descriptor(frame)
    return MessageSource(
        _property(frame, "Peer-Address"), _property(frame, "User-Id"), -1 if source is None else source
    )


def _property(frame: zmq.Frame, name: str) -> str:
    """What libzmq knows of where the frame came from; empty where it does not."""
    try:
        return str(frame.get(name))
    except zmq.ZMQError:
        return ""


def _reason(error: zmq.ZMQError) -> str:
    """In libzmq's words, without what pyzmq adds."""
    return zmq.strerror(error.errno or 0).lower()


def _check_port(endpoint: str, purpose: str) -> None:
    """libzmq takes any number, and uses its last 16 bits."""
    port = endpoint.rpartition(":")[2]
    if endpoint.startswith("tcp://") and port != "*" and not (port.isdecimal() and int(port) <= PORT_MAX):
        raise TransportError(f"cannot {purpose} {endpoint}: expected a port up to {PORT_MAX}")
