"""Compares how fast Spark reads the same records from a SQLite store and from a file log.

    python benchmarks/spark_storages.py [RECORDS] [ROUNDS]

The stores take turns, each in a session of its own with all cores, which has read the store once. The queries add up
the sizes of all values: of all columns but the headers, of the five columns that a record without key and timestamp
fills, and of the column `value` alone. The seconds are the best of three in a session, and the median of the sessions.
Run by another release of dafka, in its environment, the same command measures that release.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio
from pyspark.sql import functions

from dafka.records import Partition, RecordBatch
from dafka.spark.session import make_session
from dafka.storage import open_storage
from spark_routes import SETTINGS

BATCH = 20_000
SIZE = 100
REPEATED = 3
COLUMNS = {
    "all": "",
    "five": "topic string, partition string, offset bigint, stored_at timestamp, value binary",
    "value": "value binary",
}


async def fill(url: str, records: int) -> None:
    """Store the records."""
    async with open_storage(url) as storage:
        for first in range(0, records, BATCH):
            values = [b"%0*d" % (SIZE, sequence) for sequence in range(first, min(first + BATCH, records))]
            await storage.append([RecordBatch(Partition("orders", "0" * 32), first, values)])


def measure(store: str, records: int) -> None:
    """Run the queries in this process, and print their seconds as JSON."""
    spark = make_session("storages", f"local[{os.cpu_count()}]", SETTINGS)
    reader = spark.read.format("dafka")
    reader.load(store).count()
    found: dict[str, float] = {}
    for name, columns in COLUMNS.items():
        seconds = []
        for _ in range(REPEATED):
            frame = (spark.read.format("dafka").schema(columns) if columns else reader).load(store)
            began = time.perf_counter()
            row = frame.agg(functions.sum(functions.length("value"))).first()
            seconds.append(time.perf_counter() - began)
            if row is None or row[0] != SIZE * records:
                raise ValueError(f"expected {SIZE * records} bytes, not {row}")
        found[name] = min(seconds)
    print(json.dumps(found))


def main(records: int, rounds: int) -> None:
    """Compare the storages."""
    with tempfile.TemporaryDirectory() as folder:
        stores = {"sqlite": f"sqlite:{folder}/store.db", "filelog": f"filelog:{folder}/log"}
        for store in stores.values():
            trio.run(fill, store, records)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in stores}
        for _ in range(rounds):
            for name, store in stores.items():
                command = [sys.executable, __file__, "--measure", store.removeprefix("sqlite:"), str(records)]
                done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent)
                found[name].append(json.loads(done.stdout.splitlines()[-1]))
    for columns in COLUMNS:
        medians = {name: statistics.median(each[columns] for each in sessions) for name, sessions in found.items()}
        ratio = medians["sqlite"] / medians["filelog"]
        print(f"{columns:6} sqlite {medians['sqlite']:.2f} s, filelog {medians['filelog']:.2f} s ({ratio:.2f})")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], int(sys.argv[3]))
    else:
        main(*[int(each) for each in [*sys.argv[1:], *("3000000", "5")[len(sys.argv) - 1 :]]])
