# ruff: noqa: ASYNC240, PT017  (small files in tests; errors that may or may not occur)
from __future__ import annotations

import errno
import os
import resource
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from crc32c import crc32c

from dafka.errors import StorageBusyError, StorageError, StorageFormatError, StorageSequenceError
from dafka.records import Partition, RecordBatch, new_address
from dafka.storage.base import PartitionInfo, RetentionPolicy, Storage, StorageStatistics
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


async def make_store(folder: Path | str, count: int = 3) -> None:
    async with open_filelog(str(folder)) as storage:
        await storage.append([batch(0, count)])


async def failure(place: Path | str, *, read_only: bool = False) -> StorageError:
    """Return the error of opening a storage, and check that it is one line."""
    with pytest.raises(StorageError) as caught:
        async with open_filelog(str(place), read_only=read_only):
            pass
    assert "\n" not in str(caught.value)
    return caught.value


# What is not a file log


async def test_folder_with_other_files_is_refused_and_not_changed(folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    for read_only in (False, True):
        error = await failure(folder, read_only=read_only)
        assert type(error) is StorageFormatError
        assert str(error) == f"{folder} is not a file log: it has no filelog.json"
    assert os.listdir(folder) == ["notes.txt"]


async def test_file_is_refused(folder: Path) -> None:
    folder.write_text("mine")
    for read_only in (False, True):
        error = await failure(folder, read_only=read_only)
        assert type(error) is StorageFormatError
        assert str(error) == f"{folder} is not a file log: expected a folder"


async def test_empty_folder_becomes_a_file_log_for_a_writer_only(folder: Path) -> None:
    folder.mkdir()
    assert type(await failure(folder, read_only=True)) is StorageFormatError
    (folder / "filelog.lock").touch()  # as left by a writer that was killed at this point
    (folder / ".filelog.json.tmp").touch()
    await make_store(folder)


async def test_missing_folder_is_created_only_by_a_writer_in_an_existing_folder(folder: Path) -> None:
    assert str(await failure(folder, read_only=True)) == f"{folder} does not exist"
    assert (
        str(await failure(folder / "log"))
        == f"cannot open {folder}/log: folder {folder} does not exist; create it first"
    )
    assert not folder.exists()
    await make_store(f"{folder}/")


async def test_newer_version_is_refused(folder: Path) -> None:
    await make_store(folder)
    path = folder / "filelog.json"
    path.write_text(path.read_text().replace('"version": 2', '"version": 3'))
    assert "is damaged" in str(await failure(folder))
    identity = path.read_text().partition('"identity": "')[2][:32]
    crc = crc32c(f"dafka file log 3 {identity}".encode())
    path.write_text(f'{{"format": "dafka file log", "version": 3, "identity": "{identity}", "crc32c": {crc}}}')
    for read_only in (False, True):
        error = await failure(folder, read_only=read_only)
        assert type(error) is StorageFormatError
        assert str(error) == f"{folder} has version 3, expected 2; use the dafka that wrote it"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("", "storage 'filelog:': expected a folder, as in filelog:dafka-log"),
        ("?fsync=never", "storage 'filelog:': expected a folder, as in filelog:dafka-log"),
        ("x?fsync=", "storage 'filelog:': fsync: expected batch, never or a number of milliseconds, not ''"),
        ("x?fsync=0", "storage 'filelog:': fsync: expected batch, never or a number of milliseconds, not '0'"),
        ("x?segment_bytes=0", "storage 'filelog:': segment_bytes: expected a whole number of at least 1, not '0'"),
        ("x?size=1", "storage 'filelog:': unknown option 'size', expected segment_bytes or segment_ms or fsync"),
    ],
)
async def test_invalid_location_is_refused(place: str, message: str) -> None:
    assert str(await failure(place)) == message


async def test_second_writer_is_refused_at_once(folder: Path) -> None:
    async with open_filelog(str(folder)):
        with trio.fail_after(10):
            assert type(await failure(folder)) is StorageBusyError
    await make_store(folder)


async def test_reader_cannot_write(folder: Path) -> None:
    await make_store(folder)
    async with open_filelog(str(folder), read_only=True) as storage:
        for change in (
            lambda: storage.append([batch(3, 1)]),
            lambda: storage.trim(PARTITION, 1),
            lambda: storage.reset_to(PARTITION, 9),
            lambda: storage.apply_retention(RetentionPolicy(records_max=0)),
            lambda: storage.save_positions("name", {PARTITION: 1}),
        ):
            with pytest.raises(StorageError, match="was opened read-only; open it for writing"):
                await change()
        await storage.flush()
        assert (await storage.partitions())[PARTITION].end_sequence == 3


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


async def test_trimming_removes_segments_for_good(folder: Path) -> None:
    expected = PartitionInfo()
    async with open_filelog(f"{folder}?segment_bytes=1000") as storage:
        for sequence in range(0, 100, 5):
            await storage.append([batch(sequence, 5, 50, stored_at=sequence)])
        first, second, third = segments(folder)[:3]
        for earliest in (1, first, second, second + 3, third + 1, 99, 100):
            await storage.trim(PARTITION, earliest)
            expected = (await storage.partitions())[PARTITION]
            assert expected.earliest_sequence == max(earliest, 1)
            assert expected.content_bytes == 50 * (100 - expected.earliest_sequence)
            kept = [
                base
                for base, end in zip(segments(folder), [*segments(folder)[1:], 101], strict=True)
                if end > expected.earliest_sequence
            ]
            assert segments(folder) == kept
        assert expected == PartitionInfo(100, 100)
        assert segments(folder) == [100]
        await storage.append([batch(100, 1, stored_at=1)])
        assert (await storage.partitions())[PARTITION] == PartitionInfo(100, 101, 3, 95, 95)
    for name in ("", "catalog.heads"):
        (folder / name).unlink() if name else None
        async with open_filelog(str(folder)) as storage:
            assert (await storage.partitions())[PARTITION] == PartitionInfo(100, 101, 3, 95, 95)
            assert not storage.repairs


async def test_reset_to(folder: Path) -> None:
    async with open_filelog(str(folder)) as storage:
        await storage.append([batch(0, 10)])
        with pytest.raises(
            StorageSequenceError, match=f"^{PARTITION}: cannot reset to sequence 9, expected 10 or later$"
        ):
            await storage.reset_to(PARTITION, 9)
        await storage.reset_to(PARTITION, 50)
        await storage.reset_to(OTHER, 7)
        await storage.reset_to(OTHER, 7)
        await storage.append([batch(50, 2)])
    for name in ("", "catalog.heads", "catalog.names"):
        (folder / name).unlink() if name else None
        async with open_filelog(str(folder)) as storage:
            infos = await storage.partitions()
            assert (infos[PARTITION].earliest_sequence, infos[PARTITION].end_sequence) == (50, 52)
            assert infos[OTHER] == PartitionInfo(7, 7)
            assert not storage.repairs
            with pytest.raises(StorageSequenceError):
                await storage.append([batch(8, 1, partition=OTHER)])
    assert segments(folder) == [7, 50]


async def test_partition_reset_to_0_may_still_begin_anywhere(folder: Path) -> None:
    async with open_filelog(str(folder)) as storage:
        await storage.reset_to(PARTITION, 0)
        await storage.append([batch(5, 3)])
        assert segments(folder) == [5]
        assert await storage.read(PARTITION, 5, 9) == batch(5, 3)
        assert (await storage.partitions())[PARTITION].earliest_sequence == 5


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
            for sequence in range(10, 3000, 10):
                await storage.append([batch(sequence, 10)])
            is_over = True
        assert not await storage.find_damage()


# Errors


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let the operating system refuse to write files beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_write_error_changes_nothing_and_the_next_write_succeeds(folder: Path) -> None:
    new = Partition("new", "C")
    async with open_filelog(str(folder)) as storage:
        await storage.append([batch(0, 10, 100)])
        before = await storage.partitions()
        sizes = {path: path.stat().st_size for path in folder.rglob("*.log")}
        with file_size_limit(100_000):
            for _ in range(2):
                with pytest.raises(StorageError, match=r"^/.*: File too large$"):
                    await storage.append([batch(0, 5, partition=new), batch(10, 200, 10_000)])
            assert await storage.partitions() == before
            assert {path: path.stat().st_size for path in folder.rglob("*.log")} == sizes
            assert await storage.read(PARTITION, 10, 1) is None
            await storage.append([batch(10, 1, 100)])
        await storage.append([batch(11, 200, 10_000), batch(0, 5, partition=new)])
        assert await storage.read(PARTITION, 0, 11) == batch(0, 11, 100)
        assert await storage.read(PARTITION, 11, 100) == batch(11, 100, 10_000)
        assert await storage.read(new, 0, 9) == batch(0, 5, partition=new)
        assert await storage.find_damage() == []
    async with open_filelog(str(folder)) as storage:
        assert not storage.repairs


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


async def test_fsync_batch_syncs_each_segment_once_per_append(folder: Path, synced: Counter[str]) -> None:
    async with open_filelog(str(folder)) as storage:
        for sequence in range(3):
            await storage.append([batch(sequence, 1), batch(sequence, 1, partition=OTHER)])
            assert synced == {PARTITION.address: sequence + 1, OTHER.address: sequence + 1}


async def test_fsync_never_syncs_on_flush_and_on_close(folder: Path, synced: Counter[str]) -> None:
    async with open_filelog(f"{folder}?fsync=never") as storage:
        await storage.append([batch(0, 1)])
        await storage.append([batch(1, 1)])
        assert not synced
        await storage.flush()
        assert synced == {PARTITION.address: 1}
        await storage.flush()
        assert synced == {PARTITION.address: 1}
        await storage.append([batch(2, 1)])
    assert synced == {PARTITION.address: 2}


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


async def test_closing_leaves_no_open_file_and_no_thread(folder: Path) -> None:
    await make_store(folder)
    before = sorted(os.listdir("/proc/self/fd"))
    for options in ("", "?fsync=5"):
        async with open_filelog(f"{folder}{options}") as storage:
            end = (await storage.partitions())[PARTITION].end_sequence
            await storage.append([batch(end, 1), batch(0, 1, partition=Partition(options, new_address()))])
            await storage.read(PARTITION, 0, 1)
        async with open_filelog(str(folder), read_only=True) as storage:
            await storage.read(PARTITION, 0, 1)
        assert sorted(os.listdir("/proc/self/fd")) == before


async def test_opening_reads_no_segment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_filelog(str(folder)) as storage:
        await storage.append([batch(0, 100), batch(0, 100, partition=OTHER)])

    def refuse(*_: object) -> bytes:
        raise AssertionError

    monkeypatch.setattr(os, "pread", refuse)
    async with open_filelog(str(folder)) as storage:
        assert len(await storage.partitions()) == 2


async def test_statistics(folder: Path) -> None:
    async with open_filelog(f"{folder}?segment_bytes=100000") as storage:
        for sequence in range(0, 5000, 100):
            await storage.append([batch(sequence, 100, 100), batch(sequence, 100, partition=OTHER)])
        await storage.trim(PARTITION, 100)
        await storage.save_positions("name", {PARTITION: 5})
        found = await storage.statistics()
        sizes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        infos = (await storage.partitions()).values()
        assert found == StorageStatistics(2, 9900, sum(info.content_bytes for info in infos), sizes)


# Positions


async def test_position_names_and_damage(folder: Path) -> None:
    async with open_filelog(str(folder)) as storage:
        assert await storage.position_names() == []
        for name in ("b", "", "a/..", "é" * 200):
            await storage.save_positions(name, {PARTITION: 2**70})
        await storage.save_positions("unused", {})
        assert await storage.position_names() == sorted(["b", "", "a/..", "é" * 200])
        (folder / "positions" / "b.json").write_text("[]")
        with pytest.raises(StorageError, match=r"positions/b.json is damaged: delete it to let the consumer 'b' start"):
            await storage.load_positions("b")
        assert await storage.load_positions("") == {PARTITION: 2**70}
