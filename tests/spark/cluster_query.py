"""A query from a running cluster to Parquet files, and the same as a program that a test can kill.

    python -m tests.spark.cluster_query TOWERS FOLDER

The program prints the number of each completed micro-batch, until it is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.queries import start_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

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


@contextmanager
def run_program(towers: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the program in a process group of its own, and kill the whole group at the end of the block."""
    command = [sys.executable, "-m", "tests.spark.cluster_query", towers, str(folder)]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    with process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def wait_batches(process: subprocess.Popen[str], count: int, log: Path) -> None:
    """Wait until the program has completed this many more micro-batches."""
    assert process.stdout is not None
    for _ in range(count):
        assert process.stdout.readline(), f"the query ended: {log.read_text('utf-8', 'replace')[-3000:]}"


def main() -> None:
    from dafka.spark.session import make_session
    from tests.spark.fixtures import SETTINGS

    session = make_session("killed", "local[2]", SETTINGS)
    session.sparkContext.setLogLevel("ERROR")
    query = follow_cluster(session, sys.argv[1], Path(sys.argv[2]))
    printed = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > printed and progress["numInputRows"]:
            printed = progress["batchId"]
            print(printed, flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
