"""The history of a run: what each client asked for and was told, with times; and the records that say whose they are.

Each client writes a file for each log, `CLIENT.LOG.history`, a JSON array a line, and `CLIENT.history` for what is not
about a log. Times are seconds of the machine's monotonic clock, which all
processes share. Records are counted from 0 for each producer and log, and events are about runs of records: `count` of
them from the number `first` on, at offsets from `offset` on.

    ["send", time, producer, log, first, count]                 a producer will send these records
    ["ok", time, producer, log, first, count, offset]           they are acknowledged; offset -1: not told where
    ["unknown", time, producer, log, first, count, reason]      they are in the log, or not
    ["fatal", time, producer, reason]                           this producer gave up
    ["assign", begun, time, group, member, log, offset]         a member continues at the committed offset (-1: none)
    ["read", time, reader, log, offset, producer, first, count] a reader or member of a group got records
    ["commit", begun, time, group, member, log, is_done, offset]    a member has committed, or tries to
    ["end", begun, time, reader, log, offset]                   a reader was told that the log ends here
    ["bad", time, reader, log, offset, reason]                  a reader got something that is no whole record
    ["note", time, name, text]                                  for people
"""

from __future__ import annotations

import io
import json
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

_HEADER = struct.Struct(">HHQ")
_CHECK = struct.Struct(">I")

VALUE_BYTES_MIN = _HEADER.size + _CHECK.size

Unpacked = tuple[int, int, int]
"""The producer, the log and the number of a record."""


def pack(producer: int, log: int, number: int, padding: bytes) -> bytes:
    """Return the value of a record, which ends with a checksum of all before it."""
    data = _HEADER.pack(producer, log, number) + padding
    return data + _CHECK.pack(zlib.crc32(data))


def unpack(value: bytes | None) -> Unpacked | None:
    """Return what a record is; None if it is damaged."""
    if value is None or len(value) < VALUE_BYTES_MIN:
        return None
    if zlib.crc32(value[: -_CHECK.size]) != _CHECK.unpack_from(value, len(value) - _CHECK.size)[0]:
        return None
    return _HEADER.unpack_from(value)


class HistoryWriter:
    """Writes the history of a client. What `flush` has written survives a kill.

    Args:
        folder: Where to write it.
        client: The name of the client.
    """

    def __init__(self, folder: Path, client: str) -> None:
        self._folder = folder
        self._client = client
        self._files: dict[int | None, io.FileIO] = {}
        self._lines: dict[int | None, list[str]] = {}

    def add(self, *event: Any, log: int | None = None) -> None:
        """Add an event, which is about a log or not."""
        self._lines.setdefault(log, []).append(json.dumps(event, separators=(",", ":")))

    def flush(self) -> None:
        """Write the events that were added."""
        for log, lines in self._lines.items():
            if log not in self._files:
                number = "" if log is None else f".{log}"
                self._files[log] = io.FileIO(self._folder / f"{self._client}{number}.history", "ab")
            self._files[log].write(("\n".join(lines) + "\n").encode())
        self._lines.clear()

    def close(self) -> None:
        """Write what was added, and close the files."""
        self.flush()
        for file in self._files.values():
            file.close()


class Runs:
    """Joins records that follow one another in a log, of which an event is written when another record comes.

    Args:
        write: Takes the producer, log, first number, count and offset of a run.
    """

    def __init__(self, write: Callable[[int, int, int, int, int], None]) -> None:
        self._write = write
        self._open: dict[int, list[int]] = {}

    def add(self, record: Unpacked, offset: int) -> None:
        """Add a record."""
        producer, log, number = record
        run = self._open.get(log)
        if run is not None:
            count = run[2]
            is_next = run[0] == producer and run[1] + count == number
            if is_next and (run[3] + count == offset if run[3] >= 0 else offset < 0):
                run[2] = count + 1
                return
            self._write(run[0], log, run[1], count, run[3])
        self._open[log] = [producer, number, 1, offset]

    def flush(self) -> None:
        """Write all runs that are open."""
        for log, (producer, first, count, offset) in self._open.items():
            self._write(producer, log, first, count, offset)
        self._open.clear()


def now() -> float:
    """Return the time of the machine's monotonic clock, in seconds."""
    return round(time.monotonic(), 6)
