"""Compaction in every storage: of each key the last record stays, sequences do not change, and gaps are no losses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import product
from pathlib import Path

import attrs
import pytest
import trio

from dafka.errors import StorageCorruptError, StorageUnsupportedError
from dafka.records import Partition, Record, RecordBatch
from dafka.storage import CompactsPartitions, DeletesPartitions, Storage, open_storage, read_range
from dafka.storage.compaction import CompactionPolicy, LatestKeys, Pass, choose, compact_partition
from dafka.storage.plugin_helpers import now_ms
from dafka.storage.tools.copy import copy_storage
from dafka.storage.tools.verify import verify_storage

PARTITION = Partition("prices", "A" * 32)

URLS = ["memory:", "sqlite:{}/store.db", "filelog:{}/log?segment_bytes=2000"]

ALWAYS = CompactionPolicy(dirty_ratio=0)


@pytest.fixture(params=URLS, ids=["memory", "sqlite", "filelog"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


@pytest.fixture
async def storage(url: str) -> AsyncIterator[Storage]:
    async with open_storage(url) as opened:
        yield opened


async def no_wait(_count: int) -> None:
    await trio.lowlevel.checkpoint()


async def compact(
    storage: Storage, clean_end: int = 0, policy: CompactionPolicy = ALWAYS, time_ms: int | None = None
) -> Pass | None:
    time_ms = now_ms() if time_ms is None else time_ms
    return await compact_partition(storage, PARTITION, clean_end, policy, time_ms, no_wait)


def make_batch(first: int, keys: Sequence[bytes | None], *, tombstones: Sequence[int] = ()) -> RecordBatch:
    sequences = range(first, first + len(keys))
    return RecordBatch(
        PARTITION,
        first,
        [None if each in tombstones else b"value %d" % each for each in sequences],
        keys=list(keys),
        headers=[(("number", b"%d" % each),) if each % 3 else () for each in sequences],
        timestamps=[1_000 + each for each in sequences],
    )


async def fill(storage: Storage, count: int, keys: int, first: int = 0) -> None:
    """Append records in small batches, so that a file log has many segments."""
    for start in range(first, first + count, 10):
        await storage.append([make_batch(start, [b"key %d" % (each % keys) for each in range(start, start + 10)])])


async def read_all(storage: Storage, *, with_times: bool = False) -> list[Record]:
    """Return all records that are held. Batches must follow each other without a gap."""
    info = (await storage.partitions())[PARTITION]
    found: list[Record] = []
    sequence = info.earliest_sequence
    async for batch in read_range(storage, PARTITION, sequence, info.end_sequence, with_times=with_times):
        assert batch.first_sequence == sequence
        sequence = batch.end_sequence
        found += batch
    assert sequence == info.end_sequence
    return found


async def test_what_follows_a_pass_that_ended_within_a_batch_is_compacted_later(storage: Storage) -> None:
    await storage.append([make_batch(0, [b"a", b"b"] * 50)])
    await storage.append([make_batch(100, [b"a"])])  # a file log compacts all but its last segment
    policy = CompactionPolicy(dirty_ratio=0.1)
    first = await compact_partition(storage, PARTITION, 0, policy, now_ms(), no_wait, end_max=50)
    assert first is not None
    assert first.clean_end == 50
    second = await compact(storage, first.clean_end, policy)
    assert second is not None
    assert second.done.records_removed


async def test_tombstones_stay_for_a_while(storage: Storage) -> None:
    await storage.append([make_batch(0, [b"a", b"a", b"b"], tombstones=[1])])
    await fill(storage, 100, 3, first=3)
    policy = attrs.evolve(ALWAYS, tombstone_ms=3_600_000)
    await compact(storage, 0, policy)
    assert [record.sequence for record in await read_all(storage)][:2] == [1, 2]
    await fill(storage, 100, 3, first=103)
    await compact(storage, 90, policy, now_ms() + 3_600_001)
    assert (await read_all(storage))[0].sequence == 2


async def test_nothing_happens_until_enough_is_new(storage: Storage) -> None:
    await fill(storage, 400, 5)
    found = await compact(storage, 0, CompactionPolicy(dirty_ratio=0.5))
    assert found is not None
    assert await compact(storage, found.clean_end, CompactionPolicy(dirty_ratio=0.99)) is None


async def test_appends_and_reads_go_on_meanwhile(storage: Storage) -> None:
    await fill(storage, 400, 13)
    is_over = False

    async def compact_repeatedly() -> None:
        nonlocal is_over
        clean_end = 0
        for _ in range(3):
            found = await compact(storage, clean_end)
            clean_end = clean_end if found is None else found.clean_end
        is_over = True

    async def read_repeatedly() -> None:
        while not is_over:
            last = {record.key: record.value for record in await read_all(storage)}
            assert len(last) == 13

    async with trio.open_nursery() as nursery:
        nursery.start_soon(compact_repeatedly)
        nursery.start_soon(read_repeatedly)
        nursery.start_soon(read_repeatedly)
        await fill(storage, 200, 13, first=400)
    held = [record.sequence for record in await read_all(storage)]
    assert held[-13:] == list(range(587, 600))


async def test_storages_that_cannot_compact_refuse_gaps(storage: Storage) -> None:
    await fill(storage, 300, 7)
    await compact(storage)

    class Plain:
        """A storage plugin of former times."""

        def __init__(self, storage: Storage) -> None:
            for name in ("append", "read", "partitions", "reset_to", "position_names", "save_positions", "flush"):
                setattr(self, name, getattr(storage, name))

    async with open_storage("memory:") as memory:
        plain = Plain(memory)
        assert not isinstance(plain, CompactsPartitions)
        with pytest.raises(StorageUnsupportedError, match="cannot keep the places"):
            await copy_storage(storage, plain)  # type: ignore[arg-type]


async def test_damage_in_a_compacted_part_is_found(tmp_path: Path) -> None:
    url = f"filelog:{tmp_path}/log?segment_bytes=2000"
    async with open_storage(url) as storage:
        await fill(storage, 300, 150)
        await compact(storage)
        segments = sorted((tmp_path / "log").glob("topics/*/*/*.log"))
        whole = next(each for each in segments if each.stat().st_size > 500)
        data = bytearray(whole.read_bytes())
        data[len(data) // 2] ^= 0xFF
        whole.write_bytes(data)
        with pytest.raises(StorageCorruptError):
            await read_all(storage)
        assert (await verify_storage(storage)).damages != ()
        await compact(storage)  # leaves a damaged segment as it is
        assert whole.read_bytes() == data


def test_long_keys_are_told_apart() -> None:
    keys = [b"x" * 31, b"x" * 32, b"x" * 33, b"x" * 32 + b"y", None, b""]
    latest = LatestKeys()
    latest.add(keys, range(6))
    assert len(latest) == 5
    latest.add([b"x" * 33], [9])
    assert latest.find_superseded(keys, range(6)) == bytes([0, 0, 1, 0, 0, 0])


def test_a_pass_removes_what_is_superseded_and_old_tombstones_up_to_its_end() -> None:
    for keys in product((b"a", b"b", None), repeat=3):
        for values, end in product(product((b"x", None), repeat=3), range(4, 9)):
            batch = RecordBatch(PARTITION, 5, list(values), keys=list(keys), stored_at=[10, 19, 20])
            latest = LatestKeys()
            latest.add(keys[: max(end - 5, 0)], range(5, end))
            expected = [
                key is not None
                and at < end
                and (key in keys[at - 4 : max(end - 5, 0)] or (value is None and stored_at < 20))
                for at, key, value, stored_at in zip(range(5, 8), keys, values, (10, 19, 20), strict=True)
            ]
            assert [*choose(batch, latest, 20, end)] == expected, (keys, values, end)


async def test_a_partition_that_begins_again_during_a_compaction_is_not_compacted(tmp_path: Path) -> None:
    partition = Partition("orders", "A")
    is_deleted = False

    async def begin_again(_count: int) -> None:
        nonlocal is_deleted
        if not is_deleted:
            is_deleted = True
            assert isinstance(storage, DeletesPartitions)
            await storage.delete_partitions([partition])
            await append(b"new")

    async def append(value: bytes) -> None:
        for first in (0, 2, 4):
            await storage.append([RecordBatch(partition, first, [value, value])])

    async with open_storage(f"filelog:{tmp_path}/log?segment_bytes=1&fsync=never") as storage:
        assert isinstance(storage, CompactsPartitions)
        await append(b"old")
        done = await storage.compact(partition, 5, lambda batch: b"\1" + bytes(len(batch) - 1), begin_again)
        assert (is_deleted, done.records_removed) == (True, 0)
        values = [value async for batch in read_range(storage, partition, 0, 6) for value in batch.values]
        assert values == [b"new"] * 6
