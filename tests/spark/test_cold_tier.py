"""Stores with a cold tier: what Spark reads of both tiers, and what it fetches for that. No Spark session is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa
import pytest
import trio
from pyspark.sql.types import StructType

from dafka.spark.schema import COLUMNS
from dafka.spark.store_source import make_batch_reader
from dafka.storage import open_storage
from dafka.storage.arrow import to_arrow
from dafka.storage.cold import buckets, folders
from dafka.storage.cold.tiered import TieredStorage
from tests.spark.stores import TIME, A, B, batch, whole_batch

LIMITS = "local_retention_bytes=900&cold_segment_bytes=500&cold_interval_ms=3600000"


@pytest.fixture(scope="module", params=["sqlite:{}/store.db", "filelog:{}/log"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a store with records in both tiers; the URL names none, because the store knows its tier."""
    folder = tmp_path_factory.mktemp("cold")
    hot: str = request.param.format(folder)

    async def fill() -> None:
        async with open_storage(f"tiered:{hot}?cold=file://{folder}/bucket&{LIMITS}") as storage:
            assert isinstance(storage, TieredStorage)
            for start in range(0, 600, 50):
                await storage.append(
                    [whole_batch("orders", A, start, start + 50), batch("orders", B, start, start + 50)]
                )
                await storage.move_due()
            infos = await storage.hot.partitions()
            assert all(100 < info.earliest_sequence < 550 for info in infos.values())

    trio.run(fill)
    return hot.partition(":")[2]


def read(path: str, columns: StructType = COLUMNS, **options: object) -> pa.Table:
    given: Mapping[str, str] = {"path": path, "includeHeaders": "true", **{name: str(o) for name, o in options.items()}}
    reader = make_batch_reader(given, columns)
    batches = [each for task in reader.partitions() for each in reader.read(task)]
    return pa.Table.from_batches(batches) if batches else pa.table({})


def test_both_tiers_are_read_as_one(path: str) -> None:
    found = read(path).sort_by([("partition", "ascending"), ("offset", "ascending")])
    expected = [
        to_arrow(each, COLUMNS.names) for each in (whole_batch("orders", A, 0, 600), batch("orders", B, 0, 600))
    ]
    assert found.combine_chunks().equals(pa.Table.from_batches(expected).combine_chunks())


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The names of the objects that were read, and how much of each."""
    found: list[tuple[str, int]] = []
    for kind in (folders.FolderStore, buckets.BucketStore):
        original = kind.read_range

        def note(self: object, name: str, start: int, end: int, original: object = original) -> bytes:
            data: bytes = original(self, name, start, end)  # type: ignore[operator]
            found.append((name, len(data)))
            return data

        monkeypatch.setattr(kind, "read_range", note)
    return found


def test_times_and_offsets_leave_objects_unread(path: str, fetched: list[tuple[str, int]]) -> None:
    found = read(path, startingTimestamp=TIME + 60, endingTimestamp=TIME + 90)
    assert sorted(found["offset"].to_pylist()) == sorted([*range(60, 90)] * 2)
    assert 0 < len({name for name, _ in fetched}) <= 6
    fetched.clear()
    offsets = json.dumps({"orders": {A: 30, B: 600}})
    found = read(path, startingOffsets=offsets, endingOffsets=json.dumps({"orders": {A: 40}}))
    assert found["offset"].to_pylist() == [*range(30, 40)]
    assert 0 < len({name for name, _ in fetched}) <= 2


def test_only_the_columns_of_the_query_are_fetched(path: str, fetched: list[tuple[str, int]]) -> None:
    read(path)
    everything = sum(size for _, size in fetched)
    fetched.clear()
    found = read(path, StructType([COLUMNS["offset"], COLUMNS["stored_at"]]))
    assert found.num_rows == 1200
    assert sum(size for _, size in fetched) < everything
