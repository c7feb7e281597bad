"""Mistakes of users: each is one sentence that names the option, whatever the query."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from dafka.errors import DafkaError
from dafka.records import Partition
from dafka.spark.data_source import DafkaDataSource
from dafka.spark.schema import COLUMNS
from tests.spark.stores import batch, fill, trim

BATCH, STREAM, CLUSTER, WRITE = ("batch",), ("stream",), ("cluster",), ("write",)
BOTH = (*BATCH, *STREAM)
STARTS, ENDS = "option startingOffsets: expected", "option endingOffsets: expected"
JSON = f'{STARTS} "earliest", "latest", or JSON such as {{"orders": ... '
WHOLE = "expected a whole number from 1 to 2**63 - 1, not"
NO_STORE = "expected a dafka store, an SQLite file or a file log's folder"

PATHS: list[tuple[str, str]] = [
    ("", "option path: expected a store, a folder or pattern of stores"),
    ("$/nothing", "path $/nothing: there is nothing here"),
    ("$/store.db,$/b.db", "name several paths in a list"),
    ("$/notes.txt", f"path $/notes.txt: {NO_STORE}"),
    ("$/foreign.db", f"path $/foreign.db: {NO_STORE}"),
    ("$/blank.db", f"path $/blank.db: {NO_STORE}"),
    ("$/pipe", f"path $/pipe: {NO_STORE}"),
    ("$/empty", "path $/empty: there is no dafka store among the 0 files and folders here"),
    ("$/no*", "path $/no*: there is no dafka store among the 1 files and folders here"),
    ("$/x*", "path $/x*: there is no dafka store among the 0 files and folders here"),
    ("$/newer.db", "newer.db has schema version 99, expected 4"),
    ("memory:x", "path memory:x: a storage in another process's memory cannot be read"),
    ("hdfs://host/a.db", "path hdfs://host/a.db: there is no storage 'hdfs'; installed are filelog, sqlite"),
    ("$/a\0b", "expected a path without zero bytes"),
    ("sqlite:a.db?synchronous=OFF", "expected sqlite:a.db without ?synchronous=OFF; it is only read"),
]

OPTIONS: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
    (BOTH, {"path": "", "paths": "[]"}, "option path: expected a store"),
    (BOTH, {"path": "", "paths": '[""]'}, "option path: expected a store"),
    (BOTH, {"path": "", "paths": "a.db"}, "option paths: expected a JSON list of paths, not 'a.db'"),
    (BOTH, {"path": "", "paths": "[1]"}, "option paths: expected a JSON list of paths, not '[1]'"),
    (BOTH, {"subscribe": "trades"}, "option subscribe: no store has a topic 'trades'; the stores hold 'orders'"),
    (BOTH, {"subscribe": "a", "subscribePattern": "b"}, "option subscribePattern: expected this or subscribe, not b"),
    (BOTH, {"subscribePattern": "("}, "option subscribePattern: expected a regular expression, not '('"),
    (BOTH, {"subscribe": "a,,b"}, "option subscribe: expected topics separated by commas, not 'a,,b'"),
    (BOTH, {"subscribe": ""}, "option subscribe: expected topics separated by commas, not ''"),
    (BOTH, {"startingOffsets": {"orders": {"A": 21}}}, f"{STARTS} at most 20, the end of orders/A, not 21"),
    (BOTH, {"startingOffsets": {"orders": {"A": 4}}}, "orders/A: records 4 to 4 are no longer in the stores"),
    (BOTH, {"startingOffsets": {"orders": {"B": 4}}}, "none of the stores has the partition orders/B"),
    (BOTH, {"startingOffsets": {"x": {"A": 4}}, "subscribe": "orders"}, "the topic 'x' is not among those of"),
    (BOTH, {"startingOffsets": ""}, f"{JSON}Expecting value"),
    (BOTH, {"startingOffsets": "newest"}, f"{JSON}Expecting value"),
    (BOTH, {"startingOffsets": '{"orders": {"A": 5}'}, f"{JSON}Expecting ',' delimiter"),
    (BOTH, {"startingOffsets": "[1]"}, f"{JSON}expected an object of topics"),
    (BOTH, {"startingOffsets": "7"}, f"{JSON}expected an object of topics"),
    (BOTH, {"startingOffsets": {"orders": 5}}, f"{JSON}orders: expected an object of partitions"),
    (BOTH, {"startingOffsets": {"orders": [5]}}, f"{JSON}orders: expected an object of partitions"),
    (BOTH, {"startingOffsets": {"orders": {"A": "4"}}}, f"{JSON}orders/A: expected a whole number, -2 for earliest or"),
    (BOTH, {"startingOffsets": {"orders": {"A": 5.0}}}, f"{JSON}not 5.0"),
    (BOTH, {"startingOffsets": {"orders": {"A": True}}}, f"{JSON}not True"),
    (BOTH, {"startingOffsets": {"orders": {"A": None}}}, f"{JSON}not None"),
    (BOTH, {"startingOffsets": {"orders": {"A": -3}}}, f"{JSON}not -3"),
    (BOTH, {"startingOffsets": '{"orders": {"A": NaN}}'}, f"{JSON}not nan"),
    (BOTH, {"startingOffsets": "[" * 100_000}, JSON),
    (BOTH, {"startingOffsets": '{"orders": {"A": ' + "9" * 5000 + "}}"}, f"{JSON}limit"),
    (BOTH, {"startingTimestamp": "yesterday"}, "option startingTimestamp: expected a whole number from 0 to"),
    (BOTH, {"startingTimestamp": 5, "startingOffsets": "earliest"}, "expected this or startingOffsets, not both"),
    *(
        (BOTH, {"minPartitions": text}, f"option minPartitions: {WHOLE} '")
        for text in ("0", "-1", "many", "", "1.5", "1e3", str(2**63), "9" * 5000)
    ),
    (BOTH, {"failOnDataLoss": "no"}, "option failOnDataLoss: expected true or false, not 'no'"),
    (BOTH, {"failOnDataLoss": "x" * 10_000}, "option failOnDataLoss: expected true or false, not 'xxx"),
    (BOTH, {"startingOffset": "earliest"}, "option startingoffset: there is no such option for"),
    (BOTH, {"subscribe_pattern": "x"}, "did you mean subscribePattern?"),
    (BOTH, {"failondataLos": "x"}, "did you mean failOnDataLoss?"),
    (BATCH, {"kafka.bootstrap.servers": "x"}, "known are endingOffsets, endingTimestamp, failOnDataLoss, "),
    (BATCH, {"endingOffsets": {"orders": {"A": 2**70}}}, f"the end of orders/A, not {2**70} ("),
    (BATCH, {"endingOffsets": "earliest"}, "option endingOffsets: 'earliest' would leave nothing to read"),
    (BATCH, {"startingOffsets": "latest"}, "option startingOffsets: 'latest' would leave nothing to read"),
    (
        ("batch",),
        {"startingOffsets": {"orders": {"A": 9}}, "endingOffsets": {"orders": {"A": 8}}},
        f"{ENDS} at least 9, where orders",
    ),
    (BATCH, {"endingTimestamp": 5, "endingOffsets": "latest"}, "option endingTimestamp: expected this or ending"),
    (("batch",), {"maxOffsetsPerTrigger": 5}, "no such option for reading stores"),
    (BATCH, {"pushFilters": "maybe"}, "option pushFilters: expected true or false, not 'maybe'"),
    (STREAM, {"maxOffsetsPerTrigger": 2**63}, f"option maxOffsetsPerTrigger: {WHOLE}"),
    (STREAM, {"endingOffsets": "latest"}, "option endingoffsets: there is no such option for following stores"),
    (CLUSTER, {"path": "a.db"}, "option path: expected a path of stores or the towers of a running cluster, not both"),
    (CLUSTER, {"subscribe": ""}, "option subscribe: expected topics separated by commas, not ''"),
    (CLUSTER, {"subscribePattern": "o.*"}, "option subscribePattern: a running cluster cannot list its topics; n"),
    (CLUSTER, {"endingOffsets": "latest"}, "option endingOffsets: a stream has no end; read stores at a path ins"),
    (CLUSTER, {"startingOffsets": {"x": {"A": 1}}}, "option startingOffsets: the topic 'x' is not among those of"),
    (CLUSTER, {"maxOffsetsPerTrigger": 0}, f"option maxOffsetsPerTrigger: {WHOLE}"),
    (CLUSTER, {"towers": "tcp://a:1"}, "option towers: expected HOST, HOST:SUB_PORT or HOST:SUB_PORT:PUB_PORT"),
    (CLUSTER, {"subscrib": "orders"}, "option subscrib: there is no such option for reading a running cluster"),
    (("write", "write stream"), {"towers": "a"}, "option topic: expected this option, or a column topic"),
    (WRITE, {"topic": "t" * 256}, "topic: expected at most 255 bytes, not 256"),
    (WRITE, {"topic": "t", "minStores": "0"}, f"option minStores: {WHOLE} '0'"),
    (WRITE, {"topic": "t", "minStores": 2, "wire": "libdafka"}, "option minStores: above 1 it needs wire rfc46"),
    (WRITE, {"topic": "t", "ackTimeout": "1s"}, f"option ackTimeout: {WHOLE} '1s'"),
    (WRITE, {"topic": "t", "writeID2": "x"}, "option writeid2: there is no such option for writing; did you mean"),
    (("write stream",), {"topic": "t", "writeId": "x"}, "option writeid: there is no such option for writing a stream"),
    (WRITE, {}, "option towers: expected this option or config. Spark does not pass"),
]

WRITTEN: list[tuple[str, str]] = [
    ("key: binary", "column value: expected a column of this name with the value"),
    ("value: long", "column value: expected binary or string, not bigint"),
    ("value: binary, partition: string", "column partition: expected only the columns value, topic, key, headers"),
    ("value: binary, topic: long", "column topic: expected string, not bigint"),
    ("value: binary, key: long", "column key: expected binary or string, not bigint"),
    ("value: binary, timestamp: long", "column timestamp: expected timestamp, not bigint"),
    ("value: binary, headers: string", "column headers: expected array<struct<key:string,value:binary>>, not string"),
]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    url = fill(f"sqlite:{folder}/store.db", batch("orders", "A", 0, 20))
    trim(url, {Partition("orders", "A"): 5})
    fill(f"sqlite:{folder}/newer.db", batch("orders", "A", 0, 1))
    for name, statement in {"newer": "PRAGMA user_version = 99", "foreign": "CREATE TABLE records (id)"}.items():
        with closing(sqlite3.connect(folder / f"{name}.db")) as connection:
            connection.execute(statement)
    (folder / "notes.txt").write_text("not a store")
    (folder / "blank.db").touch()
    (folder / "empty").mkdir()
    os.mkfifo(folder / "pipe")
    return folder


def as_schema(columns: str) -> StructType:
    kinds = {"binary": COLUMNS["value"].dataType, "long": LongType(), "string": StringType()}
    fields = [each.split(": ") for each in columns.split(", ")]
    return StructType([StructField(name, kinds[kind]) for name, kind in fields])


def ask(mode: str, options: dict[str, Any], columns: str = "value: binary", *, overwrite: bool = False) -> None:
    """Plan a query in this process as Spark does in another one, which passes the names of options in lower case."""
    given = {name.lower(): json.dumps(each) if isinstance(each, dict) else str(each) for name, each in options.items()}
    source = DafkaDataSource({name: each for name, each in given.items() if (name, each) != ("path", "")})
    if mode.startswith("write"):
        (source.writer if mode == "write" else source.streamWriter)(as_schema(columns), overwrite)
    elif mode == "batch":
        source.reader(COLUMNS).partitions()
    else:
        reader = source.streamReader(COLUMNS)
        try:
            reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        finally:
            reader.stop()


def check_mistake(sentence: str, mode: str, options: dict[str, Any], *columns: str, overwrite: bool = False) -> None:
    """Check that the error is one line with all parts of a sentence; `...` is anything between them."""
    with pytest.raises(DafkaError) as caught:
        ask(mode, options, *columns, overwrite=overwrite)
    message = str(caught.value)
    assert [part for part in sentence.split(" ... ") if part not in message] == [], (mode, options, message)
    assert "\n" not in message
    assert len(message) < 600


def test_mistakes(stores: Path) -> None:
    for path, sentence in PATHS:
        for mode in BOTH:
            check_mistake(sentence.replace("$", str(stores)), mode, {"path": path.replace("$", str(stores))})
    cluster = {"towers": "127.0.0.1", "subscribe": "orders", "startingOffsets": "earliest"}
    shared = {"batch": {"path": f"{stores}/store.db"}, "cluster": cluster}
    for modes, options, sentence in OPTIONS:
        for mode in modes:
            check_mistake(sentence, mode, shared.get("batch" if mode == "stream" else mode, {}) | options)
    for columns, sentence in WRITTEN:
        check_mistake(sentence, "write", {"topic": "t"}, columns)
    check_mistake("mode overwrite: records can only be appended", "write", {"topic": "t"}, overwrite=True)
    check_mistake("outputMode complete: records can only be appended", "write stream", {"topic": "t"}, overwrite=True)
