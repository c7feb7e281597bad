"""A storage with a cold tier whose process or power fails at any moment holds everything that it has promised, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dafka.storage.cold import manifest
from dafka.storage.cold.manifest import decode_root
from dafka.storage.cold.manifest_store import COPY_FILE
from dafka.storage.cold.tiered import TieredStorage
from dafka.storage.tiers import has_tier
from tests.power.disk import ALL, NOTHING, Disk
from tests.power.promises import Promises
from tests.power.recording import Entry, Kind
from tests.power.runs import SIZE, Writer, check_second_process, left_of, moments, record

URL = (
    "tiered:filelog:{folder}/log?segment_bytes=300&cold=file://{folder}/bucket&cold_interval_ms=3600000"
    "&local_retention_bytes=150&cold_segment_bytes=100"
)


async def move(writer: Writer) -> int:
    assert isinstance(writer.storage, TieredStorage)
    return await writer.storage.move_due()


async def session(writer: Writer) -> None:
    await writer.append((0, 20), (1, 3))
    assert await move(writer) > 1
    await writer.append((0, 4), (1, 9))
    await move(writer)
    await writer.retain(15)
    await writer.append((0, 7))
    await writer.trim(0, 12)
    await move(writer)
    await writer.delete(1)
    await writer.reset(0, 3)
    await writer.append((0, 9))
    await move(writer)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Entry]]:
    root = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "CHUNK_SEGMENTS", 2)
        return root, record(root, URL, [session, move_more])


async def move_more(writer: Writer) -> None:
    await writer.append((0, 9))
    await move(writer)


def test_nothing_is_lost_when_the_process_is_killed(recorded: tuple[Path, list[Entry]], tmp_path: Path) -> None:
    root, entries = recorded
    with left_of(URL, tmp_path) as left:
        for _, moment in moments(Disk(root), Promises(SIZE), entries):
            if moment.number % 3 == 0:
                left.check(moment.disk.tree(ALL), moment, is_killed=True)


def test_what_was_promised_is_synced(recorded: tuple[Path, list[Entry]], tmp_path: Path) -> None:
    root, entries = recorded
    with left_of(URL, tmp_path) as left:
        for _, moment in moments(Disk(root), Promises(SIZE), entries):
            left.check(moment.disk.tree(NOTHING), moment)


def test_what_a_killed_process_has_written_is_synced_before_it_is_promised(
    recorded: tuple[Path, list[Entry]], tmp_path: Path
) -> None:
    kinds = Kind.MAKE_FOLDER, Kind.RENAME
    numbers = [n for n, each in enumerate(recorded[1]) if each.kind in kinds and b"/log/topics" not in each.first]
    with left_of(URL, tmp_path) as left:
        check_second_process(recorded, numbers[:25:2], URL, move_more, left, tmp_path)


def test_a_hot_storage_knows_its_cold_tier_after_a_power_failure(
    recorded: tuple[Path, list[Entry]], tmp_path: Path
) -> None:
    """Otherwise the records that were moved would seem to be lost."""
    root, entries = recorded
    is_open = False
    for entry, moment in moments(Disk(root), Promises(SIZE), entries):
        is_open = is_open or (entry.kind is Kind.MARK and json.loads(entry.first)[0] == "opened")
        if is_open:
            assert "log/cold/tier.json" in moment.disk.tree(NOTHING)
    assert is_open
    assert has_tier(f"filelog:{root}/log")


def test_the_copy_of_the_manifest_is_whole_at_every_moment(recorded: tuple[Path, list[Entry]]) -> None:
    """A store starts with it while its object store is away."""
    root, entries = recorded
    folder, named = "log/cold", set[str]()
    for entry, moment in moments(Disk(root), Promises(SIZE), entries):
        if entry.kind in (Kind.RENAME, Kind.UNLINK, Kind.SYNC_END):
            for tree in (moment.disk.tree(ALL), moment.disk.tree(NOTHING)):
                copy = tree.get(f"{folder}/{COPY_FILE}")
                names = decode_root(json.loads(copy)["root"].encode(), COPY_FILE).chunk_names if copy else ()
                named.update(names)
                assert [name for name in names if not tree.get(f"{folder}/{name}")] == []
    assert len(named) > 1
    held = {name for name in moment.disk.tree(ALL) if name.startswith(f"{folder}/manifest/")}
    assert held == {f"{folder}/{name}" for name in names}, "chunks that are not needed are removed"
