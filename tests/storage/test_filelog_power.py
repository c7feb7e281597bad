"""A file log whose process or power fails at any moment of its use holds everything that it has promised.

One process does everything that a file log can do, and is recorded. Its files are then taken at every moment, with
everything that a power failure may do to what was not synced, and opened again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka.storage.filelog import syncing
from tests.power.disk import ALL, NOTHING, Disk
from tests.power.promises import Promises
from tests.power.recording import Entry, Kind
from tests.power.runs import SIZE, Left, Writer, check_second_process, left_of, moments, record

URL = "filelog:{folder}/log?segment_bytes=300"


async def first_session(writer: Writer) -> None:
    await writer.append((0, 1))
    await writer.append((0, 4), (1, 2), fails=True)
    await writer.save(0, 0, fails=True)
    await writer.append((0, 9), (3, 1))
    await writer.append((0, 3), (1, 8), failing_syncs=1)
    await writer.append((2, 2), failing_syncs=3)
    await writer.trim(0, 9)
    await writer.append((1, 30))
    await writer.compact(1)
    await writer.save(1, 3)
    await writer.reset(2, 5)


async def second_session(writer: Writer) -> None:
    await writer.append((0, 2), (1, 1), (2, 1), (3, 9))
    await writer.append((0, 20))
    await writer.retain(12)
    await writer.delete(1)
    await writer.save(0, 0)
    await writer.append((1, 3))
    await writer.trim(3, 0)
    await writer.flush(failing_syncs=1)  # of times of storing, which are written again when it is closed


async def third_session(writer: Writer) -> None:
    await writer.append((1, 2), (3, 2))
    await writer.delete(2)
    await writer.reset(2, 5, fails=True)
    await writer.trim(1, 1)


async def relaxed_session(writer: Writer) -> None:
    writer.is_relaxed = True
    await writer.append((0, 1))
    await writer.append((0, 9), (1, 9), (3, 2))
    await writer.flush(fails=True)
    await writer.append((0, 9), (2, 3))
    await writer.flush(failing_syncs=2)
    await writer.save(0, 0)
    await writer.trim(0, 3)
    await writer.append((0, 2), (1, 9))
    await writer.reset(2, 4)
    await writer.append((2, 2))
    await writer.flush()
    await writer.append((1, 5))


async def append_one(writer: Writer) -> None:
    await writer.append((0, 1))


@pytest.fixture(scope="module", params=[False, True], ids=["files", "filesystem"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Entry]]:
    """Return a recording in which new segments are synced one by one, and one in which they are synced together."""
    root = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            patch.setattr(syncing, "TOGETHER_MIN", 1)
        entries = record(root, URL, [first_session, second_session, third_session])
    assert any(each.kind is Kind.SYNC_ALL for each in entries) is request.param
    return root, entries


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Left]:
    with left_of(f"{URL}&fsync=never", tmp_path) as found:
        yield found


def test_the_recording_is_complete(recorded: tuple[Path, list[Entry]]) -> None:
    root, entries = recorded
    disk = Disk(root)
    for entry in entries:
        disk.apply(entry)
    found = {str(each.relative_to(root)): None if each.is_dir() else each.read_bytes() for each in root.rglob("*")}
    assert disk.tree(ALL) == found


def test_nothing_is_lost_when_the_process_is_killed(recorded: tuple[Path, list[Entry]], left: Left) -> None:
    root, entries = recorded
    for _, moment in moments(Disk(root), Promises(SIZE), entries):
        if moment.number % 2 == 0:
            left.check(moment.disk.tree(ALL), moment, is_killed=True)


def test_what_was_promised_is_synced(recorded: tuple[Path, list[Entry]], left: Left) -> None:
    root, entries = recorded
    for _, moment in moments(Disk(root), Promises(SIZE), entries):
        left.check(moment.disk.tree(NOTHING), moment)


def test_any_part_of_what_was_not_synced_may_be_lost(recorded: tuple[Path, list[Entry]], left: Left) -> None:
    root, entries = recorded
    promised = 0
    for entry, moment in moments(Disk(root), Promises(SIZE), entries):
        promised += (is_promise := entry.first.startswith((b'["appended"', b'["saved"', b'["deleted"')))
        if is_promise and promised % 2:
            for default, others in moment.disk.fates():
                left.check(moment.disk.tree(default, others), moment)


@pytest.mark.parametrize("fsync", ["never", "60000"])
def test_what_was_flushed_is_synced(fsync: str, tmp_path: Path, left: Left) -> None:
    (tmp_path / "root").mkdir()
    entries = record(tmp_path / "root", f"{URL}&fsync={fsync}", [relaxed_session, relaxed_session])
    # Records that could not be synced after a delay are not written again.
    disk = Disk(tmp_path / "root", forgets_failed=False)
    for entry, moment in moments(disk, Promises(SIZE), entries):
        if entry.kind is Kind.MARK:
            left.check(moment.disk.tree(NOTHING), moment, is_exact=False)
            left.check(moment.disk.tree(ALL), moment, is_killed=True)


def test_what_a_killed_process_has_written_is_synced_before_it_is_promised(
    recorded: tuple[Path, list[Entry]], left: Left, tmp_path: Path
) -> None:
    writes = [n for n, each in enumerate(recorded[1]) if each.kind is Kind.WRITE and len(each.first) > 50]
    check_second_process(recorded, writes[::10], URL, append_one, left, tmp_path)
    check_second_process(recorded, writes[2::10], URL, append_one, left, tmp_path, removed="log/catalog.heads")


def test_what_a_killed_process_left_unsynced_is_synced_by_one_that_promises_it(left: Left, tmp_path: Path) -> None:
    async def append_relaxed(writer: Writer) -> None:
        writer.is_relaxed = True
        await writer.append((0, 9), (1, 9), (3, 2))
        await writer.append((0, 9), (2, 3))

    root = tmp_path / "root"
    root.mkdir()
    entries = record(root, f"{URL}&fsync=never", [append_relaxed, append_relaxed])
    writes = [number for number, each in enumerate(entries) if each.kind is Kind.WRITE]
    check_second_process((root, entries), writes[3::6], URL, append_one, left, tmp_path)
