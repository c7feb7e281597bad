"""Mistakes of users: each is one sentence that names the option, in batch and streaming queries."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dafka.errors import DafkaError
from dafka.records import Partition
from dafka.spark.data_source import DafkaDataSource
from dafka.spark.schema import COLUMNS
from tests.spark.queries import finish_query
from tests.spark.stores import A, B, batch, fill, trim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    url = fill(f"sqlite:{folder}/store.db", batch("orders", A, 0, 20))
    trim(url, {Partition("orders", A): 5})
    fill(f"sqlite:{folder}/newer.db", batch("orders", A, 0, 1))
    with closing(sqlite3.connect(folder / "newer.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    (folder / "notes.txt").write_text("not a store")
    (folder / "empty").mkdir()
    return folder


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("notes.txt", {}, "notes.txt: expected a dafka store, an SQLite file or a file log's folder"),
    ("nothing", {}, "nothing: there is nothing here"),
    ("empty", {}, "empty: there is no dafka store among the 0 files and folders here"),
    ("newer.db", {}, "newer.db has schema version 99, expected 4"),
    ("memory:", {}, "path memory:: a storage in another process's memory cannot be read"),
    ("", {}, "option path: expected a store, a folder or pattern of stores"),
    ("store.db", {"subscribe": "trades"}, "option subscribe: no store has a topic 'trades'; the stores hold 'orders'"),
    ("store.db", {"subscribe": "a", "subscribePattern": "b"}, "option subscribePattern: expected this or subscribe"),
    ("store.db", {"subscribePattern": "("}, "option subscribePattern: expected a regular expression, not '('"),
    (
        "store.db",
        {"startingOffsets": {"orders": {A: 21}}},
        f"option startingOffsets: expected at most 20, the end of orders/{A}, not 21",
    ),
    ("store.db", {"startingOffsets": {"orders": {A: 4}}}, f"orders/{A}: records 4 to 4 are no longer in the stores"),
    (
        "store.db",
        {"startingOffsets": {"orders": {B: 4}}},
        f"option startingOffsets: none of the stores has the partition orders/{B}",
    ),
    (
        "store.db",
        {"startingOffsets": {"x": {A: 4}}, "subscribe": "orders"},
        "option startingOffsets: the topic 'x' is not among those of the option subscribe",
    ),
    ("store.db", {"startingOffsets": "{"}, 'option startingOffsets: expected "earliest", "latest", or JSON such as'),
    ("store.db", {"startingOffsets": {"orders": {A: "4"}}}, f"orders/{A}: expected a whole number, -2 for earliest"),
    ("store.db", {"startingTimestamp": "yesterday"}, "option startingTimestamp: expected a whole number from 0 to"),
    (
        "store.db",
        {"startingTimestamp": 5, "startingOffsets": "earliest"},
        "option startingTimestamp: expected this or startingOffsets, not both",
    ),
    ("store.db", {"minPartitions": 0}, "option minPartitions: expected a whole number from 1 to 2**63 - 1"),
    ("store.db", {"failOnDataLoss": "no"}, "option failOnDataLoss: expected true or false, not 'no'"),
    ("store.db", {"startingOffset": "earliest"}, "option startingoffset: there is no such option for"),
]
CASES_OF_ONE_MODE: list[tuple[str, dict[str, Any], str]] = [
    ("batch", {"endingOffsets": {"orders": {A: 2**70}}}, f"the end of orders/{A}, not {2**70} ("),
    ("batch", {"endingOffsets": "earliest"}, "option endingOffsets: 'earliest' would leave nothing to read"),
    ("batch", {"startingOffsets": "latest"}, "option startingOffsets: 'latest' would leave nothing to read"),
    (
        "batch",
        {"startingOffsets": {"orders": {A: 9}}, "endingOffsets": {"orders": {A: 8}}},
        f"option endingOffsets: expected at least 9, where orders/{A} starts, not 8",
    ),
    (
        "batch",
        {"endingTimestamp": 5, "endingOffsets": "latest"},
        "option endingTimestamp: expected this or endingOffsets",
    ),
    ("batch", {"maxOffsetsPerTrigger": 5}, "option maxoffsetspertrigger: there is no such option for reading stores"),
    ("batch", {"pushFilters": "maybe"}, "option pushFilters: expected true or false, not 'maybe'"),
    ("stream", {"maxOffsetsPerTrigger": 2**63}, "option maxOffsetsPerTrigger: expected a whole number from 1 to 2**63"),
    ("stream", {"endingOffsets": "latest"}, "option endingoffsets: there is no such option for following stores"),
]


def ask(mode: str, path: str, options: dict[str, Any]) -> None:
    """Plan a query in this process as Spark does in another one, which passes the names of options in lower case."""
    given = {name.lower(): json.dumps(each) if isinstance(each, dict) else str(each) for name, each in options.items()}
    source = DafkaDataSource({**given, **({"path": path} if path else {})})
    if mode == "batch":
        source.reader(COLUMNS).partitions()
    else:
        reader = source.streamReader(COLUMNS)
        try:
            reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        finally:
            reader.stop()


@pytest.mark.parametrize("mode", ["batch", "stream"])
@pytest.mark.parametrize(("name", "options", "sentence"), CASES)
def test_mistakes_in_both_modes(stores: Path, mode: str, name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DafkaError) as caught:
        ask(mode, f"{stores}/{name}" if name and ":" not in name else name, options)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("mode", "options", "sentence"), CASES_OF_ONE_MODE)
def test_mistakes_in_one_mode(stores: Path, mode: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DafkaError) as caught:
        ask(mode, f"{stores}/store.db", options)
    assert sentence in str(caught.value)


def test_sparks_exception_contains_the_sentence(spark: SparkSession, stores: Path) -> None:
    frame = spark.read.format("dafka").option("subscribe", "trades")
    with pytest.raises(
        Exception, match=r"ConfigError: option subscribe: no store has a topic 'trades'; the stores hold 'o"
    ):
        frame.load(f"{stores}/store.db").count()
    with pytest.raises(Exception, match=r"ConfigError: schema: expected type binary for column value, not string"):
        spark.read.format("dafka").schema("value string").load(f"{stores}/store.db").count()
    stream = spark.readStream.format("dafka").load(f"{stores}/nothing")
    with pytest.raises(Exception, match=r"StorageError: path .*/nothing: there is nothing here"):
        finish_query(stream.writeStream.format("noop").trigger(availableNow=True).start)
