"""Malformed record batches, and batches that become far larger than any node should allow when decompressed."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import cramjam

from dafka_conformance.grammar.record_batches import HEADER_BYTES, BatchRecord, seal_batch, write_batch
from dafka_conformance.scenarios._nodes import MIB

NO_RECORD = b"in a malformed batch"
"""The value of the records in malformed batches."""

_ATTRIBUTES = slice(21, 23)
_LAST_DELTA = slice(23, 27)
_COUNT = slice(57, 61)
_RECORDS = 3
_PIECE_BYTES = 64 * MIB
_PIECES = 32
_LZ4_PIECES = 8
"""Fewer, since LZ4 does not make zeros as small as the others do."""
_SNAPPY_CLAIM = b"\xff\xff\xff\xff\x07"
"""The size that a block of snappy claims to have when decompressed: 2 GiB - 1."""


def malformed_batches(first: int) -> Iterator[tuple[str, bytes]]:
    """Yield batches with one fault each, and a description of the fault. Their first sequence is `first`."""
    valid = write_batch(first, [BatchRecord(NO_RECORD)] * _RECORDS)
    yield "no bytes", b""
    yield "a part of a header", valid[: HEADER_BYTES - 1]
    yield "a header alone", seal_batch(valid[:HEADER_BYTES])
    yield "a wrong CRC", valid[:20] + bytes([valid[20] ^ 1]) + valid[21:]
    yield "a changed value", valid[:-2] + bytes([valid[-2] ^ 1]) + valid[-1:]
    yield "the magic 1", seal_batch(valid[:16] + b"\1" + valid[17:])
    yield "the last byte missing", valid[:-1]
    yield "a length that is too large", seal_batch(valid, length=len(valid))
    yield "a negative length", seal_batch(valid, length=-1)
    yield "the last byte of the records missing", seal_batch(valid[:-1])
    yield "a byte after the records", seal_batch(valid + b"\0")
    yield "no records", _with(valid, _COUNT, 0)
    yield "a negative count", _with(valid, _COUNT, -1)
    yield "a record less than its count", _with(_with(valid, _COUNT, _RECORDS + 1), _LAST_DELTA, _RECORDS)
    yield "a record more than its count", _with(_with(valid, _COUNT, _RECORDS - 1), _LAST_DELTA, _RECORDS - 2)
    yield "2^31 - 1 as its count", _with(_with(valid, _COUNT, 2**31 - 1), _LAST_DELTA, 2**31 - 2)
    yield "a gap after its last record", _with(valid, _LAST_DELTA, _RECORDS)
    yield "the offset delta 1 of its first record", _with_byte(valid, HEADER_BYTES + 3, 2)
    yield "a record with a length that is too large", _with_byte(valid, HEADER_BYTES, valid[HEADER_BYTES] + 2)
    yield "a record with a negative length", _with_byte(valid, HEADER_BYTES, 1)
    yield "a value with a length that is too large", _with_byte(valid, HEADER_BYTES + 5, 0x7E)
    yield "an unknown compression", _with(valid, _ATTRIBUTES, 7)
    for compression, name in enumerate(("gzip", "snappy", "LZ4", "zstd"), 1):
        yield f"records that are not {name} data, as it claims", _with(valid, _ATTRIBUTES, compression)
    yield "a negative base offset", b"\xff" + valid[1:]


@cache
def bombs(first: int) -> Sequence[tuple[str, bytes]]:
    """Return batches of one record that have 512 MiB or more when decompressed, and the name of their compression."""
    template = write_batch(first, [BatchRecord(b"")])[:HEADER_BYTES]
    return [
        (name, _with(template + make(), _ATTRIBUTES, compression))
        for compression, (name, make) in enumerate(_BOMBS.items(), 1)
    ]


def _with(batch: bytes, place: slice, number: int) -> bytes:
    """Return a batch with another number in its header, and the right CRC."""
    size = place.stop - place.start
    return seal_batch(batch[: place.start] + number.to_bytes(size, "big", signed=True) + batch[place.stop :])


def _with_byte(batch: bytes, place: int, value: int) -> bytes:
    return seal_batch(batch[:place] + bytes([value]) + batch[place + 1 :])


def _gzip_bomb() -> bytes:
    return gzip.compress(bytes(_PIECE_BYTES), 6) * _PIECES


def _lz4_bomb() -> bytes:
    return bytes(cramjam.lz4.compress(bytes(_PIECE_BYTES))) * _LZ4_PIECES


def _zstd_bomb() -> bytes:
    return bytes(cramjam.zstd.compress(bytes(_PIECE_BYTES))) * _PIECES


def _snappy_bomb() -> bytes:
    return _SNAPPY_CLAIM + bytes(100)


_BOMBS: Mapping[str, Callable[[], bytes]] = {
    "gzip": _gzip_bomb,
    "snappy": _snappy_bomb,
    "LZ4": _lz4_bomb,
    "zstd": _zstd_bomb,
}
