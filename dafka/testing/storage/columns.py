"""Checks of keys, headers, timestamps, and null values.

A storage that holds only values must refuse other records with `StorageUnsupportedError`, and may drop timestamps.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import aclosing

import attrs

from dafka.errors import StorageUnsupportedError
from dafka.records import Header, Partition, Record, RecordBatch, record_bytes
from dafka.storage import RetentionPolicy, Storage, read_range
from dafka.testing.storage.expectations import (
    expect_contents,
    list_partitions,
    make_batch,
    make_contents,
    new_partition,
    read_info,
)

_VALUES = (b"value", None, b"", b"\0", b"\xff\xfe", b"v" * 3000)

_KEYS = (b"key", None, b"", b"\0\xff", b"k" * 300)

_HEADERS: tuple[tuple[Header, ...], ...] = (
    (),
    (("trace", b"4bf92f"),),
    (("b", b"1"), ("a", b"2"), ("b", b"3"), ("b", b"3")),
    (("null", None), ("empty", b""), ("", b"no name")),
    (("binary", bytes(range(256))), ("é \N{SNOWMAN} \N{GRINNING FACE}", '"é" \\ [\n]'.encode()), ("\udcff\0", b"\0")),
)

_TIMESTAMPS = (None, 0, 1_767_225_600_000, 1, 2**63 - 1)


def make_records(count: int, *, seed: int = 0) -> list[Record]:
    """Return records with all combinations of parts that are likely to be mixed up."""
    random_ = random.Random(seed)
    partition = new_partition()
    return [
        Record(
            partition,
            sequence,
            random_.choice(_VALUES),
            random_.choice(_KEYS),
            random_.choice(_HEADERS),
            random_.choice(_TIMESTAMPS),
        )
        for sequence in range(count)
    ]


def to_batch(records: Sequence[Record]) -> RecordBatch:
    """Return records as a batch with all columns."""
    return RecordBatch(
        records[0].partition,
        records[0].sequence,
        [record.value for record in records],
        keys=[record.key for record in records],
        headers=[record.headers for record in records],
        timestamps=[-1 if record.timestamp is None else record.timestamp for record in records],
    )


async def holds_whole_records(storage: Storage) -> bool:
    """Return whether a storage accepts keys, headers and null values. If it refuses them, nothing may be appended."""
    plain, whole = new_partition(), make_records(10)
    try:
        await storage.append([make_batch(plain, 0, 3), to_batch(whole)])
    except StorageUnsupportedError:
        for partition in (plain, whole[0].partition):
            found = await list_partitions(storage, partition.topic)
            assert not found, f"an append that raised StorageUnsupportedError created {found!r}"
        return False
    return True


async def expect_records(storage: Storage, partition: Partition, expected: Sequence[Record]) -> None:
    """Check that a partition holds exactly these records from the first one on."""
    info = await read_info(storage, partition)
    found: list[Record] = []
    async with aclosing(read_range(storage, partition, expected[0].sequence, info.end_sequence)) as read:
        async for batch in read:
            for column in ("keys", "headers", "timestamps"):
                items = getattr(batch, column)
                assert items is None or len(items) == len(batch), (
                    f"{len(batch)} records are read with {len(items)} {column}"
                )
            found += batch
    assert len(found) == len(expected), f"{len(expected)} records were appended, {len(found)} are read"
    for record, right in zip(found, expected, strict=True):
        for part in ("value", "key", "headers", "timestamp"):
            is_, was = getattr(record, part), getattr(right, part)
            assert is_ == was, (
                f"sequence {right.sequence}: its {part} is read as {is_!r:.60}, was appended as {was!r:.60}"
            )


async def _check_whole_records(storage: Storage) -> None:
    """Every part of a record is kept as it was appended; without it, the storage refuses the append."""
    if not await holds_whole_records(storage):
        for part in (
            RecordBatch(new_partition(), 0, [b"0"], keys=[b"key"]),
            RecordBatch(new_partition(), 0, [b"0"], headers=[(("name", b"value"),)]),
            RecordBatch(new_partition(), 0, [b"0", None]),
        ):
            try:
                await storage.append([part])
            except StorageUnsupportedError:
                continue
            raise AssertionError(f"a storage that refuses some records accepts {list(part)!r}, and may lose a part")
        return
    for count in (1, 2, 30, 500):
        records = make_records(count, seed=count)
        partition = records[0].partition
        half = (count + 1) // 2
        await storage.append([to_batch(records[:half])])
        if count > half:
            await storage.append([make_batch(new_partition(), 0, 2), to_batch(records[half:])])
        await expect_records(storage, partition, records)


async def _check_each_column_alone(storage: Storage) -> None:
    """A batch may have some columns and not others, and batches of a partition may differ in that."""
    if not await holds_whole_records(storage):
        return
    partition = new_partition()
    expected: list[Record] = []
    for number in range(3):
        for columns in (
            {},
            {"keys": [b"key"] * 40},
            {"headers": [_HEADERS[2]] * 40},
            {"timestamps": [7 + number] * 40},
            {"timestamps": list(range(40))},
            {"values": [None] * 40},
            {"values": [None, b""] * 20, "keys": [b"", None] * 20},
        ):
            first = len(expected)
            batch = attrs.evolve(make_batch(partition, first, 40), **columns)
            await storage.append([batch])
            expected += batch
    await expect_records(storage, partition, expected)


async def _check_empty_columns(storage: Storage) -> None:
    """A batch whose keys and headers are all absent has only values, in each form of absence."""
    partition = new_partition()
    batch = attrs.evolve(make_batch(partition, 0, 3), keys=[None] * 3, headers=[()] * 3)
    await storage.append([batch])
    await expect_contents(storage, partition, make_contents(0, 3))


async def _check_timestamps(storage: Storage) -> None:
    """Timestamps are kept; a storage that holds only values may drop them, but not change them."""
    is_whole = await holds_whole_records(storage)
    for timestamps in ([5] * 50, [9, 3, 7] * 20, [-1, 4] * 20, [2**62]):
        partition = new_partition()
        batch = attrs.evolve(make_batch(partition, 0, len(timestamps)), timestamps=timestamps)
        await storage.append([batch])
        async with aclosing(read_range(storage, partition, 0, len(timestamps))) as read:
            batches = [batch async for batch in read]
        found = [record.timestamp for each in batches for record in each]
        right = [record.timestamp for record in batch]
        assert found == right or (not is_whole and not any(found)), f"timestamps {right!r} are read as {found!r}"


async def _check_sizes(storage: Storage) -> None:
    """Keys and headers count as bytes, in totals and in retention."""
    if not await holds_whole_records(storage):
        return
    records = make_records(200, seed=7)
    partition = records[0].partition
    sizes = [record_bytes(record) for record in records]
    await storage.append([to_batch(records)])
    info = await read_info(storage, partition)
    assert info.content_bytes == sum(sizes), f"records of {sum(sizes)} bytes are listed as {info.content_bytes}"
    limit = 10_000
    batch = await storage.read(partition, 0, 200, bytes_max=limit)
    assert batch is not None
    assert batch.content_bytes <= limit + max(sizes), f"a read of {limit} bytes returned {batch.content_bytes}"
    await storage.trim(partition, 50)
    info = await read_info(storage, partition)
    rest = sum(sizes[info.earliest_sequence :])
    assert info.content_bytes == rest, f"trimmed to records of {rest} bytes, {info.content_bytes} are listed"
    await storage.apply_retention(RetentionPolicy(bytes_max=0), partition.topic)
    info = await read_info(storage, partition)
    assert (info.count, info.content_bytes) == (0, 0), f"a limit of 0 bytes left {info!r}"
