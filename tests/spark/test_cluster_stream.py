"""Structured streaming from a running cluster, with Spark, checkpoints, and a driver that is killed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dafka import Partition
from tests.roles.helpers import contents
from tests.spark.cluster_fixtures import RunningCluster, cluster
from tests.spark.cluster_query import RECORDS_PER_TRIGGER, read_sink, start_query
from tests.spark.killed_query import run_query, wait_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["cluster"]

DEADLINE_S = 60


def expected(partition: Partition, count: int) -> dict[str, list[tuple[int, bytes]]]:
    return {partition.address: list(enumerate(contents(0, count)))}


def test_a_query_goes_on_with_what_is_published_and_after_it_was_stopped(
    spark: SparkSession, cluster: RunningCluster, tmp_path: Path
) -> None:
    with cluster.producer() as producer:
        cluster.send(producer, 2 * RECORDS_PER_TRIGGER)
        query = start_query(spark, cluster.towers, tmp_path)
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
        again = start_query(spark, cluster.towers, tmp_path, availableNow=True)
        assert again.awaitTermination(DEADLINE_S)
        found = read_sink(spark, tmp_path)
        assert found == {**expected(producer.partition, 2 * RECORDS_PER_TRIGGER + 150), **expected(new, 10)}


def test_a_killed_driver_loses_and_doubles_nothing(
    spark: SparkSession, cluster: RunningCluster, tmp_path: Path
) -> None:
    count = 30 * RECORDS_PER_TRIGGER
    with cluster.producer() as producer:
        cluster.send(producer, count)
        with run_query(cluster.towers, tmp_path) as process:
            wait_batches(process, 2, tmp_path / "log")
        batches_begun = len([each for each in (tmp_path / "checkpoint" / "offsets").iterdir() if each.name.isdigit()])
        assert 2 <= batches_begun < 30, "it was killed on its way"
        new = cluster.publish(100)
        query = start_query(spark, cluster.towers, tmp_path, 10 * count, availableNow=True)
        assert query.awaitTermination(DEADLINE_S)
        assert read_sink(spark, tmp_path) == {**expected(producer.partition, count), **expected(new, 100)}


def test_timestamps_are_of_the_planning_and_move_watermarks(spark: SparkSession, cluster: RunningCluster) -> None:
    from pyspark.sql import functions

    before = time.time()
    with cluster.producer() as producer:
        cluster.send(producer, 10)
        frame = spark.readStream.format("dafka").option("towers", cluster.towers).option("subscribe", "orders")
        counts = (
            frame.option("startingOffsets", "earliest")
            .load()
            .withWatermark("timestamp", "0 seconds")
            .groupBy(functions.window("timestamp", "1 millisecond"), "partition")
            .count()
        )
        query = counts.writeStream.format("memory").queryName("counts").outputMode("append").start()
        try:
            query.processAllAvailable()
            cluster.send(producer, 1)
            deadline = time.monotonic() + DEADLINE_S
            while not (rows := spark.table("counts").collect()):
                assert time.monotonic() < deadline
                query.processAllAvailable()
        finally:
            query.stop()
    assert [(row["partition"], row["count"]) for row in rows] == [(producer.partition.address, 10)]
    assert before - 1 <= rows[0]["window"]["start"].timestamp() <= time.time()


def test_what_is_wrong_is_said_in_one_sentence(spark: SparkSession, cluster: RunningCluster) -> None:
    from pyspark.errors import PySparkException

    def begin(**options: str) -> None:
        frame = spark.readStream.format("dafka").options(**{"towers": cluster.towers, **options}).load()
        query = frame.writeStream.format("noop").start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    with pytest.raises(PySparkException, match="option subscribePattern: a running cluster cannot list its topics"):
        begin(subscribePattern="o.*")
    with pytest.raises(PySparkException, match=r"no tower answered at tcp://127\.0\.0\.1:1 within 0\.2 s"):
        begin(towers="127.0.0.1:2:1", subscribe="orders", discoveryTimeout="200")


def wait_rows(query: StreamingQuery, count: int) -> list[Any]:
    """Until so many rows have been read; gives the progress of the micro-batches that read any."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        if sum(each["numInputRows"] for each in progress) == count:
            return progress
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.02)
