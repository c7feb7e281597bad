"""File logs of version 1 are read, continued and migrated, also by processes that are killed."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from dafka.errors import StorageFormatError, StorageLostError
from dafka.records import Partition, Record, RecordBatch, record_bytes
from dafka.storage import DetectsRemoval, Storage, open_storage, read_range
from dafka.storage.filelog import layout, open_filelog
from dafka.storage.filelog.entry_segment import MAGIC_BYTES
from dafka.storage.filelog.index import OFFSET_MAX
from dafka.storage.migration import Migrates
from dafka.storage.tools.verify import verify_storage
from tests.storage.crash_loop import Child, Report
from tests.storage.old_filelog import Run, create_old_folder, unpack_fixture, write_old_segment

FIRST, SECOND = Partition("orders", "A" * 32), Partition("a/b", "\udcff")
LIFE_S = 0.05
"""The maximum life of the first process; the later ones live longer, so that one of them finishes."""


def content(sequence: int) -> bytes:
    return b"%d:" % sequence + b"x" * (sequence * 7919 % 3000)


async def read_everything(url: str, *, read_only: bool) -> dict[Partition, list[Record]]:
    async with open_storage(url, read_only=read_only) as storage:
        found: dict[Partition, list[Record]] = {}
        for partition, info in (await storage.partitions()).items():
            found[partition] = []
            records = read_range(storage, partition, info.earliest_sequence, info.end_sequence, with_times=True)
            async for batch in records:
                found[partition] += batch
            assert len(found[partition]) == info.count
            assert sum(map(record_bytes, found[partition])) == info.content_bytes
        # A reader cannot repair what a killed process leaves of the catalog.
        assert read_only or (await verify_storage(storage)).damages == ()
        return found


def old_segments(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.log") if path.read_bytes().startswith(MAGIC_BYTES))


def version(folder: Path) -> int:
    found: int = json.loads((folder / "filelog.json").read_text())["version"]
    return found


async def migrate(url: str) -> tuple[int, int, int]:
    async with open_storage(url) as storage:
        assert isinstance(storage, Migrates)
        done = await storage.migrate()
        assert not await storage.find_damage()
    return done.files, done.records, len(done.left)


async def test_the_file_log_of_the_release_before_is_read_continued_and_migrated(tmp_path: Path) -> None:
    folder = unpack_fixture(tmp_path)
    url = f"filelog:{folder}?segment_bytes=150000"
    files = {path: path.read_bytes() for path in folder.rglob("*.log")}
    expected = await read_everything(url, read_only=True)
    assert [record.value for record in expected[FIRST]] == [content(number) for number in range(25, 300)]
    assert [record.stored_at for record in expected[FIRST]] == [1_700_000_000_000 + n // 3 for n in range(25, 300)]
    assert [record.stored_at for record in expected[SECOND]] == [5, 5, 6]
    assert len(expected[Partition("orders", "C")]) == 8993
    assert version(folder) == 1
    async with open_storage(url) as storage:
        assert version(folder) == 2
        assert await storage.find_sequence_by_time(FIRST, 1_700_000_000_050) == 150
        assert await storage.load_positions("billing") == {FIRST: 42}
        for partition in expected:
            end = (await storage.partitions())[partition].end_sequence
            batch = RecordBatch(partition, end, [b"new"], keys=[b"key"], timestamps=[7], stored_at=[2 * 10**12])
            await storage.append([batch])
            assert await storage.read(partition, end, 9, with_times=True) == batch
        assert all(path.read_bytes() == data for path, data in files.items() if data)
    assert len(old_segments(folder)) == 6
    whole = await read_everything(url, read_only=False)
    for partition, records in expected.items():
        assert whole[partition][:-1] == records
    assert await migrate(url) == (6, 9296, 0)
    assert not old_segments(folder)
    assert await migrate(url) == (0, 0, 0)
    for read_only in (True, False):
        assert await read_everything(url, read_only=read_only) == whole
    for catalog in folder.glob("catalog.*"):
        catalog.unlink()
    assert await read_everything(url, read_only=False) == whole


async def test_earlier_releases_refuse_a_file_log_that_was_opened_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = unpack_fixture(tmp_path)
    async with open_filelog(str(folder)) as storage:
        identity = storage.identity
    async with open_filelog(str(folder)) as storage:
        assert storage.identity == identity
    monkeypatch.setattr(layout, "VERSIONS", (1,))
    with pytest.raises(StorageFormatError, match=r"has version 2, .* upgrade dafka"):
        async with open_filelog(str(folder), read_only=True):
            pass


def make_old(folder: Path, segments: int, appends: int) -> dict[Partition, list[tuple[int, bytes, int]]]:
    """Create a file log of version 1 with full segments, and return sequence, value and time of each record."""
    create_old_folder(folder)
    expected: dict[Partition, list[tuple[int, bytes, int]]] = {}
    for partition in (FIRST, SECOND):
        sequence, rows = 5, expected.setdefault(partition, [])
        for _ in range(segments):
            base, made = sequence, []
            for number in range(appends):
                count = number * 31 % 7 + 1
                values = [content(each) for each in range(sequence, sequence + count)]
                made.append(
                    [Run(sequence, values[:1], 1000 + sequence), Run(sequence + 1, values[1:], 1001 + sequence)]
                )
                if count == 1:
                    made[-1] = made[-1][:1]
                rows += [(sequence + at, value, 1000 + sequence + min(at, 1)) for at, value in enumerate(values)]
                sequence += count
            write_old_segment(folder, partition, base, made)
    return expected


def rows_of(found: dict[Partition, list[Record]]) -> dict[Partition, list[tuple[int, bytes | None, int | None]]]:
    return {key: [(each.sequence, each.value, each.stored_at) for each in records] for key, records in found.items()}


async def test_an_incomplete_append_of_version_1_is_dropped(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    create_old_folder(folder)
    path = write_old_segment(folder, FIRST, 0, [[Run(0, [b"a"], 1)], [Run(1, [b"b"], 2), Run(2, [b"c"], 3)]])
    whole = path.read_bytes()
    for size in range(41, len(whole)):
        path.write_bytes(whole[:size])
        for catalog in folder.glob("catalog.*"):
            catalog.unlink()
        for read_only in (True, False):
            async with open_filelog(str(folder), read_only=read_only) as storage:
                assert (await storage.partitions())[FIRST].end_sequence == 1
                assert len(storage.repairs) == (size > 41 and not read_only)
        assert path.stat().st_size == 41


async def test_what_cannot_be_migrated_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "log"
    make_old(folder, 3, 20)
    damaged, *_ = old_segments(folder)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(bytes(data))
    async with open_filelog(str(folder)) as storage:
        done = await storage.migrate()  # type: ignore[attr-defined]
        (left,) = done.left
        assert (left.location, done.files) == (str(damaged), 5)
        assert "stays as it is: it is damaged at sequence" in left.reason
    assert old_segments(folder) == [damaged]
    assert damaged.read_bytes() == bytes(data)
    other = tmp_path / "other"
    make_old(other, 1, 20)
    monkeypatch.setattr("dafka.storage.filelog.migration.OFFSET_MAX", 1000)
    assert OFFSET_MAX > 1000
    async with open_filelog(str(other)) as storage:
        done = await storage.migrate()  # type: ignore[attr-defined]
    assert {left.reason for left in done.left} == {"stays as it is: it would have more than 1000 bytes"}
    assert not list(other.rglob(".*.tmp"))


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("function", ["replace", "fsync", "unlink", "pwritev"])
async def test_killed_at_any_call_of_a_migration_nothing_is_lost(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "log"
    expected = make_old(folder, 2, 10)
    url = f"filelog:{folder}"
    real: Callable[..., object] = getattr(os, function)
    calls = 0

    def fail(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == kill_at:
            raise Killed
        return real(*arguments, **options)

    for kill_at in range(1, 1000):
        calls = 0
        with monkeypatch.context() as patch:
            patch.setattr(os, function, fail)
            try:
                done = await migrate(url)
            except BaseException as error:
                if not is_killed(error):
                    raise
                done = None
        assert rows_of(await read_everything(url, read_only=True)) == expected, kill_at
        if done is not None:
            break
    assert done is not None
    assert not old_segments(folder)
    assert rows_of(await read_everything(url, read_only=False)) == expected


def is_killed(error: BaseException) -> bool:
    return isinstance(error, Killed) or (
        isinstance(error, BaseExceptionGroup) and all(is_killed(each) for each in error.exceptions)
    )


async def migrate_and_report(url: str, report: Report) -> None:
    report({})
    report({"done": await migrate(url)})


@pytest.mark.parametrize("rounds", [5, pytest.param(60, marks=pytest.mark.long)])
def test_a_migration_that_is_killed_at_random_loses_nothing(rounds: int, tmp_path: Path) -> None:
    choose = random.Random(1)
    for number in range(rounds):
        folder = tmp_path / f"{number}"
        url = f"filelog:{folder}"
        expected = make_old(folder, 4, 60)
        open_storage(url)  # imports the plugin before forking
        lives = 0
        while True:
            child = Child(partial(run_in_child, url))
            first = child.wait_report()
            lives += 1
            time.sleep(choose.random() * LIFE_S * lives)
            child.kill()
            _, messages = child.wait(first)
            read_only = bool(choose.randrange(2))
            assert rows_of(trio.run(partial(read_everything, url, read_only=read_only))) == expected
            if len(messages) == 2:
                break
        assert not old_segments(folder)


def run_in_child(url: str, report: Report) -> None:
    trio.run(migrate_and_report, url, report)


async def test_a_reader_goes_on_while_the_version_is_raised_and_segments_are_migrated(tmp_path: Path) -> None:
    folder = unpack_fixture(tmp_path)
    url = f"filelog:{folder}?segment_bytes=150000"
    expected = await read_everything(url, read_only=True)

    async def check(reader: Storage) -> None:
        assert isinstance(reader, DetectsRemoval)
        await reader.check_not_removed()
        infos = await reader.partitions()
        assert set(infos) == set(expected)
        for partition, records in expected.items():
            found: list[Record] = []
            end = infos[partition].earliest_sequence + len(records)
            async for batch in read_range(reader, partition, end - len(records), end, with_times=True):
                found += batch
            assert found == records

    async with open_storage(url, read_only=True) as reader:
        await check(reader)
        async with open_storage(url) as writer:
            assert version(folder) == 2
            await check(reader)
            for partition in expected:
                end = (await writer.partitions())[partition].end_sequence
                await writer.append([RecordBatch(partition, end, [b"new"], keys=[b"key"], stored_at=[2 * 10**12])])
                found = await reader.read(partition, end, 9)
                assert found is not None
                assert (list(found.values), list(found.keys or ())) == ([b"new"], [b"key"])
            await check(reader)
            assert isinstance(writer, Migrates)
            assert (await writer.migrate()).files == 6
            await check(reader)
        await check(reader)
        assert isinstance(reader, DetectsRemoval)
        marker = folder / "filelog.json"
        document = marker.read_bytes()
        marker.unlink()
        with pytest.raises(StorageLostError, match=r"filelog\.json was removed or replaced while it was open"):
            await reader.check_not_removed()
        (tmp_path / "other").mkdir()
        async with open_storage(f"filelog:{tmp_path / 'other'}"):
            pass
        (tmp_path / "other" / "filelog.json").rename(marker)
        with pytest.raises(StorageLostError):
            await reader.check_not_removed()
        marker.write_bytes(document)
        await check(reader)
