"""Reading a store while another process appends and trims: neither blocks the other, and no record is wrong."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path

import pyarrow as pa
import pytest
import trio

from dafka.errors import StorageError
from dafka.records import Partition
from dafka.spark.schema import COLUMNS
from dafka.spark.store_source import make_batch_reader
from dafka.storage import open_storage
from tests.spark.queries import HANG_S
from tests.spark.stores import A, batch, content

ROUNDS = 8
STEP, KEPT = 500, 3000
NOTHING = (-1, -1)


def append_and_trim(url: str, is_over: Event) -> None:
    async def work() -> None:
        async with open_storage(url) as storage:
            end = 0
            while not is_over.is_set():
                await storage.append([batch("orders", A, end, end + STEP)])
                end += STEP
                if end > KEPT:
                    await storage.trim(Partition("orders", A), end - KEPT)

    trio.run(work)


@pytest.fixture(params=["sqlite", "filelog"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    path, context = tmp_path / "store", multiprocessing.get_context("fork")
    is_over = context.Event()
    writer = context.Process(target=append_and_trim, args=(f"{request.param}:{path}", is_over))
    writer.start()
    try:
        yield path
        assert writer.is_alive(), "the writer ended by itself"
        is_over.set()
        writer.join(HANG_S)
        assert writer.exitcode == 0
    finally:
        writer.kill()
        writer.join()
        writer.close()


def read(path: Path) -> tuple[int, int]:
    """Read all records, check each, and return the first and the last offset."""
    reader = make_batch_reader({"path": str(path), "failOnDataLoss": "false", "minPartitions": "3"}, COLUMNS)
    before: int | None = None
    first = -1
    for task in reader.partitions():
        for piece in reader.read(task):
            assert isinstance(piece, pa.RecordBatch)
            for row in piece.to_pylist():
                assert row["value"] == content("orders", A, row["offset"])
                assert before is None or row["offset"] > before
                first = row["offset"] if before is None else first
                before = row["offset"]
    return first, -1 if before is None else before


def wait_for_records(path: Path) -> None:
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        with suppress(StorageError):
            if read(path) != NOTHING:
                return
    raise AssertionError("the writer has written nothing")


def test_a_store_that_is_trimmed_during_reads(store: Path) -> None:
    wait_for_records(store)
    deadline = time.monotonic() + HANG_S
    seen: list[tuple[int, int]] = []
    while len(seen) < ROUNDS or seen[-1][0] == seen[0][0]:
        assert time.monotonic() < deadline, f"the store was not trimmed: {seen}"
        found = read(store)
        if found != NOTHING:  # otherwise all planned records were trimmed before they were read
            seen.append(found)
    assert seen == sorted(seen)
