"""Much more than stays hot: all of it is read in order, and DuckDB finds the same sums in the objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.cold.volume import run

MB = 10**6


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("total", "hot", "segment"),
    [(20 * MB, 2 * MB, 2 * MB), pytest.param(400 * MB, 100 * MB, 32 * 2**20, marks=pytest.mark.long)],
)
async def test_all_of_a_volume_is_read_in_order(total: int, hot: int, segment: int, tmp_path: Path) -> None:
    assert await run(tmp_path, total, hot, segment) == 0
