"""Reading tasks: the ADBC driver and the storage plugin return the same records and report the same errors."""

from __future__ import annotations

import sqlite3
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock, patch

import adbc_driver_sqlite
import attrs
import pyarrow as pa
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dafka.errors import StorageError
from dafka.records import Partition, RecordBatch
from dafka.spark import scan as module
from dafka.spark.planning import StoreRange, StoreTask
from dafka.spark.scan import scan_task
from dafka.spark.schema import COLUMNS
from dafka.storage import open_storage
from dafka.storage.arrow import arrow_schema, escape_name, to_arrow
from dafka.storage.compaction import CompactionPolicy, compact_partition
from tests.power.runs import no_wait
from tests.spark.stores import A, B, batch, fill, trim, whole_batch

PARTITION = Partition("orders", A)


@pytest.fixture
def no_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only the driver read."""
    monkeypatch.setattr(module, "_scan_storage", None)


def task(url: str, start: int, end: int, partition: Partition = PARTITION, record_bytes: int = 100) -> StoreTask:
    return StoreTask([StoreRange(url, partition, start, end, record_bytes)])


def batches(of: StoreTask, columns: Sequence[str] = COLUMNS.names, *, fail: bool = True) -> Iterator[pa.RecordBatch]:
    for each in scan_task(of, columns, fail_on_data_loss=fail):
        each.validate(full=True)
        assert each.schema.equals(arrow_schema(columns))
        yield each


def read(of: StoreTask, columns: Sequence[str] = COLUMNS.names, *, fail: bool = True) -> pa.Table:
    return pa.Table.from_batches(batches(of, columns, fail=fail), arrow_schema(columns)).combine_chunks()


def by_storage(of: StoreTask, columns: Sequence[str] = COLUMNS.names, *, fail: bool = True) -> pa.Table:
    with patch.object(module, "RECORD_BYTES_MAX", -1):
        return read(of, columns, fail=fail)


def to_table(of: RecordBatch, columns: Sequence[str] = COLUMNS.names) -> pa.Table:
    return pa.Table.from_batches([to_arrow(of, columns)]).combine_chunks()


def orders(*spans: tuple[int, int]) -> pa.Table:
    return pa.concat_tables([to_table(batch("orders", A, *span)) for span in spans]).combine_chunks()


def test_whole_records_are_returned_as_stored(tmp_path: Path, scheme: str) -> None:
    stored = whole_batch("orders", A, 3, 103)
    of = task(fill(f"{scheme}:{tmp_path}/store", stored, batch("orders", B, 0, 5)), 3, 103)
    assert by_storage(of).equals(to_table(stored))
    if scheme == "sqlite":
        with patch.object(module, "_scan_storage", None), patch.object(module, "WINDOW_RECORDS", 9):
            assert read(of).equals(to_table(stored))


@pytest.mark.usefixtures("no_storage")
def test_the_driver_reads_stores_of_an_older_version(tmp_path: Path) -> None:
    url = fill(f"sqlite:{tmp_path}/store", batch("orders", A, 0, 40))
    with closing(sqlite3.connect(f"{tmp_path}/store")) as connection, connection:
        connection.execute("DROP VIEW topic_records")
        for column in ("key", "headers", "timestamp"):
            connection.execute(f"ALTER TABLE records DROP COLUMN {column}")
        connection.execute("PRAGMA user_version = 2")
    assert read(task(url, 0, 40)).equals(orders((0, 40)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(st.lists(st.binary(max_size=5) | st.integers(0, 3000).map(bytes), min_size=1, max_size=80), st.data())
def test_the_driver_and_the_storage_return_the_same(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], data: st.DataObject
) -> None:
    stored = batch("orders", A, 3, 3 + len(contents), contents=contents)
    url = fill(f"sqlite:{tmp_path_factory.mktemp('scan')}/store", stored)
    start = data.draw(st.integers(3, 2 + len(contents)))
    end = data.draw(st.integers(start + 1, 3 + len(contents)))
    columns = data.draw(st.lists(st.sampled_from(COLUMNS.names), min_size=1, unique=True))
    of = task(url, start, end)
    with patch.object(module, "WINDOW_RECORDS", data.draw(st.sampled_from([1, 7, 10_000]))):
        with patch.object(module, "_scan_storage", None):
            by_driver = read(of, columns)
        assert by_driver.equals(to_table(stored.between(start, end), columns))
        with patch.object(module, "WINDOW_BYTES_MAX", 2000):
            mixed = read(of, columns)
    assert mixed.equals(by_driver)
    assert by_storage(of, columns).equals(by_driver)


@pytest.mark.usefixtures("no_storage")
@pytest.mark.parametrize(
    "partition",
    [
        Partition("it's; DROP TABLE records --\"", "\t\\x41"),
        Partition("naïve/..", "A B"),
        Partition(b"caf\xe9\x01".decode("utf-8", "surrogateescape"), b"\xff".decode("utf-8", "surrogateescape")),
        Partition("", ""),
        Partition("a\0b", "\0"),
    ],
)
def test_names_of_any_bytes(tmp_path: Path, partition: Partition) -> None:
    stored = batch(partition.topic, partition.address, 0, 40)
    for file in ("store", "a b.db", "50%41.db", "a#b.db", "a&b=c.db"):
        found = read(task(fill(f"sqlite:{tmp_path}/{file}", stored), 0, 40, partition))
        assert found.equals(to_table(stored))
        assert set(found["topic"].to_pylist()) == {escape_name(partition.topic)}


def test_several_ranges_of_several_stores(tmp_path: Path) -> None:
    one = fill(f"sqlite:{tmp_path}/one", batch("orders", A, 0, 50), batch("orders", B, 0, 50))
    log = fill(f"filelog:{tmp_path}/log", batch("orders", A, 50, 90))
    two = fill(f"sqlite:{tmp_path}/two", batch("orders", A, 45, 48, contents=[b"two"] * 3))
    of = StoreTask(
        [
            StoreRange(one, PARTITION, 10, 50, 20),
            StoreRange(two, PARTITION, 45, 48, 20),
            StoreRange(log, PARTITION, 50, 90, 20),
            StoreRange(one, Partition("orders", B), 0, 50, 20),
            StoreRange(one, PARTITION, 0, 10, module.RECORD_BYTES_MAX + 1),
            StoreRange(one, PARTITION, 10, 11, 20),
        ]
    )
    found = read(of, ["offset", "value"])
    assert found["offset"].to_pylist() == [*range(10, 50), 45, 46, 47, *range(50, 90), *range(50), *range(11)]
    assert found["value"].to_pylist()[40:43] == [b"two"] * 3


def test_a_store_stays_open_for_the_next_range(tmp_path: Path, scheme: str) -> None:
    """Opening a store again for each of thousands of partitions would take minutes."""
    addresses = [f"{number:032X}" for number in range(30)]
    url = fill(f"{scheme}:{tmp_path}/store", *(batch("orders", address, 0, 2) for address in addresses))
    with (
        patch.object(module, "open_storage", Mock(side_effect=open_storage)) as storages,
        patch("adbc_driver_sqlite.connect", Mock(side_effect=adbc_driver_sqlite.connect)) as drivers,
    ):
        found = read(StoreTask([StoreRange(url, Partition("orders", address), 0, 2, 20) for address in addresses]))
    assert found.num_rows == 60
    assert storages.call_count + drivers.call_count == 1


def test_large_records_are_read_in_small_batches(tmp_path: Path, scheme: str) -> None:
    """Also if they were small when the task was planned."""
    contents = [bytes([number]) * size for number, size in enumerate([3_000_000, 0, 1, 2_000_000, 5, 4_000_000])]
    stored = batch("orders", A, 0, 6, contents=contents)
    url = fill(f"{scheme}:{tmp_path}/store", stored)
    for record_bytes in (100, 1_500_000):
        with patch.object(module, "WINDOW_BYTES_MAX", 2**20):
            found = list(batches(task(url, 0, 6, record_bytes=record_bytes)))
        assert pa.Table.from_batches(found).combine_chunks().equals(to_table(stored))
        assert max(each.num_rows for each in found) < 6


@pytest.mark.parametrize("record_bytes", [100, 20_000])
def test_memory_does_not_grow_with_the_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_bytes: int
) -> None:
    """A window has few records if they are large, and only a few windows are in memory at once."""
    monkeypatch.setattr(module, "WINDOW_BYTES_MAX", 2**20)
    monkeypatch.setattr(module, "WINDOW_RECORDS", 2000)
    contents = [bytes(record_bytes)] * (16 * 2**20 // record_bytes)
    end = len(contents)
    url = fill(f"sqlite:{tmp_path}/store", batch("orders", A, 0, end, contents=contents))
    monkeypatch.setattr(module, "_scan_storage", None)
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        sizes = []
        for each in batches(task(url, 0, end, record_bytes=record_bytes)):
            sizes.append(each.nbytes)
            assert pa.total_allocated_bytes() - before < 6 * 2**20
        assert tracemalloc.get_traced_memory()[1] < 2 * 2**20
    finally:
        tracemalloc.stop()
    assert sum(sizes) > 16 * 2**20 * 0.99
    assert max(sizes) < 1.3 * 2**20


def damage(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM records",
        "UPDATE records SET content = 'text'",
        "UPDATE records SET content = 1.5",
        "UPDATE records SET stored_at = 'never'",
        "UPDATE records SET stored_at = x'00'",
        "UPDATE records SET key = 'damaged'",
        "UPDATE records SET headers = 'damaged'",
        "UPDATE records SET timestamp = 'damaged'",
    ],
)
def test_damaged_rows(tmp_path: Path, statement: str, caplog: pytest.LogCaptureFixture) -> None:
    """They are an error whether the driver or the storage reads, or are left out."""
    of = task(fill(f"sqlite:{tmp_path}/store.db", batch("orders", A, 0, 100)), 0, 100)
    damage(tmp_path / "store.db", f"{statement} WHERE sequence BETWEEN 40 AND 44")
    for reading in (read, by_storage):
        with pytest.raises(StorageError, match=rf"orders/{A}: sequences 40 to 44 are damaged.* \(set failOnDataLoss"):
            reading(of)
        caplog.clear()
        assert reading(of, fail=False).equals(orders((0, 40), (45, 100)))
        (message,) = caplog.messages
        assert message.startswith(f"Records skipped: orders/{A}: sequences 40 to 44 are damaged")


def test_damaged_pages(tmp_path: Path) -> None:
    url = fill(f"sqlite:{tmp_path}/store.db", batch("orders", A, 0, 3000, contents=[bytes(500)] * 3000))
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())
    middle = len(data) // page_bytes // 2 * page_bytes
    data[middle : middle + page_bytes] = b"\xa5" * page_bytes
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"damaged: .*set failOnDataLoss to false to skip them"):
        read(task(url, 0, 3000))
    found = read(task(url, 0, 3000), ["offset"], fail=False)["offset"].to_pylist()
    assert found == sorted(set(found))
    assert 3000 - 2 * page_bytes // 500 < len(found) < 3000
    assert (found[0], found[-1]) == (0, 2999)


def test_records_that_are_trimmed_during_a_read(tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW_RECORDS", 30)
    runs = [batch("orders", A, start, start + 10, contents=[bytes(60_000)] * 10) for start in range(0, 120, 10)]
    more = "?segment_bytes=100000" if scheme == "filelog" else ""
    first, second = (fill(f"{scheme}:{tmp_path}/{name}{more}", *runs).partition("?")[0] for name in ("one", "two"))
    with pytest.raises(StorageError, match=rf"^orders/{A}: records \d+ to 89 are no longer in the stores"):
        trim_after_first(first, fail=True)
    found = trim_after_first(second, fail=False)
    end = found.index(90)
    assert end < 90
    assert found == [*range(end), *range(90, 120)]


def trim_after_first(url: str, *, fail: bool) -> list[int]:
    found: list[int] = []
    reading = batches(task(url, 0, 120, record_bytes=60_000), ["offset", "value"], fail=fail)
    found += next(reading)["offset"].to_pylist()
    trim(url, {PARTITION: 90})
    for each in reading:
        found += each["offset"].to_pylist()
    return found


def test_a_store_can_truncate_its_write_ahead_log_while_a_task_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two windows no transaction is open, so a checkpoint can truncate the log."""
    monkeypatch.setattr(module, "WINDOW_RECORDS", 30)
    monkeypatch.setattr(module, "_scan_storage", None)
    url = fill(f"sqlite:{tmp_path}/store.db", batch("orders", A, 0, 100))
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as writer:
        reading = batches(task(url, 0, 100))
        next(reading)
        writer.execute("UPDATE node SET address = address")
        assert writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        assert sum(each.num_rows for each in reading) == 70


def test_a_store_that_no_longer_has_the_range(tmp_path: Path, scheme: str) -> None:
    url = fill(f"{scheme}:{tmp_path}/store", batch("orders", A, 0, 10))
    for partition in (PARTITION, Partition("orders", B)):
        with pytest.raises(StorageError, match=f"store no longer holds {partition} up to offset 19"):
            read(task(url, 0, 20, partition), fail=False)
    with pytest.raises(StorageError, match="gone"):
        read(task(f"{scheme}:{tmp_path}/gone", 0, 20))


def test_a_time_that_is_out_of_range(tmp_path: Path) -> None:
    url = fill(f"sqlite:{tmp_path}/store.db", batch("orders", A, 0, 50))
    damage(tmp_path / "store.db", f"UPDATE records SET stored_at = {2**62} WHERE sequence = 40")
    with pytest.raises(StorageError, match=f"^orders/{A}: the records from 0 on fit no column: "):
        read(task(url, 0, 50))
    assert read(task(url, 0, 50), ["value"]).num_rows == 50


@pytest.mark.parametrize("url", ["sqlite:{}/store.db", "filelog:{}/log?segment_bytes=1500"])
def test_what_compaction_has_left_is_read_at_its_offsets(url: str, tmp_path: Path) -> None:
    """No gap counts as a loss."""
    keys = 13

    async def program() -> dict[int, bytes | None]:
        left: dict[int, bytes | None] = {}
        async with open_storage(url.format(tmp_path)) as storage:
            for first in range(0, 400, 10):
                stored = whole_batch("orders", A, first, first + 10)
                stored = attrs.evolve(stored, keys=[b"key %d" % (each % keys) for each in range(first, first + 10)])
                await storage.append([stored])
            await compact_partition(storage, PARTITION, 0, CompactionPolicy(dirty_ratio=0), 0, no_wait)
            sequence = 0
            while sequence < 400:
                found = await storage.read(PARTITION, sequence, 400)
                assert found is not None
                left.update((record.sequence, record.value) for record in found)
                sequence = found.end_sequence
        return left

    left = trio.run(program)
    assert keys <= len(left) < 200
    found = read(task(url.format(tmp_path).partition("?")[0], 0, 400)).to_pylist()
    assert [(row["offset"], row["value"]) for row in found] == sorted(left.items())
    whole = to_table(whole_batch("orders", A, 0, 400)).to_pylist()
    for row in found:
        assert row == whole[row["offset"]] | {"key": b"key %d" % (row["offset"] % keys), "stored_at": row["stored_at"]}
