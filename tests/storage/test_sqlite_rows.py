"""Records as rows of SQLite: every kind of batch is few statements, comes back, and is there for other programs."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import cycle, product
from pathlib import Path

import attrs
import pytest

from dafka.errors import StorageError
from dafka.records import NO_TIMESTAMP, Header, Partition, Record, RecordBatch
from dafka.storage import open_storage
from dafka.storage.sqlite import SqliteStorage, inserting
from tests.storage.quick import quickly

PARTITION = Partition("orders", "A")
COUNT = 100
NUMBERS = range(COUNT)

HEADERS: tuple[Header, ...] = (
    ("trace", b"4bf9"),
    ("trace", '"é\n'.encode()),
    ("null", None),
    ("empty", b""),
    ("binary", b"\xff\0"),
    ("zero", b"a\0b"),
    ("\udcff", b"1"),
)

VALUES: list[list[bytes | None]] = [
    [b"%05d" % number for number in NUMBERS],
    [b"x" * (number % 7) for number in NUMBERS],
    [b""] * COUNT,
    [None if number % 3 else b"%d" % number for number in NUMBERS],
    [None] * COUNT,
]
KEYS: list[list[bytes | None] | None] = [
    None,
    [b"%03d" % number for number in NUMBERS],
    [b"%d" % number if number % 5 else None for number in NUMBERS],
]
ALL_HEADERS: list[list[tuple[Header, ...]] | None] = [
    None,
    [HEADERS] * COUNT,
    [HEADERS[: number % 8] for number in NUMBERS],
]
TIMES: list[list[int]] = [
    [7] * COUNT,
    [2**41 + number // 10 for number in NUMBERS],
    [2**42 + number for number in NUMBERS],
    [2**43 + number * number for number in NUMBERS],
]
TIMESTAMPS: list[list[int] | None] = [None, *TIMES, [number * 10**9 - 1 for number in NUMBERS], [7] * 50 + [-1] * 50]


def batches() -> Iterator[RecordBatch]:
    """Yield batches with every kind of each column next to every kind of the others, each of its own partition."""
    stored_at = cycle([None, *TIMES])
    for number, (values, keys, headers, timestamps) in enumerate(product(VALUES, KEYS, ALL_HEADERS, TIMESTAMPS)):
        columns = {"keys": keys, "headers": headers, "timestamps": timestamps, "stored_at": next(stored_at)}
        yield RecordBatch(Partition("orders", f"{number}"), 0, values, **columns)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def storage(path: Path) -> AsyncIterator[SqliteStorage]:
    with quickly():
        async with open_storage(f"sqlite:{path}?synchronous=OFF") as opened:
            assert isinstance(opened, SqliteStorage)
            yield opened


@contextmanager
def traced(connection: sqlite3.Connection | None) -> Iterator[list[str]]:
    assert connection is not None
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    yield statements
    connection.set_trace_callback(None)


async def read(
    storage: SqliteStorage, first: int, count: int, partition: Partition = PARTITION, *, with_times: bool = False
) -> RecordBatch:
    found = await storage.read(partition, first, count, with_times=with_times)
    assert found is not None
    return found


def query(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(statement).fetchall()
        connection.commit()
        return found


async def test_a_batch_is_one_insert_and_read_as_few_rows(storage: SqliteStorage) -> None:
    """Row by row, a store next to a busy event loop would read a few thousand records a second."""
    for batch in batches():
        with traced(storage._writer) as statements:
            await storage.append([batch])
        assert sum(statement.startswith("INSERT INTO records") for statement in statements) == 1
        for first, count in ((0, COUNT), (0, 10 * COUNT), (7, 83)):
            with_times = batch.stored_at is not None
            with traced(storage._reader) as statements:
                found = await read(storage, first, count, batch.partition, with_times=with_times)
            assert [*found] == [*batch][first : first + count]
            if batch.timestamps is None or NO_TIMESTAMP not in batch.timestamps:  # some are read row by row
                assert len(statements) <= 6
                assert not any("SELECT sequence, content" in statement for statement in statements)


@pytest.mark.parametrize(("limit", "value"), [("INSERT_RECORDS_MAX", 30), ("INSERT_BYTES_MAX", 150)])
async def test_a_batch_beyond_the_limits_of_an_insert_is_split(
    limit: str, value: int, storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inserting, limit, value)
    for batch in [*batches()][::7]:
        with traced(storage._writer) as statements:
            await storage.append([batch])
        parts = sum(statement.startswith("INSERT INTO records") for statement in statements)
        assert parts >= (COUNT if limit == "INSERT_RECORDS_MAX" else batch.content_bytes) / value
        found = await read(storage, 0, COUNT, batch.partition, with_times=batch.stored_at is not None)
        assert [*found] == [*batch]
        assert (await storage.partitions())[batch.partition].content_bytes == batch.content_bytes


async def test_sqlite_alone_reads_every_part(storage: SqliteStorage, path: Path) -> None:
    other = Partition("orders", "B")
    whole = RecordBatch(
        PARTITION,
        0,
        [b"value", None, b""],
        keys=[b"key", b"\xff", None],
        headers=[HEADERS, (), ()],
        timestamps=[5, -1, 0],
    )
    await storage.append([RecordBatch(other, 0, [b"0"]), whole])
    await storage.append([RecordBatch(other, 1, [b"1"])])
    found = query(
        path, "SELECT sequence, content, key, timestamp, headers IS NULL FROM topic_records WHERE address = 'A'"
    )
    assert found == [(0, b"value", b"key", 5, 0), (1, None, b"\xff", None, 1), (2, b"", None, 0, 1)]
    rows = query(path, "SELECT partition_id, sequence, typeof(sequence), typeof(headers) FROM records")
    assert rows == [
        *((1, sequence, "integer", "null") for sequence in range(2)),
        *((2, sequence, "integer", "null" if sequence else "text") for sequence in range(3)),
    ]
    columns = query(path, "PRAGMA table_info(records)")
    assert [name for _, name in sorted((each[5], each[1]) for each in columns if each[5])] == [
        "partition_id",
        "sequence",
    ]
    not_null = [
        {str(each[1]) for each in query(path, f"PRAGMA table_info({table})") if each[3]}
        for table in ("partitions", "records", "positions")
    ]
    assert not_null == [
        {"topic", "address", "earliest_sequence", "end_sequence", "content_bytes", "compacted_end"},
        {"partition_id", "sequence", "stored_at"},
        {"next_sequence", "saved_at"},
    ]
    names_and_values = """
        SELECT value ->> 0, value ->> 1, value ->> '$[1].hex', value ->> '$[0].hex'
        FROM records CROSS JOIN json_each(headers) WHERE partition_id = 2 AND sequence = 0
    """
    assert query(path, names_and_values) == [
        ("trace", "4bf9", None, None),
        ("trace", '"é\n', None, None),
        ("null", None, None, None),
        ("empty", "", None, None),
        ("binary", '{"hex":"ff00"}', "ff00", None),
        ("zero", '{"hex":"610062"}', "610062", None),
        ('{"hex":"ff"}', "1", None, "ff"),
    ]


ALIKE = RecordBatch(PARTITION, 0, [b"%05d" % number for number in range(1000)], timestamps=[7] * 1000)


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
        ("content = '00700'", None),
        ("content = 7", None),
        ("timestamp = 'x'", None),
    ],
)
async def test_a_record_that_differs_or_is_damaged_is_found_among_many_that_are_alike(
    storage: SqliteStorage, path: Path, change: str, expected: dict[str, object] | None
) -> None:
    await storage.append([ALIKE])
    query(path, f"UPDATE records SET {change} WHERE sequence = 700 RETURNING 1")
    found = await read(storage, 0, 1000)
    records = list(ALIKE)
    if expected is None:
        assert list(found) == records[:700]
        with pytest.raises(StorageError, match="700"):
            await storage.read(PARTITION, 700, 1000)
    else:
        records[700] = attrs.evolve(records[700], **expected)  # type: ignore[arg-type]
        assert list(found) == records


async def test_records_are_read_up_to_the_next_timestamp(storage: SqliteStorage) -> None:
    timestamps = [7] * 3000 + [8] * 2000 + [9] * 999
    batch = RecordBatch(PARTITION, 0, [b"%05d" % number for number in range(5999)], timestamps=timestamps)
    await storage.append([batch])
    found: list[Record] = []
    ends: list[int] = []
    while run := await storage.read(PARTITION, ends[-1] if ends else 0, 5000, with_times=len(ends) == 1):
        found += list(attrs.evolve(run, stored_at=None))
        ends.append(run.end_sequence)
    assert ends == [3000, 5000, 5999]
    assert found == list(batch)


async def test_records_larger_than_the_average_are_read_within_the_limit(storage: SqliteStorage) -> None:
    large = [b"%03d" % number * 400 for number in range(100)]
    mixed = [b"x" * (1200 + number % 3) for number in range(100)]
    await storage.append([RecordBatch(PARTITION, 0, [b"1"] * 1000)])
    for first, values in ((1000, large), (1100, mixed)):
        await storage.append([RecordBatch(PARTITION, first, values)])
        for kept in (60, 33, 2):
            size = sum(map(len, values[:kept]))
            for bytes_max, expected in ((size, kept), (size - 1, kept - 1), (1, 1)):
                found = await storage.read(PARTITION, first, 500, bytes_max)
                assert found is not None
                assert list(found.values) == values[:expected], bytes_max


def two(**columns: Sequence[int]) -> RecordBatch:
    return RecordBatch(PARTITION, 0, [b"0", b"1"], **columns)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "batch",
    [
        two(timestamps=[2**63, 0]),
        two(timestamps=[0, -(2**63) - 1]),
        two(timestamps=[2**63] * 2),
        two(stored_at=[0, 2**64]),
        RecordBatch(PARTITION, 2**63 - 2, [b"0", b"1"]),
    ],
)
async def test_a_number_beyond_64_bits_is_refused(storage: SqliteStorage, batch: RecordBatch) -> None:
    with pytest.raises(StorageError, match="too large"):
        await storage.append([batch])
    assert await storage.partitions() == {}


async def test_the_last_sequence_is_that_of_64_bits(storage: SqliteStorage) -> None:
    last = RecordBatch(PARTITION, 2**63 - 2, [b"last"])
    await storage.append([last])
    assert await storage.read(PARTITION, 2**63 - 2, 5) == last
    for sequence in (2**63 - 1, 2**63, 2**64):
        with pytest.raises(StorageError, match=r"sequence \d+ is too large for SQLite"):
            await storage.append([RecordBatch(PARTITION, sequence, [b"more"])])
        assert await storage.read(PARTITION, sequence, 1) is None
    for sequence in (2**63, 2**64):
        with pytest.raises(StorageError, match=r"sequence \d+ is too large for SQLite"):
            await storage.reset_to(PARTITION, sequence)
        with pytest.raises(StorageError, match="too large"):
            await storage.save_positions("name", {PARTITION: sequence})
    assert await storage.load_positions("name") == {}
    await storage.reset_to(PARTITION, 2**63 - 1)
