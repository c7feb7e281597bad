# ruff: noqa: ASYNC240, PT017  (small files in tests; errors that may or may not occur)
"""A file log: when segments begin, what is read and kept open, when it syncs, and what failing calls leave."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from dafka.errors import StorageError
from dafka.records import Partition, RecordBatch
from dafka.storage.base import RetentionPolicy, Storage
from dafka.storage.filelog import open_filelog
from dafka.storage.filelog.files import OPEN_FILES_MAX
from dafka.storage.filelog.reading import READ_RECORDS_MAX
from dafka.storage.memory import MemoryStorage
from dafka.storage.opening import read_range

PARTITION = Partition("orders", "A" * 32)
OTHER = Partition("orders", "B" * 32)


def batch(
    first_sequence: int, count: int, size: int = 0, partition: Partition = PARTITION, stored_at: int | None = None
) -> RecordBatch:
    contents = [(b"%d" % sequence).ljust(size, b".") for sequence in range(first_sequence, first_sequence + count)]
    return RecordBatch(
        partition, first_sequence, contents, stored_at=None if stored_at is None else [stored_at] * count
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


def segments(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.rglob("*.log"))


# Segments


async def test_segments_roll_by_size(folder: Path) -> None:
    async with open_filelog(f"{folder}?segment_bytes=5000") as storage:
        for sequence in range(0, 60, 2):
            await storage.append([batch(sequence, 2, 500)])
        assert segments(folder) == list(range(0, 60, 8))
        assert all(path.stat().st_size <= 5000 for path in folder.rglob("*.log"))
        await storage.append([batch(60, 20, 500)])
        assert segments(folder)[-2:] == [56, 60], "an append is never split"


async def test_segments_roll_by_time(folder: Path) -> None:
    async with open_filelog(f"{folder}?segment_ms=1000") as storage:
        for sequence, time in enumerate((5000, 5999, 6000, 6500, 7000, 9000)):
            await storage.append([batch(sequence, 1, stored_at=time)])
    assert segments(folder) == [0, 2, 4, 5]


async def test_reads_of_empty_records_are_limited(folder: Path) -> None:
    async with open_filelog(str(folder)) as storage:
        await storage.append([RecordBatch(PARTITION, 0, [b""] * (READ_RECORDS_MAX + 10))])
        found = await storage.read(PARTITION, 0, 10**9)
        assert found is not None
        assert READ_RECORDS_MAX // 2 < len(found) <= READ_RECORDS_MAX


async def test_small_reads_of_a_large_entry_read_it_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_filelog(str(folder)) as storage:
        await storage.append([batch(0, 1000, 1000)])
        real = os.pread
        sizes = []

        def count(fd: int, size: int, position: int) -> bytes:
            sizes.append(size)
            return real(fd, size, position)

        monkeypatch.setattr(os, "pread", count)
        for sequence in range(0, 1000, 10):
            assert await storage.read(PARTITION, sequence, 10) == batch(sequence, 10, 1000)
    assert sum(sizes) < 1_500_000


# Dropping records


async def test_reading_and_appending_continue_while_records_are_dropped(folder: Path) -> None:
    async with open_filelog(f"{folder}?segment_bytes=1000&fsync=never") as storage:
        await storage.append([batch(0, 10)])
        is_over = False

        async def read() -> None:
            while not is_over:
                info = (await storage.partitions())[PARTITION]
                sequence = info.earliest_sequence
                found = await storage.read(PARTITION, sequence, 50)
                if found is not None:
                    assert found == batch(sequence, len(found))

        async def drop() -> None:
            while not is_over:
                await storage.apply_retention(RetentionPolicy(records_max=30))
                info = (await storage.partitions())[PARTITION]
                await storage.trim(PARTITION, info.end_sequence - 20)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(read)
            nursery.start_soon(drop)
            for sequence in range(10, 1000, 10):
                await storage.append([batch(sequence, 10)])
            is_over = True
        assert not await storage.find_damage()


# Errors


async def append_to(storage: Storage, batches: list[RecordBatch]) -> None:
    await storage.append(batches)


async def trim_of(storage: Storage, earliest_sequence: int) -> None:
    await storage.trim(PARTITION, earliest_sequence)


@pytest.mark.parametrize("name", ["pwritev", "fdatasync", "fsync", "mkdir", "replace"])
async def test_any_failing_call_changes_nothing_and_the_next_one_succeeds(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Every operation runs with each of its system calls failing in turn. A model has the records that must be held."""
    model = MemoryStorage()
    real = getattr(os, name)
    calls = failing_call = 0

    def fail(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == failing_call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, fail)
    async with open_filelog(f"{folder}?segment_bytes=400") as storage:
        for number in range(40):
            end = number * 4
            new = batch(0, 1, partition=Partition("new", f"{number}"), stored_at=number)
            operations: tuple[Callable[[Storage], Awaitable[None]], ...] = (
                partial(append_to, batches=[batch(end, 4, 20, stored_at=end), new]),
                partial(trim_of, earliest_sequence=end - 7),
            )
            for operation in operations:
                calls, failing_call = 0, number // 4 + 1
                try:
                    await operation(storage)
                except StorageError as error:
                    assert "No space left on device" in str(error)
                    assert await storage.partitions() == await model.partitions(), "what failed was done"
                    failing_call = 0
                    await operation(storage)
                await operation(model)
                assert await storage.partitions() == await model.partitions()
        failing_call = 0
    async with open_filelog(str(folder)) as storage:
        assert await storage.partitions() == await model.partitions()
        assert not storage.repairs
        assert await storage.find_damage() == []
        earliest = (await storage.partitions())[PARTITION].earliest_sequence
        found = [content async for part in read_range(storage, PARTITION, earliest, 160) for content in part.values]
        assert found == batch(earliest, 160 - earliest, 20).values


async def test_failed_append_that_could_not_be_truncated_never_reappears(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with open_filelog(str(folder)) as storage:
        await storage.append([batch(0, 2)])
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            patch.setattr(os, "ftruncate", fail)
            with pytest.raises(StorageError, match="Input/output error"):
                await storage.append([RecordBatch(PARTITION, 2, [b"wrong"]), RecordBatch(PARTITION, 3, [b"wrong"])])
            with pytest.raises(StorageError, match="Input/output error"):
                await storage.append([batch(2, 1)])
        await storage.append([RecordBatch(PARTITION, 2, [b"right"])])
    (folder / "catalog.heads").unlink()
    async with open_filelog(str(folder)) as storage:
        found = await storage.read(PARTITION, 2, 9)
        assert found == RecordBatch(PARTITION, 2, [b"right"])
        assert not storage.repairs


async def test_existing_segment_file_is_not_overwritten(folder: Path) -> None:
    async with open_filelog(f"{folder}?segment_bytes=1") as storage:
        await storage.append([batch(0, 2)])
        (log,) = folder.rglob("*.log")
        other = log.with_name(f"{2:020}.log")
        other.write_bytes(b"something")
        with pytest.raises(StorageError, match="in the way of a new segment"):
            await storage.append([batch(2, 2)])
        assert other.read_bytes() == b"something"


# Durability and open files


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often each segment was synced, by file name."""
    counts: Counter[str] = Counter()
    real = os.fdatasync

    def count(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.suffix == ".log":
            counts[path.parent.name] += 1
        real(fd)

    monkeypatch.setattr(os, "fdatasync", count)
    return counts


@pytest.mark.parametrize(("fsync", "appended"), [("batch", 3), ("never", 0)])
async def test_each_segment_is_synced_once_per_append_or_flush(
    fsync: str, appended: int, folder: Path, synced: Counter[str]
) -> None:
    async with open_filelog(f"{folder}?fsync={fsync}") as storage:
        for sequence in range(3):
            await storage.append([batch(sequence, 1), batch(sequence, 1, partition=OTHER)])
        assert synced == Counter({PARTITION.address: appended, OTHER.address: appended})
        for _ in range(2):
            await storage.flush()
            assert synced == {PARTITION.address: max(appended, 1), OTHER.address: max(appended, 1)}


async def test_delayed_sync_runs_by_itself_and_reports_its_errors(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def fail(_: int) -> None:
        token.run_sync_soon(called.set)
        raise OSError(errno.EIO, "Input/output error")

    async with open_filelog(f"{folder}?fsync=1") as storage:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            await storage.append([batch(0, 1)])
            with trio.fail_after(20):
                await called.wait()
                sequence = 1
                with pytest.raises(StorageError, match="Input/output error"):  # noqa: PT012
                    while True:
                        await storage.append([batch(sequence, 1)])
                        sequence += 1
            with pytest.raises(StorageError, match="Input/output error"):
                await storage.flush()
        await storage.flush()
        assert await storage.read(PARTITION, 0, 1) == batch(0, 1)


async def test_many_partitions_have_few_open_files(folder: Path) -> None:
    partitions = [Partition("t", f"{number}") for number in range(600)]
    async with open_filelog(f"{folder}?fsync=never") as storage:
        for sequence in range(2):
            await storage.append([batch(sequence, 1, partition=partition) for partition in partitions])
        for partition in partitions[::7]:
            assert await storage.read(partition, 0, 9) == batch(0, 2, partition=partition)
        assert len(os.listdir("/proc/self/fd")) < OPEN_FILES_MAX + 60
        assert len(await storage.partitions("t")) == 600


async def test_opening_reads_no_segment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_filelog(str(folder)) as storage:
        await storage.append([batch(0, 100), batch(0, 100, partition=OTHER)])

    def refuse(*_: object) -> bytes:
        raise AssertionError

    monkeypatch.setattr(os, "pread", refuse)
    async with open_filelog(str(folder)) as storage:
        assert len(await storage.partitions()) == 2


# Positions
