"""Recordings of a process's changes to its files: `recorder.c` writes them, and this module reads them.

A recording is complete if replaying all of it rebuilds the folder exactly; the tests check that of each.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cache
from pathlib import Path
from tempfile import gettempdir

import attrs

SOURCE = Path(__file__).with_name("recorder.c")
PROJECT = Path(__file__).parents[2]
_HEADER = struct.Struct("=IiqII")


class Kind(IntEnum):
    """The kind of an entry of a recording, as in `recorder.c`."""

    OPEN = 1
    CLOSE = 2
    WRITE = 3
    TRUNCATE = 4
    SYNC_BEGIN = 5
    SYNC_END = 6
    RENAME = 7
    UNLINK = 8
    MAKE_FOLDER = 9
    REMOVE_FOLDER = 10
    SYNC_ALL = 11
    MARK = 12
    SENT = 13
    UNSUPPORTED = 14


@attrs.frozen
class Entry:
    """One call, or one mark.

    Attributes:
        kind: The kind of the entry.
        fd: The file descriptor; -1 if there is none. A SYNC_ALL with one ends the sync that began with its SYNC_BEGIN.
        value: The flags of an OPEN, the position of a WRITE, the size of a TRUNCATE, the result of a sync.
        first: The path, the data, or the text of a mark.
        second: The new path of a RENAME.
    """

    kind: Kind
    fd: int
    value: int
    first: bytes
    second: bytes


def obstacle() -> str:
    """Return why nothing can be recorded on this machine; empty if nothing is in the way."""
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        return "recording needs Linux with 64 bits"
    return "" if shutil.which("cc") or shutil.which("gcc") else "recording needs a C compiler (gcc)"


@cache
def compile_recorder() -> Path:
    """Compile the recorder unless an earlier run has done so, and return the path of the library."""
    name = f"dafka-power-recorder-{os.getuid()}-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    library = Path(gettempdir(), name)
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")
        compiler = shutil.which("cc") or "gcc"
        flags = ["-shared", "-fPIC", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-U_FORTIFY_SOURCE", "-lpthread"]
        subprocess.run([compiler, *flags, "-o", made, SOURCE], check=True, timeout=60)
        made.replace(library)
    return library


def environment(folder: Path, log: Path) -> dict[str, str]:
    """Return the environment in which a process records its changes below a folder."""
    variables: Mapping[str, str] = os.environ
    preload = {"LD_PRELOAD": str(compile_recorder()), "POWER_ROOT": str(folder.resolve()), "POWER_LOG": str(log)}
    return {**variables, **preload, "PYTHONPATH": str(PROJECT)}


def record(command: Sequence[str], folder: Path, log: Path, timeout_s: float = 100) -> list[Entry]:
    """Run a command to its end, and return its changes below a folder.

    Raises:
        subprocess.CalledProcessError: If the command fails; its output is printed.
    """
    subprocess.run(command, check=True, timeout=timeout_s, env=environment(folder, log))
    return list(read(log.read_bytes()))


def read(data: bytes) -> Iterator[Entry]:
    """Yield the entries of a recording. An incomplete last one is ignored."""
    position = 0
    while position + _HEADER.size <= len(data):
        kind, fd, value, first_bytes, second_bytes = _HEADER.unpack_from(data, position)
        start = position + _HEADER.size
        middle = start + first_bytes
        position = middle + second_bytes
        if position <= len(data):
            yield Entry(Kind(kind), fd, value, data[start:middle], data[middle:position])


# Functions for a recorded process


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    if "POWER_LOG" not in os.environ or not hasattr(library, "power_mark"):
        raise RuntimeError("this program must be started by `record`")
    return library


def mark(text: str) -> None:
    data = text.encode()
    _library().power_mark(data, ctypes.c_size_t(len(data)))


def fail_syncs(count: int) -> None:
    """Let the next syncs of files of this process fail with an input/output error."""
    _library().power_fail_syncs(count)
