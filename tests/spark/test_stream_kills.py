"""Kill a streaming query again and again while records flow, then check what its sink holds.

    python -m tests.spark.test_stream_kills URL KILLS SEED

The query is a program (`query STORE FOLDER MODE`) with a Java process and workers. All are killed with SIGKILL at a
random moment: usually after a micro-batch or two, every fourth time while the query starts. The next query continues
from the checkpoint. At the end each record must be in the sink exactly once, with its own content. Then single Python
workers are killed during a micro-batch: Spark retries their tasks, and no record is repeated or missing.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage
from tests.spark.fixtures import SETTINGS
from tests.spark.queries import HANG_S

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

PARTITIONS = [Partition("orders", letter * 32) for letter in "AB"]
WORKER_QUERIES_MAX = 3
START_S_MAX = 8.0
"""The longest life of every fourth query, which is killed while it starts, in seconds."""
LIFE_S_MAX = 1.0
"""The longest time from the first micro-batch of the other queries until they are killed, in seconds."""
APPEND_S = 0.02
LARGE_BYTES = 4_000
LARGE_RECORDS = 16_000
"""The records of each partition when workers are killed: reading them takes long enough to find a worker."""
TASK_WORKER = ["pyspark.daemon", "pyspark.worker"]
"""The end of the command of a worker that runs tasks, other than one that plans."""
READ_BYTES_MIN = 12 * 2**20
"""A worker that has read this many bytes is running a task: importing modules reads less."""

CONTENT = "rpad(concat(substr(partition, 1, 1), ' ', offset), length(value), '.')"
"""What a record holds, in SQL: its partition and its sequence, and perhaps dots. Digests take a task some time."""


def run_of(partition: Partition, first: int, count: int, size: int = 0) -> RecordBatch:
    name = partition.address[:1].encode()
    contents = [b"%b %d%b" % (name, each, b"." * size) for each in range(first, first + count)]
    return RecordBatch(partition, first, contents)


def run_query(store: str, folder: str, mode: str) -> None:
    """Run a query from a store to Parquet files: `follow` until it is killed, or `finish` and report what they hold."""
    from dafka.spark.session import make_session

    spark = make_session("killed", "local[2,4]", {**SETTINGS, "spark.log.level": "ERROR"})
    stream = spark.readStream.format("dafka").option("startingOffsets", "earliest").load(store)
    columns = stream.selectExpr("partition", "offset", f"sha2(value, 256) = sha2({CONTENT}, 256) AS is_right")
    writer = columns.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    if mode == "follow":
        query = writer.trigger(processingTime="100 milliseconds").start(f"{folder}/sink")
        while not query.awaitTermination(0.1):  # type: ignore[arg-type]
            if query.lastProgress is not None and query.lastProgress["numInputRows"]:
                print('"batch"', flush=True)
        sys.exit("the query ended by itself")
    print('"reading"', flush=True)
    writer.trigger(availableNow=True).start(f"{folder}/sink").awaitTermination()
    counts = ("count(*)", "count(DISTINCT offset)", "min(offset)", "max(offset) + 1", "count_if(is_right)")
    spark.read.parquet(f"{folder}/sink").createOrReplaceTempView("sink")
    rows = spark.sql(f"SELECT partition, {', '.join(counts)} FROM sink GROUP BY partition").collect()
    print(json.dumps({row[0]: row[1:] for row in rows}), flush=True)


class Query:
    """A running program with a query."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._read = b""

    async def next_line(self) -> Any:
        """Wait for the next line of the program, and return it."""
        assert self.process.stdout is not None
        with trio.fail_after(HANG_S):
            while b"\n" not in self._read:
                data = await self.process.stdout.receive_some()
                assert data, f"the query ended by itself, with status {await self.process.wait()}"
                self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    def tree(self) -> list[psutil.Process]:
        """Return the program with its Java process and all its workers."""
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        return []

    def reading_workers(self) -> Iterator[psutil.Process]:
        """Yield the Python workers that are running a task."""
        for process in self.tree()[1:]:
            with suppress(psutil.Error):
                if process.cmdline()[-2:] == TASK_WORKER and process.io_counters().read_chars > READ_BYTES_MIN:
                    yield process

    async def kill(self) -> None:
        """Kill all processes, and wait until they are gone."""
        processes = self.tree()
        for process in processes:
            kill(process)
        await self.process.wait()
        for process in processes[1:]:
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                kill(process)
                await trio.sleep(0.01)


def kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGKILL)


@asynccontextmanager
async def open_query(mode: str, store: str, folder: Path) -> AsyncIterator[Query]:
    """Run the program for the length of a block, and kill all its processes at the end."""
    with (folder / "errors").open("ab") as errors:
        command = [sys.executable, "-m", "tests.spark.test_stream_kills", "query", store, str(folder), mode]
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=errors)
    query = Query(process)
    try:
        yield query
    finally:
        with trio.CancelScope(shield=True):
            await query.kill()
            assert process.stdout is not None
            await process.stdout.aclose()


def check_sink(found: dict[str, list[int]], ends: dict[Partition, int]) -> None:
    """Check that the sink holds each record once, and nothing else."""
    assert found == {partition.address: [end, end, 0, end, end] for partition, end in ends.items()}, ends


async def play_kills(url: str, store: str, folder: Path, kills: int, seed: int) -> dict[Partition, int]:
    """Kill the query `kills` times while records are stored, then let it end, check the sink, and return its ends."""
    choose, ends = random.Random(seed), dict.fromkeys(PARTITIONS, 0)

    async def store_records() -> None:
        while True:
            for partition in PARTITIONS:
                await storage.append([run_of(partition, ends[partition], 100)])
                ends[partition] += 100
            await trio.sleep(APPEND_S)

    async with open_storage(url) as storage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store_records)
            for number in range(kills):
                async with open_query("follow", store, folder) as query:
                    if number % 4 == 3:
                        await trio.sleep(choose.random() * START_S_MAX)
                    else:
                        await query.next_line()
                        await trio.sleep(choose.random() * LIFE_S_MAX)
            nursery.cancel_scope.cancel()
        # An append that was cancelled may still have been stored.
        ends = {partition: info.end_sequence for partition, info in (await storage.partitions()).items()}
    async with open_query("finish", store, folder) as query:
        await query.next_line()
        check_sink(await query.next_line(), ends)
    return ends


async def play_worker_kill(folder: Path) -> None:
    """Kill a worker while it reads large records."""
    folder.mkdir()  # noqa: ASYNC240
    async with open_storage(f"sqlite:{folder}/store.db") as storage:
        for partition in PARTITIONS:
            for first in range(0, LARGE_RECORDS, 2000):
                await storage.append([run_of(partition, first, 2000, LARGE_BYTES)])
    killed: list[psutil.Process] = []

    async def kill_worker(query: Query) -> None:
        while not killed:
            killed.extend(list(query.reading_workers())[:1])
            await trio.sleep(0.002)
        kill(killed[0])

    for attempt in range(WORKER_QUERIES_MAX):  # on a busy machine a query may end before a worker is found
        place = folder / str(attempt)
        place.mkdir()
        async with open_query("finish", f"{folder}/store.db", place) as query, trio.open_nursery() as nursery:
            await query.next_line()
            nursery.start_soon(kill_worker, query)
            check_sink(await query.next_line(), dict.fromkeys(PARTITIONS, LARGE_RECORDS))
            nursery.cancel_scope.cancel()
        if killed:
            return
    raise AssertionError(f"no worker was killed while it was running a task, in {WORKER_QUERIES_MAX} queries")


async def main(url: str, kills: int, seed: int) -> None:
    """Run all scenarios."""
    with tempfile.TemporaryDirectory(prefix="dafka-kills-") as place:
        ends = await play_kills(url, url.partition(":")[2], Path(place), kills, seed)
        print(f"{kills} kills: {sum(ends.values())} records, each in the sink exactly once", flush=True)
        await play_worker_kill(Path(place) / "worker")
        print("a worker killed: each record exactly once", flush=True)


async def test_a_query_that_is_killed_twice_writes_each_record_exactly_once(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    ends = await play_kills(f"sqlite:{store}", str(store), tmp_path, kills=2, seed=1)
    assert min(ends.values()) > 0


async def test_a_worker_killed_in_a_micro_batch_neither_loses_nor_repeats_records(tmp_path: Path) -> None:
    await play_worker_kill(tmp_path / "finish")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    if sys.argv[1] == "query":
        run_query(*sys.argv[2:])
    else:
        trio.run(main, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
