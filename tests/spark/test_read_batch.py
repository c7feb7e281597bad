"""Reading stores once in Spark. `test_batch_reader` has what does not need Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.spark.stores import TIME, A, B, batch, content, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENDS = {("orders", A): 200, ("orders", B): 100, ("trades", A): 10}


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A store with three partitions, whose records are a millisecond apart."""
    batches = (batch(*name, 0, end) for name, end in ENDS.items())
    return fill(f"sqlite:{tmp_path}/store.db", *batches).partition(":")[2]


def load(spark: SparkSession, path: str, **options: str) -> DataFrame:
    return spark.read.format("dafka").options(**options).load(path)


def test_all_columns_are_returned_as_stored(spark: SparkSession, path: str) -> None:
    fill(f"sqlite:{path}-empty")
    assert load(spark, f"{path}-empty").count() == 0
    frame = load(spark, path)
    assert frame.schema.simpleString() == (
        "struct<topic:string,partition:string,offset:bigint,timestamp:timestamp,timestampType:int,stored_at:timestamp,"
        "key:binary,value:binary>"
    )
    rows = frame.selectExpr("topic", "partition", "offset", "unix_micros(timestamp) AS time", "value").collect()
    expected = [
        (*name, offset, (TIME + offset) * 1000, content(*name, offset))
        for name, end in ENDS.items()
        for offset in range(end)
    ]
    assert sorted((*row[:4], bytes(row[4])) for row in rows) == expected


def test_a_view_and_a_table_in_sql(spark: SparkSession, path: str) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW read_view USING dafka OPTIONS (path '{path}', subscribe 'trades')")
    assert spark.sql("SELECT count(*) FROM read_view").collect() == [(10,)]
    spark.sql(f"CREATE TABLE read_table USING dafka OPTIONS (path '{path}')")
    try:
        counted = spark.sql(f"SELECT count(*) FROM read_table WITH (path = '{path}', subscribe = 'trades')").collect()
        assert counted == [(10,)]
        for statement in ("SELECT count(*) FROM read_table", "INSERT INTO read_table (value) VALUES (X'00')"):
            with pytest.raises(PySparkException, match=r"Spark does not pass the options of CREATE TABLE on"):
                spark.sql(statement).collect()
    finally:
        spark.sql("DROP TABLE read_table")


def test_two_queries_on_one_dataframe(spark: SparkSession, path: str) -> None:
    """Spark keeps the plan of a DataFrame's first query, so the plan must not contain that query's filters."""
    frame = load(spark, path, subscribe="orders")
    assert frame.where("offset < 10").count() == 20
    assert frame.count() == 300


def test_filters_that_are_pushed(spark: SparkSession, path: str) -> None:
    """`test_filters` has all kinds of filters. Here Spark makes them of SQL, with values of each type."""
    conditions = [
        ("topic LIKE 'ord%' AND partition = 'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB' AND key IS NULL", 100),
        ("offset IN (3, 7) AND topic <> 'trades'", 4),
        ("stored_at >= timestamp_micros(1700000000098001) AND topic = 'orders'", 102),
    ]
    for condition, count in conditions:
        assert load(spark, path, pushFilters="true").where(condition).count() == count, condition
