"""A program that uses storages at random, and marks the storages' promises in its recording.

    python -m tests.power.workload SEED STEPS URL...

The limits at which the log of SQLite is truncated are small, so that a few hundred steps reach all of them.
"""

from __future__ import annotations

import os
import random
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext

import pytest
import trio

from dafka.storage.sqlite import connection, write_ahead_log
from tests.power.promises import NAMES, PARTITIONS
from tests.power.recording import fail_syncs, mark
from tests.power.runs import Writer, opened

BEGUN = "another storage"
"""The mark before the steps of each storage."""

SESSIONS = 4
SIZE = 300


class Outside:
    """Marks calls in the recording of this process."""

    is_failing_folders = False

    def mark(self, text: str) -> None:
        mark(text)

    @property
    def failing_syncs(self) -> int:
        raise NotImplementedError

    @failing_syncs.setter
    def failing_syncs(self, count: int) -> None:
        fail_syncs(count)


def is_relaxed(url: str) -> bool:
    """Return whether the options of a storage relax durability, so that only `flush` makes records durable."""
    return "synchronous=" in url


async def step(writer: Writer, choose: random.Random) -> None:
    action = choose.random()
    number = choose.randrange(len(PARTITIONS))
    failing_syncs = choose.randint(1, 2) if choose.random() < 0.1 else 0
    if action < 0.72:
        chosen = choose.sample(range(len(PARTITIONS)), choose.choice((1, 1, 2, 4)))
        counts = [(each, choose.choice((1, 1, 1, 5, 20))) for each in chosen]
        await writer.append(*counts, failing_syncs=0 if writer.is_relaxed else failing_syncs)
    elif action < 0.80:
        await writer.save(choose.randrange(len(NAMES)), number)
    elif action < 0.86:
        await writer.trim(number, choose.choice((0, 1, 10, 60)))
    elif action < 0.91:
        await writer.retain(choose.choice((20, 60)))
    elif action < 0.94:
        await writer.reset(number, choose.choice((0, 7)))
    else:
        await writer.flush(failing_syncs=failing_syncs if writer.is_relaxed else 0)


async def run(url: str, seed: int, steps: int) -> None:
    """Open a storage several times, and do a number of steps in all."""
    choose = random.Random(seed)
    for _ in range(SESSIONS):
        with reading(url.removeprefix("sqlite:").partition("?")[0]) if choose.random() < 0.5 else nullcontext():
            async with opened(Outside(), url, size=SIZE, is_relaxed=is_relaxed(url)) as writer:
                for _ in range(steps // SESSIONS):
                    await step(writer, choose)


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Keep a reader of a database open, if that exists, so that the log is neither removed nor restarted."""
    if not os.path.exists(path):
        yield
        return
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
        yield


def shrink_limits(patch: pytest.MonkeyPatch) -> None:
    """Let a few records fill what usually takes megabytes."""
    patch.setattr(write_ahead_log, "CHECKPOINT_BYTES", 24 * 4096)
    patch.setattr(write_ahead_log, "LOG_BYTES_MAX", 40 * 4096)
    patch.setattr(connection, "PAGE_BYTES", 4096)


def main() -> None:
    shrink_limits(pytest.MonkeyPatch())
    seed, steps, *urls = sys.argv[1:]
    for url in urls:
        mark(BEGUN)
        trio.run(run, url, int(seed), int(steps))


if __name__ == "__main__":
    main()
