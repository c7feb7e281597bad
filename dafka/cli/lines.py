"""Reads and writes records as lines of files, pipes and terminals, without blocking the event loop.

Only a line feed ends a line. Every other byte, including a carriage return, belongs to the record.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import AsyncGenerator
from contextlib import suppress

import trio

from dafka.errors import LocalError

CHUNK_BYTES = 2**18
"""The number of bytes to read at a time."""


class StreamError(LocalError):
    """A file, pipe or terminal cannot be read or written."""


async def read_lines(fd: int) -> AsyncGenerator[list[bytes], None]:
    """Yield the lines of a file, pipe or terminal without their line feeds: as many at a time as are available.

    The last line may have no line feed. The descriptor may be non-blocking. Raise `StreamError` if it cannot be read.
    """
    begun: list[bytes] = []
    while chunk := await _read_some(fd):
        lines, end, rest = chunk.rpartition(b"\n")
        if end:
            yield b"".join([*begun, lines]).split(b"\n")
            begun.clear()
        if rest:
            begun.append(rest)
    if begun:
        yield [b"".join(begun)]


async def write_bytes(fd: int, data: bytes) -> None:
    """Write all of the data to a descriptor, which may be non-blocking.

    Raise `BrokenPipeError` if the reader of a pipe is gone, and `StreamError` if another error prevents it.
    """
    await trio.to_thread.run_sync(_write_all, fd, data, abandon_on_cancel=True)


async def wait_reader_gone(fd: int) -> None:
    """Wait until the reader of a pipe is gone. For a file or a terminal, wait forever."""
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        await trio.sleep_forever()
    # The writing end of a pipe never has data to read, so that only an error wakes this.
    await trio.lowlevel.wait_readable(fd)


async def _read_some(fd: int) -> bytes:
    """Return the next bytes, or nothing at the end. If cancelled, it has read nothing, or returns what it has read."""
    with suppress(OSError):  # epoll refuses files, which are always readable
        await trio.lowlevel.wait_readable(fd)
    return await trio.to_thread.run_sync(_read_now, fd)


def _read_now(fd: int) -> bytes:
    while True:
        try:
            return os.read(fd, CHUNK_BYTES)
        except BlockingIOError:  # another process that shares the terminal or pipe may have made it non-blocking
            select.select([fd], [], [])
        except OSError as error:
            raise StreamError(f"cannot read the input: {error.strerror}") from None


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StreamError(f"cannot write the output: {error.strerror}") from None
