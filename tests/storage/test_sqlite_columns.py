"""Keys, headers, timestamps and tombstones in a SQLite store, as other programs see them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import attrs
import pytest

from dafka.errors import StorageError
from dafka.records import Header, Partition, Record, RecordBatch
from dafka.storage import open_storage
from dafka.storage.sqlite import SqliteStorage

PARTITION = Partition("orders", "A")

HEADERS: tuple[Header, ...] = (
    ("trace", b"4bf9"),
    ("trace", '"é\n'.encode()),
    ("null", None),
    ("empty", b""),
    ("binary", b"\xff\0"),
    ("zero", b"a\0b"),
    ("\udcff", b"1"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def query(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(statement).fetchall()
        connection.commit()
        return found


async def test_sqlite_alone_reads_every_part(path: Path) -> None:
    records = [
        Record(PARTITION, 0, b"value", b"key", HEADERS, 5),
        Record(PARTITION, 1, None, b"\xff", (), None),
        Record(PARTITION, 2, b"", None, (), 0),
    ]
    async with open_storage(f"sqlite:{path}") as storage:
        await storage.append(
            [
                RecordBatch(
                    PARTITION,
                    0,
                    [record.value for record in records],
                    keys=[record.key for record in records],
                    headers=[record.headers for record in records],
                    timestamps=[5, -1, 0],
                )
            ]
        )
    found = query(path, "SELECT sequence, content, key, timestamp, headers IS NULL FROM topic_records")
    assert found == [(0, b"value", b"key", 5, 0), (1, None, b"\xff", None, 1), (2, b"", None, 0, 1)]
    assert query(path, "SELECT DISTINCT typeof(headers) FROM records ORDER BY 1") == [("null",), ("text",)]
    names_and_values = """
        SELECT value ->> 0, value ->> 1, value ->> '$[1].hex', value ->> '$[0].hex'
        FROM records, json_each(headers) WHERE sequence = 0
    """
    assert query(path, names_and_values.replace("records,", "records CROSS JOIN")) == [
        ("trace", "4bf9", None, None),
        ("trace", '"é\n', None, None),
        ("null", None, None, None),
        ("empty", "", None, None),
        ("binary", '{"hex":"ff00"}', "ff00", None),
        ("zero", '{"hex":"610062"}', "610062", None),
        ('{"hex":"ff"}', "1", None, "ff"),
    ]


def _batch(count: int, **columns: object) -> RecordBatch:
    batch = RecordBatch(PARTITION, 0, [b"%05d" % number for number in range(count)], timestamps=[7] * count)
    return attrs.evolve(batch, **columns)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "batch",
    [
        _batch(1000),
        _batch(1000, timestamps=list(range(1000))),
        _batch(1000, keys=[b"%d" % number for number in range(1000)]),
        _batch(1000, headers=[HEADERS] * 1000),
        _batch(
            1000,
            values=[b"x" * (number % 50) if number % 3 else None for number in range(1000)],
            keys=[b"%d" % number if number % 5 else None for number in range(1000)],
            headers=[HEADERS[: number % 8] for number in range(1000)],
            timestamps=[number * 10**9 - 1 for number in range(1000)],
            stored_at=[10**12 + number for number in range(1000)],
        ),
    ],
    ids=["plain", "timestamps", "keys", "headers", "all"],
)
async def test_a_batch_is_one_insert_and_read_as_few_rows(path: Path, batch: RecordBatch) -> None:
    async with open_storage(f"sqlite:{path}") as storage:
        assert isinstance(storage, SqliteStorage)
        assert storage._writer is not None
        statements: list[str] = []
        storage._writer.set_trace_callback(statements.append)
        await storage.append([batch])
        storage._writer.set_trace_callback(None)
        assert sum(statement.startswith("INSERT INTO records") for statement in statements) == 1
        storage._reader.set_trace_callback(statements.append)
        statements.clear()
        found = await storage.read(PARTITION, 0, 1000, with_times=True)
        storage._reader.set_trace_callback(None)
        assert found is not None
        assert list(attrs.evolve(found, stored_at=None)) == list(attrs.evolve(batch, stored_at=None))
        assert len(statements) <= 5
        assert not any("SELECT sequence, content" in statement for statement in statements), "it was read row by row"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("content = x'313233343536'", {"value": b"123456"}),
        ("content = x''", {"value": b""}),
        ("content = NULL", {"value": None}),
        ("key = x'6b'", {"key": b"k"}),
        ("""headers = '[["h","1"]]'""", {"headers": (("h", b"1"),)}),
        ("timestamp = 8", {"timestamp": 8}),
        ("timestamp = NULL", {"timestamp": None}),
    ],
)
async def test_a_record_that_differs_is_found_among_many_that_are_alike(
    path: Path, change: str, expected: dict[str, object]
) -> None:
    batch = _batch(1000)
    async with open_storage(f"sqlite:{path}") as storage:
        await storage.append([batch])
        query(path, f"UPDATE records SET {change} WHERE sequence = 700 RETURNING 1")
        found = await storage.read(PARTITION, 0, 1000)
    assert found is not None
    records = list(batch)
    records[700] = attrs.evolve(records[700], **expected)  # type: ignore[arg-type]
    assert list(found) == records


async def test_records_are_read_up_to_the_next_timestamp(path: Path) -> None:
    timestamps = [7] * 3000 + [8] * 2000 + [9] * 999
    batch = _batch(len(timestamps), timestamps=timestamps)
    async with open_storage(f"sqlite:{path}") as storage:
        await storage.append([batch])
        found: list[Record] = []
        ends: list[int] = []
        while run := await storage.read(PARTITION, ends[-1] if ends else 0, 5000, with_times=len(ends) == 1):
            found += list(attrs.evolve(run, stored_at=None))
            ends.append(run.end_sequence)
    assert ends == [3000, 5000, 5999]
    assert found == list(batch)


@pytest.mark.parametrize("change", ["content = '00700'", "content = 7", "timestamp = 'x'"])
async def test_a_damaged_record_is_found_among_many_that_are_alike(path: Path, change: str) -> None:
    async with open_storage(f"sqlite:{path}") as storage:
        await storage.append([_batch(1000)])
        query(path, f"UPDATE records SET {change} WHERE sequence = 700 RETURNING 1")
        found = await storage.read(PARTITION, 0, 1000)
        assert found is not None
        assert len(found) == 700
        with pytest.raises(StorageError, match="700"):
            await storage.read(PARTITION, 700, 1000)


@pytest.mark.parametrize("timestamps", [[2**63, 0], [0, -(2**63) - 1], [2**63] * 2])
async def test_a_timestamp_beyond_64_bits_is_refused(path: Path, timestamps: list[int]) -> None:
    async with open_storage(f"sqlite:{path}") as storage:
        with pytest.raises(StorageError, match="too large"):
            await storage.append([_batch(2, timestamps=timestamps)])
        assert await storage.partitions() == {}
