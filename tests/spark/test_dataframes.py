from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

import dafka.spark
from dafka.errors import ConfigError, MissingExtraError, StorageError
from dafka.spark.dataframes import name_views
from tests.spark.queries import finish_query
from tests.spark.stores import A, B, batch, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN = ["topic", "partition", "offset", "timestamp", "timestampType", "stored_at", "key"]
LINES = [b'{"item": "tea", "count": 2}', b'{"item": "coffee", "count": 1}', b"no JSON"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "orders.db"
    fill(
        f"sqlite:{path}",
        batch("orders", A, 0, 3, contents=LINES),
        batch("Orders 2013", B, 0, 2),
        batch("a, b", A, 0, 4),
    )
    return path


def test_a_topic_decoded(spark: SparkSession, store: Path) -> None:
    frame = dafka.spark.read(spark, store, topic="orders", schema="item STRING, count INT")
    assert frame.columns == [*PLAIN, "item", "count", "_corrupt"]
    rows = frame.orderBy("offset").collect()
    assert [(row.offset, row.item, row["count"], row._corrupt) for row in rows] == [
        (0, "tea", 2, None),
        (1, "coffee", 1, None),
        (2, None, None, b"no JSON"),
    ]


def test_columns_and_options(spark: SparkSession, store: Path) -> None:
    options: dict[str, Any] = {"startingOffsets": {"orders": {A: 1}}, "minPartitions": 2, "failOnDataLoss": True}
    frame = dafka.spark.read(spark, store, topic="orders", schema="item STRING", columns=["offset"], **options)
    assert frame.columns == ["offset", "item", "_corrupt"]
    assert sorted(row.offset for row in frame.collect()) == [1, 2]


def test_a_stream_decoded(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    frame = dafka.spark.read_stream(
        spark, store, topic="orders", schema="item STRING, count INT", mode="dropmalformed", startingOffsets="earliest"
    )
    assert frame.isStreaming
    finish_query(frame.writeStream.format("memory").queryName("decoded").trigger(availableNow=True).start)
    assert sorted(row.item for row in spark.sql("SELECT item FROM decoded").collect()) == ["coffee", "tea"]


def test_a_view_of_each_topic(spark: SparkSession, store: Path) -> None:
    names = dafka.spark.make_views(spark, store, {"orders": "item STRING, count INT"}, prefix="v_")
    assert names == {"Orders 2013": "v_Orders_2013", "a, b": "v_a__b", "orders": "v_orders"}
    assert spark.sql("SELECT sum(count) FROM v_orders").first()[0] == 3  # type: ignore[index]
    assert spark.sql("SELECT value FROM v_a__b").count() == 4
    assert "value" not in spark.table("v_orders").columns


TABLES: list[tuple[dict[str, Any], dict[str, str], list[str]]] = [
    ({"path": "a.db"}, {"paths": '["$/a.db"]'}, [*PLAIN, "value"]),
    ({"path": ["sqlite:a.db", Path("/b.db")]}, {"paths": '["sqlite:a.db", "/b.db"]'}, [*PLAIN, "value"]),
    ({"path": "/a", "topic": "x"}, {"paths": '["/a"]', "subscribe": "x"}, [*PLAIN, "value"]),
    ({"path": "/a", "topic": ["x", "y"]}, {"paths": '["/a"]', "subscribe": "x,y"}, [*PLAIN, "value"]),
    ({"path": "/a", "topic": ["x+", "y,z"]}, {"paths": '["/a"]', "subscribePattern": r"x\+|y,z"}, [*PLAIN, "value"]),
    ({"path": "/a", "topic": " x"}, {"paths": '["/a"]', "subscribePattern": r"\ x"}, [*PLAIN, "value"]),
    ({"path": "/a", "columns": ["offset", "key", "offset"]}, {"paths": '["/a"]'}, ["offset", "key"]),
    (
        {"path": "/a", "failOnDataLoss": False, "minPartitions": 2, "wire": None, "startingOffsets": {"x": {"A": 1}}},
        {"paths": '["/a"]', "failOnDataLoss": "false", "minPartitions": "2", "startingOffsets": '{"x": {"A": 1}}'},
        [*PLAIN, "value"],
    ),
    (
        {"path": "/a", "includeHeaders": True},
        {"paths": '["/a"]', "includeHeaders": "true"},
        [*PLAIN, "headers", "value"],
    ),
]
"""Arguments of `read` and `read_stream`, the options of the data source, and the columns. `$` is the present folder."""


@pytest.mark.parametrize("name", ["read", "readStream"])
def test_arguments_become_options(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given, options, columns in TABLES:
        session = MagicMock()
        reader = getattr(session, name).format.return_value.options
        function = dafka.spark.read if name == "read" else dafka.spark.read_stream
        assert function(session, **given) is reader.return_value.schema.return_value.load.return_value
        expected = {key: text.replace("$", str(tmp_path)) for key, text in options.items()}
        assert (reader.call_args.kwargs, reader.return_value.schema.call_args.args[0].names) == (expected, columns)
        session.dataSource.register.assert_called_once()


def test_names_of_views_are_valid_and_unique() -> None:
    topics = ["orders", "Orders", "orders?", "orders!", "2013", "", "ü", "orders_2"]
    assert name_views(topics) == {
        "": "_",
        "2013": "_2013",
        "Orders": "Orders",
        "orders": "orders_2",
        "orders!": "orders_",
        "orders?": "orders__2",
        "orders_2": "orders_2_2",
        "ü": "__2",
    }


def test_mistakes(store: Path, tmp_path: Path) -> None:
    session = MagicMock()
    expected = "columns: expected some of topic, partition, offset, timestamp, timestampType, "
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"into": "data"}, "into: expected a schema to decode values with"),
        ({"writer_schemas": [{}]}, "writer_schemas: expected a schema to decode values with"),
        ({"columns": ["offsets"]}, expected),
        ({"columns": "offset"}, expected),
    ]
    for options, error in mistakes:
        with pytest.raises(ConfigError, match=error):
            dafka.spark.read(session, store, **options)
    with pytest.raises(ConfigError, match="schemas: no store has a topic 'order'; the stores hold 'Orders 2013'"):
        dafka.spark.make_views(session, store, {"order": "item STRING"})
    with pytest.raises(StorageError, match="there is nothing here"):
        dafka.spark.make_views(session, tmp_path / "none")


def test_public_names_exist_and_are_listed() -> None:
    assert set(dafka.spark.__all__) <= set(dir(dafka.spark))
    assert all(callable(getattr(dafka.spark, name)) for name in dafka.spark.__all__)
    with pytest.raises(AttributeError, match="no attribute 'reed'"):
        dafka.spark.reed  # noqa: B018


@pytest.mark.parametrize(
    ("versions", "error"),
    [
        ({}, "dafka.spark needs pyspark, which is not installed: pip install 'dafka\\[spark\\]'"),
        ({"pyspark": "4.0.1"}, "dafka.spark needs pyspark 4.3 or newer, not 4.0.1: pip install 'dafka\\[spark\\]'"),
        ({"pyspark": "4.10.0"}, "dafka.spark needs pyarrow, which is not installed"),
    ],
)
def test_without_the_extra_the_error_names_it(
    versions: dict[str, str], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if package not in versions:
            raise metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(MissingExtraError, match=error):
        dafka.spark.read  # noqa: B018
    with pytest.raises(ImportError, match=error):
        from dafka.spark import make_session  # noqa: F401
