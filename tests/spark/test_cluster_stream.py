"""Following a running cluster in Spark: checkpoints, watermarks, and a driver that is killed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dafka import Partition
from tests.roles.helpers import contents
from tests.spark.cluster import RunningCluster, cluster
from tests.spark.cluster_query import RECORDS_PER_TRIGGER, follow_cluster, read_sink, run_program, wait_batches
from tests.spark.queries import HANG_S, start_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["cluster"]


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


def test_a_killed_driver_neither_loses_nor_repeats_records(
    spark: SparkSession, cluster: RunningCluster, tmp_path: Path
) -> None:
    count = 30 * RECORDS_PER_TRIGGER
    with cluster.producer() as producer:
        cluster.send(producer, count)
        with run_program(cluster.towers, tmp_path) as process:
            wait_batches(process, 2, tmp_path / "log")
        batches_started = len([each for each in (tmp_path / "checkpoint" / "offsets").iterdir() if each.name.isdigit()])
        assert 2 <= batches_started < 30, "the program was killed too early or too late"
        new = cluster.publish(100)
        query = follow_cluster(spark, cluster.towers, tmp_path, 10 * count, availableNow=True)
        assert query.awaitTermination(HANG_S)
        assert read_sink(spark, tmp_path) == {**expected(producer.partition, count), **expected(new, 100)}


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
