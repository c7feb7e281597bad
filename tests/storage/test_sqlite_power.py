"""A SQLite store whose process or power fails holds everything that it has promised.

SQLite's writes are recorded from outside, in a process of their own; see `recorder.c`.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.power.disk import ALL, NOTHING, SECTOR_BYTES, Disk, store_tree
from tests.power.promises import Promises
from tests.power.recording import Entry, Kind, obstacle, record
from tests.power.runs import left_of, moments
from tests.power.workload import BEGUN, SIZE, is_relaxed

pytestmark = [pytest.mark.skipif(bool(obstacle()), reason=obstacle()), pytest.mark.timeout(600)]

FULL = "sqlite:{folder}/s.db"
URLS = [FULL, f"{FULL}?synchronous=NORMAL", f"{FULL}?synchronous=OFF"]
PROMISES = (b'["appended"', b'["saved"', b'["opened"')

READING_SEED = 7
"""A seed of the workload whose first storage has a reader."""

Recorded: TypeAlias = "dict[str, tuple[Path, list[Entry]]]"
"""For each URL, the folder of the storage, and its recording."""


def record_workload(seed: int, steps: int, folder: Path, urls: list[str]) -> Recorded:
    """Record a run of the workload in one process. The storages are in numbered folders, which may be there."""
    folders = [folder / str(number) for number in range(len(urls))]
    for each in folders:
        each.mkdir(parents=True, exist_ok=True)
    places = [url.format(folder=each) for url, each in zip(urls, folders, strict=True)]
    command = [sys.executable, "-m", "tests.power.workload", str(seed), str(steps), *places]
    parts: list[list[Entry]] = []
    for entry in record(command, folder, folder.with_suffix(".recording")):
        if entry.kind is Kind.MARK and entry.first == BEGUN.encode():
            parts.append([])
        elif parts:
            parts[-1].append(entry)
    return dict(zip(urls, zip(folders, parts, strict=True), strict=True))


@pytest.fixture(scope="module", params=[1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record_workload(request.param, 80, tmp_path_factory.mktemp("recorded"), URLS)


def new_disk(root: Path) -> Disk:
    return Disk(root, forgets_failed=False)  # SQLite does not write again what could not be synced


@pytest.mark.parametrize("url", URLS)
def test_what_was_promised_is_synced(url: str, recorded: Recorded, tmp_path: Path) -> None:
    root, entries = recorded[url]
    disk = new_disk(root)
    is_exact = not is_relaxed(url)
    promised = 0
    with left_of(url, tmp_path) as left:
        for entry, moment in moments(disk, Promises(SIZE), entries):
            if entry.first.startswith(PROMISES):
                promised += 1
                left.check(disk.tree(NOTHING), moment, is_exact=is_exact)
                if promised % 20 == 0:
                    for default, others in disk.fates():
                        left.check(disk.tree(default, others), moment, is_exact=is_exact)
            elif moment.number % 40 == 0:
                left.check(disk.tree(ALL), moment, is_exact=is_exact)
    found = {name: content for name, content in disk.tree(ALL).items() if not name.endswith("-shm")}
    files = [each for each in root.iterdir() if not each.name.endswith(("-shm", ".lock"))]
    assert {name: found[name] for name in found if not name.endswith(".lock")} == {
        each.name: each.read_bytes() for each in files
    }, "the recording is complete"


def test_records_of_a_killed_process_are_synced_before_they_are_promised(recorded: Recorded, tmp_path: Path) -> None:
    """The first processes are killed when they have written records and have not synced them.

    The second ones begin while a reader uses the log. Without one, SQLite itself would copy the log into the database.
    """
    disks, promises = {}, {}
    for number, url in enumerate(URLS[:2]):
        root, entries = recorded[url]
        disks[url], promises[url] = new_disk(root), Promises(SIZE)
        for _ in moments(disks[url], promises[url], entries[: find_sync_of_records(entries)]):
            pass
        (tmp_path / "second").mkdir(exist_ok=True)
        store_tree(disks[url].tree(ALL), tmp_path / "second" / str(number))
    for url, (root, entries) in record_workload(READING_SEED, 8, tmp_path / "second", URLS[:2]).items():
        disks[url].start_process(root)
        with left_of(url, tmp_path) as left:
            for entry, moment in moments(disks[url], promises[url], entries):
                if entry.first.startswith(PROMISES):
                    left.check(disks[url].tree(NOTHING), moment, is_exact=not is_relaxed(url))


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
