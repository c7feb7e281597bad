"""Streams of stores and of a running cluster in Spark: each record exactly once, while queries stop and start.

`test_stream_reader` and `test_cluster_reader` have what does not need Spark.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from tests.roles.helpers import contents
from tests.spark.cluster import RunningCluster, cluster
from tests.spark.queries import HANG_S, finish_query, start_query
from tests.spark.stores import A, B, batch, content, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["cluster"]

Found = dict[tuple[str, str], list[tuple[int, bytes]]]


@attrs.frozen
class Pipeline:
    """A query to a folder, which can be stopped and started again."""

    spark: SparkSession
    folder: Path
    options: Mapping[str, str]

    def stream(self, **options: object) -> DataFrame:
        given = {name: str(each) for name, each in options.items()}
        stream = self.spark.readStream.format("dafka").option("startingOffsets", "earliest")
        return stream.options(**self.options, **given).load()

    def writer(self, **options: object) -> DataStreamWriter:
        writer = self.stream(**options).writeStream.format("parquet")
        return writer.option("checkpointLocation", f"{self.folder}/checkpoint").option("path", f"{self.folder}/out")

    def run(self, **options: object) -> StreamingQuery:
        """Read what is stored now, and end."""
        return finish_query(self.writer(**options).trigger(availableNow=True).start)

    def found(self) -> Found:
        """Return the offsets and values that were written, in order, by topic and partition."""
        found: Found = {}
        columns = self.spark.read.parquet(f"{self.folder}/out").select("topic", "partition", "offset", "value")
        for row in columns.orderBy("offset").collect():
            found.setdefault((row.topic, row.partition), []).append((row.offset, bytes(row.value)))
        return found


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path) -> Pipeline:
    (tmp_path / "stores").mkdir()
    return Pipeline(spark, tmp_path, {"path": f"{tmp_path}/stores"})


def stored(**ends: int) -> Found:
    """Return the records of partitions, whose names are a topic and a letter."""
    names = {(name[:-1], name[-1] * 32): end for name, end in ends.items()}
    return {name: [(offset, content(*name, offset)) for offset in range(end)] for name, end in names.items()}


def test_a_query_continues_from_its_checkpoint(pipeline: Pipeline) -> None:
    """New records, a new topic and partition, one that does not match, and another store in the folder."""
    url = fill(f"sqlite:{pipeline.folder}/stores/one.db", batch("orders", A, 0, 50))
    pipeline.run(subscribePattern="ord.*")
    fill(url, batch("orders", A, 50, 80), batch("orders2", B, 0, 5), batch("trades", B, 0, 5))
    fill(f"filelog:{pipeline.folder}/stores/log", batch("orders", B, 0, 7))
    query = start_query(pipeline.writer(subscribePattern="ord.*").start)
    query.processAllAvailable()
    assert pipeline.found() == stored(ordersA=80, ordersB=7, orders2B=5)
    fill(url, batch("orders", A, 80, 81))
    query.processAllAvailable()
    assert pipeline.found() == stored(ordersA=81, ordersB=7, orders2B=5)


def test_available_now_ends_while_the_store_grows_in_limited_micro_batches(pipeline: Pipeline) -> None:
    """Each micro-batch finds more records and partitions than the one before, and the run still ends."""
    url = fill(f"sqlite:{pipeline.folder}/stores/one.db", batch("orders", A, 0, 30), batch("orders", B, 0, 10))
    counts: list[int] = []

    def grow(frame: DataFrame, number: int) -> None:
        counts.append(frame.count())
        fill(url, batch("orders", A, 30 + 10 * number, 40 + 10 * number), batch("orders", f"{number:032}", 0, 3))

    writer = pipeline.stream(maxOffsetsPerTrigger=16).writeStream.foreachBatch(grow)
    query = finish_query(writer.option("checkpointLocation", f"{pipeline.folder}/c").trigger(availableNow=True).start)
    assert counts == [16, 16, 8]
    (source,) = query.recentProgress[0]["sources"]
    assert json.loads(source["endOffset"])["offsets"] == {"orders": {A: 12, B: 4}}
    assert json.loads(source["latestOffset"])["offsets"] == {"orders": {A: 30, B: 10}}


def test_a_query_follows_the_cluster_and_continues_after_a_stop(
    spark: SparkSession, cluster: RunningCluster, tmp_path: Path
) -> None:
    options = {"towers": cluster.towers, "subscribe": "orders", "maxOffsetsPerTrigger": "300"}
    pipeline = Pipeline(spark, tmp_path, options)
    with cluster.producer() as producer:
        cluster.send(producer, 600)
        query = start_query(pipeline.writer().start)
        try:
            wait_rows(query, 600)
            new = cluster.publish(10)
            cluster.send(producer, 100)
            progress = wait_rows(query, 710)
        finally:
            query.stop()
        assert [each["numInputRows"] for each in progress[:2]] == [300, 300]
        assert "700" in str(progress[-1]["sources"][0]["latestOffset"])
        cluster.send(producer, 50)
        pipeline.run()
        ends = {producer.partition.address: 750, new.address: 10}
    assert pipeline.found() == {("orders", name): list(enumerate(contents(0, end))) for name, end in ends.items()}


def test_times_of_planning_move_watermarks(spark: SparkSession, cluster: RunningCluster, tmp_path: Path) -> None:
    from pyspark.sql import functions

    before = time.time()
    with cluster.producer() as producer:
        cluster.send(producer, 10)
        stream = Pipeline(spark, tmp_path, {"towers": cluster.towers, "subscribe": "orders"}).stream()
        window = functions.window("stored_at", "1 millisecond")
        counts = stream.withWatermark("stored_at", "0 seconds").groupBy(window, "partition").count()
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
