"""The short way to what is in a store: decoded tables, streams, and a view for each topic."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import trio
from pyspark.sql.types import StructType

from dafka.errors import ConfigError
from dafka.groups import single_exception
from dafka.spark.decoding import VALUE_COLUMN, decode
from dafka.spark.options import Options
from dafka.spark.paths import PATH_OPTIONS, StoreFinder
from dafka.spark.schema import COLUMNS
from dafka.spark.session import register
from dafka.spark.stores import list_partitions, open_stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Paths: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"
"""A store, a folder of stores, a pattern; or several of these."""

Schema: TypeAlias = "StructType | str | dict[str, object] | list[object]"
"""For JSON a `StructType` or its text, for Avro a schema's JSON text or dictionary."""


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
    """What stores hold, as a table: a row a record.

    Arguments:
        session: any session; the data source is registered with it.
        path: a store, a folder of stores, or a pattern such as `/data/*.db`; or several.
        topic: the topic, or a list of topics; all of them by default.
        schema, into, mode, writer_schemas: how values become columns, as `decode` has them; without a schema, `value`
            is what was sent.
        columns: the columns of a record that are wanted, by default all. Fewer are read faster; Spark cannot tell the
            data source itself. With a schema, `value` need not be among them.
        options: the data source's options by their names: `startingOffsets="latest"`, `minPartitions=8`. Dictionaries
            become JSON.

    Raises `ConfigError` for a schema or a mode that cannot be; what is wrong with a path or an option is raised, in the
    same words, when the table is read.
    """
    register(session)
    reader = session.read.format("dafka").options(**_to_spark_options(path, topic, options))
    return _decode_if_asked(reader.schema(_spark_schema(columns, schema)).load(), schema, into, mode, writer_schemas)


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
    """What stores hold and will hold, as a stream; as `read`.

    Without a path it reads from a running cluster, which `towers` or `config` among the options names.
    """
    register(session)
    reader = session.readStream.format("dafka").options(**_to_spark_options(path, topic, options))
    return _decode_if_asked(reader.schema(_spark_schema(columns, schema)).load(), schema, into, mode, writer_schemas)


def make_views(
    session: SparkSession,
    path: Paths,
    schemas: Mapping[str, Schema] | None = None,
    *,
    prefix: str = "",
    mode: str = "permissive",
    **options: object,
) -> dict[str, str]:
    """Makes a temporary view of each topic, for SQL, and gives the views' names by topic.

    Arguments:
        session: the session that is to have the views.
        path: as for `read`.
        schemas: how values become columns, by topic; the view of a topic without one has `value` as it was sent.
        prefix: what the views' names begin with.
        mode: as `decode` has it.
        options: as for `read`, for each view.

    A view has the topic's name, with `_` for every character but letters, digits and `_`, and before a digit at its
    beginning. Topics whose names would then be the same, which to Spark `Orders` and `orders` are, get `_2`, `_3` and
    so on, in the order of the topics. A view of the same name is replaced. Topics that come later get no view.

    Raises `StorageError` where there is no store, `ConfigError` for a schema of a topic that is not there.
    """
    register(session)
    topics = _find_topics(path)
    for topic in schemas or {}:
        if topic not in topics:
            there = ", ".join(map(repr, topics)) or "no records"
            raise ConfigError(f"schemas: no store has a topic {topic!r}; they hold {there}")
    names = name_views(topics, prefix)
    for topic, name in names.items():
        reader = session.read.format("dafka").options(**_to_spark_options(path, topic, options))
        _decode_if_asked(reader.load(), (schemas or {}).get(topic), None, mode, ()).createOrReplaceTempView(name)
    return names


def name_views(topics: Iterable[str], prefix: str = "") -> dict[str, str]:
    """The views' names by topic, as `make_views` makes them."""
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
        raise ConfigError(
            f"{'into' if into is not None else 'writer_schemas'}: this needs a schema to decode values by"
        )
    return frame


def _spark_schema(columns: Sequence[str] | None, schema: Schema | None) -> StructType:
    """The columns that Spark is to be given: it has no way to ask for fewer itself."""
    if columns is None:
        return COLUMNS
    unknown = [name for name in columns if name not in COLUMNS.names]
    if unknown or isinstance(columns, str):
        raise ConfigError(f"columns: expected some of {', '.join(COLUMNS.names)}, not {columns!r}")
    wanted = list(dict.fromkeys(columns if schema is None else [*columns, VALUE_COLUMN]))
    return StructType([COLUMNS[name] for name in wanted])


def _to_spark_options(
    path: Paths | None, topic: str | Sequence[str] | None, options: Mapping[str, object]
) -> dict[str, str]:
    """Every option as the text that Spark takes."""
    given = {name: _to_text(value) for name, value in options.items() if value is not None}
    if path is not None:
        paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        given["paths"] = json.dumps([_absolute(os.fspath(each)) for each in paths])
    if topic is not None:
        topics = [topic] if isinstance(topic, str) else list(topic)
        if any("," in each or each != each.strip() for each in topics):  # `subscribe` has commas between names
            given["subscribePattern"] = "|".join(map(re.escape, topics))
        else:
            given["subscribe"] = ",".join(topics)
    return given


def _to_text(value: object) -> str:
    if isinstance(value, (bool, dict, list)):
        return json.dumps(value)
    return str(value)


def _absolute(path: str) -> str:
    """A path as it is meant here: Spark's workers run in the folder in which Java was started."""
    return path if re.match(r"\w+:", path) else os.path.abspath(path)


def _find_topics(path: Paths) -> list[str]:
    """The topics of which the stores at a path hold records, in order."""
    given = {name: text for name, text in _to_spark_options(path, None, {}).items() if name in PATH_OPTIONS}
    finder = StoreFinder(Options(given, PATH_OPTIONS, "reading stores"))

    async def program() -> set[str]:
        with single_exception():
            async with open_stores(finder.find()) as storages:
                return {topic for topic, _ in await list_partitions(storages)}

    return sorted(trio.run(program))
