"""How often a query looks at its stores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from store_helpers import batch, fill

from dafka.spark.keeper import StoreKeeper
from dafka.spark.offsets import Name
from dafka.spark.schema import COLUMNS
from dafka.spark.stores import Held
from dafka.spark.stream import StoreStreamReader


def test_idle_looks_are_few_and_news_is_seen_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = fill(f"sqlite:{tmp_path}/store.db", *(batch("orders", f"{number:032X}", 0, 1) for number in range(300)))
    looks = 0

    def held(keeper: StoreKeeper, urls: Sequence[str]) -> dict[Name, Held]:
        nonlocal looks
        looks += 1
        return look(keeper, urls)

    look = StoreKeeper.held
    monkeypatch.setattr(StoreKeeper, "held", held)
    reader = StoreStreamReader({"path": f"{tmp_path}/store.db", "startingOffsets": "earliest"}, COLUMNS)
    try:
        start = reader.initialOffset()
        idle = reader.latestOffset(start, ReadAllAvailable())
        looks = 0
        for _ in range(1000):
            assert reader.latestOffset(idle, ReadAllAvailable()) == idle
        assert looks < 500
        fill(url, batch("orders", f"{0:032X}", 1, 2))
        deadline = time.monotonic() + 20
        while reader.latestOffset(idle, ReadAllAvailable()) == idle:
            assert time.monotonic() < deadline
    finally:
        reader.stop()
