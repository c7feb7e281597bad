"""The contract of every storage, of which all records move to the cold tier as soon as they are appended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dafka.records import RecordBatch
from dafka.storage import open_storage
from dafka.storage.cold.tiered import TieredStorage
from dafka.testing import check_storage

HOT = {"sqlite": "sqlite:{}/store.db", "filelog": "filelog:{}/log?fsync=never&segment_bytes=1000", "memory": "memory:"}


@pytest.fixture
def moves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    append = TieredStorage.append

    async def append_and_move(self: TieredStorage, batches: Sequence[RecordBatch]) -> None:
        for name in ("find_compactable", "compact"):  # what has moved is not compacted
            vars(self).pop(name, None)
        await append(self, batches)
        await self.move_due()

    monkeypatch.setattr(TieredStorage, "append", append_and_move)


DIFFERENT_TIMES = pytest.mark.xfail(
    reason="a part of a batch is not encoded whose timestamps differ by more than 63 bits", strict=True
)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("moves_at_once")
@pytest.mark.parametrize(
    ("hot", "segment_bytes"),
    [
        ("memory", 20_000),
        pytest.param("sqlite", 20_000, marks=pytest.mark.long),
        pytest.param("filelog", 20_000, marks=[pytest.mark.long, DIFFERENT_TIMES]),
    ],
)
async def test_tiered_storage_keeps_the_contract(hot: str, segment_bytes: int, tmp_path: Path) -> None:
    url = HOT[hot].format(tmp_path)
    options = f"cold=memory://{tmp_path.name}&cold_interval_ms=3600000&local_retention_bytes=0&cold_segment_bytes={segment_bytes}"
    url = f"tiered:{url}{'&' if '?' in url else '?'}{options}"
    await check_storage(lambda: open_storage(url), reopens=hot != "memory")
