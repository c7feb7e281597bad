"""The contract of a storage, of which all records move to the cold tier as soon as they are appended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dafka.records import RecordBatch
from dafka.storage import open_storage
from dafka.storage.cold.tiered import TieredStorage
from dafka.testing import check_storage


async def test_tiered_storage_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = TieredStorage.append

    async def append_and_move(self: TieredStorage, batches: Sequence[RecordBatch]) -> None:
        for name in ("find_compactable", "compact"):  # what has moved is not compacted
            vars(self).pop(name, None)
        await append(self, batches)
        await self.move_due()

    monkeypatch.setattr(TieredStorage, "append", append_and_move)
    options = "cold_interval_ms=3600000&local_retention_bytes=0&cold_segment_bytes=20000"
    url = f"tiered:memory:?cold=memory://{tmp_path.name}&{options}"
    await check_storage(lambda: open_storage(url), reopens=False)
