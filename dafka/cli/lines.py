"""Records from and to byte streams: one line each, read and written without blocking the event loop.

Only a line feed ends a line; everything else, a carriage return too, belongs to the record.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import AsyncGenerator
from contextlib import suppress

import trio

from dafka.errors import LocalError
from dafka.records import RecordBatch, encode_text
from dafka.storage.tools.json_lines import format_lines

CHUNK_BYTES = 2**18


class StreamError(LocalError):
    """A file, pipe or terminal could not be read or written."""


async def read_lines(fd: int) -> AsyncGenerator[list[bytes], None]:
    """The lines of a file, pipe or terminal, as many at a time as are there. A last line needs no end.

    Raises `StreamError` where it cannot be read.
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
    """Writes all of it. Raises `BrokenPipeError` where nobody reads any more, else `StreamError`."""
    await trio.to_thread.run_sync(_write_all, fd, data, abandon_on_cancel=True)


async def wait_reader_gone(fd: int) -> None:
    """Returns when nobody reads a pipe any more; never for what is not a pipe."""
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        await trio.sleep_forever()
    # A pipe's writing end has nothing to read: only its error wakes this.
    await trio.lowlevel.wait_readable(fd)


def format_batch(batch: RecordBatch, output: str) -> bytes:
    """The records as lines: their contents alone (`content`), with all that names them (`full`), or as JSON."""
    if output == "content":
        return b"\n".join(batch.contents) + b"\n"
    if output == "full":
        name = b"%b %b" % (
            encode_text(batch.partition.topic, "topic"),
            encode_text(batch.partition.address, "partition"),
        )
        return b"".join(
            b"%b %d %b\n" % (name, sequence, content)
            for sequence, content in enumerate(batch.contents, batch.first_sequence)
        )
    return format_lines(batch).encode("ascii")


async def _read_some(fd: int) -> bytes:
    """What is there next; nothing where it ends. Cancelled, it has read nothing, or gives what it has read."""
    with suppress(OSError):  # a file, say, which never lets wait
        await trio.lowlevel.wait_readable(fd)
    return await trio.to_thread.run_sync(_read_now, fd)


def _read_now(fd: int) -> bytes:
    while True:
        try:
            return os.read(fd, CHUNK_BYTES)
        except BlockingIOError:  # whoever shares a terminal or pipe may have made it non-blocking
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
