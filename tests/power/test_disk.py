"""The model of a disk keeps synced writes, and loses the others."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.power.disk import ALL, NOTHING, SECTOR_BYTES, Disk, Fate, Tree
from tests.power.recording import Entry, Kind

ROOT = Path("/recorded")
FILE, FOLDER = 3, 4


def call(kind: Kind, fd: int = -1, value: int = 0, first: str | bytes = b"", second: str = "") -> Entry:
    path = first if isinstance(first, bytes) else f"{ROOT}/{first}".encode()
    return Entry(kind, fd, value, path, f"{ROOT}/{second}".encode())


def sync(fd: int, result: int = 0) -> list[Entry]:
    return [call(Kind.SYNC_BEGIN, fd), call(Kind.SYNC_END, fd, result)]


CREATE = [call(Kind.OPEN, FOLDER, os.O_RDONLY, str(ROOT).encode()), call(Kind.OPEN, FILE, os.O_CREAT, "f")]


def write(position: int, data: bytes) -> Entry:
    return call(Kind.WRITE, FILE, position, data)


def replayed(entries: Iterable[Entry], *, forgets_failed: bool = True) -> Disk:
    disk = Disk(ROOT, forgets_failed=forgets_failed)
    for entry in entries:
        disk.apply(entry)
    return disk


def left(entries: Iterable[Entry], fate: Fate, *, forgets_failed: bool = True) -> Tree:
    return replayed(entries, forgets_failed=forgets_failed).tree(fate)


def all_left(entries: Iterable[Entry]) -> list[Tree]:
    disk = replayed(entries)
    return [disk.tree(default, others) for default, others in disk.fates()]


def test_a_file_is_there_after_a_sync_of_it_and_of_its_folder() -> None:
    written = [*CREATE, write(0, b"abc"), *sync(FILE)]
    assert left(written, NOTHING) == {}
    assert left(written, ALL) == {"f": b"abc"}
    assert left([*written, *sync(FOLDER)], NOTHING) == {"f": b"abc"}
    for change, after in ((call(Kind.UNLINK, first="f"), {}), (call(Kind.TRUNCATE, FILE, 1), {"f": b"a"})):
        changed = [*written, *sync(FOLDER), change]
        assert (left(changed, NOTHING), left(changed, ALL)) == ({"f": b"abc"}, after)
        assert left([*changed, *sync(FILE), *sync(FOLDER)], NOTHING) == after
    assert left([*CREATE, write(0, b"abc"), *sync(FOLDER)], NOTHING) == {"f": b""}


def test_a_sync_covers_what_was_written_before_it_began() -> None:
    begin, end = sync(FILE)
    entries = [*CREATE, *sync(FOLDER), write(0, b"abc"), begin, write(3, b"def"), end]
    assert left(entries, NOTHING) == {"f": b"abc"}
    assert left(entries[:-1], NOTHING) == {"f": b""}


def test_a_failed_sync_makes_nothing_durable_and_nor_does_the_next_one() -> None:
    failed = [*CREATE, *sync(FOLDER), write(0, b"abc"), *sync(FILE, -1), *sync(FILE)]
    assert left(failed, NOTHING) == {"f": b""}
    assert left(failed, NOTHING, forgets_failed=False) == {"f": b"abc"}
    assert left([*failed, write(0, b"abd"), *sync(FILE)], NOTHING) == {"f": b"abd"}
    assert left([*failed, write(0, b"abd"), *sync(FILE)], ALL) == {"f": b"abd"}


def test_changes_of_a_folder_keep_their_order() -> None:
    entries = [
        *CREATE,
        write(0, b"new"),
        *sync(FILE),
        call(Kind.RENAME, first="f", second="g"),
        call(Kind.MAKE_FOLDER, first="h"),
        call(Kind.OPEN, 5, os.O_CREAT, "h/i"),
    ]
    found = [left(entries, Fate(kept)) for kept in range(4)]
    assert [set(each) for each in found] == [set(), {"f"}, {"g"}, {"g", "h", "h/i"}]
    assert found[2] == {"g": b"new"}


def test_what_was_not_synced_arrives_in_any_order_and_in_parts() -> None:
    new = [write(0, b"a" * 2 * SECTOR_BYTES), write(2 * SECTOR_BYTES, b"b" * SECTOR_BYTES)]
    file = left([*CREATE, *sync(FOLDER), *new[:1]], Fate(0, begins=True))["f"]
    assert file == b"a" * SECTOR_BYTES
    file = left([*CREATE, *sync(FOLDER), *new[:1]], Fate(0, ends=True))["f"]
    assert file == bytes(SECTOR_BYTES) + b"a" * SECTOR_BYTES, "the first sector is lost, and the later one arrived"
    file = left([*CREATE, *sync(FOLDER), write(0, b"a")], Fate(0, ends=True))["f"]
    assert file == b"\0", "the file has its size, and no data"


def test_any_file_or_folder_may_lose_what_others_keep() -> None:
    second = call(Kind.OPEN, 5, os.O_CREAT, "g")
    other = Entry(Kind.WRITE, 5, 0, b"xyz", b"")
    found = all_left([*CREATE, second, *sync(FOLDER), write(0, b"abc"), write(3, b"def"), other])
    for expected in (
        {"f": b"", "g": b""},
        {"f": b"abcdef", "g": b"xyz"},
        {"f": b"abcdef", "g": b""},
        {"f": b"", "g": b"xyz"},
        {"f": b"abc", "g": b"xyz"},
        {"f": b"abc\0\0\0", "g": b"xyz"},
    ):
        assert expected in found
    assert len(all_left([*CREATE, *sync(FILE), *sync(FOLDER)])) == 2, "nothing can be lost"


def test_shared_mappings_of_files_that_must_last_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="a shared mapping"):
        left([*CREATE, Entry(Kind.UNSUPPORTED, FILE, 0, b"a shared mapping", b"")], NOTHING)
