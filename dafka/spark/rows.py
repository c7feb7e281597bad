"""What a DataFrame that is written must look like, and its rows as records: Arrow batches in, contents by topic out."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from dafka.config import Config
from dafka.errors import ConfigError, LocalError
from dafka.roles.arguments import check_topic


class RowError(LocalError):
    """A row that is no record. The message names its column and what would be right."""


@attrs.frozen
class Rows:
    """Which columns hold a record's parts, by place.

    Attributes:
        value: where the content stands.
        topic_column: where the topic stands; None where all rows have the same.
        topic: the topic of all rows; empty where each names its own.
    """

    value: int
    topic_column: int | None
    topic: str

    def by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, list[bytes]]]:
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


def find_rows(schema: StructType, topic: str, config: Config) -> Rows:
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
        return Rows(places["value"], None, check_topic(topic, config))
    if "topic" not in places:
        raise ConfigError("option topic: it is needed where the DataFrame has no column topic")
    return Rows(places["value"], places["topic"], "")


def _check_type(schema: StructType, place: int, kinds: tuple[type[DataType], ...], expected: str) -> None:
    field = schema.fields[place]
    if not isinstance(field.dataType, kinds):
        raise ConfigError(f"column {field.name}: expected {expected}, not {field.dataType.simpleString()}")
