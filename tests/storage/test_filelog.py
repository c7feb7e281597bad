# ruff: noqa: ASYNC240, PT017  (small files in tests; errors that may or may not occur)
"""A file log: when segments begin, what is read and kept open, when it syncs, and what failing calls leave."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing, nullcontext, suppress
from operator import methodcaller
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from dafka.batches import encoding
from dafka.errors import StorageCorruptError, StorageError
from dafka.records import Partition, RecordBatch, new_address
from dafka.storage import CompactsPartitions, DeletesPartitions
from dafka.storage.base import Storage
from dafka.storage.filelog import FilelogStorage, open_filelog, reading, recovery, syncing
from dafka.storage.filelog.catalog import GOOD, NAMES_FILE, CatalogReader, CatalogWriter
from dafka.storage.filelog.files import OPEN_FILES_MAX, FilePool
from dafka.storage.filelog.index import decode_rows
from dafka.storage.filelog.layout import LOCK_FILE
from dafka.storage.filelog.partition import Head, PartitionLog, partition_seed
from dafka.storage.filelog.reading import READ_RECORDS_MAX
from dafka.storage.filelog.recovery import Recovery
from dafka.storage.filelog.syncing import Syncer
from dafka.storage.memory import MemoryStorage
from dafka.storage.opening import read_range
from tests.power.runs import no_wait
from tests.storage.quick import quickly
from tests.storage.records import OTHER, PARTITION, batch
from tests.storage.test_each_storage import open_files

DEADLINE_S = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
async def storage(folder: Path) -> AsyncIterator[FilelogStorage]:
    async with open_filelog(str(folder)) as opened:
        assert isinstance(opened, FilelogStorage)
        yield opened


def fail(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def segments(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.rglob("*.log"))


# Segments


async def test_segments_roll_by_size(folder: Path) -> None:
    async with open_filelog(f"{folder}?segment_bytes=5000") as storage:
        for sequence in range(0, 60, 2):
            await storage.append([batch(sequence, sequence + 2, size=500)])
        assert segments(folder) == list(range(0, 60, 8))
        assert all(path.stat().st_size <= 5000 for path in folder.rglob("*.log"))
        await storage.append([batch(60, 80, size=500)])
        assert segments(folder)[-2:] == [56, 60], "an append is never split"


async def test_segments_roll_by_time(folder: Path) -> None:
    async with open_filelog(f"{folder}?segment_ms=1000") as storage:
        for sequence, time in enumerate((5000, 5999, 6000, 6500, 7000, 9000)):
            await storage.append([batch(sequence, sequence + 1, stored_at=time)])
    assert segments(folder) == [0, 2, 4, 5]


async def test_a_trim_removes_the_segments_without_remaining_records_and_is_done_once(folder: Path) -> None:
    async with open_filelog(f"{folder}?segment_bytes=4096") as storage:
        for sequence in range(0, 15, 3):
            await storage.append([batch(sequence, sequence + 3, size=1500)])
        for earliest in range(15):
            await storage.trim(PARTITION, earliest)
            assert segments(folder) == [each for each in range(0, 15, 3) if each + 3 > earliest]
            before = {path: path.stat() for path in folder.rglob("*")}
            await storage.trim(PARTITION, earliest)
            assert {path: path.stat() for path in folder.rglob("*")} == before


async def test_reads_of_empty_records_are_limited(storage: FilelogStorage) -> None:
    await storage.append([RecordBatch(PARTITION, 0, [b""] * (READ_RECORDS_MAX + 10))])
    found = await storage.read(PARTITION, 0, 10**9)
    assert found is not None
    assert READ_RECORDS_MAX // 2 < len(found) <= READ_RECORDS_MAX


async def test_small_reads_of_a_large_entry_read_it_once(
    storage: FilelogStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await storage.append([batch(0, 1000, size=1000)])
    real, sizes = os.pread, list[int]()

    def count(fd: int, size: int, position: int) -> bytes:
        sizes.append(size)
        return real(fd, size, position)

    monkeypatch.setattr(os, "pread", count)
    for sequence in range(0, 1000, 10):
        assert await storage.read(PARTITION, sequence, 10) == batch(sequence, sequence + 10, size=1000)
    assert sum(sizes) < 1_500_000


# Errors


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
            new = batch(0, 1, Partition("new", f"{number}"), stored_at=number)
            batches = [batch(end, end + 4, size=20, stored_at=end), new, batch(end, end + 4, OTHER, stored_at=end)]
            operations: tuple[Callable[[Storage], Awaitable[None]], ...] = (
                methodcaller("append", batches),
                methodcaller("trim", PARTITION, end - 7),
                methodcaller("trim", OTHER, end + number % 5),
                methodcaller("reset_to", OTHER, end + 4),
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
        assert found == batch(earliest, 160, size=20).values


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("has_catalog", [True, False])
async def test_opening_that_fails_leaves_nothing_open_and_can_be_repeated(
    has_catalog: bool, read_only: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each system call fails in turn while the files are opened that a killed writer has left."""
    left = tmp_path / "left"
    with quickly():
        async with open_filelog(f"{tmp_path}/log?segment_bytes=100") as storage:
            for first in (0, 3):
                await storage.append([batch(first, first + 3, size=20), batch(first, first + 3, OTHER)])
            await storage.trim(PARTITION, 2)
            shutil.copytree(tmp_path / "log", left)
            expected = await storage.partitions()
        for name in () if has_catalog else ("catalog.names", "catalog.heads"):
            (left / name).unlink()
        for name in ("open", "pwritev", "fsync", "replace"):
            real, calls, failing_call = getattr(os, name), 0, 0
            while calls >= failing_call:
                failing_call += 1
                folder, calls = tmp_path / f"{name}{failing_call}", 0
                shutil.copytree(left, folder)

                def fail_once(*arguments: Any, real: Any = real, number: int = failing_call, **options: Any) -> Any:
                    nonlocal calls
                    calls += 1
                    if calls == number:
                        raise OSError(errno.EIO, "Input/output error")
                    return real(*arguments, **options)

                try:
                    with monkeypatch.context() as patch:
                        patch.setattr(os, name, fail_once)
                        async with open_filelog(str(folder), read_only=read_only) as storage:
                            patch.undo()
                            assert await storage.partitions() == expected
                except StorageError as error:
                    assert "Input/output error" in str(error)
                assert open_files(folder) == []
                async with open_filelog(str(folder)) as storage:
                    assert await storage.partitions() == expected
            assert read_only or failing_call > 1 or name == "replace", name


async def test_failed_append_that_could_not_be_truncated_never_reappears(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_filelog(str(folder)) as storage:
        await storage.append([batch(0, 2)])
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            patch.setattr(os, "ftruncate", fail)
            with pytest.raises(StorageError, match="Input/output error"):
                await storage.append([RecordBatch(PARTITION, 2, [b"wrong"]), RecordBatch(PARTITION, 3, [b"wrong"])])
            with pytest.raises(StorageError, match="Input/output error"):
                await storage.append([batch(2, 3)])
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
            await storage.append([batch(2, 4)])
        assert isinstance(storage, CompactsPartitions)
        with pytest.raises(StorageError, match="in the way of a new segment"):
            await storage.compact(PARTITION, 1, lambda records: bytes(len(records)), no_wait)
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
            await storage.append([batch(sequence, sequence + 1), batch(sequence, sequence + 1, OTHER)])
        assert synced == Counter({PARTITION.address: appended, OTHER.address: appended})
        for _ in range(2):
            await storage.flush()
            assert synced == {PARTITION.address: max(appended, 1), OTHER.address: max(appended, 1)}


async def test_many_partitions_have_few_open_files(folder: Path) -> None:
    partitions = [Partition("t", f"{number}") for number in range(600)]
    async with open_filelog(f"{folder}?fsync=never") as storage:
        for sequence in range(2):
            await storage.append([batch(sequence, sequence + 1, partition) for partition in partitions])
        for partition in partitions[::7]:
            assert await storage.read(partition, 0, 9) == batch(0, 2, partition)
        assert len(os.listdir("/proc/self/fd")) < OPEN_FILES_MAX + 60
        assert len(await storage.partitions("t")) == 600


async def test_opening_reads_no_segment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_filelog(str(folder)) as storage:
        await storage.append([batch(0, 100), batch(0, 100, OTHER)])

    def refuse(*_: object) -> bytes:
        raise AssertionError

    monkeypatch.setattr(os, "pread", refuse)
    async with open_filelog(str(folder)) as storage:
        assert len(await storage.partitions()) == 2


# Parts that work together


async def test_a_partition_whose_deletion_fails_is_described_by_its_slot(
    storage: FilelogStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its files would be read again each time that the file log is opened."""
    await storage.append([batch(0, 10)])
    await storage.trim(PARTITION, 10)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", fail)
        with pytest.raises(StorageError, match="Input/output error"):
            await storage.delete_partitions([PARTITION])
    catalog = CatalogReader(str(folder))
    catalog.load()
    state, head = catalog.loaded_slot(0, partition_seed(b"orders", PARTITION.address.encode()))
    assert (state, head.end) == (GOOD, 10)
    await storage.append([batch(10, 15)])
    assert await storage.read(PARTITION, 10, 100) == batch(10, 15)


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


async def test_a_reader_without_a_catalog_sees_what_was_trimmed(storage: FilelogStorage, folder: Path) -> None:
    await storage.append([batch(0, 10), batch(0, 1, Partition("others", "A"))])
    (folder / "catalog.heads").unlink()
    async with open_filelog(str(folder), read_only=True) as reader:
        for earliest in (0, 4, 7):
            await storage.trim(PARTITION, earliest)
            found = await reader.partitions(PARTITION.topic)
            assert {partition: info.earliest_sequence for partition, info in found.items()} == {PARTITION: earliest}
            assert len(await reader.partitions()) == 2
            assert await reader.read(PARTITION, earliest, 100) == batch(earliest, 10)


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
    storage: FilelogStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, sizes = 20_000, []
    keep = reading.LogReader._keep_partial_read

    def keep_and_note(self: reading.LogReader, *arguments: Any) -> None:
        keep(self, *arguments)
        sizes.append(self._partial_read_bytes)

    monkeypatch.setattr(reading, "PARTIAL_READ_BYTES_MAX", limit)
    monkeypatch.setattr(reading.LogReader, "_keep_partial_read", keep_and_note)
    for first in range(0, 100, 10):
        await storage.append([RecordBatch(PARTITION, first, [b"x" * 500] * 10)])
    for first in range(0, 100, 10):
        assert await storage.read(PARTITION, first, 3) is not None
    assert len(sizes) == 10
    assert limit / 2 < max(sizes) <= limit


async def test_a_deleted_partition_stays_deleted_although_its_slot_could_not_be_written(
    storage: FilelogStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_slot = CatalogWriter.write_slot

    def fail_for_good(self: CatalogWriter, slot: int, seed: int, state: int, head: Head) -> None:
        fail() if state == GOOD else write_slot(self, slot, seed, state, head)

    await storage.append([batch(0, 10)])
    with monkeypatch.context() as patch:
        patch.setattr(CatalogWriter, "write_slot", fail_for_good)
        await storage.delete_partitions([PARTITION])
    await storage.append([RecordBatch(OTHER, 0, [b""])])
    async with open_filelog(str(folder), read_only=True) as reader:
        assert set(await reader.partitions()) == {OTHER}


@pytest.mark.parametrize("delay_ms", [0, None])
def test_several_files_are_synced_at_the_same_time(
    delay_ms: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(3, timeout=DEADLINE_S)
    monkeypatch.setattr(os, "fdatasync", lambda fd: together.wait())
    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        Path(path).touch()
    with closing(FilePool(os.O_RDONLY)) as files, closing(Syncer(files, delay_ms)) as syncer:
        syncer.sync_written(paths, [])
        syncer.flush()


async def test_a_sync_of_the_file_system_is_not_relied_on_for_segments_on_another_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()

    def sync(fd: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(syncing, "TOGETHER_MIN", 1)
    monkeypatch.setattr(syncing, "can_sync_filesystem", lambda _fd: True)
    monkeypatch.setattr(syncing, "sync_filesystem", lambda _fd: synced.add("all"))
    linked, near = Partition("linked", "one"), Partition("near", "one")
    own_device = folder.parent.stat().st_dev
    places = [
        each for each in map(Path, ("/dev/shm", "/var/tmp")) if each.is_dir() and each.stat().st_dev != own_device
    ]
    if not places:
        pytest.skip("needs a second file system")
    with TemporaryDirectory(dir=places[0]) as elsewhere:
        async with open_filelog(str(folder)):
            (folder / "topics").mkdir()
            (folder / "topics/linked").symlink_to(elsewhere)
        async with open_filelog(str(folder)) as storage:
            await storage.append([RecordBatch(linked, 0, [b""]), RecordBatch(near, 0, [b""])])
            assert "all" not in synced
            assert {Path(path).parent.name for path in synced} == {"one"}
            assert len(synced) == 2
        synced.clear()
        async with open_filelog(str(folder)) as storage:
            await storage.append([RecordBatch(linked, 1, [b""]), RecordBatch(Partition("near", "two"), 0, [b""])])
            assert synced == {"all", f"{elsewhere}/one/{0:020}.log"}


async def test_times_and_contents_that_a_file_log_cannot_hold_are_refused(
    storage: FilelogStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stored_at in (-(2**63) - 1, 2**63):
        with pytest.raises(StorageError, match="within 64 bits"):
            await storage.append([RecordBatch(PARTITION, 0, [b""], stored_at=[stored_at])])
    await storage.append([RecordBatch(PARTITION, 0, [b""], stored_at=[-(2**63)])])
    assert (await storage.partitions())[PARTITION].earliest_stored_at == -(2**63)
    monkeypatch.setattr(encoding, "BATCH_BYTES_LIMIT", 12)
    with pytest.raises(StorageError, match="at most 12 bytes, not 13"):
        await storage.append([RecordBatch(OTHER, 0, [b"123456"])])
    await storage.append([RecordBatch(OTHER, 0, [b"12345"])])


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
    names = folder / "catalog.names"
    async with open_filelog(str(folder)) as storage:
        assert isinstance(storage, DeletesPartitions)
        await storage.append([batch(0, 10), RecordBatch(OTHER, 0, [b""])])
        size = names.stat().st_size
        partitions = [Partition("t", new_address()) for _ in range(deleted)]
        await storage.append([RecordBatch(each, 0, [b""]) for each in partitions])
        await storage.delete_partitions(partitions)
    before = names.stat()
    assert before.st_size > size
    async with open_filelog(str(folder)) as storage:
        assert set(await storage.partitions()) == {PARTITION, OTHER}
        await storage.append([batch(10, 15)])
    assert (names.stat().st_ino == before.st_ino) is (deleted == 1)
    assert (names.stat().st_size == size) is (deleted > 1)
    async with open_filelog(str(folder)) as storage:
        ends = {each: info.end_sequence for each, info in (await storage.partitions()).items()}
        assert ends == {PARTITION: 15, OTHER: 1}
        assert await storage.find_damage() == []


@pytest.mark.parametrize("is_listed_between", [True, False])
async def test_another_process_reads_a_partition_that_began_again_in_the_same_segment(
    is_listed_between: bool, storage: FilelogStorage, folder: Path
) -> None:
    async with open_filelog(str(folder), read_only=True) as reader:
        for size in (20_000, 15_000):
            for first in range(0, 40, 2):
                await storage.append([batch(first, first + 2, size=size)])
            for sequence in (4, 39, 20, 0):  # by the index, and from where the last read has ended
                assert await reader.read(PARTITION, sequence, 1) == batch(sequence, sequence + 1, size=size)
            await storage.delete_partitions([PARTITION])
            if is_listed_between:
                assert await reader.read(PARTITION, 0, 1) is None


async def test_an_index_that_a_read_of_a_replaced_file_has_cached_is_dropped(storage: FilelogStorage) -> None:
    assert storage._writer is not None
    former = None
    for size in (20_000, 15_000):
        for first in range(0, 40, 2):
            await storage.append([batch(first, first + 2, size=size)])
        log = storage._writer.find_log(PARTITION)
        assert log is not None
        if former is not None:
            storage._reader._cache_index(log.log_path(0), former)
        for sequence in (39, 20, 4):
            assert await storage.read(PARTITION, sequence, 1) == batch(sequence, sequence + 1, size=size)
        former = storage._reader.find_cached_index(log, 0)
        await storage.delete_partitions([PARTITION])


def test_delayed_writes_are_synced_and_an_error_is_raised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: SimpleQueue[str] = SimpleQueue()
    failing: set[str] = set()

    def sync(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        synced.put(path)
        if path in failing:
            fail()

    monkeypatch.setattr(os, "fdatasync", sync)
    files = FilePool(os.O_RDONLY)
    syncer = Syncer(files, 1)
    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        Path(path).touch()
        syncer.sync_written([path], [])
        assert synced.get(timeout=DEADLINE_S) == path
    syncer.raise_delayed_error()
    failing.add(paths[0])
    syncer.sync_written(paths[:1], [])
    for _ in range(2):  # it is tried again, and then the first error is known
        assert synced.get(timeout=DEADLINE_S) == paths[0]
    with pytest.raises(OSError, match="Input/output error"):
        syncer.raise_delayed_error()
    failing.clear()
    syncer.flush()
    syncer.close()
    files.close()
    assert (syncer.take_failed(), syncer.take_failed()) == ({paths[0]}, set())
    with suppress(OSError):  # of a further try
        syncer.raise_delayed_error()
    syncer.raise_delayed_error()


async def test_an_append_reports_that_a_delayed_sync_has_failed(folder: Path) -> None:
    async with open_filelog(f"{folder}?fsync=3600000") as storage:
        assert isinstance(storage, FilelogStorage)
        assert storage._writer is not None
        await storage.append([batch(0, 1)])
        storage._writer.syncer._error = OSError(errno.EIO, "Input/output error")
        with pytest.raises(StorageError, match="Input/output error"):
            await storage.append([batch(1, 2)])
        await storage.append([batch(1, 2)])
        assert await storage.read(PARTITION, 0, 9) == batch(0, 2)


async def test_a_reader_finds_a_partition_that_an_incomplete_catalog_does_not_name(
    storage: FilelogStorage, folder: Path
) -> None:
    await storage.append([batch(0, 10)])
    os.truncate(folder / NAMES_FILE, (folder / NAMES_FILE).stat().st_size - 1)
    async with open_filelog(str(folder), read_only=True) as reader:
        for partition in (PARTITION, OTHER):
            await storage.append(
                [batch(10 if partition == PARTITION else 0, 10 if partition == PARTITION else 0 + 10, partition)]
            )
            assert await reader.find_partition(partition) == await storage.find_partition(partition) is not None
            assert await reader.read(partition, 0, 10) == batch(0, 10, partition)


async def test_a_read_is_repeated_while_another_process_replaces_the_segment(folder: Path) -> None:
    async with open_filelog(str(folder)) as writer:
        await writer.append([batch(0, 10)])
    log = PartitionLog(PARTITION, str(folder / "topics"))
    path = Path(log.log_path(0))
    aside = path.with_suffix(".aside")
    for missing in range(1, reading.ATTEMPTS + 1):
        refreshes = 0

        def refresh(log: PartitionLog, missing: int = missing) -> None:
            nonlocal refreshes
            refreshes += 1
            log.head = Head(end=10, length=path.stat().st_size if path.exists() else refreshes)
            if refreshes == missing:
                aside.rename(path)
                refresh(log)

        path.rename(aside)
        pool = FilePool(os.O_RDONLY)
        log.head, log.bases = Head(end=10), (0,)
        with nullcontext() if missing < reading.ATTEMPTS else pytest.raises(StorageCorruptError, match="lost"):
            assert reading.LogReader(pool, refresh).read_records(log, 2, 5, 1000) == batch(2, 7)
        assert path.exists()
        pool.close()
