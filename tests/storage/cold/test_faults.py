"""An object store that fails, is slow or answers wrongly: nothing is lost, and nothing wrong is returned."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable
from itertools import combinations_with_replacement
from pathlib import Path

import pytest
import trio

from dafka.errors import StorageBusyError, StorageCorruptError, StorageError, StorageFormatError
from dafka.records import Partition, RecordBatch
from dafka.storage import CompactsPartitions, RetentionPolicy
from dafka.storage.capabilities import Compacted
from dafka.storage.cold import ColdOptions, manifest_store, object_store, opening
from dafka.storage.cold.object_store import ObjectStore, ObjectStoreError
from dafka.storage.cold.offloader import Offloader
from dafka.storage.cold.opening import connect
from dafka.storage.memory import MemoryStorage
from dafka.storage.opening import delete_partitions
from dafka.storage.tools.verify import verify_storage
from tests.power.runs import no_wait
from tests.storage.cold.stores import A, B, Fault, Faults, FaultyStore, batch, fail, no_fault, open_tiered, read_all

OTHER = Partition("payments", "A")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "FIRST_PAUSE_S", 0)
    monkeypatch.setattr(object_store, "REST_S_MAX", 0)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Give every object store a fault that the test sets."""
    made = Faults()

    def connect_faulty(options: ColdOptions) -> ObjectStore:
        return FaultyStore(connect(options), made)

    monkeypatch.setattr(opening, "connect", connect_faulty)
    return made


def find_objects(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def expected(end: int, first: int = 0) -> list[bytes | None]:
    return [*batch(A, first, end).values]


def failing(operation: str, suffix: str = "") -> Fault:
    """Return the fault that an operation fails, with names that end so."""

    def fault(found: str, name: str) -> None:
        if found == operation and name.endswith(suffix):
            fail(found, name)

    return fault


def changing_upload(end: bytes) -> Fault:
    """Return the fault that an object is stored with another end."""

    def fault(operation: str, name: str) -> Callable[[bytes], bytes] | None:
        return (lambda data: data[:-9] + end) if operation == "write" and name.endswith("parquet") else None

    return fault


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        *((failing(each), "failed") for each in ("write", "after write", "read", "replace", "list")),
        *((changing_upload(end), "were written, and") for end in (b"", bytes(9))),
        (failing("after replace"), ""),
    ],
)
async def test_records_stay_hot_while_the_object_store_fails(
    fault: Fault, message: str, faults: Faults, tmp_path: Path
) -> None:
    """A replacement whose answer is lost counts as done."""
    async with open_tiered(tmp_path) as storage:
        await storage.append([batch(A, 0, 50), batch(B, 0, 5)])
        faults.fault = fault
        if message:
            with pytest.raises(ObjectStoreError, match=message):
                await storage.move_due()
            assert (await storage.hot.partitions())[A].earliest_sequence == 0
            assert await read_all(storage, A) == expected(50)
            assert bool(storage.tier_statistics().request_error) is (message == "failed")
            assert not storage.tier_statistics().is_stale
            faults.fault = no_fault
        assert await storage.move_due() == 4
        assert not storage.tier_statistics().is_stale
        assert (await storage.hot.partitions())[A].earliest_sequence == 40
        assert await read_all(storage, A) == expected(50)
        info = (await storage.partitions())[A]
        assert (info.count, info.content_bytes) == (50, 5000)
        assert (await verify_storage(storage)).damages == ()
        assert len(find_objects(tmp_path)) == 4


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: b"", lambda data: bytes([data[0] ^ 1]) + data[1:]]
)
async def test_a_wrong_answer_is_asked_for_again(
    change: Callable[[bytes], bytes], faults: Faults, tmp_path: Path
) -> None:
    answers = 0

    def fault(found: str, name: str) -> Callable[[bytes], bytes] | None:
        nonlocal answers
        answers += found == "read_range"
        return change if found == "read_range" and answers % 2 else None

    async with open_tiered(tmp_path, cold_cache_bytes=0) as storage:
        await storage.append([batch(A, 0, 50)])
        await storage.move_due()
        faults.fault = fault
        assert await read_all(storage, A) == expected(50)
        assert storage.tier_statistics().wrong_answers > 0
        assert storage.tier_statistics().damaged == 0


async def test_an_object_that_is_damaged_is_an_error_and_never_wrong_records(tmp_path: Path) -> None:
    async with open_tiered(tmp_path) as storage:
        await storage.append([batch(A, 0, 50)])
        await storage.move_due()
        damaged = find_objects(tmp_path)[1]
        data = bytearray(damaged.read_bytes())
        data[len(data) // 4] ^= 4
        damaged.write_bytes(data)
        with pytest.raises(StorageCorruptError, match="sequences 10 to 19 are damaged") as caught:
            await read_all(storage, A)
        assert caught.value.end_sequence == 20
        assert storage.tier_statistics().damaged == 1
        damaged.unlink()
        (damage,) = await storage.find_damage()
        assert (damage.partition, damage.first_sequence, damage.end_sequence) == (A, 10, 20)
        assert "is missing" in damage.reason
        with pytest.raises(StorageCorruptError, match="there is no such file"):
            await storage.read(A, 10, 1)
        assert await storage.read(A, 20, 1) is not None


async def test_records_are_read_anew_after_a_search_for_damage(tmp_path: Path) -> None:
    async with open_tiered(tmp_path) as storage:
        await storage.append([batch(A, 0, 50)])
        await storage.move_due()
        assert await read_all(storage, A) == expected(50)
        assert storage.tier_statistics().cached_bytes
        damaged = find_objects(tmp_path)[1]
        damaged.write_bytes(bytes(damaged.stat().st_size))
        assert await read_all(storage, A) == expected(50)
        assert await storage.find_damage() == []
        with pytest.raises(StorageCorruptError, match="sequences 10 to 19 are damaged"):
            await read_all(storage, A)


async def test_records_of_a_topic_that_is_compacted_meanwhile_stay_hot(faults: Faults, tmp_path: Path) -> None:
    async with open_tiered(tmp_path) as storage:

        def fault(found: str, name: str) -> None:
            if found == "after write":
                storage.offloader.hot_topics.add(A.topic)

        await storage.append([batch(A, 0, 50), batch(OTHER, 0, 50)])
        faults.fault = fault
        assert await storage.move_due() == 4
        assert (storage.cold_end(A), storage.cold_end(OTHER)) == (0, 40)
        assert await read_all(storage, A) == expected(50)
        assert len(find_objects(tmp_path)) == 4


async def test_answers_that_differ_each_time_are_a_failure_and_no_damage(faults: Faults, tmp_path: Path) -> None:
    count = 0

    def fault(found: str, name: str) -> Callable[[bytes], bytes] | None:
        nonlocal count
        count += 1
        return (lambda data: data[count % len(data) :]) if found == "read_range" else None

    async with open_tiered(tmp_path) as storage:
        await storage.append([batch(A, 0, 50)])
        await storage.move_due()
        faults.fault = fault
        with pytest.raises(ObjectStoreError, match="a different answer each time"):
            await storage.read(A, 0, 10)


async def test_appends_and_hot_reads_do_not_wait_for_a_slow_store(faults: Faults, tmp_path: Path) -> None:
    is_asked, may_answer = trio.Event(), threading.Event()

    def wait(found: str, name: str) -> None:
        trio.from_thread.run_sync(is_asked.set)
        assert may_answer.wait(60)

    async with open_tiered(tmp_path) as storage, trio.open_nursery() as nursery:
        await storage.append([batch(A, 0, 50)])
        faults.fault = wait
        nursery.start_soon(storage.move_due)
        await is_asked.wait()
        await storage.append([batch(A, 50, 60), batch(B, 0, 5)])
        assert await read_all(storage, A) == expected(60)
        assert (await storage.partitions())[A].content_bytes == 6000
        may_answer.set()


async def test_a_store_starts_without_its_object_store_but_for_the_first_time(faults: Faults, tmp_path: Path) -> None:
    hot = f"filelog:{tmp_path}/log?fsync=never"
    faults.fault = fail
    with pytest.raises(ObjectStoreError, match=r"manifest\.json failed"):
        async with open_tiered(tmp_path, hot):
            pass
    faults.fault = no_fault
    async with open_tiered(tmp_path, hot) as storage:
        await storage.append([batch(A, 0, 50)])
        await storage.move_due()
    faults.fault = fail
    async with open_tiered(tmp_path, hot) as storage:
        assert storage.tier_statistics().is_stale
        assert (await storage.partitions())[A].earliest_sequence == 0
        await storage.append([batch(A, 50, 70)])
        with pytest.raises(ObjectStoreError):
            await storage.read(A, 0, 1)
        faults.fault = no_fault
        assert await storage.move_due() >= 1
        assert not storage.tier_statistics().is_stale
        assert await read_all(storage, A) == expected(70)


async def test_two_stores_of_one_address_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """Somebody has copied the folder of a store, and runs both."""
    async with open_tiered(tmp_path) as storage:
        await storage.append([batch(A, 0, 50)])
        await storage.move_due()
        root = tmp_path / "bucket" / storage.identity / "manifest.json"
        other = storage._manifest_store.manifest.change("somebody else")
        root.write_bytes(other.encode())
        await storage.append([batch(A, 50, 70)])
        with pytest.raises(StorageBusyError, match="two stores with the same address"):
            await storage.move_due()
        assert (await storage.hot.partitions())[A].earliest_sequence == 40
        assert root.read_bytes() == other.encode()


async def test_a_hot_storage_goes_on_where_the_cold_tier_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever records it has: it is an older copy, or a process ended before it dropped what was moved."""
    async with open_tiered(tmp_path, local_retention_bytes=0, cold_segment_bytes=500) as storage:
        await storage.append([batch(A, 0, 5)])
        assert await storage.move_due() == 1
        for earliest, end in combinations_with_replacement(range(8), 2):
            hot = MemoryStorage()
            await hot.append([batch(A, 0, end)] if end else [])
            await hot.trim(A, earliest)
            offloader = Offloader(hot, storage._manifest_store, storage._object_store, storage.options)
            await offloader.finish_moves()
            info = (await hot.partitions())[A]
            assert (info.earliest_sequence, info.end_sequence) == (max(earliest, 5), max(end, 5))
            with monkeypatch.context() as patch:
                patch.setattr(hot, "trim", None)
                patch.setattr(hot, "reset_to", None)
                await offloader.finish_moves()  # there is nothing to write any more


@pytest.mark.parametrize("change", ["trim", "find_compactable", "compact"])
async def test_a_commit_whose_outcome_is_unknown_is_found_out_before_records_are_dropped(
    change: str, faults: Faults, tmp_path: Path
) -> None:
    """The object store has committed the segment, and was away before the storage could ask it."""

    def fault(found: str, name: str) -> None:
        if found == "after replace":
            faults.fault = fail
            fail(found, name)

    async with open_tiered(tmp_path, local_retention_bytes=0, cold_segment_bytes=5000) as storage:
        assert isinstance(storage, CompactsPartitions)
        await storage.append([batch(A, 0, 50)])
        faults.fault = fault
        with pytest.raises(ObjectStoreError):
            await storage.move_due()
        assert (storage.tier_statistics().is_stale, storage.cold_end(A)) == (True, 0)
        faults.fault = no_fault
        if change == "trim":
            await storage.trim(A, 25)
        elif change == "find_compactable":
            assert await storage.find_compactable(A, 0) is None
        else:
            assert await storage.compact(A, 50, lambda batch: b"\1" * len(batch), no_wait) == Compacted()
        for _ in range(2):
            assert await read_all(storage, A) == expected(50, 25 if change == "trim" else 0)
            await storage.move_due()


async def test_segments_go_when_records_behind_them_are_missing(tmp_path: Path) -> None:
    """The hot storage was used by itself meanwhile, and has dropped records that were not moved."""
    async with open_tiered(tmp_path) as storage:
        await storage.append([batch(A, 0, 50)])
        assert await storage.move_due() == 4
        await storage.hot.append([batch(A, 50, 90)])
        await storage.hot.trim(A, 50)
        (damage,) = await storage.find_damage()
        assert (damage.partition, damage.first_sequence, damage.end_sequence) == (A, 40, 50)
        info = (await storage.partitions())[A]
        assert info == await storage.find_partition(A) == (await storage.hot.partitions())[A]
        assert await storage.find_sequence_by_time(A, 0) == 50
        assert await storage.move_due() == 3
        assert storage.cold_end(A) == 80
        assert (await storage.partitions())[A].earliest_sequence == 50
        assert await read_all(storage, A) == expected(90, 50)
        assert len(find_objects(tmp_path)) == 3


async def test_an_object_that_is_written_again_is_not_deleted(faults: Faults, tmp_path: Path) -> None:
    """Its name is that of a deleted one, which is left to be deleted, if the same records are appended again."""
    is_written = False

    def fault(found: str, name: str) -> None:
        nonlocal is_written
        if found == "delete" and not is_written:
            fail(found, name)
        if found == "after write" and f"/{A.topic}/{A.address}/" in name and not is_written:
            is_written = True
            trio.from_thread.run(storage.trim, B, 5)

    async with open_tiered(tmp_path) as storage:
        await storage.append([batch(A, 0, 20), batch(B, 0, 50)])
        await storage.move_due()
        faults.fault = fault
        await delete_partitions(storage, [A])
        await storage.append([batch(A, 0, 20)])
        assert await storage.move_due() == 1
        assert is_written
        assert await read_all(storage, A) == expected(20)
        for _ in range(2):
            faults.fault = no_fault
            await delete_partitions(storage, [A])
            assert not [each for each in find_objects(tmp_path) if each.parent.name == A.address]
            await storage.append([batch(A, 0, 20)])
            assert await storage.move_due() == 1


@pytest.mark.parametrize("begins_again", [True, False])
async def test_records_of_a_deleted_partition_do_not_take_the_place_of_its_new_ones(
    faults: Faults, tmp_path: Path, *, begins_again: bool
) -> None:
    async def begin_again() -> None:
        await delete_partitions(storage, [A])
        await storage.append([RecordBatch(A, 0, expected(120, 100))] if begins_again else [])

    def fault(found: str, name: str) -> None:
        if found == "after write":
            faults.fault = no_fault
            trio.from_thread.run(begin_again)

    async with open_tiered(tmp_path) as storage:
        await storage.append([batch(A, 0, 20)])
        faults.fault = fault
        assert await storage.move_due() == 0
        assert await storage.move_due() == begins_again
        assert len(find_objects(tmp_path)) == begins_again
        if begins_again:
            assert await read_all(storage, A) == expected(120, 100)
        else:
            assert await storage.partitions() == {}


async def test_an_object_that_cannot_be_deleted_is_deleted_later(faults: Faults, tmp_path: Path) -> None:
    async with open_tiered(tmp_path) as storage:
        await storage.append([batch(A, 0, 50)])
        await storage.move_due()
        faults.fault = failing("delete", "parquet")
        assert await storage.apply_retention(RetentionPolicy(records_max=20)) == {A: 30}
        assert len(find_objects(tmp_path)) == 4
        assert await read_all(storage, A) == expected(50, 30)
        faults.fault = no_fault
        await storage.move_due()
        assert len(find_objects(tmp_path)) == 1
        await storage.append([batch(A, 50, 60)])
        await storage.move_due()
        assert storage._manifest_store.manifest.dropped == ()


async def test_records_that_are_in_both_tiers_are_read_without_the_object_store(
    faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_tiered(tmp_path) as storage:
        await storage.append([batch(A, 0, 20)])

        async def fail_to_trim(*_arguments: object) -> None:
            raise StorageError("the disk is full")

        monkeypatch.setattr(storage.hot, "trim", fail_to_trim)
        await storage.move_due()
        assert storage.cold_end(A) == 10
        faults.fault = fail
        assert await read_all(storage, A) == expected(20)


async def test_a_reader_tries_again_to_read_a_copy_that_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_read(path: str) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files", path)

    hot = f"sqlite:{tmp_path}/store.db"
    async with open_tiered(tmp_path, hot) as storage, open_tiered(tmp_path, hot, read_only=True) as reader:
        await storage.append([batch(A, 0, 50)])
        await storage.move_due()
        with monkeypatch.context() as patch:
            patch.setattr(manifest_store, "read_file", fail_to_read)
            with pytest.raises(StorageError, match="Too many open files"):
                await reader.partitions()
        assert await read_all(reader, A) == expected(50)


async def test_a_reader_of_records_that_are_dropped_in_another_process_gets_none(
    faults: Faults, tmp_path: Path
) -> None:
    hot = f"sqlite:{tmp_path}/store.db"
    async with open_tiered(tmp_path, hot) as storage:
        await storage.append([batch(A, 0, 50)])
        await storage.move_due()
        async with open_tiered(tmp_path, hot, read_only=True) as reader:
            await storage.trim(A, 15)
            assert await reader.read(A, 5, 1) is None
            assert await read_all(reader, A) == expected(50, 15)
    (tmp_path / "store.db-cold" / "manifest.json").unlink()
    faults.fault = fail
    with pytest.raises(ObjectStoreError):
        async with open_tiered(tmp_path, hot, read_only=True):
            pass


async def test_the_statistics_count_what_was_moved_and_why_something_was_not(faults: Faults, tmp_path: Path) -> None:
    late = Partition("late", "A")
    async with open_tiered(tmp_path) as storage:
        await storage.append([batch(A, 0, 50), batch(B, 0, 5)])
        await storage.append([RecordBatch(late, 0, [b"x" * 100] * 30, stored_at=[2**62] * 30)])
        for number in (1, 2):  # its times are beyond those of Parquet
            moved = await storage.move_due()
            found = storage.tier_statistics()
            assert (moved, found.move_failures, found.due_bytes) == ((4, 0)[number - 1], number, 3000)
        assert "late" in found.move_error
        sizes = sum(path.stat().st_size for path in find_objects(tmp_path))
        assert (found.segments, found.records, found.content_bytes, found.object_bytes) == (4, 40, 4000, sizes)
        assert (found.moved_records, found.moved_bytes) == (40, sizes)
        assert (await storage.statistics()).stored_bytes == (await storage.hot.statistics()).stored_bytes + sizes
        await delete_partitions(storage, [late])
        await storage.trim(A, 25)
        await storage.append([batch(A, 50, 60)])
        faults.fault = failing("write")
        with pytest.raises(ObjectStoreError):
            await storage.move_due()
        assert "failed" in storage.tier_statistics().move_error
        faults.fault = no_fault
        assert await storage.move_due() == 1
        found = storage.tier_statistics()
        assert (found.move_failures, found.move_error, found.due_bytes, found.moved_records) == (3, "", 0, 50)
        assert (found.segments, found.records, found.content_bytes) == (3, 25, 2500)


async def test_the_manifest_of_another_store_is_not_used(tmp_path: Path) -> None:
    """Somebody has copied the files of a store to another one."""
    hots = [f"sqlite:{tmp_path}/{number}.db" for number in range(2)]
    roots = []
    for hot in hots:
        async with open_tiered(tmp_path, hot) as storage:
            await storage.append([batch(A, 0, 50)] if hot == hots[0] else [])
            await storage.move_due()
            roots.append(tmp_path / "bucket" / storage.identity / "manifest.json")
    shutil.copytree(tmp_path / "0.db-cold", tmp_path / "1.db-cold", dirs_exist_ok=True)
    async with open_tiered(tmp_path, hots[1], read_only=True) as storage:
        assert await storage.partitions() == {}
    roots[1].parent.mkdir()
    shutil.copy(roots[0], roots[1])
    with pytest.raises(StorageFormatError, match="is the manifest of store"):
        async with open_tiered(tmp_path, hots[1]):
            pass


async def test_a_manifest_that_is_gone_is_an_error_and_no_empty_cold_tier(tmp_path: Path) -> None:
    hot = f"sqlite:{tmp_path}/store.db"
    async with open_tiered(tmp_path, hot) as storage:
        await storage.append([batch(A, 0, 50)])
        await storage.move_due()
        (tmp_path / "bucket" / storage.identity / "manifest.json").unlink()
    with pytest.raises(StorageError, match="the manifest of the cold tier is gone"):
        async with open_tiered(tmp_path, hot):
            pass
