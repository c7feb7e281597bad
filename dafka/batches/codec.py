"""The code that reads and writes the records of a batch."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

from dafka.batches import reading, writing
from dafka.batches.reading import Columns
from dafka.contents import PackedContents


class RecordsCodec(Protocol):
    """Reads and writes the records of a batch, which are not compressed.

    Attributes:
        name: `compiled` or `pure Python`.
    """

    name: str

    def read_records(self, data: bytes | memoryview, position: int, count: int, base_timestamp: int) -> Columns:
        """Return the columns of records. See `dafka.batches.reading`."""

    def write_records(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        blocks: PackedContents | None,
        timestamp_deltas: array[int] | None,
    ) -> bytes:
        """Return records as a batch contains them. See `dafka.batches.writing`."""


class PureCodec:
    """The codec in Python."""

    name = "pure Python"

    def read_records(self, data: bytes | memoryview, position: int, count: int, base_timestamp: int) -> Columns:
        """See `RecordsCodec.read_records`."""
        return reading.read_records(bytes(data), position, count, base_timestamp)

    def write_records(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        blocks: PackedContents | None,
        timestamp_deltas: array[int] | None,
    ) -> bytes:
        """See `RecordsCodec.write_records`."""
        return writing.write_records(values, keys, blocks, timestamp_deltas)


_PURE = PureCodec()


def records_codec() -> RecordsCodec:
    """Return the codec to use."""
    return _PURE
