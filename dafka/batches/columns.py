"""The records of a batch as columns, so that handling a batch needs no object for each record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias, overload

import attrs

from dafka.batches.varints import read_varint, write_varint
from dafka.errors import EncodingError
from dafka.packed_bytes import PackedContents, count_bytes, pack

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""The headers of one record: names and values in order. Names may repeat."""

NO_HEADERS = b"\0"
"""The encoded headers of a record without headers: their number."""


class PackedHeaders(Sequence[Headers]):
    """The encoded headers of many records. They are decoded when they are accessed.

    Args:
        blocks: The headers of each record: their number, and names and values with their lengths. They must be
            well-formed, as `decode_batch` and `pack_headers` return them.
    """

    def __init__(self, blocks: PackedContents) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[Headers]:
        return map(_decode_block, self.blocks)

    @overload
    def __getitem__(self, index: int) -> Headers: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Headers]: ...

    def __getitem__(self, index: int | slice) -> Headers | Sequence[Headers]:
        if not isinstance(index, slice):
            return _decode_block(self.blocks[index])
        return PackedHeaders(pack(self.blocks[index]))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedHeaders) and self.blocks == other.blocks:
            return True
        if isinstance(other, Sequence) and not isinstance(other, (bytes, str)):
            return list(self) == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<headers of {len(self)} records>"

    def has_any(self) -> bool:
        """Return whether any record has headers."""
        blocks = self.blocks
        return blocks.common_length() != 1 or blocks.data != NO_HEADERS * len(blocks)


def pack_headers(headers: Sequence[Iterable[tuple[str, bytes | None]]]) -> PackedHeaders:
    """Encode headers.

    Args:
        headers: For each record, pairs of a name and a value. Names may repeat; a value may be None.

    Returns:
        The same headers, packed.

    Raises:
        EncodingError: A name is not text that can be encoded, or a value is neither bytes nor None.
    """
    if isinstance(headers, PackedHeaders):
        return headers
    return PackedHeaders(pack([_encode_block(tuple(pairs)) if pairs else NO_HEADERS for pairs in headers]))


def _encode_block(pairs: Sequence[tuple[str, bytes | None]]) -> bytes:
    parts = [write_varint(len(pairs))]
    for name, value in pairs:
        if not isinstance(name, str):
            raise EncodingError("header name", f"text, not {type(name).__name__}")
        parts.append(_encode_name(name))
        if value is None:
            parts.append(b"\x01")
        elif isinstance(value, bytes):
            parts += (write_varint(len(value)), value)
        else:
            raise EncodingError("header value", f"bytes or None, not {type(value).__name__}")
    return b"".join(parts)


@lru_cache(maxsize=256)
def _encode_name(name: str) -> bytes:
    try:
        encoded = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise EncodingError("header name", "text that can be encoded (it contains a lone surrogate)") from None
    return write_varint(len(encoded)) + encoded


def _decode_block(block: bytes) -> Headers:
    if block == NO_HEADERS:
        return ()
    end = len(block)
    count, position = read_varint(block, 0, end, "header count")
    pairs = []
    for _ in range(count):
        length, position = read_varint(block, position, end, "header name length")
        name = block[position : position + length].decode("utf-8", "surrogateescape")
        length, position = read_varint(block, position + length, end, "header value length")
        pairs.append((name, None if length < 0 else block[position : position + length]))
        position += max(length, 0)
    return tuple(pairs)


@attrs.frozen
class RecordColumns:
    """The records of a batch.

    Each column has an item for each record, or is None if no record has one. A slice contains some of the records.

    Attributes:
        values: The values; None for a tombstone. They are `PackedContents` if none of them is None.
        keys: The keys; None for a record without one.
        headers: The headers of each record, decoded when they are accessed.
        timestamps: When each record was made, in milliseconds since 1970 UTC.
    """

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[Headers] | None
    timestamps: Sequence[int]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> RecordColumns:
        return RecordColumns(
            self.values[part],
            None if self.keys is None else self.keys[part],
            None if self.headers is None else self.headers[part],
            self.timestamps[part],
        )


def column_bytes(column: Sequence[bytes | None] | None) -> int:
    """Return the total size of a column of values or keys, in bytes."""
    return 0 if column is None else count_bytes(column)
