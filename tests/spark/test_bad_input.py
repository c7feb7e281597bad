"""What a user gets wrong: one sentence that names the option, in batch and in streaming alike."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from store_helpers import A, B, batch, fill, trim

from dafka.records import Partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOTH = ("batch", "stream")


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
    ("notes.txt", {}, "notes.txt: this is no dafka store (neither an SQLite file nor a file log's folder)"),
    ("nothing", {}, "nothing: there is nothing at"),
    ("empty", {}, "empty: there is no dafka store among the 0 files and folders here"),
    ("newer.db", {}, "newer.db has schema version 99; this dafka knows versions up to"),
    ("memory:", {}, "path memory:: a storage in another process's memory cannot be read"),
    ("", {}, "option path: expected a store, a folder or pattern of stores"),
    ("store.db", {"subscribe": "trades"}, "option subscribe: no store has a topic 'trades'; they hold 'orders'"),
    (
        "store.db",
        {"subscribe": "a", "subscribePattern": "b"},
        "option subscribePattern: give it or subscribe, not both",
    ),
    ("store.db", {"subscribePattern": "("}, "option subscribePattern: expected a regular expression, not '('"),
    ("store.db", {"startingOffsets": {"orders": {A: 21}}}, f"option startingOffsets: orders/{A} ends before offset 20"),
    ("store.db", {"startingOffsets": {"orders": {A: 4}}}, f"orders/{A}: records 4 to 4 are not all held by the stores"),
    (
        "store.db",
        {"startingOffsets": {"orders": {B: 4}}},
        f"option startingOffsets: no store that is read has the partition orders/{B}",
    ),
    (
        "store.db",
        {"startingOffsets": {"x": {A: 4}}, "subscribe": "orders"},
        "option startingOffsets: the topic 'x' is not one that option subscribe asks for",
    ),
    ("store.db", {"startingOffsets": "{"}, 'option startingOffsets: expected "earliest", "latest", or JSON such as'),
    ("store.db", {"startingOffsets": {"orders": {A: "4"}}}, f"orders/{A} has '4': a whole number, or -2 for earliest"),
    ("store.db", {"startingTimestamp": "yesterday"}, "option startingTimestamp: expected a whole number from 0 up"),
    (
        "store.db",
        {"startingTimestamp": 5, "startingOffsets": "earliest"},
        "option startingTimestamp: give it or startingOffsets, not both",
    ),
    ("store.db", {"minPartitions": 0}, "option minPartitions: expected a whole number from 1 up"),
    ("store.db", {"failOnDataLoss": "no"}, "option failOnDataLoss: expected true or false, not 'no'"),
    ("store.db", {"startingOffset": "earliest"}, "option startingOffset: there is none of this name for"),
    ("store.db", {"schema": "key binary"}, "schema: there is no column 'key'"),
    ("store.db", {"schema": "value string"}, "schema: the column value is of type binary, not string"),
]
ONLY: list[tuple[str, dict[str, Any], str]] = [
    ("batch", {"endingOffsets": {"orders": {A: 2**70}}}, "is beyond its head"),
    ("batch", {"endingOffsets": "earliest"}, "option endingOffsets: 'earliest' would leave nothing to read"),
    ("batch", {"startingOffsets": "latest"}, "option startingOffsets: 'latest' would leave nothing to read"),
    (
        "batch",
        {"startingOffsets": {"orders": {A: 9}}, "endingOffsets": {"orders": {A: 8}}},
        f"option endingOffsets: orders/{A} would end at 8, before it starts at 9",
    ),
    ("batch", {"endingTimestamp": 5, "endingOffsets": "latest"}, "option endingTimestamp: give it or endingOffsets"),
    (
        "batch",
        {"maxOffsetsPerTrigger": 5},
        "option maxOffsetsPerTrigger: there is none of this name for reading stores",
    ),
    ("batch", {"pushFilters": "maybe"}, "option pushFilters: expected true or false, not 'maybe'"),
    (
        "stream",
        {"maxOffsetsPerTrigger": 2**63},
        "option maxOffsetsPerTrigger: expected a whole number from 1 up, below 2**63",
    ),
    ("stream", {"endingOffsets": "latest"}, "option endingOffsets: there is none of this name for following stores"),
]


def message(spark: SparkSession, mode: str, path: str, options: dict[str, Any]) -> str:
    """What Spark raises."""
    given = {name: json.dumps(each) if isinstance(each, dict) else str(each) for name, each in options.items()}
    reader: Any = (spark.read if mode == "batch" else spark.readStream).format("dafka")
    if schema := given.pop("schema", ""):
        reader = reader.schema(schema)
    with pytest.raises(Exception) as caught:  # noqa: PT011 (Spark's own, of several kinds)
        frame = reader.options(**given).load(path) if path else reader.options(**given).load()
        if mode == "batch":
            frame.collect()
        else:
            query = frame.writeStream.format("noop").trigger(availableNow=True).start()
            try:
                query.awaitTermination(60)
            finally:
                query.stop()
    return str(caught.value)


@pytest.mark.parametrize("mode", BOTH)
def test_what_is_wrong_either_way(spark: SparkSession, stores: Path, mode: str) -> None:
    missed = []
    for name, options, sentence in CASES:
        path = f"{stores}/{name}" if name and ":" not in name else name
        found = message(spark, mode, path, options)
        if sentence not in found:
            missed.append((name, options, sentence, found[:600]))
    assert not missed


def test_what_is_wrong_one_way(spark: SparkSession, stores: Path) -> None:
    missed = []
    for mode, options, sentence in ONLY:
        found = message(spark, mode, f"{stores}/store.db", options)
        if sentence not in found:
            missed.append((mode, options, sentence, found[:600]))
    assert not missed
