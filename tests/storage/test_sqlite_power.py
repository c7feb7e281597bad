"""A SQLite store whose process or power fails holds everything that it has promised.

SQLite's writes are recorded from outside, in a process of their own; see `recorder.c`.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from dafka.storage import open_storage
from tests.power.disk import ALL, NOTHING, SECTOR_BYTES, Disk, Tree, store_tree
from tests.power.promises import BrokenPromiseError, Promises, storage_errors
from tests.power.recording import Entry, Kind, obstacle, record
from tests.power.workload import is_relaxed
from tests.storage.quick import quickly

pytestmark = [pytest.mark.skipif(bool(obstacle()), reason=obstacle()), pytest.mark.timeout(600)]

FULL = "sqlite:{folder}/s.db"
URLS = [FULL, f"{FULL}?synchronous=NORMAL", f"{FULL}?synchronous=OFF"]
PROMISES = (b'["appended"', b'["saved"', b'["opened"')


def record_workload(url: str, seed: int, steps: int, folder: Path) -> list[Entry]:
    """Record a run of the workload in a folder."""
    command = [sys.executable, "-m", "tests.power.workload", url.format(folder=folder), str(seed), str(steps)]
    return record(command, folder, folder.with_suffix(".recording"))


class Replay:
    """The files of a recorded process, and what it has promised, up to a moment."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._count = 0
        # SQLite does not write again what could not be synced.
        self.disk = Disk(folder / "first", forgets_failed=False)
        self.promises = Promises()

    def moments(self, entries: list[Entry]) -> Iterator[tuple[int, Entry]]:
        """Replay a recording, and yield each entry after it was replayed, with its number."""
        for number, entry in enumerate(entries):
            self.disk.apply(entry)
            if entry.kind is Kind.MARK:
                self.promises.add_mark(entry.first)
            yield number, entry

    async def check(self, tree: Tree, number: int) -> None:
        """Check a storage that a failure left, and now and then that it can go on."""
        self._count += 1
        left = self._folder / f"left {self._count}"
        store_tree(tree, left)
        promises = copy.deepcopy(self.promises)
        is_exact = not is_relaxed(self._url)
        try:
            with storage_errors():
                async with open_storage(self._url.format(folder=left)) as storage:
                    await promises.check(storage, is_exact=is_exact)
                    if self._count % 10 == 0 and is_exact:
                        await promises.append_more(storage)
                        await promises.check(storage)
        except BrokenPromiseError as error:
            error.add_note(f"{self._url} at entry {number}: {left}")
            raise


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
@pytest.mark.parametrize("url", URLS)
def test_what_was_promised_is_synced(url: str, seed: int, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    entries = record_workload(url, seed, 80, tmp_path / "first")
    replay = Replay(url, tmp_path)

    async def check() -> None:
        promised = 0
        for number, entry in replay.moments(entries):
            if entry.first.startswith(PROMISES):
                promised += 1
                await replay.check(replay.disk.tree(NOTHING), number)
                if promised % 20 == 0:
                    for default, others in replay.disk.fates():
                        await replay.check(replay.disk.tree(default, others), number)
            elif number % 40 == 0:
                await replay.check(replay.disk.tree(ALL), number)
        found = {name: content for name, content in replay.disk.tree(ALL).items() if not name.endswith("-shm")}
        files = [each for each in (tmp_path / "first").iterdir() if not each.name.endswith("-shm")]
        assert found == {each.name: each.read_bytes() for each in files}, "the recording is complete"

    with quickly():
        trio.run(check)


@pytest.mark.parametrize("url", URLS[:2])
def test_records_of_a_killed_process_are_synced_before_they_are_promised(url: str, tmp_path: Path) -> None:
    """The first process is killed when it has written records and has not synced them."""
    (tmp_path / "first").mkdir()
    entries = record_workload(url, 5, 30, tmp_path / "first")
    replay = Replay(url, tmp_path)
    last = find_sync_of_records(entries)
    for _ in replay.moments(entries[:last]):
        pass
    store_tree(replay.disk.tree(ALL), tmp_path / "second")
    replay.disk.start_process(tmp_path / "second")
    entries = record_workload(url, 6, 8, tmp_path / "second")

    async def check() -> None:
        for number, entry in replay.moments(entries):
            if entry.first.startswith(PROMISES):
                await replay.check(replay.disk.tree(NOTHING), number)

    with quickly():
        trio.run(check)


def find_sync_of_records(entries: list[Entry]) -> int:
    """Return the last moment in an append at which more than a header was written to a file that is not synced yet."""
    found = 0
    paths: dict[int, bytes] = {}
    written: Counter[bytes] = Counter()
    is_appending = False
    for number, entry in enumerate(entries):
        if entry.kind is Kind.MARK:
            is_appending = entry.first.startswith(b'["appending"')
        elif entry.kind is Kind.OPEN:
            paths[entry.fd] = entry.first
        elif entry.kind is Kind.WRITE:
            written[paths[entry.fd]] += len(entry.first)
            if is_appending and written[paths[entry.fd]] > 4 * SECTOR_BYTES and paths[entry.fd].endswith(b"-wal"):
                found = number + 1
        elif entry.kind is Kind.SYNC_BEGIN:
            written[paths[entry.fd]] = 0
    assert found
    return found
