"""Retention drops exactly what may go, and times are found exactly: all limits and times of small partitions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from dafka.records import Partition, Record, RecordBatch
from dafka.storage import RetentionPolicy, Storage, open_storage
from dafka.storage.cold.tiered import TieredStorage
from tests.storage.model import Log
from tests.storage.quick import quickly

NOW = 1_000
TIMES = [5, 5, 7, 7, 7, 9, 9, 9, 9, 12, 12, 12]
SIZES = [3, 0, 2, 5, 1, 0, 1, 4, 4, 1, 2, 2]
STARTS = [0, 2, 5, 9]
"""The appends, each of which is a segment of a file log."""

COLD = "cold=file://{0}/bucket&cold_interval_ms=3600000&local_retention_bytes=9&cold_segment_bytes=5"
URLS = {
    "memory": "memory:",
    "sqlite": "sqlite:{0}/s.db",
    "filelog": "filelog:{0}/log?segment_bytes=1",
    "tiered": "tiered:sqlite:{0}/s.db?" + COLD,
    "tiered file log": "tiered:filelog:{0}/log?segment_bytes=1&" + COLD,
}


def policies() -> Iterator[RetentionPolicy]:
    """Yield each limit that makes a difference, and some together."""
    ages = [NOW - cut_at for cut_at in range(4, 15)]
    for records_max in range(len(TIMES) + 2):
        yield RetentionPolicy(records_max=records_max)
    for bytes_max in range(sum(SIZES) + 2):
        yield RetentionPolicy(bytes_max=bytes_max)
    for age_ms in ages:
        yield RetentionPolicy(age_ms=age_ms)
    for records_max, bytes_max, age_ms in product((3, 8), (6, 15), ages[2:9:3]):
        yield RetentionPolicy(records_max=records_max, bytes_max=bytes_max, age_ms=age_ms)


async def append(storage: Storage, partition: Partition, times: list[int], sizes: list[int], starts: list[int]) -> Log:
    """Append records in several batches, and return what is held."""
    log = Log(0)
    for first, end in zip(starts, [*starts[1:], len(times)], strict=True):
        values = [b"x" * size for size in sizes[first:end]]
        log.append([Record(partition, at, b"x" * sizes[at], stored_at=times[at]) for at in range(first, end)])
        await storage.append([RecordBatch(partition, first, values, stored_at=times[first:end])])
    return log


def expected(kind: str, log: Log, policy: RetentionPolicy, cold_ends: list[int]) -> int:
    """Return the first record that a storage keeps, by the segments that it has."""
    first = log.end_of_surplus(policy, NOW, cold_ends)
    if cold_ends and first < cold_ends[-1]:
        return first
    hot = Log(first, log.records[first - log.earliest :])
    if "log" in kind:
        bases = [start for start, end in zip(STARTS, [*STARTS[1:], 99], strict=True) if end > first]
        return hot.kept_from_segments(policy, NOW, bases)
    return hot.kept_from(policy, NOW)


@pytest.mark.parametrize("kind", URLS)
async def test_exactly_what_may_go_goes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each policy, of a whole partition and of one whose first records were trimmed, by turns."""
    monkeypatch.setattr(time, "time_ns", lambda: NOW * 1_000_000)
    with quickly():
        async with open_storage(URLS[kind].format(tmp_path)) as storage:
            cases = []
            step = 2 if kind.startswith("tiered") else 1
            for number, policy in enumerate([*policies()][::step]):
                partition, trimmed = Partition(f"t{number}", "A"), (0, 3)[number % 2]
                log = await append(storage, partition, TIMES, SIZES, STARTS)
                await storage.trim(partition, trimmed)
                log.drop_before(trimmed)
                cases.append((partition, log, policy, trimmed))
            if isinstance(storage, TieredStorage):
                assert await storage.move_due() > len(cases)
            for partition, log, policy, trimmed in cases:
                urls = storage.object_urls(partition.topic) if isinstance(storage, TieredStorage) else []
                cold_ends = [int(url.rpartition("/")[2].split("-")[1]) for url in urls]
                first = expected(kind, log, policy, cold_ends)
                moved = await storage.apply_retention(policy, partition.topic)
                assert moved == ({partition: first} if first > trimmed else {}), (policy, cold_ends)
                log.drop_before(first)
                assert (await storage.partitions())[partition] == log.info(), policy
