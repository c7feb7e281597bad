"""The columns of a record in Spark, as Arrow batches.

The names and types are those of Spark's Kafka source, except that a partition is a string: the producer's address.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dafka.contents import PackedContents, Repeated
from dafka.errors import ConfigError
from dafka.records import NO_TIMESTAMP, Header, RecordBatch

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
"""The type of the headers of a record: names, which Spark calls keys, and values."""

COLUMNS = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", StringType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("stored_at", TimestampType()),
        StructField("key", BinaryType()),
        StructField("headers", HEADERS),
        StructField("value", BinaryType()),
    ]
)
"""The columns that a query may select."""

HEADERS_OPTION = "includeHeaders"
"""The option without which a query has no column `headers`, unless it names it."""

ARROW_TYPES = {field.name: to_arrow_type(field.dataType, timezone="UTC") for field in COLUMNS}
"""The Arrow types that Spark requires for `COLUMNS`."""

CREATE_TIME, LOG_APPEND_TIME = 0, 1
"""Kafka's numbers in the column `timestampType`: a record's own time, or the time at which it was stored."""

TIMESTAMP_MAX = (2**63 - 1) // 1000
"""The latest time that Spark can represent, in milliseconds since 1970."""

_TIME_COLUMNS = {"timestamp", "stored_at"}


def default_columns(options: Mapping[str, str]) -> StructType:
    """Return the columns of a query that names none.

    Args:
        options: The options of the query, which may have `includeHeaders`.

    Returns:
        All columns, without `headers` unless the option is true.

    Raises:
        ConfigError: If the option is neither true nor false.
    """
    text = {name.lower(): value for name, value in options.items()}.get(HEADERS_OPTION.lower(), "false")
    if text.strip().lower() not in {"true", "false"}:
        raise ConfigError(f"option {HEADERS_OPTION}: expected true or false, not {text!r}")
    has_headers = text.strip().lower() == "true"
    return StructType([field for field in COLUMNS if has_headers or field.name != "headers"])


def needs_stored_at(columns: Sequence[str]) -> bool:
    """Return whether these columns need the times of storing."""
    return not _TIME_COLUMNS.isdisjoint(columns)


def check_columns(schema: StructType) -> tuple[str, ...]:
    """Check the columns that a query selects.

    Args:
        schema: The columns.

    Returns:
        Their names.

    Raises:
        ConfigError: If there is none, or one is not a column of a record, or has another type.
    """
    if not len(schema):
        raise ConfigError(f"schema: expected at least one column, of {', '.join(COLUMNS.names)}")
    for field in schema:
        if field.name not in COLUMNS.names:
            raise ConfigError(f"schema: expected columns of {', '.join(COLUMNS.names)}, not {field.name!r}")
        expected = COLUMNS[field.name].dataType
        if field.dataType != expected:
            kind, given = expected.simpleString(), field.dataType.simpleString()
            raise ConfigError(f"schema: expected type {kind} for column {field.name}, not {given}")
    return tuple(schema.names)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of these columns."""
    return pa.schema([(name, ARROW_TYPES[name]) for name in columns])


def escape_name(name: str) -> str:
    r"""Return a topic or an address as valid UTF-8, which Spark's strings need; other bytes are written as `\xNN`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def to_arrow(batch: RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Convert a batch of records to an Arrow batch.

    Packed values are passed on without a copy of each. Records that compaction has removed are left out. A timestamp
    that is unknown, or that Spark cannot represent, is replaced by the time of storing.

    Args:
        batch: The records; with `stored_at`, if `needs_stored_at` says so.
        columns: The columns to return.

    Returns:
        The Arrow batch.

    Raises:
        pa.ArrowInvalid: If a time of storing is out of range for Spark.
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
