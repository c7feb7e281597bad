"""Kill a streaming query again and again while records flow, then check what its sink holds.

    python -m tests.spark.store_crash_loop URL KILLS SEED

The query (`store_query`) is a program with a Java process and workers. All are killed with SIGKILL at a random moment:
usually after a micro-batch or two, every fourth time while the query starts. The next query continues from the
checkpoint. At the end each record must be in the sink exactly once, with its own content. Then single Python workers
are killed during a micro-batch: Spark retries their tasks, and no record is repeated or missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import trio

from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage
from tests.spark.queries import HANG_S

PROGRAM = "tests.spark.store_query"
PARTITIONS = [Partition("orders", letter * 32) for letter in "AB"]
STEP_S = HANG_S
"""How long a step may take, in seconds, before it counts as hung."""
WORKER_QUERIES_MAX = 3
START_S_MAX = 8.0
"""The longest life of every fourth query, which is killed while it starts, in seconds."""
LIFE_S_MAX = 1.0
"""The longest time from the first micro-batch of the other queries until they are killed, in seconds."""
APPEND_RECORDS = 100
APPEND_S = 0.02
LARGE_BYTES = 4_000
LARGE_RECORDS = 16_000
"""The records of each partition when workers are killed: reading them takes long enough to find a worker."""
TASK_WORKER = ["pyspark.daemon", "pyspark.worker"]
"""The end of the command of a worker that runs tasks, other than one that plans."""
READ_BYTES_MIN = 12 * 2**20
"""A worker that has read this many bytes is running a task: importing modules reads less."""


def content(partition: Partition, sequence: int, size: int = 0) -> bytes:
    return b"%s %d" % (partition.address[:1].encode(), sequence) + b"." * size


def run_of(partition: Partition, first: int, count: int, size: int = 0) -> RecordBatch:
    return RecordBatch(partition, first, [content(partition, each, size) for each in range(first, first + count)])


class Expected:
    """The records that a sink must hold."""

    def __init__(self) -> None:
        self.ends = dict.fromkeys(PARTITIONS, 0)
        self._digests = dict.fromkeys(PARTITIONS, 0)

    def add(self, batch: RecordBatch) -> None:
        self.ends[batch.partition] = batch.end_sequence
        for each in batch.values:
            self._digests[batch.partition] += int(hashlib.sha256(each or b"").hexdigest()[:8], 16)

    def check(self, found: dict[str, dict[str, Any]]) -> None:
        """Raise `AssertionError` if the sink holds anything else."""
        wanted = {
            partition.address: {
                "partition": partition.address,
                "rows": end,
                "offsets": end,
                "first": 0,
                "last": end - 1,
                "digests": self._digests[partition],
            }
            for partition, end in self.ends.items()
        }
        assert found == wanted, f"found {found}, expected {wanted}"


class Query:
    """A running `store_query`."""

    def __init__(self, process: trio.Process) -> None:
        self.pid = process.pid
        self._process = process
        self._read = b""

    async def wait(self, event: str) -> dict[str, Any]:
        """Wait until the program reports an event, and return it."""
        assert self._process.stdout is not None
        with trio.fail_after(STEP_S):
            while True:
                line, found, rest = self._read.partition(b"\n")
                if found:
                    self._read = rest
                    message: dict[str, Any] = json.loads(line)
                    if message["event"] == event:
                        return message
                    continue
                data = await self._process.stdout.receive_some()
                assert data, f"the query ended by itself, with status {await self._process.wait()}"
                self._read += data

    async def kill(self) -> None:
        """Kill the program with its Java process and all its workers."""
        processes = tree(self.pid)
        for process in processes:
            kill(process)
        with trio.CancelScope(shield=True):
            await self._process.wait()
        for process in processes[1:]:
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                kill(process)
                await trio.sleep(0.01)


def tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGKILL)


@asynccontextmanager
async def open_query(what: str, store: str, folder: Path) -> AsyncIterator[Query]:
    """Run the program for the length of a block, and kill all its processes at the end."""
    with (folder / "errors").open("ab") as errors:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", PROGRAM, what, store, str(folder)], stdout=subprocess.PIPE, stderr=errors
        )
    query = Query(process)
    try:
        yield query
    finally:
        with trio.CancelScope(shield=True):
            await query.kill()
            assert process.stdout is not None
            await process.stdout.aclose()


def reading_workers(pid: int) -> Iterator[psutil.Process]:
    """Yield the Python workers that are running a task."""
    for process in tree(pid)[1:]:
        try:
            if process.cmdline()[-2:] == TASK_WORKER and process.io_counters().read_chars > READ_BYTES_MIN:
                yield process
        except psutil.Error:
            continue


async def kill_worker(query: Query) -> None:
    """Wait for a worker that is running a task, and kill it."""
    while True:
        for worker in reading_workers(query.pid):
            kill(worker)
            return
        await trio.sleep(0.002)


async def play_kills(url: str, store: str, folder: Path, kills: int, seed: int) -> Expected:
    """Kill the query `kills` times while records are stored, then let it end and check the sink."""
    choose, expected = random.Random(seed), Expected()

    async def store_records() -> None:
        while True:
            for partition in PARTITIONS:
                batch = run_of(partition, expected.ends[partition], APPEND_RECORDS)
                await storage.append([batch])
                expected.add(batch)
            await trio.sleep(APPEND_S)

    async with open_storage(url) as storage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store_records)
            for number in range(kills):
                async with open_query("follow", store, folder) as query:
                    if number % 4 == 3:
                        await trio.sleep(choose.random() * START_S_MAX)
                    else:
                        await query.wait("batch")
                        await trio.sleep(choose.random() * LIFE_S_MAX)
            nursery.cancel_scope.cancel()
        # An append that was cancelled may still have been stored.
        for partition, info in (await storage.partitions()).items():
            for sequence in range(expected.ends[partition], info.end_sequence):
                expected.add(run_of(partition, sequence, 1))
    async with open_query("finish", store, folder) as query:
        expected.check((await query.wait("done"))["found"])
    return expected


async def play_worker_kill(folder: Path) -> None:
    """Kill a worker while it reads large records."""
    expected = Expected()
    folder.mkdir()  # noqa: ASYNC240
    store = str(folder / "store.db")
    async with open_storage(f"sqlite:{store}") as storage:
        for partition in PARTITIONS:
            for first in range(0, LARGE_RECORDS, 2000):
                batch = run_of(partition, first, 2000, LARGE_BYTES)
                await storage.append([batch])
                expected.add(batch)
    for attempt in range(WORKER_QUERIES_MAX):  # on a busy machine a query may end before a worker is found
        place = folder / str(attempt)
        place.mkdir()
        async with open_query("finish", store, place) as query, trio.open_nursery() as nursery:
            await query.wait("reading")
            nursery.start_soon(kill_worker, query)
            result = await query.wait("done")
            nursery.cancel_scope.cancel()
        expected.check(result["found"])
        if result["failed"]:
            return
    raise AssertionError(f"no worker was killed while it was running a task, in {WORKER_QUERIES_MAX} queries")


async def main(url: str, kills: int, seed: int) -> None:
    """Run all scenarios."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dafka-kills-") as place:
        folder = Path(place)
        if kills:
            expected = await play_kills(url, url.partition(":")[2], folder, kills, seed)
            print(f"{kills} kills: {sum(expected.ends.values())} records, each in the sink exactly once", flush=True)
        await play_worker_kill(folder / "worker")
        print("a worker killed: each record exactly once", flush=True)
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    trio.run(main, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
