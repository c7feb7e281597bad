"""The rows of a DataFrame to publish: the columns for the parts of a record, and the records of a batch of rows.

The names and types are those of Spark's Kafka sink, and an additional column `timestamp`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import attrs
import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, StringType, StructType, TimestampType

from dafka.config import Config
from dafka.errors import ConfigError
from dafka.records import Header, ProducerRecord
from dafka.roles.arguments import check_topic
from dafka.spark.errors import RowError
from dafka.spark.schema import HEADERS

Rows: TypeAlias = Sequence[bytes | None] | Sequence[ProducerRecord]
"""The records of some rows: only values, if the DataFrame has no other column of a record; otherwise whole records."""

_OPTIONAL = ("topic", "key", "headers", "timestamp")
_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "value": (BinaryType, StringType),
    "topic": (StringType,),
    "key": (BinaryType, StringType),
    "timestamp": (TimestampType,),
}


@attrs.frozen
class RowColumns:
    """The columns of a DataFrame to publish, by index; None for parts of a record without a column.

    Either there is a column of topics, or `topic` is that of all rows. Without a timestamp, records have the time of
    publishing.
    """

    value: int
    topic_column: int | None
    topic: str
    key: int | None = None
    headers: int | None = None
    timestamp: int | None = None

    @classmethod
    def from_schema(cls, schema: StructType, topic: str, config: Config) -> RowColumns:
        """Find the columns of a DataFrame, with a column of topics if `topic` is empty.

        Raise `ConfigError` if a column is missing, unknown or of another type, or if the topic is not valid.
        """
        indices = {field.name.lower(): index for index, field in enumerate(schema.fields)}
        extra = [field.name for field in schema.fields if field.name.lower() not in {"value", *_OPTIONAL}]
        if extra:
            raise ConfigError(
                f"column {extra[0]}: expected only the columns value, {', '.join(_OPTIONAL)}; select some of those, "
                "or put the others into the value, for example with to_json(struct(...))"
            )
        if "value" not in indices:
            raise ConfigError("column value: expected a column of this name with the value, binary or string")
        for field in schema.fields:
            _check_type(field.name, field.dataType)
        if topic:
            topic_column = None
            check_topic(topic, config)
        elif "topic" in indices:
            topic_column = indices["topic"]
        else:
            raise ConfigError("option topic: expected this option, or a column topic in the DataFrame")
        others = (indices.get(name) for name in ("key", "headers", "timestamp"))
        return cls(indices["value"], topic_column, topic, *others)

    def split_by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Rows]]:
        """Yield each topic in a batch of rows with its records, in the order of the rows.

        Raise `RowError` if a row has no topic or no timestamp, or a header is null.
        """
        if self.topic_column is None:
            yield self.topic, self._to_records(batch)
            return
        topics = batch.column(self.topic_column)
        if topics.null_count:
            raise RowError("column topic: expected a topic in each row, not null; filter such rows out")
        encoded = topics.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        if len(names) == 1:
            yield names[0], self._to_records(batch)
            return
        indices = encoded.indices.to_numpy()
        order = np.argsort(indices, kind="stable")
        ends = np.searchsorted(indices[order], np.arange(len(names)), side="right").tolist()
        batch = batch.take(pa.array(order))
        for name, start, end in zip(names, [0, *ends], ends, strict=False):
            yield name, self._to_records(batch.slice(start, end - start))

    def _to_records(self, batch: pa.RecordBatch) -> Rows:
        values: list[bytes | None] = batch.column(self.value).cast(pa.binary()).to_pylist()
        if self.key is None and self.headers is None and self.timestamp is None:
            return values
        count = len(values)
        keys = [None] * count if self.key is None else batch.column(self.key).cast(pa.binary()).to_pylist()
        headers = [()] * count if self.headers is None else _to_headers(batch.column(self.headers))
        timestamps = [None] * count if self.timestamp is None else _to_milliseconds(batch.column(self.timestamp))
        return list(map(ProducerRecord, values, keys, headers, timestamps))


def _to_headers(column: pa.Array) -> list[tuple[Header, ...]]:
    try:
        return [
            tuple((header["key"], header["value"]) for header in each) if each else () for each in column.to_pylist()
        ]
    except TypeError:
        raise RowError("column headers: expected no header that is null; filter such headers out") from None


def _to_milliseconds(column: pa.Array) -> list[int]:
    if column.null_count:
        raise RowError(
            "column timestamp: expected a time in each row, not null; give each row one, or leave the column out for "
            "the time of publishing"
        )
    microseconds = column.cast(pa.timestamp("us", tz="UTC")).view(pa.int64()).to_numpy()
    milliseconds: list[int] = (microseconds // 1000).tolist()
    return milliseconds


def _check_type(name: str, found: DataType) -> None:
    if name.lower() == "headers":
        expected = HEADERS.simpleString()
        is_valid = found.simpleString() == expected
    else:
        types = _TYPES[name.lower()]
        expected = " or ".join(each.typeName() for each in types)
        is_valid = isinstance(found, types)
    if not is_valid:
        raise ConfigError(f"column {name}: expected {expected}, not {found.simpleString()}")
