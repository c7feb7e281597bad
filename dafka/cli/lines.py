"""Records from and to byte streams: one line each, read and written without blocking the event loop.

Only a line feed ends a line; everything else, a carriage return too, belongs to the record.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator
from functools import partial

import trio

from dafka.records import Partition, RecordBatch

CHUNK_BYTES = 2**18


async def read_lines(fd: int) -> AsyncIterator[list[bytes]]:
    """The lines of a file, pipe or terminal, as many at a time as are there. A last line needs no end."""
    rest = b""
    while chunk := await trio.to_thread.run_sync(os.read, fd, CHUNK_BYTES, abandon_on_cancel=True):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


async def write_bytes(fd: int, data: bytes) -> None:
    """Writes all of it. Raises `BrokenPipeError` where nobody reads any more."""
    await trio.to_thread.run_sync(partial(_write_all, fd, data), abandon_on_cancel=True)


def format_batch(batch: RecordBatch, output: str) -> bytes:
    """The records as lines: their contents alone (`content`), with all that names them (`full`), or as JSON."""
    if output == "content":
        return b"\n".join(batch.contents) + b"\n"
    if output == "full":
        name = os.fsencode(f"{batch.partition.topic} {batch.partition.address}")
        return b"".join(
            b"%b %d %b\n" % (name, sequence, content)
            for sequence, content in enumerate(batch.contents, batch.first_sequence)
        )
    lines = [
        _to_json(batch.partition, sequence, content)
        for sequence, content in enumerate(batch.contents, batch.first_sequence)
    ]
    return "".join(lines).encode("ascii")


def _to_json(partition: Partition, sequence: int, content: bytes) -> str:
    record: dict[str, str | int] = {"topic": partition.topic, "partition": partition.address, "sequence": sequence}
    try:
        record["content"] = content.decode("utf-8")
    except UnicodeDecodeError:
        record["content_base64"] = base64.b64encode(content).decode("ascii")
    return json.dumps(record) + "\n"


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
