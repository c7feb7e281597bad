"""What happens at the edges of storages and their tools: records that go meanwhile, files that refuse, and limits."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import aclosing, closing
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from dafka.errors import StorageCorruptError, StorageError, StorageLostError
from dafka.records import Partition, RecordBatch
from dafka.storage import CompactsPartitions, DeletesPartitions, PartitionInfo, Storage, open_storage
from dafka.storage import compaction as compaction_module
from dafka.storage.arrow import to_arrow
from dafka.storage.compaction import LatestKeys, map_keys
from dafka.storage.disk_space import DiskSpace, measure_disk
from dafka.storage.filelog import appends
from dafka.storage.filelog.index import ROW_EVERY_BYTES, Block, SegmentIndex
from dafka.storage.filelog.layout import PART_LENGTH_MAX, name_to_parts, parts_to_name
from dafka.storage.made_at import search_made_at
from dafka.storage.memory import MemoryStorage
from dafka.storage.opening import delete_partitions
from dafka.storage.plugin_helpers import FileIdentity, writer_lock
from dafka.storage.sqlite import storage as sqlite_storage
from dafka.storage.sqlite import writing
from dafka.storage.sqlite.write_ahead_log import WriteAheadLog
from dafka.storage.tools.copy import copy_storage
from dafka.storage.tools.json_lines import JsonLineError, import_lines
from tests.power.runs import no_wait
from tests.storage.quick import quickly
from tests.storage.records import OTHER, PARTITION, batch
from tests.storage.test_json_lines import LINE, lists

COUNT = 10


class Plain:
    """A storage without any optional part."""

    def __init__(self, storage: Storage) -> None:
        for name in (
            *("identity", "append", "read", "partitions", "find_partition", "trim", "reset_to", "flush"),
            *("position_names", "load_positions", "save_positions", "find_sequence_by_time"),
        ):
            setattr(self, name, getattr(storage, name))


# Records that go while they are read


class Changing(MemoryStorage):
    """A storage whose first records are dropped, or whose partition is deleted, when a sequence is read."""

    def __init__(self, at: int, earliest: int | None) -> None:
        super().__init__()
        self.at = at
        self.earliest = earliest

    async def read(self, partition: Partition, first_sequence: int, *rest: Any, **options: Any) -> RecordBatch | None:
        if first_sequence == self.at:
            if self.earliest is None:
                await self.delete_partitions([partition])
            else:
                await self.trim(partition, self.earliest)
        return await super().read(partition, first_sequence, *rest, **options)


class Unreadable(MemoryStorage):
    """A storage that lists records that it does not return."""

    async def read(self, *arguments: Any, **options: Any) -> RecordBatch | None:
        await trio.lowlevel.checkpoint()
        return None


def keyed(first: int, end: int) -> RecordBatch:
    sequences = range(first, end)
    keys = [b"%d" % each for each in sequences]
    return RecordBatch(PARTITION, first, keys, keys=keys, timestamps=[100 + each for each in sequences])


async def test_keys_are_noted_of_the_records_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_module, "NOTE_RECORDS_MAX", 2)
    for at in range(0, COUNT, 2):
        for earliest in (*range(COUNT + 1), None):
            storage, latest = Changing(at, earliest), LatestKeys()
            await storage.append([keyed(0, COUNT)])
            end = await map_keys(storage, PARTITION, 0, COUNT, latest, no_wait)
            assert end == (at if earliest is None else COUNT)
            dropped = range(at, max(at, COUNT if earliest is None else earliest))
            assert len(latest) == COUNT - len(dropped), (at, earliest)
    broken = Unreadable()
    await broken.append([keyed(0, COUNT)])
    assert await map_keys(broken, PARTITION, 3, COUNT, LatestKeys(), no_wait) == 3


async def test_a_search_by_time_goes_on_where_records_are_left() -> None:
    for at in range(COUNT):
        for earliest in (*range(COUNT + 1), None):
            storage = Changing(at, earliest)
            await storage.append([keyed(0, COUNT)])
            step = await search_made_at(storage, PARTITION, 0, at, COUNT)
            if earliest is None:
                assert (step.found, step.next_sequence, step.is_over) == (None, COUNT, True)
            elif earliest > at:
                assert (step.found, step.next_sequence, step.is_over) == (None, earliest, False)
            else:
                assert (step.found, step.is_over) == (at, True)
    broken = Unreadable()
    await broken.append([keyed(0, COUNT)])
    assert (await search_made_at(broken, PARTITION, 0, 3, COUNT)).is_over

    class Damaged(MemoryStorage):
        async def read(self, *arguments: Any, **options: Any) -> RecordBatch | None:
            raise StorageCorruptError("damaged", damage_end)

    for damage_end in range(COUNT):
        damaged = Damaged()
        await damaged.append([keyed(0, COUNT)])
        step = await search_made_at(damaged, PARTITION, 0, 3, COUNT)
        assert (step.found, step.next_sequence, step.is_over) == (None, max(damage_end, 4), False)


async def test_partitions_lose_their_records_where_they_cannot_be_deleted() -> None:
    for whole in (True, False):
        storage = MemoryStorage()
        await storage.append([batch(0, 5), batch(0, 3, OTHER)])
        plain: Any = storage if whole else Plain(storage)
        assert isinstance(plain, DeletesPartitions) is whole
        await delete_partitions(plain, [PARTITION, Partition("none", "")])
        left = await storage.partitions()
        assert left.get(PARTITION) == (None if whole else PartitionInfo(5, 5))
        assert left[OTHER].count == 3


async def test_a_copy_is_not_continued_where_it_cannot_be_compared() -> None:
    async def made(count: int, removed: Sequence[int] = ()) -> MemoryStorage:
        storage = MemoryStorage()
        times = [5] * count
        whole = attrs.evolve(batch(0, count), keys=[b"k"] * count, stored_at=times)
        await storage.append([whole.without(bytes(each in removed for each in range(count)))])
        return storage

    for removed_here, removed_there in (((2,), ()), ((), (2,)), ((2,), (2,))):
        source, target = await made(5, removed_here), await made(3, removed_there)
        assert (await copy_storage(source, target)).records == 2
        assert (await target.partitions())[PARTITION].end_sequence == 5

    class Missing(MemoryStorage):
        async def read(self, *arguments: Any, **options: Any) -> RecordBatch | None:
            await trio.lowlevel.checkpoint()
            return None

    missing = Missing()
    await missing.append([batch(0, 3)])
    with pytest.raises(StorageCorruptError, match="sequence 2 is listed as held but is missing"):
        await copy_storage(await made(5), missing)


async def test_lines_of_removed_records_are_imported_where_their_places_can_be_kept() -> None:
    removed = {"topic": "orders", "partition": "A", "sequence": 3, "stored_at": 30, "compacted": 4}
    partition = Partition("orders", "A")
    for held, end in ((0, 7), (5, 7), (7, 7), (9, 9)):
        for is_plain in (False, True):
            storage = MemoryStorage()
            await storage.append([batch(0, held, partition)] if held else [])
            target: Any = Plain(storage) if is_plain else storage
            assert isinstance(target, CompactsPartitions) is not is_plain
            if is_plain and held < 7:
                async with aclosing(lists(removed)) as lines:
                    with pytest.raises(JsonLineError, match=f"sequence {max(held, 3)} was removed by compaction"):
                        await import_lines(target, lines)
                continue
            summary = await import_lines(target, lists(removed))
            assert (summary.records, summary.skipped) == (end - max(held, 3), min(max(held - 3, 0), 4))
            found = (await storage.partitions()).get(partition)
            assert found is not None
            assert found.end_sequence == end
    storage = MemoryStorage()
    assert (await import_lines(storage, lists(LINE, {**removed, "sequence": 4}))).records == 5


def test_removed_records_have_no_rows_in_arrow() -> None:
    headers = [(("h", b"1"),) * (each % 3) for each in range(6)]
    whole = attrs.evolve(batch(0, 6, stored_at=7), headers=headers)
    for mask in range(64):
        removed = bytes(mask >> each & 1 for each in range(6))
        left = whole.without(removed)
        found = to_arrow(left, ["offset", "value", "headers"]).to_pydict()
        assert found["offset"] == [each for each in range(6) if not removed[each]]
        assert found["value"] == [b"%d" % each for each in found["offset"]]
        counts = [None if each is None else len(each) for each in found["headers"]]
        assert counts == [each % 3 or None for each in found["offset"]]


# Files that are gone, or refuse


def test_a_file_counts_as_in_place_unless_it_is_known_not_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    path.touch()
    identity = FileIdentity(str(path), is_kept_open=True)
    assert identity.is_in_place
    with monkeypatch.context() as patch:

        def refuse(*_: object) -> None:
            raise PermissionError

        patch.setattr(os, "stat", refuse)
        assert identity.is_in_place
    path.rename(tmp_path / "moved")
    assert not identity.is_in_place
    path.touch()
    assert not identity.is_in_place
    with pytest.raises(StorageLostError, match=f"^{path} was removed or replaced while it was open$"):
        identity.check_in_place()
    shutil.rmtree(path.parent)
    path.parent.touch()
    assert not identity.is_in_place
    identity.close()
    identity.close()


def test_a_lock_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "store.lock").mkdir()
    for name in ("", "the store"):
        with (
            pytest.raises(StorageError, match=f"^cannot open {name or tmp_path / 'store'}: Is a directory$"),
            writer_lock(str(tmp_path / "store"), name),
        ):
            pass


def test_the_disk_of_a_storage_is_that_of_its_nearest_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def measure(folder: Path) -> DiskSpace:
        asked.append(str(folder))
        if folder == tmp_path / "refusing":
            raise PermissionError
        return DiskSpace(9, 4)

    monkeypatch.setattr(shutil, "disk_usage", measure)
    (tmp_path / "there").mkdir()
    (tmp_path / "refusing").mkdir()
    for place, folder in (("there", "there"), ("there/a/b", "there"), ("x", ""), ("there?fsync=never", "there")):
        for kind in ("sqlite:", "filelog:", "tiered:sqlite:", "tiered:filelog:"):
            asked.clear()
            assert measure_disk(f"{kind}{tmp_path}/{place}") == DiskSpace(9, 4)
            assert asked == [str(tmp_path / folder)]
    assert measure_disk(f"sqlite:{tmp_path}/refusing/s.db") is None
    assert [measure_disk(url) for url in ("memory:", "tiered:memory:?cold=/b", "other:/tmp", "")] == [None] * 4


def test_a_path_that_no_name_has_is_refused() -> None:
    for name in (b"", b"a", b".", b"a" * PART_LENGTH_MAX, b"a" * (PART_LENGTH_MAX + 1), b"\xff" * 200):
        parts = name_to_parts(name)
        assert parts_to_name(parts) == name
        assert all(len(each) <= PART_LENGTH_MAX + 1 for each in parts)
        for wrong in (["x+", *parts], [*parts[:-1], parts[-1] + "+"], [parts[-1] + "~"], ["%61"]):
            with pytest.raises(ValueError, match=r"is not (an escaped name|the path of a name)"):
                parts_to_name(wrong)


async def test_positions_that_were_changed_are_not_used(tmp_path: Path) -> None:
    with quickly():
        async with open_storage(f"filelog:{tmp_path}/log") as storage:
            await storage.save_positions("reader", {PARTITION: 7})
            path = tmp_path / "log" / "positions" / "reader.json"
            good = json.loads(path.read_text())
            changes: list[dict[str, Any]] = [{"crc32c": 1}, {"positions": []}]
            for change in (*changes, {"positions": [["orders", PARTITION.address, 8]]}):
                path.write_text(json.dumps({**good, **change}))
                with pytest.raises(StorageError, match=f"^{path} is damaged: delete it to let the consumer 'reader'"):
                    await storage.load_positions("reader")
            path.write_text(json.dumps(good))
            assert await storage.load_positions("reader") == {PARTITION: 7}


# Limits


@pytest.mark.parametrize("url", ["memory:", "sqlite:{}/s.db", "filelog:{}/log"])
async def test_nothing_is_read_outside_of_what_is_held(url: str, tmp_path: Path) -> None:
    with quickly():
        async with open_storage(url.format(tmp_path)) as storage:
            await storage.append([batch(0, 5)])
            await storage.trim(PARTITION, 2)
            for first in range(7):
                for count in (-1, 0, 1, 9):
                    found = await storage.read(PARTITION, first, count)
                    is_held = 2 <= first < 5 and count > 0
                    assert found == (batch(first, min(first + count, 5)) if is_held else None), (first, count)
            assert await storage.read(OTHER, 0, 1) is None
            assert await storage.find_sequence_by_time(OTHER, 0) == 0
            assert await storage.find_partition(OTHER) is None


async def test_what_a_file_log_cannot_hold_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with quickly():
        async with open_storage(f"filelog:{tmp_path}/log") as storage:
            await storage.append([batch(0, 3)])
            before = await storage.partitions()
            monkeypatch.setattr(appends, "OFFSET_MAX", 300)
            large = [batch(3, 4, size=400)]
            for wrong, reason in (
                (large, "expected at most 300 bytes of records at once, not"),
                ([batch(3, 4, stored_at=2**63)], "expected a time in milliseconds since 1970, within 64 bits, not"),
            ):
                with pytest.raises(StorageError, match=f"{PARTITION}: {reason}"):
                    await storage.append([batch(0, 1, OTHER), *wrong])
                assert await storage.partitions() == before
            with pytest.raises(StorageError, match=f"^{OTHER}: expected sequences from 0 to {2**63 - 2}, not"):
                await storage.append([RecordBatch(OTHER, 2**63 - 1, [b""])])
            assert await storage.partitions() == before
            await storage.append([batch(3, 4, stored_at=2**63 - 1)])
            for first in range(4, 40):
                await storage.append([batch(first, first + 1)])
            sizes = [path.stat().st_size for path in (tmp_path / "log").rglob("*.log")]
            assert max(sizes) <= 300


async def test_a_file_log_that_is_removed_while_it_is_used_is_lost(tmp_path: Path) -> None:
    with quickly():
        async with open_storage(f"filelog:{tmp_path}/log?segment_bytes=1") as storage:
            await storage.append([batch(0, 1)])
            shutil.rmtree(tmp_path / "log" / "topics")
            with pytest.raises(StorageLostError):
                await storage.append([batch(1, 2)])
            damages = await storage.find_damage()
            assert [each.partition for each in damages if each.partition is not None]


async def test_what_was_read_in_part_is_not_used_after_a_compaction(tmp_path: Path) -> None:
    with quickly():
        async with open_storage(f"filelog:{tmp_path}/log?segment_bytes=1") as storage:
            assert isinstance(storage, CompactsPartitions)
            for partition in (PARTITION, OTHER):
                for first, end in ((0, 10), (10, 11)):
                    await storage.append([batch(first, end, partition)])
                assert await storage.read(partition, 0, 3) == batch(0, 3, partition)
            await storage.compact(PARTITION, 10, lambda each: bytes(at == 5 for at in range(len(each))), no_wait)
            found = await storage.read(PARTITION, 3, 5)
            assert found is not None
            assert found.compacted == b"\0\0\1\0\0"
            assert await storage.read(OTHER, 3, 5) == batch(3, 8, OTHER)


def test_the_rows_of_an_index_are_at_a_distance() -> None:
    index, size = SegmentIndex(5), 1000
    for number in range(500):
        index.add_block(Block(number * size, size, 5 + number, 1, 0, number))
    positions = [0, *(position for _, position, _ in index.rows)]
    assert {after - before for before, after in pairwise(positions)} == {-(-ROW_EVERY_BYTES // size) * size}
    for sequence in range(5, 505):
        first, position = index.locate_sequence(sequence)
        assert position == (first - 5) * size
        assert 0 <= sequence - first <= ROW_EVERY_BYTES // size


async def test_times_are_found_beside_a_segment_that_is_gone(tmp_path: Path) -> None:
    url = f"filelog:{tmp_path}/log?segment_bytes=1"
    with quickly():
        async with open_storage(url) as storage:
            for first in range(0, 40, 10):
                times = [*range(first, first + 10)]
                await storage.append([attrs.evolve(batch(first, first + 10), stored_at=times)])
        for gone, has_listed in product(range(0, 40, 10), (False, True)):
            path = next((tmp_path / "log").rglob(f"{gone:020}.log"))
            async with open_storage(url, read_only=True) as reader:
                if has_listed:
                    await reader.find_sequence_by_time(PARTITION, 15)
                path.rename(tmp_path / "gone")
                found = [await reader.find_sequence_by_time(PARTITION, at) for at in range(41)]
                (tmp_path / "gone").rename(path)
            for at, sequence in enumerate(found):
                exact = gone + 10 if gone <= at < gone + 10 else at
                assert sequence in ((exact,) if at < gone else (exact, gone)), "never too late"


async def test_a_compaction_of_many_records_checkpoints_and_keeps_damaged_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_storage, "DELETE_RECORDS_MAX", 1)
    monkeypatch.setattr(sqlite_storage, "CHECKPOINT_STEPS", 2)
    checkpoints = 0

    class Log(WriteAheadLog):
        def checkpoint(self) -> None:
            nonlocal checkpoints
            checkpoints += 1
            super().checkpoint()

    monkeypatch.setattr(sqlite_storage, "WriteAheadLog", Log)
    with quickly():
        async with open_storage(f"sqlite:{tmp_path}/s.db?synchronous=OFF") as storage:
            assert isinstance(storage, CompactsPartitions)
            await storage.append([batch(0, 12)])
            with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as connection:
                connection.execute("UPDATE records SET content = 'x' WHERE sequence IN (0, 4, 5)")
            done = await storage.compact(PARTITION, 9, lambda each: b"\1" * len(each), no_wait)
            assert (done.records_removed, checkpoints) == (6, 4)
            for name, value in (("STEP_S", 0.0), ("CHUNK_RECORDS_MAX", 1)):
                monkeypatch.setattr(writing, name, value)
            checkpoints = 0
            await storage.append([batch(0, 7, OTHER)])
            await storage.trim(OTHER, 7)
            assert checkpoints == 4, "after every second step, and the last one"
            with closing(sqlite3.connect(tmp_path / "s.db")) as connection:
                left = [sequence for (sequence,) in connection.execute("SELECT sequence FROM records")]
            assert left == [0, 4, 5, 9, 10, 11]
