"""A writer that is killed while it compacts keeps the last record of each key, and no other record is changed."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import STDOUT

import pytest
import trio

PROGRAM = "tests.storage.compaction_loop"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("url", ["sqlite:{}/store.db", "filelog:{}/log?segment_bytes={}"], ids=["sqlite", "filelog"])
@pytest.mark.parametrize(
    ("rounds", "records", "keys", "segment_bytes"),
    [(3, 3_000, 100, 20_000), pytest.param(20, 100_000, 5_000, 1_000_000, marks=pytest.mark.long)],
    ids=["few", "many"],
)
async def test_the_last_record_of_each_key_survives(
    url: str, rounds: int, records: int, keys: int, segment_bytes: int, tmp_path: Path
) -> None:
    url = url.format(tmp_path, segment_bytes)
    command = [sys.executable, "-m", PROGRAM, url, str(rounds), str(records), str(keys), "1"]
    ended = await trio.run_process(command, check=False, capture_stdout=True, stderr=STDOUT)
    *_, line = ended.stdout.decode(errors="replace").splitlines() or [""]
    assert " rounds, " in line, ended.stdout.decode(errors="replace")
    count, _, total, _, held, _ = line.split()
    assert int(count) >= rounds
    assert int(total) >= records
    assert int(held) < int(total) / 2, line
