"""The examples of docs/how-to/spark.md run as they are, in the order of the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.cluster import RunningCluster, run_cluster
from tests.spark.queries import HANG_S, start_query
from tests.spark.stores import A, batch, fill
from tests.waiting import poll_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "spark.md"
ORDERS = [b'{"item": "tea", "count": 2}', b'{"item": "coffee", "count": 1}']


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with run_cluster() as running, running.store(f"sqlite:{tmp_path}/cluster.db"):
        yield running


def run_once(query: StreamingQuery, *, is_endless: bool) -> None:
    """Run a query until it has read everything; or something, if its source always has more."""
    try:
        if not is_endless:
            query.processAllAvailable()
        else:
            poll_until(lambda: not query.isActive or any(each["numInputRows"] for each in query.recentProgress), HANG_S)
            assert query.isActive, query.exception()
    finally:
        query.stop()


def test_every_example_runs(
    tmp_path: Path,
    spark: SparkSession,
    cluster: RunningCluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    start = DataStreamWriter.start
    monkeypatch.setattr(DataStreamWriter, "start", lambda *given, **also: start_query(partial(start, *given, **also)))
    fill(f"sqlite:{tmp_path}/orders.db", batch("orders", A, 0, 2, contents=ORDERS))
    (tmp_path / "stores").mkdir()
    fill(f"sqlite:{tmp_path}/stores/one.db", batch("orders", A, 0, 2, contents=ORDERS))
    names: dict[str, Any] = {}
    examples = blocks(PAGE)
    assert len(examples) == 9
    for example in examples:
        text = example.replace("orders.db", f"{tmp_path}/orders.db").replace("tower.example", cluster.towers)
        exec(compile(text.replace("/data", str(tmp_path)), str(PAGE), "exec"), names)
        for query in spark.streams.active:
            run_once(query, is_endless='format("rate")' in example)
    shown = capsys.readouterr().out
    assert re.search(rf"{A[:17]}.*\|\s*2\|", shown), "the records of a partition, counted"
    assert shown.count("|   tea|         2|") == 2, "summed up from a table and from a view"
    assert list((tmp_path / "counts").glob("*.parquet"))
    published = spark.read.format("dafka").load(f"{tmp_path}/cluster.db")
    assert {row["topic"] for row in published.select("topic").distinct().collect()} >= {"orders"}
