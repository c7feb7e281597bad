"""Files of records: what a client is given to write, and what it has read.

A record is its timestamp (8 bytes), the length of the key (4 bytes; -1 for null) and the key, the value likewise, the
number of headers (4 bytes), and their names and values likewise. Only the standard library is imported: the drivers of
clients run in environments of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.kafka.server.clients import Message

_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")


def make_records(count: int) -> list[Message]:
    """Return records that differ: with and without keys, headers and values, of many sizes, of text and of bytes.

    Each has a key or a value: some clients refuse to send a record that has neither.
    """
    made = []
    for n in range(count):
        key = None if n % 5 == 0 else b"key %d" % (n % 1000)
        value = None if key and n % 101 == 7 else b"value %d " % n * (n % 9) + bytes(range(n % 256, 256, 37))
        headers: tuple[tuple[str, bytes | None], ...] = (
            ("number", b"%d" % n),
            ("empty", b""),
            ("nichts ü", b"\xc3\xbc"),
        )
        made.append(Message(value, key, headers[: n % 4], 1_700_000_000_000 + 3 * n))
    return made


def make_lines(count: int) -> list[Message]:
    """Return records for programs that read lines of a key, a tab and a value, and give all lines the same headers."""
    headers = (("source", b"lines"), ("kind", b"text"))
    return [Message(b"value %d" % n, b"key %d" % (n % 1000), headers, 1_700_000_000_000) for n in range(count)]


def write_records(path: str | Path, records: Iterable[Message]) -> None:
    with open(path, "wb") as file:
        for record in records:
            parts = [_LONG.pack(record.timestamp), *_pack(record.key), *_pack(record.value)]
            parts.append(_INT.pack(len(record.headers)))
            for name, value in record.headers:
                parts += [*_pack(name.encode()), *_pack(value)]
            file.write(b"".join(parts))


def read_records(path: str | Path) -> list[Message]:
    data = Path(path).read_bytes()
    return list(_parse(data))


def _pack(data: bytes | None) -> tuple[bytes, bytes]:
    return (_INT.pack(-1), b"") if data is None else (_INT.pack(len(data)), data)


def _parse(data: bytes) -> Iterator[Message]:
    position = 0

    def read_int() -> int:
        nonlocal position
        (value,) = _INT.unpack_from(data, position)
        position += 4
        return int(value)

    def read_bytes() -> bytes | None:
        nonlocal position
        size = read_int()
        if size < 0:
            return None
        position += size
        return data[position - size : position]

    while position < len(data):
        (timestamp,) = _LONG.unpack_from(data, position)
        position += 8
        key, value = read_bytes(), read_bytes()
        headers = tuple(((read_bytes() or b"").decode(), read_bytes()) for _ in range(read_int()))
        yield Message(value, key, headers, timestamp)
