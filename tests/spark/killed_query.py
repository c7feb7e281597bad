"""`cluster_query.py` in a process of its own, killed with all that belongs to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def run_query(towers: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Its process leads a group; when the block is left, the whole group is killed without notice."""
    command = [sys.executable, "-m", "tests.spark.cluster_query", towers, str(folder)]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    with process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def wait_batches(process: subprocess.Popen[str], count: int, log: Path) -> None:
    """Until so many more micro-batches are done."""
    assert process.stdout is not None
    for _ in range(count):
        assert process.stdout.readline(), f"the query ended: {log.read_text('utf-8', 'replace')[-3000:]}"
