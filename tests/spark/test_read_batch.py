"""Reading stores once in Spark: all columns as stored, within the requested limits."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from pyspark.errors import PySparkException

from dafka.records import Partition
from dafka.storage import open_storage
from tests.spark.stores import TIME, A, B, batch, content, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

END = 200


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store with three partitions, whose records are a millisecond apart; in SQLite, unless a test says otherwise."""
    batches = [batch("orders", A, 0, END), batch("orders", B, 0, END // 2), batch("trades", A, 0, 10)]
    return fill(f"{getattr(request, 'param', 'sqlite')}:{tmp_path}/store", *batches)


def load(spark: SparkSession, path: str, **options: object) -> DataFrame:
    return spark.read.format("dafka").options(**{name: str(value) for name, value in options.items()}).load(path)


def spans(frame: DataFrame) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Return the first offset, the last offset and the count of each partition."""
    rows = frame.selectExpr("topic", "partition", "offset").collect()
    names = {(row.topic, row.partition) for row in rows}
    found = {name: [row.offset for row in rows if (row.topic, row.partition) == name] for name in names}
    return {name: (min(offsets), max(offsets), len(offsets)) for name, offsets in found.items()}


@pytest.mark.parametrize("url", ["sqlite", "filelog"], indirect=True)
def test_all_columns_are_returned_as_stored(spark: SparkSession, url: str) -> None:
    frame = load(spark, url)
    assert frame.schema.simpleString() == (
        "struct<topic:string,partition:string,offset:bigint,timestamp:timestamp,timestampType:int,stored_at:timestamp,"
        "key:binary,value:binary>"
    )
    rows = frame.selectExpr("topic", "partition", "offset", "unix_micros(timestamp) AS time", "value").collect()
    expected = [
        (topic, address, offset, (TIME + offset) * 1000, content(topic, address, offset))
        for topic, address, end in (("orders", A, END), ("orders", B, END // 2), ("trades", A, 10))
        for offset in range(end)
    ]
    assert sorted((*row[:4], bytes(row[4])) for row in rows) == expected


def test_a_view_and_a_table_in_sql(spark: SparkSession, url: str) -> None:
    path = url.partition(":")[2]
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW read_view USING dafka OPTIONS (path '{path}', subscribe 'trades')")
    assert spark.sql("SELECT count(*) FROM read_view").collect() == [(10,)]
    spark.sql(f"CREATE TABLE read_table USING dafka OPTIONS (path '{path}')")
    try:
        counted = spark.sql(f"SELECT count(*) FROM read_table WITH (path = '{path}', subscribe = 'trades')").collect()
        assert counted == [(10,)]
        with pytest.raises(PySparkException, match=r"Spark does not pass the options of CREATE TABLE on"):
            spark.sql("SELECT count(*) FROM read_table").collect()
        with pytest.raises(PySparkException, match=r"Spark does not pass the options of CREATE TABLE on"):
            spark.sql("INSERT INTO read_table (value) VALUES (X'00')")
    finally:
        spark.sql("DROP TABLE read_table")


BOTH = {("orders", A): (0, 199, 200), ("orders", B): (0, 99, 100)}
LIMITS: list[tuple[dict[str, Any], dict[tuple[str, str], tuple[int, int, int]]]] = [
    ({"subscribe": "orders"}, BOTH),
    ({"subscribePattern": "t.*"}, {("trades", A): (0, 9, 10)}),
    ({"subscribe": "orders", "startingOffsets": "earliest", "endingOffsets": "latest"}, BOTH),
    (
        {"startingOffsets": {"orders": {A: 150, B: -1}}, "endingOffsets": {"orders": {A: 160}, "trades": {A: -2}}},
        {("orders", A): (150, 159, 10)},
    ),
    (
        {"startingOffsets": {"orders": {A: -2}}, "endingOffsets": {"orders": {A: -1, B: 3}}, "subscribe": "orders"},
        {("orders", A): (0, 199, 200), ("orders", B): (0, 2, 3)},
    ),
    (
        {"subscribe": "orders", "startingTimestamp": TIME + 90, "endingTimestamp": TIME + 195},
        {("orders", A): (90, 194, 105), ("orders", B): (90, 99, 10)},
    ),
    ({"subscribe": "orders", "startingTimestamp": TIME + 10_000}, {}),
    ({"subscribe": "orders", "endingTimestamp": 2**63 - 1}, BOTH),
    (
        {"subscribe": "orders", "startingOffsets": {"orders": {A: 10**30, B: 50}}, "failOnDataLoss": "false"},
        {("orders", B): (50, 99, 50)},
    ),
]


@pytest.mark.parametrize(("options", "expected"), LIMITS)
def test_limits(
    spark: SparkSession, url: str, options: dict[str, Any], expected: dict[tuple[str, str], tuple[int, int, int]]
) -> None:
    given = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in options.items()}
    assert spans(load(spark, url, **given)) == expected


def test_replicas_are_read_once(spark: SparkSession, tmp_path: Path) -> None:
    fill(f"sqlite:{tmp_path}/a.db", batch("orders", A, 0, 60))
    fill(f"filelog:{tmp_path}/log", batch("orders", A, 40, 100))
    fill(f"sqlite:{tmp_path}/b.db", batch("orders", A, 0, 20), batch("orders", B, 0, 5))
    expected = {("orders", A): (0, 99, 100), ("orders", B): (0, 4, 5)}
    assert spans(load(spark, str(tmp_path))) == expected
    several = [f"{tmp_path}/a.db", f"{tmp_path}/log", f"sqlite:{tmp_path}/b.db"]
    assert spans(spark.read.format("dafka").load(several)) == expected


def test_only_the_columns_of_the_schema(spark: SparkSession, url: str) -> None:
    frame = spark.read.format("dafka").schema("value binary, offset bigint").option("subscribe", "trades").load(url)
    rows = [(bytes(row.value), row.offset) for row in frame.collect()]
    assert sorted(rows) == [(content("trades", A, offset), offset) for offset in range(10)]


def test_as_many_tasks_as_are_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    contents = [bytes(100)] * 4000
    fill(f"sqlite:{tmp_path}/store.db", batch("orders", A, 0, 4000, contents=contents))
    frame = load(spark, f"{tmp_path}/store.db", minPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert spans(frame) == {("orders", A): (0, 3999, 4000)}


def test_sql_and_joins(spark: SparkSession, url: str) -> None:
    load(spark, url).createOrReplaceTempView("records")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW trades USING dafka OPTIONS (path '{url}', subscribe 'trades')")
    (row,) = spark.sql("""
        SELECT count(*) AS count, sum(length(records.value)) AS size FROM records
        JOIN trades ON records.partition = trades.partition AND records.offset = trades.offset
        WHERE records.topic = 'orders' AND records.timestamp >= timestamp_millis(1700000000005)
    """).collect()
    assert (row["count"], row["size"]) == (5, sum(len(content("orders", A, offset)) for offset in range(5, 10)))


def test_two_queries_on_one_dataframe(spark: SparkSession, url: str) -> None:
    """Spark keeps the plan of a DataFrame's first query, so the plan must not contain that query's filters."""
    frame = load(spark, url, subscribe="orders")
    assert frame.where("offset < 10").count() == 20
    assert frame.where("offset >= 190").count() == 10
    assert frame.count() == 300


def test_filters_that_are_pushed(spark: SparkSession, url: str) -> None:
    conditions = [
        ("offset >= 20 AND offset < 30", 20),
        ("topic = 'trades'", 10),
        ("topic LIKE 'ord%' AND partition = 'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB'", 100),
        ("partition IN ('x', 'y')", 0),
        ("offset IN (3, 7) AND topic <> 'trades'", 4),
        ("stored_at >= timestamp_micros(1700000000098001) AND topic = 'orders'", 102),
        ("stored_at = timestamp_millis(1700000000005)", 3),
        ("timestamp = timestamp_millis(1700000000005)", 3),
        ("key IS NOT NULL", 0),
        ("NOT (offset = 5) AND topic = 'trades'", 9),
        ("value IS NULL", 0),
        ("topic = 'orders' OR offset = 3", 301),
    ]
    for condition, count in conditions:
        assert load(spark, url, pushFilters="true").where(condition).count() == count, condition


def test_a_pushed_filter_limits_what_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """A record outside the range is damaged, so reading more than the range is an error."""
    fill(f"sqlite:{tmp_path}/store.db", batch("orders", A, 0, 100))
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        connection.execute("DELETE FROM records WHERE sequence = 50")
    path = f"{tmp_path}/store.db"
    assert load(spark, path, pushFilters="true").where("offset < 50").count() == 50
    with pytest.raises(Exception, match="sequence 50 is damaged"):
        load(spark, path).where("offset < 50").count()


@contextmanager
def appending(url: str) -> Iterator[None]:
    """Append to a store for the length of a block."""
    stop, begun = threading.Event(), threading.Event()

    async def program() -> None:
        async with open_storage(url) as storage:
            end = 0
            while not stop.is_set():
                await storage.append([batch("orders", A, end, end + 500)])
                end += 500
                if end == 2000:
                    await storage.trim(Partition("orders", A), 100)
                    begun.set()
                await trio.sleep(0.002)

    thread = threading.Thread(target=trio.run, args=[program])
    thread.start()
    try:
        assert begun.wait(30)
        yield
    finally:
        stop.set()
        thread.join()


def test_a_store_that_is_being_written_to(spark: SparkSession, tmp_path: Path) -> None:
    with appending(f"filelog:{tmp_path}/store"):
        reached = 0
        for _ in range(3):
            ((first, last, count),) = spans(load(spark, f"{tmp_path}/store")).values()
            assert count == last + 1 - first
            assert last + 1 >= max(reached, 2000)
            assert (last + 1) % 500 == 0
            reached = last + 1


def test_an_empty_store_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    fill(f"sqlite:{tmp_path}/store.db")
    assert load(spark, f"{tmp_path}/store.db").count() == 0
