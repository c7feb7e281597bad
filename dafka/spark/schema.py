"""What a record is to Spark: the columns, named as Spark's Kafka source names them, and runs of records as Arrow."""

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
"""A record's topic, its partition (the producer's address), its sequence, when it was stored, and its content."""

ARROW_TYPES = {
    "topic": pa.string(),
    "partition": pa.string(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "value": pa.binary(),
}
"""What Spark demands of an Arrow batch, to the letter."""


def check_columns(schema: StructType) -> tuple[str, ...]:
    """The columns that are wanted; raises `ConfigError` where a record has none such, or of another type."""
    if not len(schema):
        raise ConfigError(f"schema: it names no column; a record has {', '.join(COLUMNS.names)}")
    for field in schema:
        if field.name not in COLUMNS.names:
            raise ConfigError(f"schema: there is no column {field.name!r}; a record has {', '.join(COLUMNS.names)}")
        expected = COLUMNS[field.name].dataType
        if field.dataType != expected:
            kind, given = expected.simpleString(), field.dataType.simpleString()
            raise ConfigError(f"schema: the column {field.name} is of type {kind}, not {given}")
    return tuple(schema.names)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns."""
    return pa.schema([(name, ARROW_TYPES[name]) for name in columns])


def escape_name(name: str) -> str:
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
            arrays.append(repeat_text(escape_name(batch.partition.topic), count))
        elif name == "partition":
            arrays.append(repeat_text(escape_name(batch.partition.address), count))
        elif name == "offset":
            arrays.append(offset_array(batch.first_sequence, batch.end_sequence))
        elif name == "timestamp":
            arrays.append(to_timestamps(pa.array(batch.stored_at, pa.int64())))
        else:
            arrays.append(_values(batch.contents))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def repeat_text(text: str, count: int) -> pa.Array:
    """The same text so many times."""
    return pa.repeat(pa.scalar(text, pa.string()), count)


def to_timestamps(milliseconds: pa.Array) -> pa.Array:
    """Milliseconds since 1970 as Spark's timestamps. Raises `pa.ArrowInvalid` for what none can hold."""
    return milliseconds.view(pa.timestamp("ms", tz="UTC")).cast(ARROW_TYPES["timestamp"])


def offset_array(first_sequence: int, end_sequence: int) -> pa.Array:
    """Consecutive sequences."""
    return pa.array(np.arange(first_sequence, end_sequence, dtype=np.int64))


def _values(contents: Sequence[bytes]) -> pa.Array:
    if not isinstance(contents, PackedContents):
        return pa.array(contents, pa.binary())
    ends = np.zeros(len(contents) + 1, np.int32)
    np.cumsum(np.frombuffer(contents.lengths, ">u4"), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(contents.octets)]
    return pa.Array.from_buffers(pa.binary(), len(contents), buffers)


@attrs.frozen
class RecordColumns:
    """Which columns hold a record's parts, by place.

    Attributes:
        value: where the content stands.
        topic_column: where the topic stands; None where all rows have the same.
        topic: the topic of all rows; empty where each names its own.
    """

    value: int
    topic_column: int | None
    topic: str

    def split_by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, list[bytes]]]:
        """The contents of each topic, in the order of the rows. Raises `RowError` for a row that is no record."""
        values = batch.column(self.value)
        if values.null_count:
            raise RowError(
                "column value: a row is null, and a record has a content; filter such rows out, "
                "or write coalesce(value, '') for an empty one"
            )
        values = values.cast(pa.binary())
        if self.topic_column is None:
            yield self.topic, values.to_pylist()
            return
        topics = batch.column(self.topic_column)
        if topics.null_count:
            raise RowError("column topic: a row is null, and each record belongs to a topic; filter such rows out")
        encoded = topics.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        if len(names) == 1:
            yield names[0], values.to_pylist()
            return
        places = encoded.indices.to_numpy()
        order = np.argsort(places, kind="stable")
        ends = np.searchsorted(places[order], np.arange(len(names)), side="right").tolist()
        values = values.take(pa.array(order))
        for name, start, end in zip(names, [0, *ends], ends, strict=False):
            yield name, values.slice(start, end - start).to_pylist()


def find_record_columns(schema: StructType, topic: str, config: Config) -> RecordColumns:
    """Where a record's parts stand among these columns; `topic`, where it is not empty, is the topic of all rows.

    Raises `ConfigError` for columns or a topic that cannot be.
    """
    places = {field.name.lower(): place for place, field in enumerate(schema.fields)}
    extra = [field.name for field in schema.fields if field.name.lower() not in {"topic", "value"}]
    if extra:
        raise ConfigError(
            f"column {extra[0]}: a record has a value and a topic, nothing else; select those two, "
            "or put more into the value, with to_json(struct(...)) for one"
        )
    if "value" not in places:
        raise ConfigError("column value: there is none; a record's content is a column of this name, binary or string")
    _check_type(schema, places["value"], (BinaryType, StringType), "binary or string")
    if "topic" in places:
        _check_type(schema, places["topic"], (StringType,), "string")
    if topic:
        return RecordColumns(places["value"], None, check_topic(topic, config))
    if "topic" not in places:
        raise ConfigError("option topic: it is needed where the DataFrame has no column topic")
    return RecordColumns(places["value"], places["topic"], "")


def _check_type(schema: StructType, place: int, kinds: tuple[type[DataType], ...], expected: str) -> None:
    field = schema.fields[place]
    if not isinstance(field.dataType, kinds):
        raise ConfigError(f"column {field.name}: expected {expected}, not {field.dataType.simpleString()}")
