"""Read records as DataFrames: decoded tables and streams, and a view for each topic."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import trio
from pyspark.sql.types import StructType

from dafka.errors import ConfigError
from dafka.exceptions import unwrap_group
from dafka.spark.decoding import VALUE_COLUMN, decode
from dafka.spark.options import Options
from dafka.spark.paths import PATH_OPTIONS, StoreFinder
from dafka.spark.schema import COLUMNS, default_columns
from dafka.spark.session import register
from dafka.spark.stores import list_partitions, open_stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Paths: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"
"""A store, a folder of stores, a pattern, or several of these."""

Schema: TypeAlias = "StructType | str | dict[str, object] | list[object]"
"""For JSON a `StructType` or its text, for Avro a schema as JSON text or as a dictionary."""


def read(
    session: SparkSession,
    path: Paths,
    *,
    topic: str | Sequence[str] | None = None,
    schema: Schema | None = None,
    columns: Sequence[str] | None = None,
    into: str | None = None,
    mode: str = "permissive",
    writer_schemas: Sequence[object] = (),
    **options: object,
) -> DataFrame:
    """Read the records of stores as a table with one row for each record.

    Args:
        session: Any session; the function registers the data source with it.
        path: A store, a folder of stores, a pattern such as `/data/*.db`, or several of these.
        topic: The topic, or a list of topics; all of them by default.
        schema: The fields of the values, as for `decode`. Without it, the column `value` has the published bytes.
        columns: The columns of a record to read, by default all but `headers`. Fewer columns are faster; Spark does not
            pass the columns that a query uses to the data source. With a schema, `value` can be omitted.
        into: As for `decode`.
        mode: As for `decode`.
        writer_schemas: As for `decode`.
        **options: Options of the data source by name, such as `startingOffsets="latest"` or `minPartitions=8`; see
            `DafkaDataSource`. Dictionaries become JSON.

    Returns:
        The table. Spark reads it when it is used, and only then reports errors in a path or an option.

    Raises:
        ConfigError: If the schema, the mode or a column is not valid.
    """
    register(session)
    given = _to_spark_options(path, topic, options)
    reader = session.read.format("dafka").options(**given).schema(_spark_schema(columns, schema, given))
    return _decode_if_asked(reader.load(), schema, into, mode, writer_schemas)


def read_stream(
    session: SparkSession,
    path: Paths | None = None,
    *,
    topic: str | Sequence[str] | None = None,
    schema: Schema | None = None,
    columns: Sequence[str] | None = None,
    into: str | None = None,
    mode: str = "permissive",
    writer_schemas: Sequence[object] = (),
    **options: object,
) -> DataFrame:
    """Follow the present and future records of stores as a stream with one row for each record.

    Args:
        session: As for `read`.
        path: As for `read`. Without a path, the stream follows a running cluster, which the option `towers` or
            `config` names.
        topic: As for `read`. A running cluster needs it.
        schema: As for `read`.
        columns: As for `read`.
        into: As for `decode`.
        mode: As for `decode`.
        writer_schemas: As for `decode`.
        **options: As for `read`.

    Returns:
        The stream. Spark reads it when a query starts, and only then reports errors in a path or an option.

    Raises:
        ConfigError: If the schema, the mode or a column is not valid.
    """
    register(session)
    given = _to_spark_options(path, topic, options)
    reader = session.readStream.format("dafka").options(**given).schema(_spark_schema(columns, schema, given))
    return _decode_if_asked(reader.load(), schema, into, mode, writer_schemas)


def make_views(
    session: SparkSession,
    path: Paths,
    schemas: Mapping[str, Schema] | None = None,
    *,
    prefix: str = "",
    mode: str = "permissive",
    **options: object,
) -> dict[str, str]:
    """Make a temporary view of each topic, for SQL.

    A view has the topic's name, with `_` instead of each character other than letters, digits and `_`, and `_` before a
    digit at the start. If several topics then have the same name, ignoring case as Spark does, the second and later
    topics in alphabetical order get `_2`, `_3` and so on. A view of the same name is replaced. Topics that appear later
    get no view.

    Args:
        session: The session that gets the views.
        path: As for `read`.
        schemas: The fields of the values, by topic. The view of a topic without a schema has the published bytes.
        prefix: The start of all views' names.
        mode: As for `decode`.
        **options: As for `read`, for each view.

    Returns:
        The names of the views, by topic.

    Raises:
        StorageError: If there is no store at the path.
        ConfigError: If the stores do not have a topic that `schemas` names.
    """
    register(session)
    topics = _find_topics(path)
    for topic in schemas or {}:
        if topic not in topics:
            found = ", ".join(map(repr, topics)) or "no records"
            raise ConfigError(f"schemas: no store has a topic {topic!r}; the stores hold {found}")
    names = name_views(topics, prefix)
    for topic, name in names.items():
        reader = session.read.format("dafka").options(**_to_spark_options(path, topic, options))
        _decode_if_asked(reader.load(), (schemas or {}).get(topic), None, mode, ()).createOrReplaceTempView(name)
    return names


def name_views(topics: Iterable[str], prefix: str = "") -> dict[str, str]:
    """Return the names that `make_views` gives to views, by topic."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for topic in sorted(topics):
        plain = re.sub(r"\W", "_", prefix + topic, flags=re.ASCII)
        plain = plain if plain and not plain[0].isdigit() else f"_{plain}"
        name, number = plain, 1
        while name.lower() in taken:
            number += 1
            name = f"{plain}_{number}"
        taken.add(name.lower())
        names[topic] = name
    return names


def _decode_if_asked(
    frame: DataFrame, schema: Schema | None, into: str | None, mode: str, writer_schemas: Sequence[object]
) -> DataFrame:
    if schema is not None:
        return decode(frame, schema, into=into, mode=mode, writer_schemas=writer_schemas)
    if into is not None or writer_schemas:
        option = "into" if into is not None else "writer_schemas"
        raise ConfigError(f"{option}: expected a schema to decode values with; add schema=..., or leave this out")
    return frame


def _spark_schema(columns: Sequence[str] | None, schema: Schema | None, options: Mapping[str, str]) -> StructType:
    """Return the columns to read."""
    if columns is None:
        return default_columns(options)
    unknown = [name for name in columns if name not in COLUMNS.names]
    if unknown or isinstance(columns, str):
        raise ConfigError(f"columns: expected some of {', '.join(COLUMNS.names)}, not {columns!r}")
    names = list(dict.fromkeys(columns if schema is None else [*columns, VALUE_COLUMN]))
    return StructType([COLUMNS[name] for name in names])


def _to_spark_options(
    path: Paths | None, topic: str | Sequence[str] | None, options: Mapping[str, object]
) -> dict[str, str]:
    """Return all options as text, which Spark needs."""
    given = {name: _to_text(value) for name, value in options.items() if value is not None}
    if path is not None:
        paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        given["paths"] = json.dumps([_absolute(os.fspath(each)) for each in paths])
    if topic is not None:
        topics = [topic] if isinstance(topic, str) else list(topic)
        if any("," in each or each != each.strip() for each in topics):  # `subscribe` cannot contain these names
            given["subscribePattern"] = "|".join(map(re.escape, topics))
        else:
            given["subscribe"] = ",".join(topics)
    return given


def _to_text(value: object) -> str:
    if isinstance(value, (bool, dict, list)):
        return json.dumps(value)
    return str(value)


def _absolute(path: str) -> str:
    """Return a path that is valid in Spark's workers, which run in the folder of the Java process."""
    return path if re.match(r"\w+:", path) else os.path.abspath(path)


def _find_topics(path: Paths) -> list[str]:
    """Return the topics of the stores at a path, sorted."""
    given = {name: text for name, text in _to_spark_options(path, None, {}).items() if name in PATH_OPTIONS}
    finder = StoreFinder(Options(given, PATH_OPTIONS, "reading stores"))

    async def program() -> set[str]:
        with unwrap_group():
            async with open_stores(finder.find_stores()) as storages:
                return {topic for topic, _ in await list_partitions(storages)}

    return sorted(trio.run(program))
