"""Following stores in Spark: each record exactly once while stores grow and queries stop and start.

`test_stream_reader` has what does not need Spark.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.spark.queries import finish_query, start_query, wait_for
from tests.spark.stores import TIME, A, B, batch, content, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@attrs.frozen
class Pipeline:
    """A query from a path to a folder, which can be stopped and started again."""

    spark: SparkSession
    folder: Path
    path: str

    def stream(self, **options: object) -> DataFrame:
        given = {name: json.dumps(each) if isinstance(each, dict) else str(each) for name, each in options.items()}
        return self.spark.readStream.format("dafka").options(**given).load(self.path)

    def start(self, **options: object) -> StreamingQuery:
        """Start the query, to read until it is stopped."""
        return start_query(self._writer(**options).start)

    def run(self, **options: object) -> StreamingQuery:
        """Read what is stored now, and end."""
        return finish_query(self._writer(**options).trigger(availableNow=True).start)

    def _writer(self, **options: object) -> DataStreamWriter:
        writer = self.stream(**options).writeStream.format("parquet")
        return writer.option("checkpointLocation", f"{self.folder}/checkpoint").option("path", f"{self.folder}/out")

    def found(self) -> dict[tuple[str, str], list[int]]:
        """Return the offsets that were written, by partition, after a check of all contents."""
        if not (self.folder / "out").exists():
            return {}
        rows = self.spark.read.parquet(f"{self.folder}/out").select("topic", "partition", "offset", "value").collect()
        assert all(bytes(row.value) == content(row.topic, row.partition, row.offset) for row in rows)
        names = {(row.topic, row.partition) for row in rows}
        return {
            name: sorted(row.offset for row in rows if (row.topic, row.partition) == name) for name in sorted(names)
        }


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path) -> Pipeline:
    (tmp_path / "stores").mkdir()
    return Pipeline(spark, tmp_path, f"{tmp_path}/stores")


def test_a_query_continues_from_its_checkpoint(pipeline: Pipeline) -> None:
    url = fill(f"sqlite:{pipeline.path}/one.db", batch("orders", A, 0, 50))
    pipeline.run(startingOffsets="earliest")
    fill(url, batch("orders", A, 50, 80), batch("trades", B, 0, 5))  # a new topic and partition
    fill(f"filelog:{pipeline.path}/log", batch("orders", B, 0, 7))  # a new store
    pipeline.run(startingOffsets="earliest")
    assert pipeline.found() == {
        ("orders", A): list(range(80)),
        ("orders", B): list(range(7)),
        ("trades", B): list(range(5)),
    }


def test_new_records_topics_and_stores_are_noticed(pipeline: Pipeline) -> None:
    """New records, a topic that matches, one that does not, and another store in the folder."""
    url = fill(f"sqlite:{pipeline.path}/one.db", batch("orders-1", A, 0, 5))
    query = pipeline.start(subscribePattern="orders.*")
    try:
        wait_for(query, lambda: bool(query.lastProgress))
        fill(url, batch("orders-1", A, 5, 9), batch("orders-2", A, 0, 3), batch("trades", A, 0, 3))
        fill(f"filelog:{pipeline.path}/log", batch("orders-2", B, 0, 4))
        expected = {("orders-1", A): [5, 6, 7, 8], ("orders-2", A): [0, 1, 2], ("orders-2", B): [0, 1, 2, 3]}
        wait_for(query, lambda: pipeline.found() == expected)
    finally:
        query.stop()


def test_limited_micro_batches_and_progress(pipeline: Pipeline) -> None:
    fill(f"sqlite:{pipeline.path}/store.db", batch("orders", A, 0, 30), batch("orders", B, 0, 10))
    query = pipeline.run(startingOffsets="earliest", maxOffsetsPerTrigger=16)
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    assert [each["numInputRows"] for each in progress] == [16, 16, 8]
    (source,) = progress[0]["sources"]
    assert json.loads(source["endOffset"])["offsets"] == {"orders": {A: 12, B: 4}}
    assert json.loads(source["latestOffset"])["offsets"] == {"orders": {A: 30, B: 10}}
    assert pipeline.found() == {("orders", A): list(range(30)), ("orders", B): list(range(10))}


def test_available_now_ends_while_the_store_grows(pipeline: Pipeline) -> None:
    """Each micro-batch finds more records and partitions than the one before, and the run still ends."""
    url = fill(f"sqlite:{pipeline.path}/store.db", batch("orders", A, 0, 20))
    count = Counter[str]()

    def grow(frame: DataFrame, _: int) -> None:
        count["batches"] += 1
        count["rows"] += frame.count()
        number = count["batches"]
        fill(url, batch("orders", A, 10 + 10 * number, 20 + 10 * number), batch("orders", f"{number:032}", 0, 3))

    stream = pipeline.stream(startingOffsets="earliest", maxOffsetsPerTrigger=8)
    query = stream.writeStream.foreachBatch(grow).option("checkpointLocation", f"{pipeline.folder}/c")
    finish_query(query.trigger(availableNow=True).start)
    assert count == {"batches": 3, "rows": 20}


def test_windows_with_a_watermark(pipeline: Pipeline) -> None:
    url = fill(f"sqlite:{pipeline.path}/store.db", batch("orders", A, 0, 25, step_ms=1000))
    windows = (
        pipeline.stream(startingOffsets="earliest")
        .withWatermark("timestamp", "1 seconds")
        .selectExpr("window(timestamp, '10 seconds') AS window", "timestamp")
        .groupBy("window")
        .count()
        .selectExpr("unix_millis(window.start) AS start", "count")
    )
    for run in range(2):
        writer = windows.writeStream.format("parquet").option("checkpointLocation", f"{pipeline.folder}/c")
        finish_query(writer.option("path", f"{pipeline.folder}/out").trigger(availableNow=True).start)
        fill(url, batch("orders", A, 25, 45, step_ms=1000)) if run == 0 else None
    rows = pipeline.spark.read.parquet(f"{pipeline.folder}/out").collect()
    assert {row["start"] - TIME: row["count"] for row in rows} == {0: 10, 10_000: 10, 20_000: 10, 30_000: 10}


def test_process_all_available_includes_all_stored_records(tmp_path: Path, spark: SparkSession) -> None:
    url = fill(f"sqlite:{tmp_path}/store.db", batch("orders", A, 0, 1))
    stream = spark.readStream.format("dafka").option("startingOffsets", "earliest").load(f"{tmp_path}/store.db")
    query = start_query(stream.writeStream.format("memory").queryName("all_available").start)
    try:
        for end in range(2, 6):
            query.processAllAvailable()
            fill(url, batch("orders", A, end - 1, end))
            query.processAllAvailable()
            assert spark.table("all_available").count() == end
    finally:
        query.stop()
