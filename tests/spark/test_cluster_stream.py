"""Following a running cluster in Spark: checkpoints and watermarks. `test_cluster_reader` needs no Spark."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dafka import Partition
from tests.roles.helpers import contents
from tests.spark.cluster import RunningCluster, cluster
from tests.spark.queries import HANG_S, start_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["cluster"]


RECORDS_PER_TRIGGER = 300


def follow_cluster(
    spark: SparkSession, towers: str, folder: Path, records_max: int = RECORDS_PER_TRIGGER, **trigger: Any
) -> StreamingQuery:
    """Start the query; its checkpoint and its files are under `folder`."""
    frame = (
        spark.readStream.format("dafka")
        .option("towers", towers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(records_max))
        .load()
    )
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    writer = writer.trigger(**trigger) if trigger else writer
    return start_query(lambda: writer.start(f"{folder}/sink"))


def read_sink(spark: SparkSession, folder: Path) -> dict[str, list[tuple[int, bytes]]]:
    """Return the offsets and contents that the query has written, in order, by partition."""
    found: dict[str, list[tuple[int, bytes]]] = {}
    for row in spark.read.parquet(f"{folder}/sink").select("partition", "offset", "value").collect():
        found.setdefault(row["partition"], []).append((row["offset"], bytes(row["value"])))
    return {partition: sorted(records) for partition, records in found.items()}


def expected(partition: Partition, count: int) -> dict[str, list[tuple[int, bytes]]]:
    return {partition.address: list(enumerate(contents(0, count)))}


def test_a_query_follows_the_cluster_and_continues_after_a_stop(
    spark: SparkSession, cluster: RunningCluster, tmp_path: Path
) -> None:
    with cluster.producer() as producer:
        cluster.send(producer, 2 * RECORDS_PER_TRIGGER)
        query = follow_cluster(spark, cluster.towers, tmp_path)
        try:
            wait_rows(query, 2 * RECORDS_PER_TRIGGER)
            new = cluster.publish(10)
            cluster.send(producer, 100)
            progress = wait_rows(query, 2 * RECORDS_PER_TRIGGER + 110)
        finally:
            query.stop()
        assert [each["numInputRows"] for each in progress[:2]] == [RECORDS_PER_TRIGGER] * 2
        assert str(2 * RECORDS_PER_TRIGGER + 100) in str(progress[-1]["sources"][0]["latestOffset"])
        cluster.send(producer, 50)
        again = follow_cluster(spark, cluster.towers, tmp_path, availableNow=True)
        assert again.awaitTermination(HANG_S)
        found = read_sink(spark, tmp_path)
        assert found == {**expected(producer.partition, 2 * RECORDS_PER_TRIGGER + 150), **expected(new, 10)}


def test_times_of_planning_move_watermarks(spark: SparkSession, cluster: RunningCluster) -> None:
    from pyspark.sql import functions

    before = time.time()
    with cluster.producer() as producer:
        cluster.send(producer, 10)
        frame = spark.readStream.format("dafka").option("towers", cluster.towers).option("subscribe", "orders")
        counts = (
            frame.option("startingOffsets", "earliest")
            .load()
            .withWatermark("stored_at", "0 seconds")
            .groupBy(functions.window("stored_at", "1 millisecond"), "partition")
            .count()
        )
        query = start_query(counts.writeStream.format("memory").queryName("counts").outputMode("append").start)
        try:
            query.processAllAvailable()
            cluster.send(producer, 1)
            deadline = time.monotonic() + HANG_S
            while not (rows := spark.table("counts").collect()):
                assert time.monotonic() < deadline
                query.processAllAvailable()
        finally:
            query.stop()
    assert [(row["partition"], row["count"]) for row in rows] == [(producer.partition.address, 10)]
    assert before - 1 <= rows[0]["window"]["start"].timestamp() <= time.time()


def wait_rows(query: StreamingQuery, count: int) -> list[Any]:
    """Wait until this many rows have been read, and return the progress of the micro-batches that read any."""
    deadline = time.monotonic() + HANG_S
    while True:
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        if sum(each["numInputRows"] for each in progress) == count:
            return progress
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.02)
