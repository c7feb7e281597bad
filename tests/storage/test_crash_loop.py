from __future__ import annotations

import sys
from pathlib import Path
from subprocess import STDOUT

import pytest
import trio

PROGRAM = "tests.storage.crash_loop"

ROUNDS = 200


@pytest.mark.timeout(300)
async def test_storages_hold_all_that_was_acknowledged_by_a_writer_killed_200_times(tmp_path: Path) -> None:
    results: dict[str, str] = {}

    async def play(scheme: str, url: str) -> None:
        command = [sys.executable, "-m", PROGRAM, url, str(ROUNDS), "1"]
        ended = await trio.run_process(command, check=False, capture_stdout=True, stderr=STDOUT)
        results[scheme] = ended.stdout.decode(errors="replace").splitlines()[-1]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(play, "sqlite", f"sqlite:{tmp_path / 'store.db'}")
        nursery.start_soon(play, "filelog", f"filelog:{tmp_path / 'log'}?segment_bytes=20000")
    assert {scheme: line.startswith(f"{ROUNDS} rounds, ") for scheme, line in results.items()} == {
        "sqlite": True,
        "filelog": True,
    }, results
