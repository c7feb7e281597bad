"""Damaged files: errors of one sentence, and the records after the damage stay readable."""

# ruff: noqa: ASYNC240  (small files in tests)
from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio

from dafka.errors import StorageCorruptError, StorageError
from dafka.records import Partition, RecordBatch
from dafka.storage import RetentionPolicy, Storage, open_storage
from dafka.storage.sqlite.connection import PAGE_BYTES
from dafka.storage.sqlite.damage import _unreadable
from dafka.storage.tools.verify import verify_storage
from tests.storage.records import PARTITION, batch
from tests.storage.test_each_storage import open_files
from tests.waiting import DEADLINE_S


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    async with open_storage(f"sqlite:{path}") as storage:
        await storage.append([batch(0, 1000, size=50)])
        await storage.append([RecordBatch(Partition("orders", "B"), 0, [b"." * 20_000] * 3)])
        await storage.save_positions("billing", {PARTITION: 5})
    return path


def damage(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)


async def corrupt(storage: Storage, sequence: int) -> StorageCorruptError:
    with pytest.raises(StorageCorruptError) as caught:
        await storage.read(PARTITION, sequence, 10)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("read_only", [False, True])
async def test_missing_records_are_damage_and_later_ones_are_read(path: Path, read_only: bool) -> None:
    damage(path, "DELETE FROM records WHERE partition_id = 1 AND sequence BETWEEN 10 AND 12 OR sequence >= 990")
    async with open_storage(f"sqlite:{path}", read_only=read_only) as storage:
        assert await storage.read(PARTITION, 5, 100) == batch(5, 10, size=50)
        assert await storage.read(PARTITION, 13, 2) == batch(13, 15, size=50)
        for sequence in (10, 12):
            assert (await corrupt(storage, sequence)).end_sequence == 13
        assert str(await corrupt(storage, 12)) == f"{PARTITION}: sequence 12 is damaged: missing"
        assert str(await corrupt(storage, 990)) == f"{PARTITION}: sequences 990 to 999 are damaged: missing"
        assert (await corrupt(storage, 995)).end_sequence == 1000
        assert await storage.read(PARTITION, 1000, 1) is None
        assert [(each.first_sequence, each.end_sequence, each.reason) for each in await storage.find_damage()] == [
            (10, 13, "missing"),
            (990, 1000, "missing"),
        ]


@pytest.mark.parametrize(
    "change",
    [
        *(
            f"{column} = {value}"
            for column in ("content", "key")
            for value in ("7", "0.5", "'text'", "CAST(x'ff' AS TEXT)")
        ),
        *(f"timestamp = {value}" for value in ("0.5", "'text'", "x'00'")),
        *(f"headers = {value}" for value in ("7", "x'00'", "'{'", "'[7]'", "'[[\"a\", 7]]'", "'[[\"a\"]]'", "'7'")),
        """headers = '[["a", {"hex": "0"}]]'""",
        "headers = '[[' || char(34) || CAST(x'ff' AS TEXT) || char(34) || ',null]]'",
    ],
)
async def test_column_that_no_store_writes_is_damage(path: Path, change: str) -> None:
    damage(path, f"UPDATE records SET {change} WHERE partition_id = 1 AND sequence IN (0, 4)")
    async with open_storage(f"sqlite:{path}") as storage:
        assert (await corrupt(storage, 0)).end_sequence == 1
        assert await storage.read(PARTITION, 1, 100) == batch(1, 4, size=50)
        assert (await corrupt(storage, 4)).end_sequence == 5
        damages = (await verify_storage(storage)).damages
        found = [(each.first_sequence, each.end_sequence) for each in damages if each.partition]
        assert {(0, 1), (4, 5)} <= set(found)


async def test_damaged_page_damages_a_range_of_records(path: Path) -> None:
    damage(path, "VACUUM")  # removes copies in unused parts of pages
    data = bytearray(path.read_bytes())
    start = data.index(b"500" + b"." * 47) // PAGE_BYTES * PAGE_BYTES
    data[start : start + PAGE_BYTES] = b"\xee" * PAGE_BYTES
    path.write_bytes(data)
    async with open_storage(f"sqlite:{path}", read_only=True) as storage:
        error = await corrupt(storage, 500)
        assert 501 < error.end_sequence < 800
        assert "malformed" in str(error)
        end = error.end_sequence
        assert await storage.read(PARTITION, end, 20) == batch(end, end + 20, size=50)
        with pytest.raises(StorageError):
            await storage.read(PARTITION, end - 1, 20)
        contents = await read_what_can_be_read(storage, PARTITION)
        assert 600 < len(contents) < 999
        assert contents == {sequence: batch(sequence, sequence + 1, size=50).values[0] for sequence in contents}
        assert await storage.find_damage() != []


@pytest.mark.parametrize(
    ("change", "reason"),
    [("earliest_sequence = 2, content_bytes = 49900", "before the earliest"), ("end_sequence = 999", "past the end")],
)
async def test_records_outside_of_their_partition_are_damage(path: Path, change: str, reason: str) -> None:
    async with open_storage(f"sqlite:{path}", read_only=True) as storage:
        assert await storage.find_damage() == []
        damage(path, f"UPDATE partitions SET {change} WHERE id = 1")
        assert any(reason in str(each) for each in await storage.find_damage())


async def test_a_damaged_time_is_reported_once(path: Path) -> None:
    """The row of the partition has another time than a damaged record; that is not a second damage."""
    damage(path, "PRAGMA writable_schema = ON")
    damage(path, "UPDATE records SET stored_at = 1 WHERE partition_id = 1 AND sequence = 999")
    async with open_storage(f"sqlite:{path}") as storage:
        found = await storage.find_damage()
    assert [(each.partition, each.first_sequence, each.end_sequence) for each in found] == [(PARTITION, 999, 1000)]
    assert "its time decreases" in str(found[0])


def test_damage_that_prevents_the_check_of_a_partition_names_it() -> None:
    error = sqlite3.DatabaseError("database disk image is malformed")
    assert str(_unreadable("s.db", error)) == "s.db: database disk image is malformed"
    assert str(_unreadable("s.db", error, PARTITION)) == f"s.db: database disk image is malformed, at {PARTITION}"


async def test_a_time_is_found_although_later_records_are_missing(path: Path) -> None:
    partition = Partition("orders", "C")
    async with open_storage(f"sqlite:{path}") as storage:
        await storage.append([RecordBatch(partition, 0, [b""] * 10, stored_at=range(10))])
    damage(path, "DELETE FROM records WHERE partition_id = 3 AND sequence >= 4")
    async with open_storage(f"sqlite:{path}", read_only=True) as storage:
        assert [await storage.find_sequence_by_time(partition, time_ms) for time_ms in (0, 2, 3)] == [0, 2, 3]


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("topic", "NULL", "name"),
        ("address", "NULL", "name"),
        *(("end_sequence", value, "row") for value in ("NULL", "-1", "0.5", "x'00'")),
        *(("content_bytes", value, "row") for value in ("NULL", "-1", "0.5", "x'00'")),
    ],
)
async def test_a_damaged_row_is_refused(path: Path, column: str, value: str, what: str) -> None:
    damage(path, "ALTER TABLE partitions RENAME TO old")
    damage(path, "CREATE TABLE partitions AS SELECT * FROM old")
    damage(path, f"UPDATE partitions SET {column} = {value} WHERE id = 1")
    with pytest.raises(StorageError, match=f"the {what} of partition 1 is damaged") as caught:
        async with open_storage(f"sqlite:{path}"):
            pass
    assert caught.traceback  # it keeps everything alive that was not closed
    assert not open_files(path.parent)
    async with open_storage(f"sqlite:{path}", read_only=True) as storage:
        with pytest.raises(StorageError, match=f"the {what} of partition 1 is damaged"):
            await storage.partitions()


async def read_what_can_be_read(storage: Storage, partition: Partition) -> dict[int, bytes | None]:
    info = (await storage.partitions())[partition]
    sequence = info.earliest_sequence
    found: dict[int, bytes | None] = {}
    while sequence < info.end_sequence:
        try:
            batch = await storage.read(partition, sequence, 300)
        except StorageCorruptError as error:
            before, sequence = sequence, error.end_sequence
            if sequence <= before:
                pytest.fail("damage that ends before it begins")
            continue
        if batch is None:
            break
        found.update(enumerate(batch.values, sequence))
        sequence = batch.end_sequence
    return found


async def test_flipped_bytes_raise_errors_of_one_sentence(path: Path) -> None:
    good = path.read_bytes()
    randomness = random.Random(46)
    refused: list[str] = []
    for number in range(60):
        data = bytearray(good)
        # The first pages hold the schema and the roots of the tables; most flips elsewhere hit contents.
        limit = 100 if number % 4 == 0 else PAGE_BYTES * 12 if number % 4 == 1 else len(data)
        for _ in range(randomness.randint(1, 12)):
            data[randomness.randrange(limit)] ^= 1 << randomness.randrange(8)
        path.write_bytes(data)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        try:
            with trio.fail_after(DEADLINE_S):
                await use(path, read_only=number % 3 > 0)
        except StorageError as error:
            refused.append(str(error))
    assert 10 < len(refused) < 60
    assert all("\n" not in sentence and len(sentence) < 500 for sentence in refused)


async def use(path: Path, *, read_only: bool) -> None:
    async with open_storage(f"sqlite:{path}", read_only=read_only) as storage:
        for damage_found in await storage.find_damage():
            assert "\n" not in str(damage_found)
        await storage.load_positions("billing")
        for partition, info in (await storage.partitions()).items():
            if info.count < 10_000:
                await read_what_can_be_read(storage, partition)
                await storage.find_sequence_by_time(partition, info.latest_stored_at or 0)
        if not read_only:
            await storage.append([batch(1000, 1003)])
            await storage.apply_retention(RetentionPolicy(records_max=10, bytes_max=300))
            await storage.reset_to(PARTITION, 5000)
