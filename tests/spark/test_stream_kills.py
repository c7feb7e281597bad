"""Short runs of `store_crash_loop`. Each query starts a Java process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.store_crash_loop import play_kills, play_worker_kill

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


async def test_a_query_that_is_killed_twice_writes_each_record_exactly_once(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    ends = await play_kills(f"sqlite:{store}", str(store), tmp_path, kills=2, seed=1)
    assert min(ends.values()) > 0


async def test_a_worker_killed_in_a_micro_batch_neither_loses_nor_repeats_records(tmp_path: Path) -> None:
    await play_worker_kill(tmp_path / "finish")
