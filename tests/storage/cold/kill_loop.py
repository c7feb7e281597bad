"""Ends a process with SIGKILL at one moment after another while it moves records, and checks what it leaves behind.

    python -m tests.storage.cold.kill_loop URL MOMENTS

A moment is before or after an operation on the object store, the hot storage, or a file. Each process does the same
work: it appends, moves, applies retention, trims. It counts the operations, and ends at the number that it was given.
The next one continues with the same storage and another moment. In between, everything is read: from the storage, and
from the Parquet objects.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import duckdb
import trio

import dafka.storage.cold.tiered
from dafka.records import Partition, RecordBatch
from dafka.storage import RetentionPolicy, Storage, open_storage, read_range
from dafka.storage.cold import opening
from dafka.storage.cold.opening import connect
from dafka.storage.cold.tiered import TieredStorage
from dafka.storage.filelog import files
from dafka.storage.tools.verify import verify_storage
from tests.storage.cold.faults import FaultyStore, end_process
from tests.storage.crash_loop import Child, Report

PARTITIONS = [Partition("orders", "A" * 32), Partition("orders", "B" * 32)]
KEPT_RECORDS = 400
APPENDED = 60
MOMENTS = 401
"""About how many moments the work of one process has. It is a prime, so that `STEP` reaches each of them once."""

STEP = 23


def make_batch(partition: Partition, first: int, count: int) -> RecordBatch:
    sequences = range(first, first + count)
    return RecordBatch(partition, first, [b"%d:" % each + b"x" * (each * 7919 % 300) for each in sequences])


class Moments:
    """Counts operations, and ends the process at one of them."""

    def __init__(self, last: int) -> None:
        self.count = 0
        self._last = last

    def pass_one(self, *_: object) -> None:
        if self.count == self._last:
            end_process()
        self.count += 1

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.pass_one()
            result = function(*args, **options)
            self.pass_one()
            return result

        return call

    def around_async(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **options: Any) -> Any:
            self.pass_one()
            result = await function(*args, **options)
            self.pass_one()
            return result

        return call


async def work(url: str, moment: int, report: Report) -> None:
    """Do all kinds of work, up to a moment."""
    moments = Moments(moment)
    vars(opening)["connect"] = lambda options: FaultyStore(connect(options), moments.pass_one)
    replace_file = moments.around(files.replace_file)
    for module in (files, dafka.storage.cold.manifest_store, dafka.storage.cold.options):
        vars(module)["replace_file"] = replace_file
    async with open_storage(url) as storage:
        assert isinstance(storage, TieredStorage)
        for name in ("append", "trim"):
            setattr(storage.hot, name, moments.around_async(getattr(storage.hot, name)))
        ends = {each: info.end_sequence for each, info in (await storage.partitions()).items()}
        for partition in PARTITIONS:
            for _ in range(2):
                end = ends.get(partition, 0)
                await storage.append([make_batch(partition, end, APPENDED)])
                ends[partition] = end + APPENDED
                report({"partition": PARTITIONS.index(partition), "end": ends[partition]})
            await storage.move_due()
        await storage.apply_retention(RetentionPolicy(records_max=KEPT_RECORDS))
        trimmed = max(ends[PARTITIONS[0]] - KEPT_RECORDS + 17, 0)
        report({"partition": 0, "trimmed": trimmed})
        await storage.trim(PARTITIONS[0], trimmed)
    report({"moments": moments.count})


class Expected:
    """What must be held."""

    def __init__(self) -> None:
        self.ends = [0, 0]
        self.trimmed = [0, 0]

    def add(self, message: dict[str, Any]) -> None:
        if "end" in message:
            self.ends[message["partition"]] = message["end"]
        elif "trimmed" in message:
            self.trimmed[message["partition"]] = message["trimmed"]

    async def check(self, url: str, report: Report) -> None:
        async with open_storage(url, read_only=True) as reader:
            await self._check_storage(reader)
        async with open_storage(url) as storage:
            await self._check_storage(storage)
            damages = (await verify_storage(storage)).damages
            assert not damages, f"verify finds {damages}"
            assert isinstance(storage, TieredStorage)
            check_objects(storage)
        report({"is_right": True})

    async def _check_storage(self, storage: Storage) -> None:
        found = await storage.partitions()
        for number, partition in enumerate(PARTITIONS):
            if partition not in found:
                assert not self.ends[number], f"{partition} is lost"
                continue
            info = found[partition]
            assert info.end_sequence >= self.ends[number], f"{partition}: acknowledged {self.ends[number]}, held {info}"
            kept_from = max(self.trimmed[number], info.end_sequence - KEPT_RECORDS, 0)
            assert info.earliest_sequence <= kept_from, f"{partition}: {info}, expected from {kept_from} on"
            sequence = info.earliest_sequence
            async for run in read_range(storage, partition, sequence, info.end_sequence):
                assert run.first_sequence == sequence
                assert list(run.values) == make_batch(partition, sequence, len(run)).values
                sequence = run.end_sequence
            assert sequence == info.end_sequence, f"{partition}: reading ends at {sequence}, expected {info}"


def check_objects(storage: TieredStorage) -> None:
    """Check that the Parquet objects that the manifest names have each of their records once, all of them right."""
    paths = [url.removeprefix("file://") for url in storage.object_urls()]
    if not paths:
        return
    query = """
        SELECT partition, count(*), count(DISTINCT "offset"), min("offset"), max("offset"),
            count(*) FILTER (WHERE NOT starts_with(decode(value), "offset" || ':'))
        FROM read_parquet(?) GROUP BY partition
    """
    for partition, count, distinct, first, last, wrong in duckdb.execute(query, [paths]).fetchall():
        assert count == distinct == last - first + 1, f"{partition}: {count} rows of {first} to {last}"
        assert wrong == 0, f"{partition}: {wrong} wrong values"


def run_moment(url: str, moment: int, expected: Expected) -> bool:
    """Return whether the process came to the moment, rather than to the end of its work."""
    status, messages = Child(lambda report: trio.run(work, url, moment, report)).wait()
    for message in messages:
        expected.add(message)
    is_killed = os.WIFSIGNALED(status)
    assert is_killed or status == 0, "the process failed, see above"
    _, messages = Child(lambda report: trio.run(expected.check, url, report)).wait()
    assert messages, "see above"
    return is_killed


def main(url: str, moments: int) -> None:
    expected = Expected()
    killed = 0
    for number in range(moments):
        if run_moment(url, number * STEP % MOMENTS, expected):
            killed += 1
    objects = len(list(Path(url.partition("cold=file://")[2].partition("&")[0]).rglob("*.parquet")))
    print(f"{killed} of {moments} processes killed, acknowledged {expected.ends}, {objects} objects")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
