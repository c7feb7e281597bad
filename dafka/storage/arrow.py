"""Records as columns of Arrow, with the names and types that Spark's Kafka source gives them.

A partition is a string: the producer's address. Spark reads these columns; the Parquet objects of a cold tier contain
them.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dafka.packed_bytes import PackedContents, Repeated
from dafka.records import NO_TIMESTAMP, Header, Partition, RecordBatch

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

ARROW_TYPES = {
    "topic": pa.string(),
    "partition": pa.string(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "timestampType": pa.int32(),
    "stored_at": TIMESTAMP,
    "key": pa.binary(),
    "headers": HEADERS,
    "value": pa.binary(),
}
"""The columns of a record and their types."""

CREATE_TIME, LOG_APPEND_TIME = 0, 1
"""Kafka's numbers in the column `timestampType`: a record's own time, or the time at which it was stored."""

TIMESTAMP_MAX = (2**63 - 1) // 1000
"""The latest time that a column can hold, in milliseconds since 1970."""


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of these columns."""
    return pa.schema([(name, ARROW_TYPES[name]) for name in columns])


def escape_name(name: str) -> str:
    r"""Return a topic or an address as valid UTF-8, which Spark's strings need; other bytes are written as `\xNN`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def to_arrow(batch: RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Convert columns of a batch of records, which needs `stored_at` for those with times, to an Arrow batch.

    Packed values are converted without copying each one. Records that compaction has removed are left out. A timestamp
    that is unknown, or that Spark cannot represent, is replaced by the time of storing. Raise `pa.ArrowInvalid` if a
    time of storing is out of range for Spark.
    """
    converted = pa.RecordBatch.from_arrays([_to_array(batch, name) for name in columns], schema=arrow_schema(columns))
    if batch.compacted is None:
        return converted
    held = np.frombuffer(batch.compacted, np.uint8) == 0
    return converted.filter(pa.array(held))


def _to_array(batch: RecordBatch, name: str) -> pa.Array:  # noqa: PLR0911 (one return for each column)
    count = len(batch)
    match name:
        case "topic":
            return repeat_text(escape_name(batch.partition.topic), count)
        case "partition":
            return repeat_text(escape_name(batch.partition.address), count)
        case "offset":
            return pa.array(np.arange(batch.first_sequence, batch.end_sequence, dtype=np.int64))
        case "timestamp":
            return to_timestamps(_own_or_stored(batch))
        case "timestampType":
            return pa.array(np.where(_has_own_time(batch), CREATE_TIME, LOG_APPEND_TIME).astype(np.int32))
        case "stored_at":
            return to_timestamps(pa.array(_stored_at(batch)))
        case "key":
            return pa.nulls(count, pa.binary()) if batch.keys is None else _to_binary_array(batch.keys)
        case "headers":
            return pa.nulls(count, ARROW_TYPES["headers"]) if batch.headers is None else to_header_array(batch.headers)
        case _:
            return _to_binary_array(batch.values)


def _has_own_time(batch: RecordBatch) -> npt.NDArray[np.bool_]:
    """Return for each record whether it has a timestamp that Spark can represent."""
    if batch.timestamps is None:
        return np.zeros(len(batch), np.bool_)
    own = _to_numbers(batch.timestamps)
    has_own: npt.NDArray[np.bool_] = (own != NO_TIMESTAMP) & (own <= TIMESTAMP_MAX) & (own >= -TIMESTAMP_MAX)
    return has_own


def _own_or_stored(batch: RecordBatch) -> pa.Array:
    stored = _stored_at(batch)
    if batch.timestamps is None:
        return pa.array(stored)
    return pa.array(np.where(_has_own_time(batch), _to_numbers(batch.timestamps), stored))


def _stored_at(batch: RecordBatch) -> npt.NDArray[np.int64]:
    assert batch.stored_at is not None
    return _to_numbers(batch.stored_at)


def _to_numbers(column: Sequence[int]) -> npt.NDArray[np.int64]:
    if isinstance(column, Repeated):
        return np.full(len(column), column.value)
    if isinstance(column, array):
        return np.frombuffer(column, np.int64)
    return np.fromiter(column, np.int64, len(column))


def repeat_text(text: str, count: int) -> pa.Array:
    """Return an Arrow array with `count` copies of a text."""
    return pa.repeat(pa.scalar(text, pa.string()), count)


def to_timestamps(milliseconds: pa.Array) -> pa.Array:
    """Return milliseconds since 1970 as Spark's timestamps; raise `pa.ArrowInvalid` if one is out of range."""
    return milliseconds.view(pa.timestamp("ms", tz="UTC")).cast(ARROW_TYPES["timestamp"])


def to_header_array(headers: Sequence[Sequence[Header]]) -> pa.Array:
    """Return headers as an Arrow array; null for a record without any, as Spark's Kafka source has it."""
    counts = np.fromiter(map(len, headers), np.int32, len(headers))
    offsets = np.zeros(len(headers) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    kind = ARROW_TYPES["headers"]
    pairs = [pair for each in headers for pair in each]
    columns = [
        pa.array([escape_name(name) for name, _ in pairs], pa.string()),
        pa.array([value for _, value in pairs], pa.binary()),
    ]
    structs = pa.StructArray.from_arrays(columns, fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets), structs, type=kind, mask=pa.array(counts == 0))


def _to_binary_array(contents: Sequence[bytes | None]) -> pa.Array:
    if not isinstance(contents, PackedContents):
        return pa.array(contents, pa.binary())
    ends = np.zeros(len(contents) + 1, np.int32)
    np.cumsum(np.frombuffer(contents.lengths, ">u4"), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(contents.data)]
    return pa.Array.from_buffers(pa.binary(), len(contents), buffers)


RAW_TIMESTAMP, RAW_HEADERS = "raw_timestamp", "raw_headers"
"""Extra columns of a Parquet object, present only if the other columns cannot hold everything exactly."""

RAW_TYPES = {
    RAW_TIMESTAMP: pa.int64(),
    RAW_HEADERS: pa.list_(pa.field("element", pa.struct([("key", pa.binary()), ("value", pa.binary())]))),
}
"""Milliseconds since 1970 beyond what a timestamp can hold, and headers whose names are not UTF-8."""


def find_raw_columns(batch: RecordBatch) -> tuple[str, ...]:
    """Return which columns of `RAW_TYPES` are needed so that `to_records` returns exactly these records."""
    found = []
    if batch.timestamps is not None:
        has_time = _to_numbers(batch.timestamps) != NO_TIMESTAMP
        if bool(np.any(has_time & ~_has_own_time(batch))):
            found.append(RAW_TIMESTAMP)
    if batch.headers is not None and any(escape_name(name) != name for each in batch.headers for name, _ in each):
        found.append(RAW_HEADERS)
    return tuple(found)


def to_raw_array(batch: RecordBatch, name: str) -> pa.Array:
    """Return one of the columns of `RAW_TYPES`."""
    if name == RAW_TIMESTAMP:
        return pa.array(_to_numbers(batch.timestamps or Repeated(NO_TIMESTAMP, len(batch))))
    rows = [
        [{"key": header.encode("utf-8", "surrogateescape"), "value": value} for header, value in each]
        for each in batch.headers or [()] * len(batch)
    ]
    return pa.array(rows, RAW_TYPES[RAW_HEADERS])


def to_records(partition: Partition, first_sequence: int, table: pa.Table, *, with_times: bool) -> RecordBatch:
    """Return the records of a table that `to_arrow` made, from a sequence on. Identifying columns may be missing."""
    columns = {name: _to_chunk(table.column(name)) for name in table.column_names}
    return RecordBatch(
        partition,
        first_sequence,
        _to_contents(columns["value"]),
        keys=None if _is_null(columns["key"]) else _to_contents(columns["key"]),
        headers=_to_headers(columns),
        timestamps=_to_own_times(columns),
        stored_at=_to_times(_to_milliseconds(columns["stored_at"])) if with_times else None,
    )


def _to_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _is_null(column: pa.Array) -> bool:
    return bool(column.null_count == len(column))


def _has_raw(columns: Mapping[str, pa.Array], name: str) -> bool:
    """Return whether a row group needs a raw column. It is all null if only other row groups of the object need it."""
    return name in columns and not _is_null(columns[name])


def _to_contents(column: pa.Array) -> Sequence[bytes | None]:
    """Return contents, packed if there is no null."""
    if column.null_count:
        contents: list[bytes | None] = column.to_pylist()
        return contents
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    start, end = int(ends[0]), int(ends[-1])
    joined = b"" if data is None else data.slice(start, end - start).to_pybytes()
    return PackedContents(joined, np.diff(ends).astype(">u4").tobytes())


def _to_headers(columns: Mapping[str, pa.Array]) -> list[tuple[Header, ...]] | None:
    is_raw = _has_raw(columns, RAW_HEADERS)
    column = columns[RAW_HEADERS if is_raw else "headers"]
    if _is_null(column) or len(column.flatten()) == 0:
        return None
    return [
        tuple(
            (each["key"].decode("utf-8", "surrogateescape") if is_raw else each["key"], each["value"]) for each in row
        )
        if row
        else ()
        for row in column.to_pylist()
    ]


def _to_own_times(columns: Mapping[str, pa.Array]) -> Sequence[int] | None:
    if _has_raw(columns, RAW_TIMESTAMP):
        return _to_times(columns[RAW_TIMESTAMP].to_numpy())
    has_own = columns["timestampType"].to_numpy() == CREATE_TIME
    if not has_own.any():
        return None
    return _to_times(np.where(has_own, _to_milliseconds(columns["timestamp"]), NO_TIMESTAMP))


def _to_milliseconds(column: pa.Array) -> npt.NDArray[np.int64]:
    milliseconds: npt.NDArray[np.int64] = column.view(pa.int64()).to_numpy() // 1000
    return milliseconds


def _to_times(numbers: npt.NDArray[np.int64]) -> Sequence[int]:
    if len(numbers) and bool((numbers == numbers[0]).all()):
        return Repeated(int(numbers[0]), len(numbers))
    return array("q", numbers.astype(np.int64).tobytes())
