"""Kills a streaming query again and again while records flow, and looks at the end what its sink holds.

    python -m tests.spark.stream_crash_loop URL KILLS SEED

The query (kill_query.py) is a process of its own, with its Java and its workers; all are killed with SIGKILL at a
random moment: after a micro-batch or two, every fourth time while the query starts. The next goes on from the
checkpoint. In the end each record must be in the sink exactly once, with its own content. Then Python workers alone are
killed, amid a micro-batch and amid a batch read: Spark tries their tasks again, and nothing is doubled or missing.
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

PROGRAM = "tests.spark.kill_query"
PARTITIONS = [Partition("orders", letter * 32) for letter in "AB"]
STEP_S = 150.0
"""A step that takes longer has failed."""
WORKER_QUERIES_MAX = 3
START_S_MAX = 8.0
"""Every fourth query is killed within this, wherever its start has come to."""
LIFE_S_MAX = 1.0
"""The others, so long after their first micro-batch at the most."""
APPEND_RECORDS = 100
APPEND_S = 0.02
LARGE_BYTES = 4_000
LARGE_RECORDS = 16_000
"""Of each partition, for killing workers: there must be time to find one."""
TASK_WORKER = ["pyspark.daemon", "pyspark.worker"]
"""How the command of a worker ends that runs tasks; those that plan are others."""
READ_BYTES_MIN = 12 * 2**20
"""A worker that has read so much is amid a task: libraries are mapped, and their modules are smaller."""


def content(partition: Partition, sequence: int, size: int = 0) -> bytes:
    return b"%s %d" % (partition.address[:1].encode(), sequence) + b"." * size


def run_of(partition: Partition, first: int, count: int, size: int = 0) -> RecordBatch:
    return RecordBatch(partition, first, [content(partition, each, size) for each in range(first, first + count)])


class Expected:
    """What a sink must hold of each partition."""

    def __init__(self) -> None:
        self.ends = dict.fromkeys(PARTITIONS, 0)
        self._digests = dict.fromkeys(PARTITIONS, 0)

    def take(self, batch: RecordBatch) -> None:
        self.ends[batch.partition] = batch.end_sequence
        for each in batch.contents:
            self._digests[batch.partition] += int(hashlib.sha256(each).hexdigest()[:8], 16)

    def check(self, found: dict[str, dict[str, Any]]) -> None:
        """Raises `AssertionError`."""
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
    """A process of `kill_query`."""

    def __init__(self, process: trio.Process) -> None:
        self.pid = process.pid
        self._process = process
        self._read = b""

    async def wait(self, event: str) -> dict[str, Any]:
        """Waits until it tells that."""
        assert self._process.stdout is not None
        with trio.fail_after(STEP_S):
            while True:
                line, found, rest = self._read.partition(b"\n")
                if found:
                    self._read = rest
                    said: dict[str, Any] = json.loads(line)
                    if said["event"] == event:
                        return said
                    continue
                data = await self._process.stdout.receive_some()
                assert data, f"the query ended by itself, with status {await self._process.wait()}"
                self._read += data

    async def kill(self) -> None:
        """With all that belongs to it, wherever each is."""
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
    """Runs it for the length of a block; nothing of it is left."""
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
    """The Python workers that are amid a task."""
    for process in tree(pid)[1:]:
        try:
            if process.cmdline()[-2:] == TASK_WORKER and process.io_counters().read_chars > READ_BYTES_MIN:
                yield process
        except psutil.Error:
            continue


async def kill_worker(query: Query) -> None:
    """Waits for a worker that reads, and kills it."""
    while True:
        for worker in reading_workers(query.pid):
            kill(worker)
            return
        await trio.sleep(0.002)


async def play_kills(url: str, store: str, folder: Path, kills: int, seed: int) -> Expected:
    """Kills the query so many times while records are stored, and lets it end."""
    choose, expected = random.Random(seed), Expected()

    async def store_records() -> None:
        while True:
            for partition in PARTITIONS:
                batch = run_of(partition, expected.ends[partition], APPEND_RECORDS)
                await storage.append([batch])
                expected.take(batch)
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
        # An append that was cancelled may have been done all the same.
        for partition, info in (await storage.partitions()).items():
            for sequence in range(expected.ends[partition], info.end_sequence):
                expected.take(run_of(partition, sequence, 1))
    async with open_query("finish", store, folder) as query:
        expected.check((await query.wait("done"))["found"])
    return expected


async def play_worker_kill(what: str, folder: Path) -> None:
    """Kills a worker amid a read of large records."""
    expected = Expected()
    folder.mkdir()  # noqa: ASYNC240
    store = str(folder / "store.db")
    async with open_storage(f"sqlite:{store}") as storage:
        for partition in PARTITIONS:
            for first in range(0, LARGE_RECORDS, 2000):
                batch = run_of(partition, first, 2000, LARGE_BYTES)
                await storage.append([batch])
                expected.take(batch)
    for attempt in range(WORKER_QUERIES_MAX):  # on a busy machine a query may end before a worker is seen
        place = folder / str(attempt)
        place.mkdir()
        async with open_query(what, store, place) as query, trio.open_nursery() as nursery:
            await query.wait("reading")
            nursery.start_soon(kill_worker, query)
            said = await query.wait("done")
            nursery.cancel_scope.cancel()
        expected.check(said["found"])
        if said["failed"]:
            return
    raise AssertionError(f"no worker was amid a task when it was killed, in {WORKER_QUERIES_MAX} queries")


async def main(url: str, kills: int, seed: int) -> None:
    """Plays all of it."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dafka-kills-") as place:
        folder = Path(place)
        if kills:
            expected = await play_kills(url, url.partition(":")[2], folder, kills, seed)
            print(f"{kills} kills: {sum(expected.ends.values())} records, each in the sink once", flush=True)
        for what in ("finish", "batch"):
            await play_worker_kill(what, folder / what)
            print(f"a worker killed, {what}: each record once", flush=True)
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    trio.run(main, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
