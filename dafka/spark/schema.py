"""What a record is to Spark: the columns, named as Spark's Kafka source names them, and runs of records as Arrow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from dafka.contents import PackedContents
from dafka.records import RecordBatch

COLUMNS = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", StringType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("value", BinaryType()),
    ]
)
"""A record's topic, its partition (the producer's address), its sequence, when it was stored, and its content."""

ARROW_TYPES = {
    "topic": pa.string(),
    "partition": pa.string(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "value": pa.binary(),
}
"""What Spark demands of an Arrow batch, to the letter."""


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns."""
    return pa.schema([(name, ARROW_TYPES[name]) for name in columns])


def printable(name: str) -> str:
    """A topic or an address as Spark's strings can hold it: octets that are not UTF-8 stand as `\\xNN`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def to_arrow(batch: RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """A run of records as an Arrow batch of these columns; `timestamp` needs the batch's times.

    Packed contents are not taken apart.
    """
    count = len(batch)
    arrays: list[pa.Array] = []
    for name in columns:
        if name == "topic":
            arrays.append(constant(printable(batch.partition.topic), count))
        elif name == "partition":
            arrays.append(constant(printable(batch.partition.address), count))
        elif name == "offset":
            arrays.append(offsets(batch.first_sequence, batch.end_sequence))
        elif name == "timestamp":
            arrays.append(to_times(pa.array(batch.stored_at, pa.int64())))
        else:
            arrays.append(_values(batch.contents))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def constant(text: str, count: int) -> pa.Array:
    """The same text so many times."""
    return pa.repeat(pa.scalar(text, pa.string()), count)


def to_times(milliseconds: pa.Array) -> pa.Array:
    """Milliseconds since 1970 as Spark's timestamps. Raises `pa.ArrowInvalid` for what none can hold."""
    return milliseconds.view(pa.timestamp("ms", tz="UTC")).cast(ARROW_TYPES["timestamp"])


def offsets(first_sequence: int, end_sequence: int) -> pa.Array:
    """Consecutive sequences."""
    return pa.array(np.arange(first_sequence, end_sequence, dtype=np.int64))


def _values(contents: Sequence[bytes]) -> pa.Array:
    if not isinstance(contents, PackedContents):
        return pa.array(contents, pa.binary())
    ends = np.zeros(len(contents) + 1, np.int32)
    np.cumsum(np.frombuffer(contents.lengths, ">u4"), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(contents.octets)]
    return pa.Array.from_buffers(pa.binary(), len(contents), buffers)
