"""Helpers of the checks: records that contain their sequence, and expectations with clear messages."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing

import attrs

from dafka.errors import StorageSequenceError
from dafka.records import Partition, RecordBatch, new_address
from dafka.storage import PartitionInfo, Storage, read_range

MIB = 2**20

SEQUENCE_BEYOND = 2**64 - 1
"""A sequence after the end of any partition; reading it is allowed."""


def new_partition() -> Partition:
    """Return a new partition."""
    return Partition(f"check-{new_address()}", new_address())


def make_contents(first_sequence: int, count: int, size: int = 0) -> list[bytes]:
    """Return contents that contain their sequence, padded to `size` bytes."""
    return [(b"%d" % sequence).ljust(size, b".") for sequence in range(first_sequence, first_sequence + count)]


def make_batch(partition: Partition, first_sequence: int, count: int, size: int = 0) -> RecordBatch:
    """Return a batch of records that contain their sequence."""
    return RecordBatch(partition, first_sequence, make_contents(first_sequence, count, size))


async def read_some(
    storage: Storage, partition: Partition, first_sequence: int, count: int, bytes_max: int = MIB
) -> list[bytes]:
    """Read once, and check that the records are of the right partition, consecutive, and within both limits."""
    batch = await storage.read(partition, first_sequence, count, bytes_max)
    assert batch is not None, f"read returned None for sequence {first_sequence}, which {partition!r} holds"
    assert batch.partition == partition, f"read of {partition!r} returned records of {batch.partition!r}"
    assert batch.first_sequence == first_sequence, (
        f"read from sequence {first_sequence} returned records from {batch.first_sequence} on"
    )
    assert 1 <= len(batch.values) <= count, f"read of at most {count} records returned {len(batch.values)}"
    contents = [value for value in batch.values if value is not None]
    assert len(contents) == len(batch), "read returned a null value, which was not appended"
    largest = max(map(len, contents))
    assert batch.content_bytes <= bytes_max + largest, (
        f"read of about {bytes_max} bytes returned {batch.content_bytes}, more than one record beyond it"
    )
    return contents


async def read_all(storage: Storage, partition: Partition, first_sequence: int = 0) -> list[bytes]:
    """Return every record from a sequence on."""
    info = await read_info(storage, partition)
    contents: list[bytes] = []
    while first_sequence + len(contents) < info.end_sequence:
        contents += await read_some(storage, partition, first_sequence + len(contents), 1000)
    return contents


async def read_times(storage: Storage, partition: Partition, first_sequence: int) -> list[int]:
    """Return the times of the records from a sequence on, which `make_batch` must have made."""
    info = (await storage.partitions(partition.topic))[partition]
    times: list[int] = []
    async with aclosing(read_range(storage, partition, first_sequence, info.end_sequence, with_times=True)) as read:
        async for batch in read:
            assert batch.stored_at is not None, "read(with_times=True) returned no times"
            contents = make_contents(batch.first_sequence, len(batch))
            assert batch.values == contents, "read(with_times=True) returned other records"
            count = len(batch.stored_at)
            assert count == len(batch), f"{len(batch)} records are read with {count} times"
            times += batch.stored_at
    return times


async def read_info(storage: Storage, partition: Partition) -> PartitionInfo:
    """Return what the storage lists for a partition, without the times."""
    infos = await list_partitions(storage, partition.topic)
    assert partition in infos, f"partitions({partition.topic!r}) does not know {partition!r}, which holds records"
    return infos[partition]


async def list_partitions(storage: Storage, topic: str | None = None) -> dict[Partition, PartitionInfo]:
    """Return what the storage lists, without the times, which differ between runs."""
    return {
        partition: attrs.evolve(info, earliest_stored_at=None, latest_stored_at=None)
        for partition, info in (await storage.partitions(topic)).items()
    }


async def expect_contents(storage: Storage, partition: Partition, expected: list[bytes], first: int = 0) -> None:
    """Check that a partition holds exactly these records."""
    contents = await read_all(storage, partition, first)
    assert len(contents) == len(expected), f"{len(expected)} records were appended, {len(contents)} are read"
    for sequence, (content, right) in enumerate(zip(contents, expected, strict=True), first):
        assert content == right, (
            f"the record at sequence {sequence} is read as {content[:40]!r}, was appended as {right[:40]!r}"
        )


async def expect_absent(storage: Storage, partition: Partition, sequences: Iterable[int]) -> None:
    """Check that none of these sequences is held."""
    for sequence in sequences:
        batch = await storage.read(partition, sequence, 10)
        assert batch is None, f"read of sequence {sequence}, which is not held, returned {batch!r} instead of None"


async def expect_refused(storage: Storage, batches: list[RecordBatch], problem: str) -> None:
    """Check that an append of these batches is refused."""
    try:
        await storage.append(batches)
    except StorageSequenceError:
        return
    raise AssertionError(f"append with {problem} did not raise StorageSequenceError")
