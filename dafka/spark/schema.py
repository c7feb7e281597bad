"""The columns of a record in Spark: those of `dafka.storage.arrow` in Spark's types, and the selectable columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

from dafka.errors import ConfigError

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
"""The columns that a query can select."""

HEADERS_OPTION = "includeHeaders"
"""The option that adds the column `headers` to a query that names no columns."""

_TIME_COLUMNS = {"timestamp", "stored_at"}


def default_columns(options: Mapping[str, str]) -> StructType:
    """Return the columns of a query that names none: all, without `headers` unless the option `includeHeaders` is true.

    Raise `ConfigError` if the option is neither true nor false.
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
    """Return the names of the columns that a query selects.

    Raise `ConfigError` if there is none, or one is not a column of a record, or has another type.
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
