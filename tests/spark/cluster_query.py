"""A query from a running cluster into Parquet: for tests, and as a program of its own that a test can kill.

python -m tests.spark.cluster_query TOWERS FOLDER     prints the number of each micro-batch that is done, for ever
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RECORDS_PER_TRIGGER = 300


def start_query(
    spark: SparkSession, towers: str, folder: Path, records_max: int = RECORDS_PER_TRIGGER, **trigger: Any
) -> StreamingQuery:
    frame = (
        spark.readStream.format("dafka")
        .option("towers", towers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(records_max))
        .load()
    )
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    return (writer.trigger(**trigger) if trigger else writer).start(f"{folder}/sink")


def read_sink(spark: SparkSession, folder: Path) -> dict[str, list[tuple[int, bytes]]]:
    """By partition, all that has been written, in order, as offset and content."""
    found: dict[str, list[tuple[int, bytes]]] = {}
    for row in spark.read.parquet(f"{folder}/sink").select("partition", "offset", "value").collect():
        found.setdefault(row["partition"], []).append((row["offset"], bytes(row["value"])))
    return {partition: sorted(records) for partition, records in found.items()}


def main() -> None:
    from dafka.spark.session import make_session
    from tests.spark.fixtures import SETTINGS

    session = make_session("killed", "local[2]", SETTINGS)
    session.sparkContext.setLogLevel("ERROR")
    query = start_query(session, sys.argv[1], Path(sys.argv[2]))
    told = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > told and progress["numInputRows"]:
            told = progress["batchId"]
            print(told, flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
