"""File logs sync data before they rely on it, also when a sync fails, and after another writer was killed."""

# ruff: noqa: ASYNC240  (small files in tests)

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from dafka.batches import encoding
from dafka.errors import StorageError
from dafka.records import Partition, RecordBatch, new_address
from dafka.storage import DeletesPartitions
from dafka.storage.filelog import open_filelog, reading, recovery
from dafka.storage.filelog.catalog import GOOD, CatalogReader, CatalogWriter
from dafka.storage.filelog.files import FilePool
from dafka.storage.filelog.index import decode_rows
from dafka.storage.filelog.layout import LOCK_FILE
from dafka.storage.filelog.partition import Head, PartitionLog, partition_seed
from dafka.storage.filelog.recovery import Recovery
from dafka.storage.filelog.syncing import Syncer

PARTITION = Partition("orders", "A")
DEADLINE_S = 60


def batch(first: int, count: int) -> RecordBatch:
    return RecordBatch(PARTITION, first, [b"%d" % sequence for sequence in range(first, first + count)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


async def test_a_partition_whose_deletion_fails_is_described_by_its_slot(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its files would be read again each time that the file log is opened."""

    def fail(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    async with open_filelog(str(folder)) as storage:
        assert isinstance(storage, DeletesPartitions)
        await storage.append([batch(0, 10)])
        await storage.trim(PARTITION, 10)
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", fail)
            with pytest.raises(StorageError, match="Input/output error"):
                await storage.delete_partitions([PARTITION])
        catalog = CatalogReader(str(folder))
        catalog.load()
        state, head = catalog.loaded_slot(0, partition_seed(b"orders", b"A"))
        assert (state, head.end) == (GOOD, 10)
        await storage.append([batch(10, 5)])
        assert await storage.read(PARTITION, 10, 100) == batch(10, 5)


async def test_the_indexes_that_were_used_last_stay_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []

    def decode_and_note(data: bytes | None, base: int) -> list[tuple[int, int]] | None:
        decoded.append(base)
        return decode_rows(data, base)

    async with open_filelog(f"{folder}?segment_bytes=300000") as storage:
        for sequence in range(40):
            await storage.append([RecordBatch(PARTITION, sequence, [b"x" * 30_000])])
    monkeypatch.setattr(reading, "INDEXES_MAX", 2)
    async with open_filelog(str(folder), read_only=True) as storage:
        monkeypatch.setattr(reading, "decode_rows", decode_and_note)
        for sequence in (5, 15, 2, 25, 7, 12):
            assert await storage.read(PARTITION, sequence, 1) is not None
    first, second, third, *_ = sorted(int(path.stem) for path in folder.rglob("*.index"))
    assert decoded == [first, second, third, second]


async def test_a_reader_without_a_catalog_sees_what_was_trimmed(folder: Path) -> None:
    async with open_filelog(str(folder)) as writer:
        await writer.append([batch(0, 10)])
        (folder / "catalog.heads").unlink()
        async with open_filelog(str(folder), read_only=True) as reader:
            for earliest in (0, 4, 7):
                await writer.trim(PARTITION, earliest)
                assert (await reader.partitions())[PARTITION].earliest_sequence == earliest
                assert await reader.read(PARTITION, earliest, 100) == batch(earliest, 10 - earliest)


async def test_a_reader_looks_again_when_a_segment_is_dropped_meanwhile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rescan = Recovery.rescan_partition
    missing: list[str] = []

    def fail_once(self: Recovery, log: PartitionLog, known: Head | None = None) -> bool:
        if not missing:
            missing.append(log.folder)
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", log.folder)
        return rescan(self, log, known)

    async with open_filelog(str(folder)) as writer:
        await writer.append([batch(0, 10)])
    (folder / "catalog.heads").unlink()
    monkeypatch.setattr(Recovery, "rescan_partition", fail_once)
    async with open_filelog(str(folder), read_only=True) as reader:
        assert (await reader.partitions())[PARTITION].end_sequence == 10
    assert len(missing) == 1


async def test_entries_that_were_read_in_part_have_a_limit_of_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, sizes = 20_000, []
    keep = reading.LogReader._keep_partial_read

    def keep_and_note(self: reading.LogReader, *arguments: Any) -> None:
        keep(self, *arguments)
        sizes.append(self._partial_read_bytes)

    monkeypatch.setattr(reading, "PARTIAL_READ_BYTES_MAX", limit)
    monkeypatch.setattr(reading.LogReader, "_keep_partial_read", keep_and_note)
    async with open_filelog(str(folder)) as storage:
        for first in range(0, 100, 10):
            await storage.append([RecordBatch(PARTITION, first, [b"x" * 500] * 10)])
        for first in range(0, 100, 10):
            assert await storage.read(PARTITION, first, 3) is not None
    assert len(sizes) == 10
    assert limit / 2 < max(sizes) <= limit


async def test_a_deleted_partition_stays_deleted_although_its_slot_could_not_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Partition("orders", "B")
    write_slot = CatalogWriter.write_slot

    def fail_for_good(self: CatalogWriter, slot: int, seed: int, state: int, head: Head) -> None:
        if state == GOOD:
            raise OSError(errno.EIO, "Input/output error")
        write_slot(self, slot, seed, state, head)

    async with open_filelog(str(folder)) as storage:
        assert isinstance(storage, DeletesPartitions)
        await storage.append([batch(0, 10)])
        with monkeypatch.context() as patch:
            patch.setattr(CatalogWriter, "write_slot", fail_for_good)
            await storage.delete_partitions([PARTITION])
        await storage.append([RecordBatch(other, 0, [b""])])
        async with open_filelog(str(folder), read_only=True) as reader:
            assert set(await reader.partitions()) == {other}


def test_each_delayed_write_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: SimpleQueue[str] = SimpleQueue()
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.put(os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))))
    syncer = Syncer(FilePool(os.O_RDONLY), 1)
    for name in "abc":
        (tmp_path / name).touch()
        syncer.sync_written([str(tmp_path / name)], [])
        assert synced.get(timeout=DEADLINE_S) == name
    syncer.close()


@pytest.mark.parametrize("delay_ms", [0, None])
def test_several_files_are_synced_at_the_same_time(
    delay_ms: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(3, timeout=DEADLINE_S)
    monkeypatch.setattr(os, "fdatasync", lambda fd: together.wait())
    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        Path(path).touch()
    syncer = Syncer(FilePool(os.O_RDONLY), delay_ms)
    syncer.sync_written(paths, [])
    syncer.flush()
    syncer.close()


async def test_a_time_that_a_file_log_cannot_hold_is_refused(folder: Path) -> None:
    async with open_filelog(str(folder)) as storage:
        for stored_at in (-(2**63) - 1, 2**63):
            with pytest.raises(StorageError, match="within 64 bits"):
                await storage.append([RecordBatch(PARTITION, 0, [b""], stored_at=[stored_at])])
        await storage.append([RecordBatch(PARTITION, 0, [b""], stored_at=[-(2**63)])])
        assert (await storage.partitions())[PARTITION].earliest_stored_at == -(2**63)


async def test_an_index_that_leads_nowhere_is_removed(folder: Path) -> None:
    async with open_filelog(str(folder)) as storage:
        await storage.append([batch(0, 10)])
    (segment,) = folder.rglob("*.log")
    index = segment.with_suffix(".index")
    index.symlink_to("nowhere")
    for catalog in folder.glob("catalog.*"):
        catalog.unlink()
    async with open_filelog(str(folder)) as storage:
        assert not index.is_symlink()
        assert await storage.read(PARTITION, 0, 100) == batch(0, 10)


async def test_a_content_that_is_too_large_for_a_file_log_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "BATCH_BYTES_LIMIT", 12)
    async with open_filelog(str(folder)) as storage:
        with pytest.raises(StorageError, match="at most 12 bytes, not 13"):
            await storage.append([RecordBatch(PARTITION, 0, [b"123456"])])
        await storage.append([RecordBatch(PARTITION, 0, [b"12345"])])


async def test_the_size_of_the_storage_is_that_of_its_files(folder: Path) -> None:
    """Also while the index of the active segment grows with each closing, and after records were dropped."""

    async def assert_size() -> None:
        async with open_filelog(str(folder), read_only=True) as reader:
            stored_bytes = (await reader.statistics()).stored_bytes
        files = [path for path in folder.rglob("*") if path.is_file() and path.name != LOCK_FILE]
        assert stored_bytes == sum(path.stat().st_size for path in files)

    for first in range(0, 40, 4):
        async with open_filelog(f"{folder}?segment_bytes=300000") as storage:
            for sequence in range(first, first + 4):
                await storage.append([RecordBatch(PARTITION, sequence, [b"x" * 30_000])])
            await assert_size()
            if first == 20:
                await storage.trim(PARTITION, 15)
                await assert_size()
        await assert_size()
    assert len(list(folder.rglob("*.index"))) > 1


@pytest.mark.parametrize("deleted", [1, 20])
async def test_a_catalog_is_written_again_without_many_deleted_partitions(
    deleted: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few of them it is continued, because writing it again takes the longer, the more partitions there are."""
    monkeypatch.setattr(recovery, "VACANT_MAX", 5)
    names, other = folder / "catalog.names", Partition("orders", "B")
    async with open_filelog(str(folder)) as storage:
        assert isinstance(storage, DeletesPartitions)
        await storage.append([batch(0, 10), RecordBatch(other, 0, [b""])])
        size = names.stat().st_size
        partitions = [Partition("t", new_address()) for _ in range(deleted)]
        await storage.append([RecordBatch(each, 0, [b""]) for each in partitions])
        await storage.delete_partitions(partitions)
    before = names.stat()
    assert before.st_size > size
    async with open_filelog(str(folder)) as storage:
        assert set(await storage.partitions()) == {PARTITION, other}
        await storage.append([batch(10, 5)])
    assert (names.stat().st_ino == before.st_ino) is (deleted == 1)
    assert (names.stat().st_size == size) is (deleted > 1)
    async with open_filelog(str(folder)) as storage:
        assert {each: info.end_sequence for each, info in (await storage.partitions()).items()} == {
            PARTITION: 15,
            other: 1,
        }
        assert await storage.find_damage() == []


@pytest.mark.parametrize("is_listed_between", [True, False])
async def test_another_process_reads_a_partition_that_began_again_in_the_same_segment(
    is_listed_between: bool, folder: Path
) -> None:
    async with open_filelog(str(folder)) as storage, open_filelog(str(folder), read_only=True) as reader:
        assert isinstance(storage, DeletesPartitions)
        await storage.append([batch(0, 10)])
        assert await reader.read(PARTITION, 0, 4) == batch(0, 4)
        await storage.delete_partitions([PARTITION])
        if is_listed_between:
            assert await reader.read(PARTITION, 0, 1) is None
        again = RecordBatch(PARTITION, 0, [b"again %d" % number for number in range(10)])
        await storage.append([again])
        assert await reader.read(PARTITION, 4, 1) == again.between(4, 5)
        assert await reader.read(PARTITION, 0, 1) == again.between(0, 1)
