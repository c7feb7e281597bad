"""Following stores without Spark: where queries start, and what they do if stores lose records."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from pyspark.sql.streaming.datasource import ReadMaxRows

from dafka.errors import StorageError
from dafka.records import Partition
from dafka.storage import open_storage
from dafka.storage.opening import delete_partitions
from tests.spark.driving import Offsets, Row, open_query
from tests.spark.stores import TIME, A, B, batch, content, fill, trim

ORDERS = Partition("orders", A)


@attrs.define
class Follower:
    """A query with `availableNow`, which keeps its checkpoint from run to run."""

    folder: Path
    checkpoint: Offsets = attrs.field(factory=dict)
    rows: list[Row] = attrs.field(factory=list)
    last: list[list[Row]] = attrs.field(factory=list)

    @property
    def path(self) -> str:
        return f"{self.folder}/stores"

    def run(self, **options: object) -> None:
        """Read what is stored now, from the checkpoint on if there is one."""
        with open_query({"path": self.path, **options}) as query:
            query.reader.prepareForTriggerAvailableNow()
            self.checkpoint = self.checkpoint or query.initial()
            while (end := query.latest(self.checkpoint)) != self.checkpoint:
                self.last = query.read(self.checkpoint, end)
                self.rows += [row for task in self.last for row in task]
                self.checkpoint = end
            assert "unread" not in self.checkpoint, "all was read"

    def check_repeatable(self, **options: object) -> None:
        """Check that the last micro-batch has the same tasks if it is run again as the first one of a new process.

        Spark keeps the end of a micro-batch only: it asks for the start of the first one again.
        """
        with open_query({"path": self.path, **options}) as query:
            again = query.read(query.initial(), self.checkpoint)
        assert [[place(row) for row in task] for task in again] == [[place(row) for row in task] for task in self.last]

    def fail(self, **options: object) -> str:
        """Run, and return the message of the error."""
        with pytest.raises(StorageError) as caught:
            self.run(**options)
        return str(caught.value)

    def found(self) -> dict[tuple[str, str], list[int]]:
        """Return the offsets that were read, by partition, after a check of all contents."""
        found: dict[tuple[str, str], list[int]] = {}
        for row in self.rows:
            assert row["value"] == content(row["topic"], row["partition"], row["offset"])
            found.setdefault((row["topic"], row["partition"]), []).append(row["offset"])
        return {name: sorted(offsets) for name, offsets in sorted(found.items())}


def place(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("topic", "partition", "offset", "value"))


@pytest.fixture
def query(tmp_path: Path) -> Follower:
    (tmp_path / "stores").mkdir()
    return Follower(tmp_path)


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ({"startingOffsets": "latest"}, []),
        ({"startingOffsets": {"orders": {A: 7}}}, [7, 8, 9]),
        ({"startingOffsets": {"orders": {A: -2}}}, list(range(10))),
        ({"startingTimestamp": TIME + 6}, [6, 7, 8, 9]),
        ({"startingTimestamp": TIME + 60}, []),
        ({"startingOffsets": {"orders": {A: 70}}, "failOnDataLoss": "false"}, []),
    ],
)
def test_starting_offsets_and_times(query: Follower, options: dict[str, Any], offsets: list[int]) -> None:
    fill(f"sqlite:{query.path}/store.db", batch("orders", A, 0, 10))
    query.run(**options)
    assert query.found().get(("orders", A), []) == offsets


def test_records_that_retention_dropped_before_they_were_read(query: Follower, scheme: str) -> None:
    url = fill(f"{scheme}:{query.path}/store", batch("orders", A, 0, 10))
    query.run(startingOffsets="earliest")
    fill(url, batch("orders", A, 10, 30))
    trim(url, {ORDERS: 20})
    assert f"orders/{A}: records 10 to 19 are no longer in the stores" in query.fail()
    query.run(failOnDataLoss="false")
    assert query.found() == {("orders", A): [*range(10), *range(20, 30)]}


def test_a_store_replaced_by_an_older_copy(query: Follower) -> None:
    store = Path(f"{query.path}/store.db")
    url = fill(f"sqlite:{store}", batch("orders", A, 0, 10))
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(store, query.folder / "copy.db")
    fill(url, batch("orders", A, 10, 30))
    query.run(startingOffsets="earliest")
    store.unlink()
    (query.folder / "copy.db").rename(store)
    assert f"orders/{A} was seen up to offset 29, and now ends at 10" in query.fail()
    query.run(failOnDataLoss="false")
    fill(url, batch("orders", A, 10, 35))
    query.run()
    assert query.found() == {("orders", A): list(range(35))}


def test_a_store_that_disappears(query: Follower) -> None:
    fill(f"sqlite:{query.path}/one.db", batch("orders", A, 0, 10))
    fill(f"sqlite:{query.path}/two.db", batch("orders", B, 0, 10))
    query.run(startingOffsets="earliest")
    Path(f"{query.path}/two.db").unlink()
    fill(f"sqlite:{query.path}/one.db", batch("orders", A, 10, 12))
    assert f"orders/{B} is no longer in any of the stores" in query.fail()
    query.run(failOnDataLoss="false")
    assert query.found() == {("orders", A): list(range(12)), ("orders", B): list(range(10))}
    shutil.rmtree(query.path)
    assert f"path {query.path}: there is nothing here" in query.fail(failOnDataLoss="false")


def test_replicas_that_take_turns_being_ahead(query: Follower) -> None:
    urls = [f"sqlite:{query.path}/one.db", f"filelog:{query.path}/two"]
    reached = [0, 0]
    for step, end in enumerate([10, 25, 27, 60]):
        which = step % 2
        fill(urls[which], batch("orders", A, reached[which], end))
        reached[which] = end
        query.run(startingOffsets="earliest")
    assert query.found() == {("orders", A): list(range(60))}


def test_available_now_reads_what_was_stored_at_its_start(query: Follower, scheme: str) -> None:
    url = fill(f"{scheme}:{query.path}/store", batch("orders", A, 0, 10))
    with open_query({"path": query.path, "startingOffsets": "earliest"}) as reading:
        start = reading.initial()
        reading.reader.prepareForTriggerAvailableNow()
        fill(url, batch("orders", A, 10, 20), batch("orders", B, 0, 5))
        end = reading.latest(start)
        assert end["offsets"] == {"orders": {A: 10}}
        assert reading.latest(end) == end
        assert reading.reader.reportLatestOffset() == {"offsets": {"orders": {A: 20, B: 5}}}


def forget(url: str, *partitions: Partition) -> None:
    """Delete partitions from a store, as it does with those that have ended and are empty."""

    async def program() -> None:
        async with open_storage(url) as storage:
            await delete_partitions(storage, partitions)

    trio.run(program)


@pytest.mark.parametrize("options", [{"startingOffsets": "latest"}, {"startingOffsets": "earliest"}])
def test_the_first_micro_batch_is_repeated_though_its_start_is_asked_for_again(
    query: Follower, scheme: str, options: dict[str, object]
) -> None:
    url = fill(f"{scheme}:{query.path}/store", batch("orders", A, 0, 10))
    with open_query({"path": query.path, **options}) as first:
        query.checkpoint = first.initial()
    fill(url, batch("orders", A, 10, 4000), batch("orders", B, 0, 3000))
    query.run(minPartitions=3, **options)
    large = [b"." * 10_000] * 1000
    fill(url, batch("orders", B, 3000, 4000, contents=large))  # the average size, and with it the store, is another
    fill(f"sqlite:{query.path}/replica.db", batch("orders", A, 0, 5000))
    query.check_repeatable(minPartitions=16, **options)


def test_a_partition_that_was_read_to_its_end_may_be_forgotten(query: Follower, scheme: str) -> None:
    ended = Partition("orders", B)
    url = fill(f"{scheme}:{query.path}/store", batch("orders", A, 0, 10), batch("orders", B, 0, 10))
    query.run(startingOffsets="earliest")
    forget(url, ended)
    query.run()
    fill(url, batch("orders", A, 10, 12))
    query.run()
    fill(url, batch("orders", B, 10, 13))  # its producer comes back
    query.run()
    assert query.found() == {("orders", A): list(range(12)), ("orders", B): list(range(13))}


def test_a_partition_that_was_not_read_to_its_end_may_not_be_forgotten(
    query: Follower, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = fill(f"{scheme}:{query.path}/store", batch("orders", A, 0, 10), batch("orders", B, 0, 10))
    with open_query({"path": query.path, "startingOffsets": "earliest"}) as first:
        query.checkpoint = first.latest(first.initial(), ReadMaxRows(10))
    forget(url, Partition("orders", B))
    assert f"orders/{B} is no longer in any of the stores" in query.fail()
    query.run(failOnDataLoss="false")
    assert f"orders/{B}: records 5 to 9 (5 of them) are left out: the partition is no longer in any" in caplog.text


def test_records_that_are_lost_after_they_were_planned(query: Follower, scheme: str) -> None:
    url = fill(f"{scheme}:{query.path}/store", batch("orders", A, 0, 10), batch("orders", B, 0, 5))
    options = {"path": query.path, "startingOffsets": "earliest"}
    with open_query(options) as reading, open_query({**options, "failOnDataLoss": "false"}) as skipping:
        start = reading.initial()
        end = reading.latest(start)
        for held, message in (
            ([], f"orders/{A} is no longer in any of the stores; check that no store was removed"),
            ([batch("orders", A, 0, 4)], f"orders/{A} was seen up to offset 9, and now ends at 4; check that no"),
        ):
            forget(url, ORDERS)
            fill(url, *held)
            with pytest.raises(StorageError, match=f"^{message}"):
                reading.read(start, end)
            found = {(row["partition"], row["offset"]) for task in skipping.read(start, end) for row in task}
            assert found == {*((B, offset) for offset in range(5)), *((A, offset) for offset in range(4) if held)}


def test_what_a_replaced_store_has_not_and_has_is_named_once(query: Follower, caplog: pytest.LogCaptureFixture) -> None:
    store = Path(f"{query.path}/store.db")
    fill(f"sqlite:{store}", batch("orders", A, 0, 10))
    query.run(startingOffsets="earliest")
    fill(f"sqlite:{query.folder}/other.db", batch("orders", A, 0, 3))
    (query.folder / "other.db").rename(store)
    for name in ("store.db-wal", "store.db-shm"):
        Path(f"{query.path}/{name}").unlink(missing_ok=True)
    with open_query({"path": query.path, "failOnDataLoss": "false"}) as again:
        for start, end in ((3, 3), (3, 6), (6, 12)):
            fill(f"sqlite:{store}", *([batch("orders", A, start, end)] if end > start else []))
            latest = again.latest(query.checkpoint)
    assert latest["begins"] == {"orders": {A: 10}}
    warned = [record.getMessage() for record in caplog.records if record.name == "dafka.spark"]
    assert warned == [
        f"orders/{A}: records 0 to 2 (3 of them) are left out: sqlite:{store} was replaced, and they count as read",
        f"orders/{A}: records 3 to 9 (7 of them) are left out: "
        "the partition was seen up to offset 9, and now ends at 3",
    ]


def test_what_is_left_out_at_the_start_is_named(query: Follower, caplog: pytest.LogCaptureFixture) -> None:
    url = fill(f"sqlite:{query.path}/store.db", batch("orders", A, 0, 10))
    trim(url, {ORDERS: 4})
    options = {"failOnDataLoss": "false", "startingOffsets": {"orders": {A: 1, B: 5}}}
    query.run(**options)
    assert f"orders/{A}: records 1 to 3 (3 of them) are left out: they are no longer in the stores" in caplog.text
    assert f"Option startingOffsets: none of the stores has the partition orders/{B}; it is left out" in caplog.text
    fill(url, batch("orders", B, 0, 9))
    trim(url, {Partition("orders", B): 7})
    query.run(failOnDataLoss="false")
    assert f"orders/{B}: records 0 to 6 (7 of them) are left out: they are no longer in the stores" in caplog.text
    assert query.found() == {("orders", A): list(range(4, 10)), ("orders", B): [7, 8]}
