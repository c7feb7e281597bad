"""Each kind of damage to the files of each storage, and what each tool makes of it.

`verify` finds the damaged records, all of them and no others. `copy` and `export` pass on the records before them, and
then fail. Damage that affects no record is found by `verify`, and keeps nothing from being copied.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import TypeAlias

import pytest
import trio

from dafka.errors import StorageCorruptError, StorageError, StorageSequenceError
from dafka.records import Partition, RecordBatch
from dafka.storage import Storage, open_storage, read_range
from dafka.storage.cold.tiered import TieredStorage
from dafka.storage.memory import MemoryStorage
from dafka.storage.tools.copy import copy_storage
from dafka.storage.tools.json_lines import export_lines
from dafka.storage.tools.partitions import read_next
from dafka.storage.tools.verify import verify_storage
from tests.storage.quick import quickly

A, B = Partition("bills", "A"), Partition("orders", "B")
COUNT = 40
COLD = "cold=file://{}/bucket&cold_interval_ms=3600000&local_retention_bytes=30&cold_segment_bytes=30"
URLS = {
    "filelog": "filelog:{}/log?segment_bytes=1",
    "sqlite": "sqlite:{}/s.db",
    "tiered": "tiered:sqlite:{}/s.db?" + COLD,
}

Damage: TypeAlias = Callable[[Path], object]


def value(sequence: int) -> bytes:
    return b"<%02d>" % sequence


def execute(statement: str) -> Damage:
    def run(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "s.db", isolation_level=None)) as connection:
            connection.execute(statement)

    return run


def change(pattern: str, number: int, edit: Callable[[bytes], bytes]) -> Damage:
    """Return what edits one of the files whose names match a pattern, in the order of their names."""

    def run(folder: Path) -> None:
        path = sorted(folder.glob(pattern))[number]
        path.write_bytes(edit(path.read_bytes()))

    return run


def remove(pattern: str, number: int) -> Damage:
    return lambda folder: sorted(folder.glob(pattern))[number].unlink()


def flip(content: bytes) -> Callable[[bytes], bytes]:
    """Return what changes one bit of a content in a file."""

    def edit(data: bytes) -> bytes:
        at = data.index(content) + 1
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return edit


LOGS, ROWS, OBJECTS = "log/topics/orders/B/*.log", "log/topics/orders/B/*.stored", "bucket/**/B/*.parquet"
RECORD = "WHERE partition_id = 2 AND sequence"

DAMAGES: list[tuple[str, str, Damage, tuple[int, int] | None]] = [
    ("filelog", "a bit of a record", change(LOGS, 1, flip(value(13))), (10, 20)),
    ("filelog", "a bit of the last record", change(LOGS, 3, flip(value(39))), (30, 40)),
    ("filelog", "a header", change(LOGS, 0, lambda data: b"\xff" * 20 + data[20:]), (0, 10)),
    ("filelog", "a missing segment", remove(LOGS, 2), (20, 30)),
    ("filelog", "an empty segment", change(LOGS, 1, lambda data: b""), (10, 20)),
    ("filelog", "half a segment", change(LOGS, 1, lambda data: data[: len(data) // 2]), (10, 20)),
    ("filelog", "a segment of another place", change(LOGS, 1, lambda data: bytes(7) + b"\x63" + data[8:]), (10, 20)),
    ("filelog", "bytes after a segment", change(LOGS, 0, lambda data: data + b"???"), None),
    ("filelog", "a bit of a time", change(ROWS, 1, lambda data: data[:9] + b"\x7f" + data[10:]), None),
    ("filelog", "half a time", change(ROWS, 1, lambda data: data[:10]), None),
    ("filelog", "a file of something else", lambda folder: (folder / "log" / "x").write_bytes(b""), None),
    ("filelog", "a consumer", change("log/positions/*.json", 0, lambda data: data[:-5]), None),
    ("filelog", "the marker", change("log/filelog.json", 0, lambda data: data[:-5]), None),
    ("filelog", "the catalog", change("log/catalog.heads", 0, lambda data: data[:60] + b"?" + data[61:]), None),
    ("sqlite", "a missing record", execute(f"DELETE FROM records {RECORD} = 13"), (13, 14)),
    ("sqlite", "missing records", execute(f"DELETE FROM records {RECORD} BETWEEN 5 AND 8"), (5, 9)),
    ("sqlite", "a missing end", execute(f"DELETE FROM records {RECORD} > 35"), (36, 40)),
    ("sqlite", "a missing beginning", execute(f"DELETE FROM records {RECORD} < 3"), (0, 3)),
    ("sqlite", "a text", execute(f"UPDATE records SET content = 'x' {RECORD} = 13"), (13, 14)),
    ("sqlite", "headers", execute(f"UPDATE records SET headers = '[7]' {RECORD} = 13"), (13, 14)),
    ("sqlite", "a timestamp", execute(f"UPDATE records SET timestamp = 'x' {RECORD} = 0"), (0, 1)),
    ("sqlite", "a total", execute("UPDATE partitions SET content_bytes = 7 WHERE id = 2"), None),
    ("sqlite", "the latest time", execute("UPDATE partitions SET latest_stored_at = 7 WHERE id = 2"), None),
    ("sqlite", "a time that decreases", execute(f"UPDATE records SET stored_at = 1 {RECORD} = 6"), None),
    ("sqlite", "no partition", execute("INSERT INTO records VALUES (77, 0, 0, x'00', NULL, NULL, NULL)"), None),
    ("tiered", "a missing object", remove(OBJECTS, 1), (8, 16)),
    ("tiered", "bytes of an object", change(OBJECTS, 2, lambda data: data[:9] + bytes(400) + data[409:]), (16, 24)),
    ("tiered", "the end of an object", change(OBJECTS, 0, lambda data: data[:-9] + bytes(9)), (0, 8)),
    ("tiered", "half an object", change(OBJECTS, 1, lambda data: data[: len(data) // 2]), (8, 16)),
]


async def fill(storage: Storage) -> None:
    """Append 40 records to each of two partitions, ten at a time, and move what is due."""
    for first in range(0, COUNT, 10):
        values = [value(sequence) for sequence in range(first, first + 10)]
        times = [1_000_000 + sequence for sequence in range(first, first + 10)]
        await storage.append([RecordBatch(each, first, values, stored_at=times) for each in (A, B)])
    await storage.save_positions("reader", {B: 7})
    if isinstance(storage, TieredStorage):
        await storage.move_due()


@pytest.mark.parametrize(
    ("scheme", "damage", "damaged"),
    [(each[0], *each[2:]) for each in DAMAGES],
    ids=[f"{each[0]}, {each[1]}" for each in DAMAGES],
)
async def test_tools_find_damage(scheme: str, damage: Damage, damaged: tuple[int, int] | None, tmp_path: Path) -> None:
    url = URLS[scheme].format(tmp_path, tmp_path)
    with quickly():
        async with open_storage(url) as storage:
            await fill(storage)
            assert (await verify_storage(storage)).damages == ()
        async with open_storage(url, read_only=True) as reader:
            damage(tmp_path)
            found = await verify_storage(reader)
            assert found.damages, "verify finds it"
            ranges = [(each.first_sequence, each.end_sequence) for each in found.damages if each.partition == B]
            if damaged is not None:
                assert {each for first, end in ranges for each in range(first, end)} == set(range(*damaged))
                assert found.records == 2 * COUNT - (damaged[1] - damaged[0])
            assert all(each.partition != A for each in found.damages)
            before = COUNT if damaged is None else damaged[0]
            await check_copy(reader, before, is_damaged=damaged is not None)
            await check_export(reader, before, is_damaged=damaged is not None)


def expected_error(is_damaged: bool) -> AbstractContextManager[object]:
    """Expect that records are damaged, or that no record is; positions may be."""
    if is_damaged:
        return pytest.raises(StorageCorruptError, match="orders/B")
    return suppress(StorageError)


async def check_copy(source: Storage, before: int, *, is_damaged: bool) -> None:
    target = MemoryStorage()
    with expected_error(is_damaged):
        await copy_storage(source, target, topics=["bills", "orders"])
    for partition, end in ((A, COUNT), (B, before)):
        found = [content async for run in read_range(target, partition, 0, COUNT) for content in run.values]
        assert found == [value(sequence) for sequence in range(end)]


async def check_export(source: Storage, before: int, *, is_damaged: bool) -> None:
    lines: list[bytes] = []
    with expected_error(is_damaged):
        async for chunk in export_lines(source):
            lines.extend(chunk.splitlines())
    assert len(lines) == COUNT + before
    assert all(value(sequence) in line for sequence, line in enumerate(lines[COUNT:]))


async def test_a_record_that_is_not_read_is_missing_unless_it_was_dropped() -> None:
    class Empty(MemoryStorage):
        async def read(self, *_: object, **__: object) -> None:
            await trio.lowlevel.checkpoint()

    storage = Empty()
    await storage.append([RecordBatch(A, 0, [b""] * 10)])
    await storage.trim(A, 3)
    for sequence in range(10):
        kind, message = (
            (StorageSequenceError, "up to 2 were dropped") if sequence < 3 else (StorageCorruptError, "held")
        )
        with pytest.raises(kind, match=rf"\b{sequence} .*{message}"):
            await read_next(storage, A, sequence, 10)
