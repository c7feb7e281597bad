"""Reading stores once, without Spark: exactly the requested records, each from one of the stores that hold it."""

from __future__ import annotations

import json
import multiprocessing
import sqlite3
import time
from contextlib import closing, nullcontext, suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import cast

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import Filter, GreaterThanOrEqual, LessThan

from dafka.errors import StorageError
from dafka.records import Partition
from dafka.spark.planning import StoreTask
from dafka.spark.schema import COLUMNS
from dafka.spark.store_source import make_batch_reader
from dafka.storage import open_storage
from tests.spark.queries import HANG_S
from tests.spark.stores import TIME, A, B, batch, content, fill
from tests.spark.test_planning import join

HELD = {("orders", A): 100, ("orders", B): 5, ("trades", A): 10}
"""The end of each partition. The first one is in three stores, none of which has all of its records."""

SUBSCRIPTIONS = {
    ("", ""): {"orders", "trades"},
    ("subscribe", "orders"): {"orders"},
    ("subscribe", "trades,orders"): {"orders", "trades"},
    ("subscribePattern", "t.*"): {"trades"},
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    fill(f"sqlite:{folder}/a.db", batch("orders", A, 0, 60), batch("trades", A, 0, 10))
    fill(f"filelog:{folder}/log", batch("orders", A, 40, 100))
    fill(f"sqlite:{folder}/b.db", batch("orders", A, 0, 20), batch("orders", B, 0, 5))
    return folder


def read(path: Path, *filters: Filter, **options: object) -> list[tuple[str, str, int]]:
    """Return the names and offsets of the records that are read, in order, after a check of their values."""
    given = {name: json.dumps(each) if isinstance(each, dict) else str(each) for name, each in options.items()}
    reader = make_batch_reader({"path": str(path), **given}, COLUMNS)
    left = list(reader.pushFilters(list(filters))) if filters else []
    assert left == []
    tasks = reader.partitions()
    assert len(tasks) <= int(str(options.get("minPartitions", 8))), "few records need no more tasks"
    rows = [row for task in tasks for each in reader.read(task) for row in each.to_pylist()]  # type: ignore[union-attr]
    found = [(row["topic"], row["partition"], row["offset"]) for row in rows]
    assert [row["value"] for row in rows] == [content(*each) for each in found]
    return sorted(found)


@settings(max_examples=60)
@given(st.data())
def test_exactly_the_requested_records_are_read(stores: Path, data: st.DataObject) -> None:
    (option, topics), selected = data.draw(st.sampled_from(list(SUBSCRIPTIONS.items())))
    options: dict[str, object] = {option: topics} if option else {}
    options["minPartitions"] = data.draw(st.integers(1, 4))
    spans = {name: (0, end) for name, end in HELD.items() if name[0] in selected}
    for prefix, is_start in (("starting", True), ("ending", False)):
        how = data.draw(st.sampled_from(["", "Offsets", "Timestamp"]), f"{prefix} at")
        if how == "Timestamp":
            time = options[f"{prefix}Timestamp"] = TIME + data.draw(st.integers(-1, 101))
            for name, (start, end) in spans.items():
                bound = min(max(time - TIME, start), end)
                spans[name] = (bound, end) if is_start else (start, bound)
        if how == "Offsets":
            named: dict[str, dict[str, int]] = {}
            for name in data.draw(st.sets(st.sampled_from(sorted(spans)), min_size=1)):
                start, end = spans[name]
                bound = data.draw(st.integers(start, end))
                words = {0: -2, HELD[name]: -1}
                named.setdefault(name[0], {})[name[1]] = data.draw(st.sampled_from([bound, words.get(bound, bound)]))
                spans[name] = (bound, end) if is_start else (start, bound)
            options[f"{prefix}Offsets"] = named
    filters: list[Filter] = []
    if first := data.draw(st.integers(0, 60), "the first offset of a pushed filter"):
        filters.append(GreaterThanOrEqual(("offset",), first))
        options["pushFilters"] = "true"
    expected = [(*name, offset) for name, (start, end) in spans.items() for offset in range(max(start, first), end)]
    assert read(stores, *filters, **options) == sorted(expected)


def test_the_tasks_of_a_time_are_the_same_whichever_stores_have_the_records(stores: Path, tmp_path: Path) -> None:
    """A write that is repeated compares the rows of each task with those before."""
    fill(f"sqlite:{tmp_path}/one.db", *(batch(*name, 0, end) for name, end in HELD.items()))
    for since in (0, 30, 50):
        options = {"startingTimestamp": str(TIME + since), "minPartitions": "4"}
        readers = [make_batch_reader({"path": str(path), **options}, COLUMNS) for path in (stores, tmp_path)]
        first, second = ([join(cast(StoreTask, task).ranges) for task in each.partitions()] for each in readers)
        assert first == second


def test_as_many_tasks_as_are_asked_for(tmp_path: Path) -> None:
    fill(f"sqlite:{tmp_path}/store.db", batch("orders", A, 0, 4000, contents=[bytes(100)] * 4000))
    reader = make_batch_reader({"path": f"{tmp_path}/store.db", "minPartitions": "4"}, COLUMNS)
    assert len(reader.partitions()) == 4


def test_a_pushed_filter_limits_what_is_read(tmp_path: Path) -> None:
    """A record outside the range is damaged, so reading more than the range is an error."""
    fill(f"sqlite:{tmp_path}/store.db", batch("orders", A, 0, 100))
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        connection.execute("DELETE FROM records WHERE sequence = 50")
    first = LessThan(("offset",), 50)
    assert len(read(tmp_path, first, pushFilters="true")) == 50
    with pytest.raises(StorageError, match="sequence 50 is damaged"):
        read(tmp_path)


STEP, KEPT, ROUNDS = 500, 3000, 8


def append_and_trim(url: str, is_over: Event) -> None:
    async def work() -> None:
        async with open_storage(url) as storage:
            end = 0
            while not is_over.is_set():
                await storage.append([batch("orders", A, end, end + STEP)])
                end += STEP
                if end > KEPT:
                    await storage.trim(Partition("orders", A), end - KEPT)

    trio.run(work)


def test_a_store_that_another_process_fills_and_trims(tmp_path: Path, scheme: str) -> None:
    """Neither process blocks the other, and no record is wrong."""
    path, context = tmp_path / "store", multiprocessing.get_context("fork")
    is_over = context.Event()
    writer = context.Process(target=append_and_trim, args=(f"{scheme}:{path}", is_over))
    writer.start()
    try:
        deadline = time.monotonic() + HANG_S
        seen: list[tuple[int, int]] = []
        while len(seen) < ROUNDS or seen[-1][0] == seen[0][0]:
            assert time.monotonic() < deadline, f"the store was not trimmed: {seen}"
            with nullcontext() if seen else suppress(StorageError):  # the writer may not have begun
                found = read(path, failOnDataLoss="false", minPartitions=3)
                seen += [(found[0][2], found[-1][2])] if found else []
                assert len(set(found)) == len(found)
        is_over.set()
        writer.join(HANG_S)
        assert (seen, writer.exitcode) == (sorted(seen), 0)
    finally:
        writer.kill()
        writer.join()
        writer.close()
