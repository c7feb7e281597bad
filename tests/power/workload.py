"""A program that uses a storage at random, and marks the storage's promises in its recording.

    python -m tests.power.workload URL SEED STEPS

The limits at which the log of SQLite is truncated are small, so that a few hundred steps reach all of them.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager, suppress

import pytest
import trio

from dafka.errors import StorageError
from dafka.storage import RetentionPolicy, Storage, open_storage
from dafka.storage.sqlite import connection, write_ahead_log
from tests.power.promises import NAMES, PARTITIONS, make_batch
from tests.power.recording import fail_syncs, mark


def is_relaxed(url: str) -> bool:
    """Return whether the options of a storage relax durability, so that only `flush` makes records durable."""
    return "synchronous=" in url or "fsync=" in url


class Writer:
    """Uses one storage. A call is marked before it begins, and with its promise when it has returned."""

    def __init__(self, storage: Storage, choose: random.Random, ends: list[int], *, is_relaxed: bool) -> None:
        self._storage = storage
        self._choose = choose
        self._ends = ends
        self._is_relaxed = is_relaxed

    async def step(self) -> None:
        """Do one thing."""
        action = self._choose.random()
        if action < 0.72:
            await self._append()
        elif action < 0.80:
            await self._save_positions()
        elif action < 0.86:
            await self._trim()
        elif action < 0.91:
            await self._retain()
        elif action < 0.94:
            await self._reset()
        else:
            await self._flush()

    async def _append(self) -> None:
        chosen = self._choose.sample(range(len(PARTITIONS)), self._choose.choice((1, 1, 2, 4)))
        batches = []
        for number in chosen:
            count = self._choose.choice((1, 1, 1, 5, 20))
            batches.append(make_batch(number, self._ends[number], count))
            self._ends[number] += count
        self._mark("appending", self._ends)
        if not self._is_relaxed and self._choose.random() < 0.1:
            fail_syncs(self._choose.randint(1, 3))
        while True:  # as a store does: the same records again, before any others
            try:
                await self._storage.append(batches)
            except StorageError:
                fail_syncs(0)
                continue
            break
        fail_syncs(0)
        if not self._is_relaxed:
            self._mark("appended", self._ends)

    async def _save_positions(self) -> None:
        name = self._choose.randrange(len(NAMES))
        number = self._choose.randrange(len(PARTITIONS))
        self._mark("saving", [name, number, self._ends[number]])
        await self._storage.save_positions(NAMES[name], {PARTITIONS[number]: self._ends[number]})
        if not self._is_relaxed:
            self._mark("saved", [name, number, self._ends[number]])

    async def _trim(self) -> None:
        number = self._choose.randrange(len(PARTITIONS))
        earliest = max(self._ends[number] - self._choose.choice((0, 1, 10, 60)), 0)
        self._mark("trimming", [number, earliest])
        await self._storage.trim(PARTITIONS[number], earliest)

    async def _retain(self) -> None:
        kept = self._choose.choice((20, 60))
        for number, end in enumerate(self._ends):
            self._mark("trimming", [number, end - kept])
        await self._storage.apply_retention(RetentionPolicy(records_max=kept))

    async def _reset(self) -> None:
        number = self._choose.randrange(len(PARTITIONS))
        self._ends[number] += self._choose.choice((0, 7))
        self._mark("trimming", [number, self._ends[number]])
        self._mark("appending", self._ends)
        await self._storage.reset_to(PARTITIONS[number], self._ends[number])
        if not self._is_relaxed:
            self._mark("appended", self._ends)

    async def _flush(self) -> None:
        ends = list(self._ends)
        if self._is_relaxed and self._choose.random() < 0.3:
            fail_syncs(2)
            try:
                await self._storage.flush()
            except StorageError:
                pass
            else:
                return  # the delayed sync has failed in its place
            finally:
                fail_syncs(0)
        while True:  # the delayed sync may have failed, too, and is reported now
            with suppress(StorageError):
                await self._storage.flush()
                break
        self._mark("appended", ends)

    @staticmethod
    def _mark(what: str, value: list[int]) -> None:
        mark(json.dumps([what, value]))


async def run(url: str, seed: int, steps: int) -> None:
    """Open the storage several times, and do a number of steps each time."""
    choose = random.Random(seed)
    sessions = 4
    for _ in range(sessions):
        async with AsyncExitStack() as stack:
            if choose.random() < 0.5:
                stack.enter_context(reading(url.removeprefix("sqlite:").partition("?")[0]))
            storage = await stack.enter_async_context(open_storage(url))
            mark(json.dumps(["opened", storage.identity]))
            held = await storage.partitions()
            ends = [held[partition].end_sequence if partition in held else 0 for partition in PARTITIONS]
            mark(json.dumps(["appending", ends]))
            if not is_relaxed(url):
                mark(json.dumps(["appended", ends]))  # a store that starts acknowledges the records that it finds
            writer = Writer(storage, choose, ends, is_relaxed=is_relaxed(url))
            for _ in range(steps // sessions):
                await writer.step()


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Keep a reader of a database open, so that the log is neither removed nor restarted."""
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
    """Run the program."""
    shrink_limits(pytest.MonkeyPatch())
    url, seed, steps = sys.argv[1:]
    trio.run(run, url, int(seed), int(steps))


if __name__ == "__main__":
    main()
