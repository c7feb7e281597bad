"""Compaction in every storage: of each key the last record stays, sequences do not change, and gaps are no losses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from hashlib import blake2b
from itertools import combinations, product
from pathlib import Path
from typing import Any

import attrs
import pytest

from dafka.batches import Compression, TimestampType, decode_held, decode_records, encode_batch, read_header
from dafka.errors import StorageCorruptError, StorageUnsupportedError
from dafka.records import Partition, Record, RecordBatch
from dafka.storage import CompactsPartitions, Storage, open_storage, read_range
from dafka.storage.compaction import CompactionPolicy, LatestKeys, Pass, choose, compact_partition
from dafka.storage.memory import MemoryStorage
from dafka.storage.tools.copy import copy_storage
from dafka.storage.tools.verify import verify_storage
from tests.power.runs import no_wait

PARTITION = Partition("prices", "A" * 32)

URLS = ["memory:", "sqlite:{}/store.db", "filelog:{}/log?segment_bytes=2000"]

ALWAYS = CompactionPolicy(dirty_ratio=0)
NOW_MS = 1_700_000_000_000
"""When all records are stored, and compacted."""


@pytest.fixture(params=URLS, ids=["memory", "sqlite", "filelog"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


@pytest.fixture
async def storage(url: str) -> AsyncIterator[Storage]:
    async with open_storage(url) as opened:
        yield opened


async def compact(
    storage: Storage, clean_end: int = 0, policy: CompactionPolicy = ALWAYS, time_ms: int = NOW_MS
) -> Pass | None:
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
        stored_at=[NOW_MS] * len(keys),
    )


async def fill(storage: Storage, count: int, keys: int, first: int = 0) -> None:
    """Append records in small batches, so that a file log has many segments."""
    for start in range(first, first + count, 10):
        await storage.append([make_batch(start, [b"key %d" % (each % keys) for each in range(start, start + 10)])])


async def read_all(storage: Storage) -> list[Record]:
    """Return all records that are held. Batches must follow each other without a gap."""
    info = (await storage.partitions())[PARTITION]
    found: list[Record] = []
    sequence = info.earliest_sequence
    async for batch in read_range(storage, PARTITION, sequence, info.end_sequence):
        assert batch.first_sequence == sequence
        sequence = batch.end_sequence
        found += batch
    assert sequence == info.end_sequence
    return found


async def test_what_follows_a_pass_that_ended_within_a_batch_is_compacted_later(storage: Storage) -> None:
    await storage.append([make_batch(0, [b"a", b"b"] * 50)])
    await storage.append([make_batch(100, [b"a"])])  # a file log compacts all but its last segment
    policy = CompactionPolicy(dirty_ratio=0.1)
    first = await compact_partition(storage, PARTITION, 0, policy, NOW_MS, no_wait, end_max=50)
    assert first is not None
    assert first.clean_end == 50
    second = await compact(storage, first.clean_end, policy)
    assert second is not None
    assert second.done.records_removed


async def test_a_tombstone_goes_at_its_own_age_and_not_at_that_of_the_records_after_it(storage: Storage) -> None:
    for first in range(0, 100, 2):
        batch = make_batch(first, [b"key %d" % first, b"x"], tombstones=[first])
        await storage.append([attrs.evolve(batch, stored_at=[NOW_MS + first] * 2)])
    await compact(storage, 0, attrs.evolve(ALWAYS, tombstone_ms=1000), NOW_MS + 1000 + 51)
    left = [each.sequence for each in await read_all(storage) if each.value is None]
    assert left == [*range(52, 100, 2)]


async def test_nothing_happens_until_enough_is_new(storage: Storage) -> None:
    await fill(storage, 400, 5)
    assert await compact(storage, 0, CompactionPolicy(dirty_ratio=1.01)) is None
    found = await compact(storage, 0, CompactionPolicy(dirty_ratio=1.0))
    assert found is not None
    assert await compact(storage, found.clean_end, CompactionPolicy(dirty_ratio=0.99)) is None


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


def without_last_batch(data: bytes) -> bytes:
    position = end = 0
    while end < len(data):
        position, end = end, end + 12 + int.from_bytes(data[end + 8 : end + 12], "big")
    return data[:position]


DAMAGES: list[Callable[[bytes], bytes]] = [
    lambda data: data[:-20] + bytes(20),
    lambda data: data[: len(data) // 2] + b"\xff" + data[len(data) // 2 + 1 :],
    without_last_batch,
    lambda data: data[:-7],
    lambda data: data + b"?",
]


@pytest.mark.parametrize("number", range(len(DAMAGES)))
async def test_a_damaged_segment_stays_as_it_is_and_the_others_are_compacted(number: int, tmp_path: Path) -> None:
    url = f"filelog:{tmp_path}/log?segment_bytes=2000"
    async with open_storage(url) as storage:
        assert isinstance(storage, CompactsPartitions)
        await fill(storage, 300, 150)
        segments = sorted((tmp_path / "log").glob("topics/*/*/*.log"))[:-1]
        damaged = segments[len(segments) // 2]
        damaged.write_bytes(DAMAGES[number](damaged.read_bytes()))
        before = [each.read_bytes() for each in segments]
        done = await storage.compact(PARTITION, 300, lambda batch: b"\1" * len(batch), no_wait)
        unchanged = [path for path, data in zip(segments, before, strict=True) if path.read_bytes() == data]
        assert unchanged == [damaged]
        assert 200 < done.records_removed < 300
        assert not [*tmp_path.rglob("*.tmp")]  # noqa: ASYNC240
        assert (await verify_storage(storage)).damages != ()


async def test_a_pass_skips_damaged_records_and_goes_no_further_than_it_may() -> None:
    class Damaged(MemoryStorage):
        async def read(self, partition: Partition, first_sequence: int, count: int, *_: Any, **__: Any) -> Any:
            if first <= first_sequence < end:
                raise StorageCorruptError("damaged", end)
            return await super().read(partition, first_sequence, min(count, max(first - first_sequence, 0) or count))

    for first, end in combinations(range(9), 2):
        for end_max in range(1, 9):
            storage = Damaged()
            await storage.append([make_batch(0, [b"a", b"b"] * 5)])
            found = await compact_partition(storage, PARTITION, 0, ALWAYS, NOW_MS, no_wait, end_max=end_max)
            assert found is not None
            known = {each for each in range(end_max) if not first <= each < end}
            removed = sum(bool(known & {*range(each + 2, end_max, 2)}) for each in range(end_max))
            assert (found.clean_end, found.done.records_removed) == (end_max, removed), (first, end, end_max)
    first, end, storage = 4, 5, Damaged()
    await storage.append([make_batch(0, [b"a", b"b"] * 5)])
    found = await compact_partition(storage, PARTITION, 0, attrs.evolve(ALWAYS, keys_max=2), NOW_MS, no_wait)
    assert found is not None
    assert found.clean_end == 4, "no more keys can be remembered after the first read"


def test_long_keys_are_told_apart() -> None:
    keys = [b"x" * 31, b"x" * 32, b"x" * 33, b"x" * 32 + b"y", None, b""]
    latest = LatestKeys()
    latest.add(keys, range(6))
    assert len(latest) == 5
    latest.add([b"x" * 33], [9])
    assert latest.find_superseded(keys, range(6)) == bytes([0, 0, 1, 0, 0, 0])
    hashes = [blake2b(b"x" * 33, digest_size=size).digest() for size in range(28, 34)]
    assert not any(latest.find_superseded(hashes, range(6))), "a short key is never the hash of a long one"


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


async def test_another_process_reads_a_partition_that_was_compacted_meanwhile(tmp_path: Path) -> None:
    url = f"filelog:{tmp_path}/log?segment_bytes=300000"
    async with open_storage(url) as storage, open_storage(url, read_only=True) as reader:
        for first in range(100):
            keys = [b"key %d" % (first % 30)]
            await storage.append([RecordBatch(PARTITION, first, [b"%09999d." % first], keys=keys)])
        for sequence in reversed(range(100)):  # in this order, each is found by the index
            assert await reader.read(PARTITION, sequence, 1) is not None
        assert await compact(storage) is not None
        for sequence in reversed(range(100)):
            assert await reader.read(PARTITION, sequence, 1) == await storage.read(PARTITION, sequence, 1)


async def test_the_rest_of_a_transaction_still_belongs_to_it(tmp_path: Path) -> None:
    """Readers skip the records of an aborted transaction by the fields of their record batches."""
    async with open_storage(f"filelog:{tmp_path}/log") as opened:
        for first, is_transactional in ((0, False), (10, True)):
            data = encode_batch(
                first,
                [b"%d" % number for number in range(10)],
                keys=[b"k"] * 10,
                timestamps=[number * 7 for number in range(10)],
                compression=Compression.GZIP,
                timestamp_type=TimestampType.LOG_APPEND_TIME,
                producer_id=5,
                producer_epoch=6,
                base_sequence=2**31 - 3,
                is_transactional=is_transactional,
            )
            await opened.append([decode_records(PARTITION, data)])
        assert isinstance(opened, CompactsPartitions)
        found = await opened.find_compactable(PARTITION, 0)
        assert found is not None
        assert found.end_sequence == 19, "the last record is never removed, and the only segment is closed before"
        await opened.compact(PARTITION, 18, lambda batch: b"\1" * len(batch), no_wait)
        for first in (0, 9, 10, 15, 18):
            read = await opened.read(PARTITION, first, 20)
            assert read is not None
            *_, last = read.encoded
            header = read_header(last)
            assert (header.producer_id, header.producer_epoch, header.is_transactional) == (5, 6, True) or first < 10
            if first >= 10:
                assert (header.base_sequence, header.base_offset) == ((2**31 - 3 + first - 10) % 2**31, first)
                assert [(at, list(each.values), list(each.timestamps)) for at, each in decode_held(header, last)] == [
                    (18, [b"8", b"9"], [63, 63])
                ] or first == 18
        records = await read_all(opened)
        assert [(each.sequence, each.value, each.timestamp) for each in records] == [(18, b"8", 63), (19, b"9", 63)]
