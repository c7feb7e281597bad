"""The model of a disk keeps synced writes, and loses the others."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

import pytest

from tests.power.disk import SECTOR_BYTES, Chooser, Disk, keep_all, lose_all, lose_latest, lose_some
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


@pytest.fixture
def left(tmp_path: Path) -> Callable[..., dict[str, bytes]]:
    """Return the contents of the files that a power failure leaves, by path."""
    numbers = count()

    def run(entries: Iterable[Entry], loss: Chooser, seed: int = 0, *, forgets_failed: bool = True) -> dict[str, bytes]:
        disk = Disk(forgets_failed=forgets_failed)
        disk.start_process(ROOT)
        for entry in entries:
            disk.apply(entry)
        target = tmp_path / str(next(numbers))
        disk.fail_power(target, loss, random.Random(seed))
        return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}

    return run


def test_a_file_is_there_after_a_sync_of_it_and_of_its_folder(left: Callable[..., dict[str, bytes]]) -> None:
    written = [*CREATE, write(0, b"abc"), *sync(FILE)]
    assert left(written, lose_all) == {}
    assert left(written, keep_all) == {"f": b"abc"}
    assert left([*written, *sync(FOLDER)], lose_all) == {"f": b"abc"}
    assert left([*CREATE, write(0, b"abc"), *sync(FOLDER)], lose_all) == {"f": b""}


def test_a_sync_covers_what_was_written_before_it_began(left: Callable[..., dict[str, bytes]]) -> None:
    begin, end = sync(FILE)
    entries = [*CREATE, *sync(FOLDER), write(0, b"abc"), begin, write(3, b"def"), end]
    assert left(entries, lose_all) == {"f": b"abc"}
    assert left(entries[:-1], lose_all) == {"f": b""}


def test_a_failed_sync_makes_nothing_durable_and_nor_does_the_next_one(left: Callable[..., dict[str, bytes]]) -> None:
    failed = [*CREATE, *sync(FOLDER), write(0, b"abc"), *sync(FILE, -1), *sync(FILE)]
    assert left(failed, lose_all) == {"f": b""}
    assert left(failed, lose_all, forgets_failed=False) == {"f": b"abc"}
    assert left([*failed, write(0, b"abd"), *sync(FILE)], lose_all) == {"f": b"abd"}
    assert left([*failed, write(0, b"abd"), *sync(FILE)], keep_all) == {"f": b"abd"}


def test_a_truncation_is_lost_without_a_sync(left: Callable[..., dict[str, bytes]]) -> None:
    entries = [*CREATE, *sync(FOLDER), write(0, b"abc"), *sync(FILE), call(Kind.TRUNCATE, FILE, 1)]
    assert left(entries, lose_all) == {"f": b"abc"}
    assert left(entries, keep_all) == {"f": b"a"}
    assert left([*entries, *sync(FILE)], lose_all) == {"f": b"a"}


def test_changes_of_a_folder_keep_their_order(left: Callable[..., dict[str, bytes]]) -> None:
    entries = [
        *CREATE,
        write(0, b"new"),
        *sync(FILE),
        call(Kind.RENAME, first="f", second="g"),
        call(Kind.MAKE_FOLDER, first="h"),
        call(Kind.OPEN, 5, os.O_CREAT, "h/i"),
    ]
    found = [left(entries, lose_latest, seed) for seed in range(40)]
    assert {frozenset(each) for each in found} == {frozenset(each) for each in ([], ["f"], ["g"], ["g", "h/i"])}
    assert all(content in (b"new", b"") for each in found for content in each.values())


def test_what_was_not_synced_arrives_in_any_order_and_in_parts(left: Callable[..., dict[str, bytes]]) -> None:
    new = [write(0, b"a" * 2 * SECTOR_BYTES), write(2 * SECTOR_BYTES, b"b" * SECTOR_BYTES)]
    found = {left([*CREATE, *sync(FOLDER), *new], lose_some, seed)["f"] for seed in range(200)}
    sectors = {tuple(content[at : at + 1] for at in (0, SECTOR_BYTES, 2 * SECTOR_BYTES)) for content in found}
    assert (b"\0", b"a", b"b") in sectors  # the first sector is lost, and later ones arrived
    assert (b"\0", b"\0", b"\0") in sectors  # the file has its size, and no data
    assert (b"a", b"a", b"b") in sectors
    assert (b"", b"", b"") in sectors


def test_a_removed_file_that_comes_back_has_its_content(left: Callable[..., dict[str, bytes]]) -> None:
    entries = [*CREATE, write(0, b"abc"), *sync(FILE), *sync(FOLDER), call(Kind.UNLINK, first="f")]
    assert left(entries, lose_all) == {"f": b"abc"}
    assert left([*entries, *sync(FOLDER)], lose_all) == {}


def test_shared_mappings_of_files_that_must_last_are_refused(left: Callable[..., dict[str, bytes]]) -> None:
    with pytest.raises(NotImplementedError, match="a shared mapping"):
        left([*CREATE, Entry(Kind.UNSUPPORTED, FILE, 0, b"a shared mapping", b"")], lose_all)
