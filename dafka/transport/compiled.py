"""The accelerator: the loops in C, over the libzmq that pyzmq has loaded.

The C files in `accelerator/` are compiled when the package is installed, where there is a compiler (`hatch_build.py`).
They call the functions of the libzmq inside pyzmq on pyzmq's own sockets, so that both see the same queues.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Sequence
from typing import Any

import zmq

from dafka.contents import PackedContents
from dafka.transport.pure import FRAME_BYTES
from dafka.wire.batch import EncodedRun

_MODULE = "dafka.transport._accelerator"
_INTERFACE = 2
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
