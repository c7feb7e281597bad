"""A writer that is killed repeatedly loses no acknowledged record."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import STDOUT

import pytest
import trio

PROGRAM = "tests.storage.crash_loop"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.long)])
async def test_storages_hold_everything_a_killed_writer_acknowledged(rounds: int, tmp_path: Path) -> None:
    results: dict[str, str] = {}

    async def play(scheme: str, url: str) -> None:
        command = [sys.executable, "-m", PROGRAM, url, str(rounds), "1"]
        ended = await trio.run_process(command, check=False, capture_stdout=True, stderr=STDOUT)
        results[scheme] = ended.stdout.decode(errors="replace").splitlines()[-1]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(play, "sqlite", f"sqlite:{tmp_path / 'store.db'}")
        nursery.start_soon(play, "filelog", f"filelog:{tmp_path / 'log'}?segment_bytes=20000")
    assert {scheme: line.startswith(f"{rounds} rounds, ") for scheme, line in results.items()} == {
        "sqlite": True,
        "filelog": True,
    }, results
