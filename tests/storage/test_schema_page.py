"""The tables in docs/reference/sqlite-schema.md are the real ones, and its queries run against a real store."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dafka.records import Partition, RecordBatch, decode_text
from dafka.storage import open_storage
from dafka.storage.sqlite.schema import APPLICATION_ID, SCHEMA_VERSION

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "sqlite-schema.md").read_text("utf-8")

QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)

A, B, C = ("A" * 32, "B" * 32, "C" * 32)


def contents(first_sequence: int, count: int) -> list[bytes]:
    return [b"%d" % sequence for sequence in range(first_sequence, first_sequence + count)]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[sqlite3.Connection]:
    """Yield a connection that reads, as documented, while the store is open."""
    orders_a, orders_b, orders_c = (Partition("orders", address) for address in (A, B, C))
    logs, strange = Partition("logs", A), Partition(decode_text(b"\xff"), A)
    path = tmp_path / "dafka.db"
    async with open_storage(f"sqlite:{path}") as storage:
        await storage.append([RecordBatch(orders_a, 0, contents(0, 12)), RecordBatch(logs, 0, contents(0, 3))])
        await storage.append(
            [RecordBatch(orders_b, 0, [b"\xff0", b'{"sequence": 1}']), RecordBatch(strange, 0, [b"0"])]
        )
        await storage.append([RecordBatch(orders_c, 0, contents(0, 1))])
        await storage.append(
            [
                RecordBatch(
                    Partition("prices", A),
                    0,
                    [b"3", b"5", None, b"6", b"7"],
                    keys=[b"tea", b"cake", b"tea", b"cake", None],
                    headers=[(), (("trace", b"4bf9"),), (), (("a", None), ("trace", b"a3ce")), ()],
                    timestamps=[1, 2, 3, 4, -1],
                )
            ]
        )
        await storage.trim(orders_a, 4)
        await storage.trim(logs, 3)
        await storage.save_positions("billing", {orders_a: 10, Partition("unknown", A): 5})
        await storage.save_positions("audit", {orders_a: 1, orders_b: 1, logs: 0})
        assert 'sqlite3.connect("file:dafka.db?mode=ro", uri=True)' in PAGE
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            yield connection


def query(title: str) -> str:
    _, found, rest = PAGE.partition(title)
    assert found, f"{title!r} is not on the page"
    return rest.partition("```sql\n")[2].partition("```")[0]


def documented_columns() -> dict[str, list[tuple[str, str]]]:
    tables: dict[str, list[tuple[str, str]]] = {}
    for section in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        tables[section.split("\n")[0]] = re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE)
    return tables


async def test_tables_and_versions_are_the_documented_ones_and_readers_cannot_write(store: sqlite3.Connection) -> None:
    names = store.execute(
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT GLOB '*sqlite_*'"
    ).fetchall()
    real = {name: store.execute("SELECT name, type FROM pragma_table_info(?)", (name,)).fetchall() for (name,) in names}
    assert documented_columns() == real
    assert store.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert store.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    assert f"`PRAGMA application_id` is {APPLICATION_ID} (`{APPLICATION_ID.to_bytes(4, 'big').decode()}`)" in PAGE
    assert f"version {SCHEMA_VERSION}." in " ".join(PAGE.split())
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        store.execute("DELETE FROM records")


SIZES = [
    *[("logs", A, 3, 2, 0, 0), ("orders", A, 4, 11, 8, 10), ("orders", B, 0, 1, 2, 17), ("orders", C, 0, 0, 1, 1)],
    *[("prices", A, 0, 4, 5, 37), (b"\xff", A, 0, 0, 1, 1)],
]


FOUND: dict[str, list[Any]] = {
    "Heads and sizes": SIZES,
    "The latest value of each key": [(A, "cake", "6", 3)],
    "The records with a header": [(A, 1, "4bf9"), (A, 3, "a3ce")],
    "The sizes of topics": [("logs", 1, 0, 0), ("orders", 3, 11, 28), ("prices", 1, 5, 37), (b"\xff", 1, 1, 1)],
    "Following a partition": [(9, b"9"), (10, b"10"), (11, b"11")],
    "The lag of a consumer": [("orders", A, 2), ("orders", B, 2), ("orders", C, 1)],
    "nothing was stored for a day": [],
}


async def test_every_query_finds_what_the_page_says(store: sqlite3.Connection, tmp_path: Path) -> None:
    assert len(QUERIES) == 13
    for statement in QUERIES:
        rows = store.execute(statement, {"address": A, "next_sequence": 0}).fetchall()
        assert rows or "'2025-01-01" in statement or "86400" in statement, statement
    for title, expected in FOUND.items():
        assert store.execute(query(title), {"address": A, "next_sequence": 9}).fetchall() == expected, title
    rows = store.execute(query("The last ten records")).fetchall()
    assert [row[1:] for row in rows[:8]] == [(A, sequence, b"%d" % sequence) for sequence in range(4, 12)]
    assert [row[1:3] for row in rows[8:]] == [(B, 0), (B, 1), (C, 0)]
    rows = store.execute(query("Contents that are text or JSON")).fetchall()
    assert [sequence for sequence, _ in rows] == [*range(4, 12), 1, 0]
    assert json.loads(rows[8][1]) == {"sequence": 1}
    async with open_storage(f"sqlite:{tmp_path / 'dafka.db'}", read_only=True) as storage:
        assert store.execute(query("The node address of the store")).fetchall() == [(storage.identity, SCHEMA_VERSION)]


async def test_queries_read_only_the_rows_and_partitions_that_they_need(store: sqlite3.Connection) -> None:
    for title in ("The last ten records", "Following a partition"):
        plan = store.execute(f"EXPLAIN QUERY PLAN {query(title)}", {"address": A, "next_sequence": 5}).fetchall()
        assert "SEARCH records USING PRIMARY KEY (partition_id=? AND sequence>?)" in [row[3] for row in plan], title
    steps = [row[3] for row in store.execute(f"EXPLAIN QUERY PLAN {query('stored between two times')}")]
    partitions, records = (
        next(place for place, step in enumerate(steps) if step.startswith(f"SEARCH {table} USING"))
        for table in ("partitions", "records")
    )
    assert partitions < records


async def test_records_between_two_times(store: sqlite3.Connection) -> None:
    statement = query("stored between two times")
    assert store.execute(statement.replace("2026-", "2025-", 1)).fetchall() == []
    now = store.execute("SELECT max(stored_at) / 1000 FROM records").fetchone()[0]

    def between(begin: float, end: float) -> list[Any]:
        times = [time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)) for at in (begin, end)]
        return store.execute(
            statement.replace("2025-01-01 00:00:00", times[0]).replace("2026-01-01 00:00:00", times[1])
        ).fetchall()

    rows = between(now - 3600, now + 3600)
    assert [row[:2] for row in rows] == [(A, n) for n in range(4, 12)] + [(B, 0), (B, 1), (C, 0)]
    for _, _, stored_at_utc, _ in rows:
        assert time.strftime("%Y-%m-%d", time.gmtime(now - 60)) <= stored_at_utc
    assert between(now - 7200, now - 3600) == between(now + 3600, now + 7200) == []


async def test_first_record_of_a_time(tmp_path: Path) -> None:
    statement = query("The first record of a partition that was stored")
    times = [1735689600_000 + 1000 * each for each in (-9, -9, -1, -1, 0, 0, 5, 60, 61, 62)]
    for count in range(1, len(times) + 1):
        address = f"{count}"
        partition = Partition("orders", address)
        path = tmp_path / f"times{count}.db"
        async with open_storage(f"sqlite:{path}") as storage:
            await storage.append([RecordBatch(partition, 5, contents(5, count), stored_at=times[:count])])
            expected = await storage.find_sequence_by_time(partition, 1735689600_000)
            with closing(sqlite3.connect(path)) as connection:
                assert connection.execute(statement, {"address": address}).fetchall() == [(expected,)]
                assert expected == 5 + min(count, 4)


async def test_partitions_without_new_records(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    async with open_storage(f"sqlite:{path}") as storage:
        await storage.append(
            [RecordBatch(Partition("orders", A), 0, [b"0"], stored_at=[0]), RecordBatch(Partition("a", A), 0, [b"0"])]
        )
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(query("nothing was stored for a day")).fetchall()
        assert found == [("orders", A, "1970-01-01 00:00:00")]


async def test_trimming_leaves_free_pages_that_vacuum_releases(tmp_path: Path) -> None:
    path = tmp_path / "dafka.db"
    partition = Partition("orders", A)
    async with open_storage(f"sqlite:{path}") as storage:
        await storage.append([RecordBatch(partition, 0, [b"." * 1000] * 10_000)])
    size = path.stat().st_size
    async with open_storage(f"sqlite:{path}") as storage:
        await storage.trim(partition, 9000)
    with closing(sqlite3.connect(path)) as connection:
        ((free_bytes, file_size),) = connection.execute(query("How much of it is free")).fetchall()
        assert file_size == path.stat().st_size == size
        assert size * 0.85 < free_bytes < size
        assert "`sqlite3 dafka.db VACUUM`" in PAGE
        connection.execute("VACUUM")
    assert path.stat().st_size < size * 0.2
    async with open_storage(f"sqlite:{path}") as storage:
        assert await storage.find_damage() == []
