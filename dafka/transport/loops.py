"""Which loops move messages in and out of sockets: the compiled ones where they are to be had, else those in Python.

The environment variable `DAFKA_ACCELERATOR` forces either: `on` the compiled ones, `off` those in Python.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import zmq
from zmq.backend import Socket as Backend

from dafka.contents import PackedContents
from dafka.errors import ConfigError
from dafka.wire import NUMBER_8_MAX, Command
from dafka.wire.batch import EncodedRun, iter_frames
from dafka.wire.primitives import NUMBER_8

VARIABLE = "DAFKA_ACCELERATOR"


class Loops(Protocol):
    """The inner loops of a socket. None of them waits, and errors of libzmq are pyzmq's exceptions.

    Attributes:
        name: what `dafka --version` calls them.
        receive_count_max: messages to be drained in one call, a few milliseconds' work; then others get their turn.
    """

    receive_count_max: int

    @property
    def name(self) -> str:
        """`compiled` or `pure Python`."""

    def receive(self, socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> list[list[bytes]]:
        """The messages that are here: up to `count_max`, and none after `bytes_max` octets have been reached."""

    def receive_runs(self, socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> list[list[bytes] | EncodedRun]:
        """The same, where consecutive records of a partition may come as one, where the first of them stood."""

    def send(self, socket: zmq.Socket[bytes], messages: Iterable[Sequence[bytes] | EncodedRun]) -> int:
        """Queues messages; gives how many. One that is not taken is dropped."""


FRAME_BYTES = 64
"""What keeping a frame costs beyond its octets, about: many empty frames are not for nothing."""

_NOBLOCK = int(zmq.NOBLOCK)
_RECORD_IDS = (Command.RECORD.value, Command.DIRECT_RECORD.value)


class PureLoops:
    """The loops over pyzmq's own calls."""

    name = "pure Python"
    receive_count_max = 1000

    def receive(self, socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> list[list[bytes]]:
        """See `Loops.receive`."""
        return list(_drain(socket, count_max, bytes_max))

    def receive_runs(self, socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> list[list[bytes] | EncodedRun]:
        """See `Loops.receive_runs`. Gathers those that follow each other: comparing is quicker than reading."""
        items: list[list[bytes] | EncodedRun] = []
        expected: list[bytes] | None = None
        contents: list[bytes] | None = None
        header_prefix, sequence = b"", 0
        for frames in _drain(socket, count_max, bytes_max):
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
                if not 1 <= len(heading) <= 2 or heading[0][:1] not in _RECORD_IDS or len(heading[-1]) <= NUMBER_8.size:
                    continue
                header_prefix = heading[-1][: -NUMBER_8.size]
                (sequence,) = NUMBER_8.unpack_from(heading[-1], len(header_prefix))
            sequence += 1
            if sequence > NUMBER_8_MAX:
                expected = None
            else:
                heading[-1] = header_prefix + NUMBER_8.pack(sequence)
                expected = heading
        return items

    def send(self, socket: zmq.Socket[bytes], messages: Iterable[Sequence[bytes] | EncodedRun]) -> int:
        """See `Loops.send`."""
        send = Backend.send  # what `zmq.Socket.send` adds is for sockets of other kinds, and takes longer than sending
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


def _drain(socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> Iterator[list[bytes]]:
    """The frames of each message that is here, up to the two limits."""
    receive = socket.recv
    size = 0
    try:
        for _ in range(count_max):
            if size >= bytes_max:
                return
            # A frame that is not copied knows whether more follow; asking the socket costs half as much again.
            frame = receive(_NOBLOCK, False)
            octets = frame.bytes
            size += len(octets) + FRAME_BYTES
            frames = [octets]
            while frame.more:
                frame = receive(_NOBLOCK, False)
                octets = frame.bytes
                size += len(octets) + FRAME_BYTES
                frames.append(octets)
            yield frames
    except zmq.Again:
        return


_MODULE = "dafka.transport._accelerator"
_INTERFACE = 4
"""The module's, as `accelerator/module.c` counts it."""


class CompiledLoops:
    """The loops over `_accelerator`, connected to libzmq."""

    name = "compiled"
    receive_count_max = 4000

    def __init__(self, module: Any) -> None:
        self._receive = module.receive
        self._send = module.send

    def receive(self, socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> list[list[bytes]]:
        """See `Loops.receive`."""
        messages: list[list[bytes]] = self._receive(socket.underlying, count_max, bytes_max, FRAME_BYTES, False)
        return messages

    def receive_runs(self, socket: zmq.Socket[bytes], count_max: int, bytes_max: int) -> list[list[bytes] | EncodedRun]:
        """See `Loops.receive_runs`."""
        items: list[list[bytes] | EncodedRun] = self._receive(
            socket.underlying, count_max, bytes_max, FRAME_BYTES, True
        )
        return items

    def send(self, socket: zmq.Socket[bytes], messages: Iterable[Sequence[bytes] | EncodedRun]) -> int:
        """See `Loops.send`."""
        count: int = self._send(socket.underlying, messages)
        return count


@functools.cache
def load_compiled() -> CompiledLoops | str:
    """The compiled loops, or why there are none."""
    try:
        module: Any = importlib.import_module(_MODULE)
    except ModuleNotFoundError:
        return "it was not built: install again where a C compiler and Python.h are"
    except ImportError as error:
        return f"it cannot be loaded: {error}"
    if module.INTERFACE != _INTERFACE:
        return "it was built from another version's sources: install again"
    try:
        _connect(module)
    except (ImportError, OSError) as error:
        return f"libzmq cannot be found: {error}"
    return CompiledLoops(module)


def _connect(module: Any) -> None:
    """Raises ImportError or OSError where the module cannot be connected to pyzmq's own libzmq."""
    library: Any = importlib.import_module("zmq.backend.cython._zmq")
    version = module.connect(library.__file__, EncodedRun, PackedContents, _failure)
    if version != zmq.zmq_version_info():
        raise OSError(f"found is version {'.'.join(map(str, version))}, and pyzmq's is {zmq.zmq_version()}")


def _failure(number: int) -> zmq.ZMQError:
    """What pyzmq raises for this error number of libzmq's."""
    return zmq.ContextTerminated(number) if number == zmq.ETERM else zmq.ZMQError(number)


_PURE = PureLoops()


def choose_loops() -> Loops:
    """The loops that a socket made now uses.

    Raises `ConfigError` where `DAFKA_ACCELERATOR` asks for what is not to be had, or says neither `on` nor `off`.
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
