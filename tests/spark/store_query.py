"""A query from a store to Parquet files, as a program that `store_crash_loop` kills.

    python -m tests.spark.store_query follow|finish STORE FOLDER

`follow` runs until it is killed, and reports each completed micro-batch. `finish` reads to the end, and reports what
the sink holds. Tasks are tried up to four times.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions

from dafka.spark.session import make_session
from tests.spark import fixtures

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {**fixtures.SETTINGS, "spark.sql.shuffle.partitions": "1", "spark.log.level": "ERROR"}


def report(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def digest(frame: DataFrame) -> DataFrame:
    """Return each record's position and a digest of its value, which takes the task some time."""
    return frame.select("topic", "partition", "offset", functions.sha2("value", 256).alias("digest"))


def count(frame: DataFrame) -> dict[str, dict[str, Any]]:
    """Return counts and a sum of digests of each partition, which show whether it has each record exactly once."""
    rows = frame.groupBy("partition").agg(
        functions.count("*").alias("rows"),
        functions.countDistinct("offset").alias("offsets"),
        functions.min("offset").alias("first"),
        functions.max("offset").alias("last"),
        functions.sum(functions.conv(functions.substring("digest", 1, 8), 16, 10).cast("long")).alias("digests"),
    )
    return {row["partition"]: row.asDict() for row in rows.collect()}


def failed_tasks(spark: SparkSession, group: str) -> int:
    """Return how many tasks failed; the jobs of a streaming query are a group with the id of its run."""
    tracker = spark.sparkContext.statusTracker()
    stages = (
        tracker.getStageInfo(number) for job in tracker.getJobIdsForGroup(group) for number in _stages(tracker, job)
    )
    return sum(stage.numFailedTasks for stage in stages if stage is not None)


def _stages(tracker: Any, job: int) -> list[int]:
    info = tracker.getJobInfo(job)
    return [] if info is None else list(info.stageIds)


def main(what: str, store: str, folder: str) -> None:
    spark = make_session("killed", "local[2,4]", SETTINGS)
    stream = spark.readStream.format("dafka").option("startingOffsets", "earliest").load(store)
    writing = digest(stream).writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    if what == "follow":
        query = writing.trigger(processingTime="100 milliseconds").start(f"{folder}/sink")
        seen = -1
        report(event="started")
        while not query.awaitTermination(0.1):  # type: ignore[arg-type]
            progress = query.lastProgress
            if progress is not None and progress["batchId"] != seen and progress["numInputRows"]:
                seen = progress["batchId"]
                report(event="batch", number=seen, rows=progress["numInputRows"])
        sys.exit("the query ended by itself")
    report(event="reading")
    query = writing.trigger(availableNow=True).start(f"{folder}/sink")
    query.awaitTermination()
    failed = failed_tasks(spark, str(query.runId))
    report(event="done", found=count(spark.read.parquet(f"{folder}/sink")), failed=failed)


if __name__ == "__main__":
    main(*sys.argv[1:])
