"""Short forms of what stream_crash_loop.py does at length. Each query is a Spark of its own, which takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.stream_crash_loop import play_kills, play_worker_kill


@pytest.mark.timeout(400)
async def test_a_query_killed_twice_while_records_flow_writes_each_record_once(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    expected = await play_kills(f"sqlite:{store}", str(store), tmp_path, kills=2, seed=1)
    assert min(expected.ends.values()) > 0


@pytest.mark.timeout(400)
async def test_a_worker_killed_amid_a_micro_batch_costs_and_doubles_no_record(tmp_path: Path) -> None:
    await play_worker_kill("finish", tmp_path / "finish")
