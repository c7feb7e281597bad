"""The loops that receive and send messages on ZeroMQ sockets: in C if the accelerator was built, otherwise in Python.

The loops in Python are the reference. The accelerator, the C files in `dafka/transport/accelerator/`, must return the
same results. It calls the functions of pyzmq's own libzmq on pyzmq's sockets, so both use the same queues. It is
compiled when the package is built or installed with a C compiler (`hatch_build.py`).

The environment variable `DAFKA_ACCELERATOR` selects the loops: `on` requires the C loops, `off` the Python loops.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import zmq
from zmq.backend import Socket as Backend

from dafka.errors import ConfigError
from dafka.packed_bytes import PackedContents
from dafka.transport.connections import source_descriptor
from dafka.wire import NUMBER_8_MAX, Command
from dafka.wire.batch import EncodedRun, iter_frames
from dafka.wire.primitives import NUMBER_8

VARIABLE = "DAFKA_ACCELERATOR"


SourcedMessage: TypeAlias = tuple[int, list[bytes]]
"""The descriptor on which a message arrived, or -1; and its frames."""

TALLIED_BYTES_MIN = 1024
"""The minimum size of a frame that a tally counts, in bytes. libzmq borrows such frames, and copies smaller ones."""

FRAME_BYTES = 64
"""The approximate memory of a frame in addition to its content, in bytes. It limits the number of empty frames."""

_NOBLOCK = int(zmq.NOBLOCK)
_RECORD_IDS = (Command.RECORD.value, Command.DIRECT_RECORD.value)


class _TrackedFrames:
    """A tally: counts the bytes of messages that libzmq still queues for any peer.

    Records of an `EncodedRun` and frames of less than `TALLIED_BYTES_MIN` do not count. pyzmq tracks the others. All
    peers get them in the same order, so they are released in that order.
    """

    def __init__(self) -> None:
        self._frames: deque[tuple[zmq.MessageTracker, int]] = deque()
        self._bytes = 0

    def track(self, content: bytes) -> zmq.Frame:
        """Return a frame that counts until libzmq has returned it."""
        frame = zmq.Frame(content, track=True, copy=False, copy_threshold=0)
        assert frame.tracker is not None
        self._frames.append((frame.tracker, len(content)))
        self._bytes += len(content)
        return frame

    def count_bytes(self) -> int:
        """Return the number of bytes."""
        while self._frames and self._frames[0][0].done:
            self._bytes -= self._frames.popleft()[1]
        return self._bytes


class _LentFrames:
    """A tally of frames that the accelerator lends to libzmq."""

    def __init__(self, module: Any) -> None:
        self.counter = module.open_tally()
        self._count_lent: Callable[[Any], int] = module.count_lent

    def count_bytes(self) -> int:
        """See `_TrackedFrames.count_bytes`."""
        return self._count_lent(self.counter)


Tally: TypeAlias = _TrackedFrames | _LentFrames


class PureLoops:
    """The loops in Python, which use pyzmq's own calls. They never wait, and raise pyzmq's exceptions."""

    name = "pure Python"
    """The name that `dafka --version` shows."""
    receive_count_max = 1000
    """Messages to receive in one call, so that handling them takes a few milliseconds."""

    def receive(self, socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> list[list[bytes]]:
        """Return up to `count_max` waiting messages. The message that reaches `bytes_max` bytes is the last."""
        return [frames for _, frames in _drain(socket, count_max, bytes_max)]

    def receive_sourced(self, socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> list[SourcedMessage]:
        """Return messages like `receive`, each with the descriptor on which it arrived; -1 if there is none."""
        return [(source_descriptor(frame), frames) for frame, frames in _drain(socket, count_max, bytes_max)]

    def receive_runs(
        self, socket: zmq.Socket[bytes], count_max: int, items_max: int, bytes_max: int
    ) -> list[list[bytes] | EncodedRun]:
        """Return messages like `receive`, with consecutive records of a partition joined to one run.

        A run takes the position of its first record. The list has up to `items_max` items. Comparing each header with
        the expected one is faster than decoding it.
        """
        items: list[list[bytes] | EncodedRun] = []
        expected: list[bytes] | None = None
        contents: list[bytes] | None = None
        header_prefix, sequence = b"", 0
        for _, frames in _drain(socket, count_max, bytes_max):
            heading = frames[:-1]
            if heading == expected:
                if contents is None:
                    contents = []
                    items.append(
                        EncodedRun(heading[0] if len(heading) == 2 else None, header_prefix, sequence, contents)
                    )
                contents.append(frames[-1])
            else:
                items.append(frames)
                contents = expected = None
                if 1 <= len(heading) <= 2 and heading[0][:1] in _RECORD_IDS and len(heading[-1]) > NUMBER_8.size:
                    header_prefix = heading[-1][: -NUMBER_8.size]
                    (sequence,) = NUMBER_8.unpack_from(heading[-1], len(header_prefix))
                    expected = heading
            if expected is not None:
                sequence += 1
                if sequence > NUMBER_8_MAX:
                    expected = None
                else:
                    heading[-1] = header_prefix + NUMBER_8.pack(sequence)
                    expected = heading
            if len(items) >= items_max:
                break
        return items

    def open_tally(self) -> Tally:
        """Return a tally for messages that these loops send."""
        return _TrackedFrames()

    def send(
        self, socket: zmq.Socket[bytes], messages: Iterable[Sequence[bytes] | EncodedRun], tally: Tally | None = None
    ) -> int:
        """Queue messages, and return how many were queued. A message that does not fit is dropped.

        The tally is one of `open_tally`.
        """
        if isinstance(tally, _TrackedFrames):
            messages = _track_frames(messages, tally)
        send = Backend.send  # `zmq.Socket.send` adds checks for other kinds of sockets, which take longer than sending
        more, last = _NOBLOCK | int(zmq.SNDMORE), _NOBLOCK
        count = 0
        for frames in iter_frames(messages):
            try:
                for frame in frames[:-1]:
                    send(socket, frame, more)
                send(socket, frames[-1], last)
            except zmq.Again:
                continue
            count += 1
        return count


def _track_frames(
    messages: Iterable[Sequence[bytes] | EncodedRun], tally: _TrackedFrames
) -> Iterator[Sequence[Any] | EncodedRun]:
    """Yield messages, with tracked frames instead of large ones."""
    for message in messages:
        if isinstance(message, EncodedRun) or all(len(frame) < TALLIED_BYTES_MIN for frame in message):
            yield message
        else:
            yield [tally.track(frame) if len(frame) >= TALLIED_BYTES_MIN else frame for frame in message]


def _drain(socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> Iterator[tuple[zmq.Frame, list[bytes]]]:
    """Yield the uncopied last frame of each waiting message and the contents of all frames, up to the two limits."""
    receive = socket.recv
    size = 0
    try:
        for _ in range(count_max):
            if size >= bytes_max:
                return
            # An uncopied frame knows whether more frames follow. Reading RCVMORE from the socket takes 50 % longer.
            frame = receive(_NOBLOCK, False)
            content = frame.bytes
            size += len(content) + FRAME_BYTES
            frames = [content]
            while frame.more:
                frame = receive(_NOBLOCK, False)
                content = frame.bytes
                size += len(content) + FRAME_BYTES
                frames.append(content)
            yield frame, frames
    except zmq.Again:
        return


_MODULE = "dafka.transport._accelerator"
_INTERFACE = 7
"""The version of the interface that `accelerator/module.c` must have."""


class CompiledLoops:
    """The loops in C, from the extension module `_accelerator`."""

    name = "compiled"
    receive_count_max = 4000

    def __init__(self, module: Any) -> None:
        """Use a module that is connected to libzmq."""
        self._module = module
        self._receive: Callable[..., list[Any]] = module.receive
        self._receive_sourced: Callable[..., list[SourcedMessage]] = module.receive_sourced
        self._send: Callable[..., int] = module.send

    def receive(self, socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> list[list[bytes]]:
        """See `PureLoops.receive`."""
        return self._receive(socket.underlying, count_max, count_max, bytes_max, FRAME_BYTES, False)

    def receive_runs(
        self, socket: zmq.Socket[bytes], count_max: int, items_max: int, bytes_max: int
    ) -> list[list[bytes] | EncodedRun]:
        """See `PureLoops.receive_runs`."""
        return self._receive(socket.underlying, count_max, items_max, bytes_max, FRAME_BYTES, True)

    def receive_sourced(self, socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> list[SourcedMessage]:
        """See `PureLoops.receive_sourced`."""
        return self._receive_sourced(socket.underlying, count_max, bytes_max, FRAME_BYTES)

    def send(
        self, socket: zmq.Socket[bytes], messages: Iterable[Sequence[bytes] | EncodedRun], tally: Tally | None = None
    ) -> int:
        """See `PureLoops.send`."""
        return self._send(socket.underlying, messages, tally.counter if isinstance(tally, _LentFrames) else None)

    def open_tally(self) -> Tally:
        """See `PureLoops.open_tally`."""
        return _LentFrames(self._module)


Loops: TypeAlias = PureLoops | CompiledLoops
"""The loops of a socket; both return the same results."""


@functools.cache
def load_compiled() -> CompiledLoops | str:
    """Return the loops in C, or the reason why they are not available."""
    try:
        module: Any = importlib.import_module(_MODULE)
    except ModuleNotFoundError:
        return "it was not built; reinstall dafka with a C compiler and Python.h"
    except ImportError as error:
        return f"it cannot be loaded: {error}"
    if module.INTERFACE != _INTERFACE:
        return "it was built from the sources of another version; reinstall dafka"
    try:
        _connect(module)
    except (ImportError, OSError) as error:
        return f"libzmq cannot be found: {error}"
    return CompiledLoops(module)


def _connect(module: Any) -> None:
    """Connect the module to pyzmq's own libzmq. Raises ImportError or OSError if that is impossible."""
    library: Any = importlib.import_module("zmq.backend.cython._zmq")
    version = module.connect(library.__file__, EncodedRun, PackedContents, _failure)
    if version != zmq.zmq_version_info():
        raise OSError(f"expected version {zmq.zmq_version()}, which pyzmq uses, not {'.'.join(map(str, version))}")


def _failure(number: int) -> zmq.ZMQError:
    """Return the exception that pyzmq raises for an error number of libzmq."""
    return zmq.ContextTerminated(number) if number == zmq.ETERM else zmq.ZMQError(number)


_PURE = PureLoops()


def choose_loops() -> Loops:
    """Return the loops for a new socket.

    Raises `ConfigError` if `DAFKA_ACCELERATOR` is invalid, or requires loops that are not available.
    """
    choice = os.environ.get(VARIABLE, "")
    if choice not in ("", "on", "off"):
        raise ConfigError(f"{VARIABLE}: expected on or off, not {choice!r}")
    if choice == "off":
        return _PURE
    compiled = load_compiled()
    if not isinstance(compiled, str):
        return compiled
    if choice == "on":
        raise ConfigError(f"{VARIABLE}: the accelerator cannot be used: {compiled}")
    return _PURE
