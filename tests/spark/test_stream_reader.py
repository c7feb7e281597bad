"""Following stores without Spark: where queries start, and what they do if stores lose records."""

from __future__ import annotations

import json
import pickle
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark.sql.datasource import DataSourceStreamReader

from dafka.errors import StorageError
from dafka.records import Partition
from dafka.spark.data_source import DafkaDataSource
from dafka.spark.offsets import Offsets
from dafka.spark.schema import COLUMNS
from dafka.spark.store_source import StoreStreamReader
from tests.spark.stores import TIME, A, B, batch, content, fill, trim

ORDERS = Partition("orders", A)


@attrs.define
class Query:
    """A query that drives its reader as Spark does with `availableNow`, and keeps its checkpoint from run to run."""

    folder: Path
    checkpoint: str | None = None
    rows: list[dict[str, Any]] = attrs.field(factory=list)

    @property
    def path(self) -> str:
        return f"{self.folder}/stores"

    def run(self, **options: object) -> None:
        """Read what is stored now, from the checkpoint on if there is one."""
        given = {
            name.lower(): json.dumps(each) if isinstance(each, dict) else str(each) for name, each in options.items()
        }
        reader = DafkaDataSource({**given, "path": self.path}).streamReader(COLUMNS)
        assert isinstance(reader, StoreStreamReader)
        in_tasks = pickle.dumps(reader)
        try:
            reader.prepareForTriggerAvailableNow()
            if self.checkpoint is None:
                self.checkpoint = json.dumps(reader.initialOffset())
            while self._run_batch(reader, json.loads(self.checkpoint), in_tasks):
                pass
        finally:
            reader.stop()

    def _run_batch(self, reader: StoreStreamReader, start: Offsets, in_tasks: bytes) -> bool:
        end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
        if end == start:
            return False
        rows = []
        for task in reader.partitions(start, end):
            in_task: DataSourceStreamReader = pickle.loads(in_tasks)
            for each in in_task.read(pickle.loads(pickle.dumps(task))):
                rows += each.to_pylist()  # type: ignore[union-attr]
        self.rows += rows
        self.checkpoint = json.dumps(end)
        return True

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


@pytest.fixture(params=["sqlite", "filelog"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def query(tmp_path: Path) -> Query:
    (tmp_path / "stores").mkdir()
    return Query(tmp_path)


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
def test_starting_offsets_and_times(query: Query, options: dict[str, Any], offsets: list[int]) -> None:
    fill(f"sqlite:{query.path}/store.db", batch("orders", A, 0, 10))
    query.run(**options)
    assert query.found().get(("orders", A), []) == offsets


def test_records_that_retention_dropped_before_they_were_read(query: Query, scheme: str) -> None:
    url = fill(f"{scheme}:{query.path}/store", batch("orders", A, 0, 10))
    query.run(startingOffsets="earliest")
    fill(url, batch("orders", A, 10, 30))
    trim(url, {ORDERS: 20})
    assert f"orders/{A}: records 10 to 19 are no longer in the stores" in query.fail()
    query.run(failOnDataLoss="false")
    assert query.found() == {("orders", A): [*range(10), *range(20, 30)]}


def test_a_store_replaced_by_an_older_copy(query: Query) -> None:
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


def test_a_store_that_disappears(query: Query) -> None:
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


def test_replicas_that_take_turns_being_ahead(query: Query) -> None:
    urls = [f"sqlite:{query.path}/one.db", f"filelog:{query.path}/two"]
    reached = [0, 0]
    for step, end in enumerate([10, 25, 27, 60]):
        which = step % 2
        fill(urls[which], batch("orders", A, reached[which], end))
        reached[which] = end
        query.run(startingOffsets="earliest")
    assert query.found() == {("orders", A): list(range(60))}
