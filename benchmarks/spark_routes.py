"""Reads a SQLite store into Spark in one way, in a process of its own; see spark_read.py.

    python benchmarks/spark_routes.py ROUTE JDBC_JAR STORE RECORDS [STORE RECORDS ...]

Runs each of the `QUERIES` once on each store, in order, in one new session, and prints a line of JSON after each. The
first query of the session is a count of 1,000 numbers by Spark alone.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import pandas as pd
from pyspark.sql import functions

from dafka.spark.session import make_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC, ADDRESS = "orders", "0" * 32

QUERIES = ("count", "sum", "tenth")
"""Count all records; add up the sizes of all values; add up those of a tenth, from the middle, by offset."""

RANGES = 8
"""The number of ranges of sequences, for routes that must give one."""

COLUMNS = {"count": "offset bigint", "sum": "value binary", "tenth": "offset bigint, value binary"}
"""The columns of each query, for routes that name them."""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.log.level": "ERROR",
}
"""The settings of every session. Arrow between pandas and Spark speeds up pandas."""

DRIVER_MEMORY = {"pandas": "6g", "pandas, columns named": "6g"}
"""The memory of routes for which Spark's default of 1 GiB is not enough."""

Load: TypeAlias = "Callable[[SparkSession, str, int, str], DataFrame]"
"""Returns a DataFrame of a store with a number of records, for a query."""


def from_dafka(spark: SparkSession, store: str, records: int, query: str) -> DataFrame:
    return spark.read.format("dafka").load(store)


def from_dafka_named(spark: SparkSession, store: str, records: int, query: str) -> DataFrame:
    return spark.read.format("dafka").schema(COLUMNS[query]).option("pushFilters", "true").load(store)


def from_pandas(spark: SparkSession, store: str, records: int, query: str) -> DataFrame:
    return _pandas(spark, store, records, query, "topic, address AS partition, sequence AS offset, stored_at")


def from_pandas_named(spark: SparkSession, store: str, records: int, query: str) -> DataFrame:
    return _pandas(spark, store, records, query, "sequence AS offset", with_value=query != "count")


def _pandas(
    spark: SparkSession, store: str, records: int, query: str, columns: str, *, with_value: bool = True
) -> DataFrame:
    """Read with pandas. The database selects the tenth, because it makes no sense to send the rest through pandas."""
    start, end = tenth(records) if query == "tenth" else (0, records)
    value = ", content AS value" if with_value else ""
    frame = pd.read_sql(
        f"SELECT {columns}{value} FROM topic_records "
        "WHERE topic = ? AND address = ? AND sequence >= ? AND sequence < ?",
        sqlite3.connect(f"file:{store}?mode=ro", uri=True),
        params=(TOPIC, ADDRESS, start, end),
    )
    return spark.createDataFrame(frame)


def from_udf(spark: SparkSession, store: str, records: int, query: str) -> DataFrame:
    """Each task opens the file, and reads its ranges in batches."""
    start, end = tenth(records) if query == "tenth" else (0, records)
    cuts = [(start + (end - start) * n // RANGES, start + (end - start) * (n + 1) // RANGES) for n in range(RANGES)]

    def read(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        connection = sqlite3.connect(f"file:{store}?mode=ro", uri=True)
        for frame in frames:
            for first, last in zip(frame["first"], frame["last"], strict=True):
                rows = connection.execute(
                    "SELECT sequence, content FROM topic_records "
                    "WHERE topic = ? AND address = ? AND sequence >= ? AND sequence < ?",
                    (TOPIC, ADDRESS, int(first), int(last)),
                )
                while run := rows.fetchmany(20_000):
                    yield pd.DataFrame(run, columns=["offset", "value"])

    ranges = spark.createDataFrame(cuts, "first bigint, last bigint").repartition(RANGES, "first")
    return ranges.mapInPandas(read, "offset bigint, value binary")


def from_jdbc(spark: SparkSession, store: str, records: int, query: str) -> DataFrame:
    """Partitioned by sequence; each partition is read by a query of its own. Spark pushes the filter down."""
    selected = f"""(
        SELECT sequence AS "offset", content AS value FROM records WHERE partition_id =
        (SELECT id FROM partitions WHERE topic = '{TOPIC}' AND address = '{ADDRESS}')
    ) AS selected"""
    return (
        spark.read.format("jdbc")
        .options(url=f"jdbc:sqlite:file:{store}?mode=ro", driver="org.sqlite.JDBC", dbtable=selected)
        .options(partitionColumn="offset", lowerBound=0, upperBound=records, numPartitions=RANGES, fetchsize=20_000)
        .load()
    )


ROUTES: dict[str, Load] = {
    "dafka": from_dafka,
    "dafka, columns named": from_dafka_named,
    "pandas": from_pandas,
    "pandas, columns named": from_pandas_named,
    "UDF with sqlite3": from_udf,
    "JDBC": from_jdbc,
}


def tenth(records: int) -> tuple[int, int]:
    """Return the offsets of a tenth, from the middle."""
    return records * 45 // 100, records * 55 // 100


def ask(frame: DataFrame, query: str, records: int) -> int:
    if query == "count":
        return frame.count()
    if query == "tenth":
        start, end = tenth(records)
        frame = frame.where((functions.col("offset") >= start) & (functions.col("offset") < end))
    (row,) = frame.agg(functions.sum(functions.length("value"))).collect()
    return int(row[0])


def main(route: str, jar: str, *stores: str) -> None:
    settings = {**SETTINGS, "spark.driver.memory": DRIVER_MEMORY.get(route, "1g")}
    if jar:
        settings["spark.jars"] = jar
    spark = make_session("measurement", f"local[{os.cpu_count()}]", settings)
    spark.range(1000).selectExpr("sum(id)").collect()  # excludes what Spark loads for its first query
    for store, records in zip(stores[::2], map(int, stores[1::2]), strict=True):
        for query in QUERIES:
            started = time.perf_counter()
            answer = ask(ROUTES[route](spark, store, records, query), query, records)
            seconds = time.perf_counter() - started
            print(json.dumps({"records": records, "query": query, "seconds": seconds, "answer": answer}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
