"""The columns of a record in Spark: those that are read, as Arrow batches, and those that are written.

The names and types are those of Spark's Kafka source, except that a partition is a string: the producer's address.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType, TimestampType

from dafka.config import Config
from dafka.contents import PackedContents
from dafka.errors import ConfigError
from dafka.records import RecordBatch
from dafka.roles.arguments import check_topic
from dafka.spark.errors import RowError

COLUMNS = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", StringType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("value", BinaryType()),
    ]
)
"""A record's topic, partition (the producer's address), sequence, time of storing, and content."""

ARROW_TYPES = {
    "topic": pa.string(),
    "partition": pa.string(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "value": pa.binary(),
}
"""The Arrow types that Spark requires for `COLUMNS`."""


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

    Packed contents are passed on without a copy of each.

    Args:
        batch: The records; with `stored_at`, if `timestamp` is among the columns.
        columns: The columns to return.

    Returns:
        The Arrow batch.

    Raises:
        pa.ArrowInvalid: If a time is out of range for Spark.
    """
    count = len(batch)
    arrays: list[pa.Array] = []
    for name in columns:
        if name == "topic":
            arrays.append(repeat_text(escape_name(batch.partition.topic), count))
        elif name == "partition":
            arrays.append(repeat_text(escape_name(batch.partition.address), count))
        elif name == "offset":
            arrays.append(pa.array(np.arange(batch.first_sequence, batch.end_sequence, dtype=np.int64)))
        elif name == "timestamp":
            arrays.append(to_timestamps(pa.array(batch.stored_at, pa.int64())))
        else:
            arrays.append(_to_binary_array(batch.values))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def repeat_text(text: str, count: int) -> pa.Array:
    """Return an Arrow array with `count` copies of a text."""
    return pa.repeat(pa.scalar(text, pa.string()), count)


def to_timestamps(milliseconds: pa.Array) -> pa.Array:
    """Return milliseconds since 1970 as Spark's timestamps; raise `pa.ArrowInvalid` if one is out of range."""
    return milliseconds.view(pa.timestamp("ms", tz="UTC")).cast(ARROW_TYPES["timestamp"])


def _to_binary_array(contents: Sequence[bytes]) -> pa.Array:
    if not isinstance(contents, PackedContents):
        return pa.array(contents, pa.binary())
    ends = np.zeros(len(contents) + 1, np.int32)
    np.cumsum(np.frombuffer(contents.lengths, ">u4"), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(contents.data)]
    return pa.Array.from_buffers(pa.binary(), len(contents), buffers)


@attrs.frozen
class RecordColumns:
    """The columns of a DataFrame that have the content and the topic of each row to publish.

    Attributes:
        value: The index of the column with the content.
        topic_column: The index of the column with the topic, or None if all rows have the same topic.
        topic: The topic of all rows, or empty if each row has its own.
    """

    value: int
    topic_column: int | None
    topic: str

    @classmethod
    def from_schema(cls, schema: StructType, topic: str, config: Config) -> RecordColumns:
        """Find the columns of a DataFrame.

        Args:
            schema: The columns of the DataFrame.
            topic: The topic of all rows, or empty if there must be a column `topic`.
            config: The node's configuration, which limits the length of a topic.

        Returns:
            The columns.

        Raises:
            ConfigError: If a column is missing, unknown or of another type, or if the topic is not valid.
        """
        indices = {field.name.lower(): index for index, field in enumerate(schema.fields)}
        extra = [field.name for field in schema.fields if field.name.lower() not in {"topic", "value"}]
        if extra:
            raise ConfigError(
                f"column {extra[0]}: expected only the columns value and topic; select those two, "
                "or put the others into the value, for example with to_json(struct(...))"
            )
        if "value" not in indices:
            raise ConfigError("column value: expected a column of this name with the content, binary or string")
        _check_type(schema, indices["value"], (BinaryType, StringType), "binary or string")
        if "topic" in indices:
            _check_type(schema, indices["topic"], (StringType,), "string")
        if topic:
            return cls(indices["value"], None, check_topic(topic, config))
        if "topic" not in indices:
            raise ConfigError("option topic: expected this option, or a column topic in the DataFrame")
        return cls(indices["value"], indices["topic"], "")

    def split_by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, list[bytes]]]:
        """Split a batch of rows by their topics.

        Args:
            batch: The rows.

        Yields:
            Each topic with its contents, in the order of the rows.

        Raises:
            RowError: If a row has no value or no topic.
        """
        values = batch.column(self.value)
        if values.null_count:
            raise RowError(
                "column value: expected a content in each row, not null; filter such rows out, "
                "or write coalesce(value, '') for an empty content"
            )
        values = values.cast(pa.binary())
        if self.topic_column is None:
            yield self.topic, values.to_pylist()
            return
        topics = batch.column(self.topic_column)
        if topics.null_count:
            raise RowError("column topic: expected a topic in each row, not null; filter such rows out")
        encoded = topics.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        if len(names) == 1:
            yield names[0], values.to_pylist()
            return
        indices = encoded.indices.to_numpy()
        order = np.argsort(indices, kind="stable")
        ends = np.searchsorted(indices[order], np.arange(len(names)), side="right").tolist()
        values = values.take(pa.array(order))
        for name, start, end in zip(names, [0, *ends], ends, strict=False):
            yield name, values.slice(start, end - start).to_pylist()


def _check_type(schema: StructType, index: int, types: tuple[type[DataType], ...], expected: str) -> None:
    field = schema.fields[index]
    if not isinstance(field.dataType, types):
        raise ConfigError(f"column {field.name}: expected {expected}, not {field.dataType.simpleString()}")
