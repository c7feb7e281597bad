"""What the checks of a storage are written with: records that tell their sequence, and expectations with a message."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from dafka.errors import StorageSequenceError
from dafka.records import Partition, RecordBatch, new_address
from dafka.storage import PartitionInfo, Storage, read_range

MIB = 2**20

SEQUENCE_BEYOND = 2**64 - 1
"""More than any storage needs to count to; asking for it is no mistake."""


def new_partition() -> Partition:
    """A partition that no check before has used."""
    return Partition(f"check-{new_address()}", new_address())


def make_contents(first_sequence: int, count: int, size: int = 0) -> list[bytes]:
    """Contents that tell their sequence, padded to a size."""
    return [(b"%d" % sequence).ljust(size, b".") for sequence in range(first_sequence, first_sequence + count)]


def make_batch(partition: Partition, first_sequence: int, count: int, size: int = 0) -> RecordBatch:
    """Records that tell their sequence."""
    return RecordBatch(partition, first_sequence, make_contents(first_sequence, count, size))


async def read_some(
    storage: Storage, partition: Partition, first_sequence: int, count: int, bytes_max: int = MIB
) -> list[bytes]:
    """One read; its records are consecutive, of the partition asked for, and within both bounds."""
    batch = await storage.read(partition, first_sequence, count, bytes_max)
    assert batch is not None, f"read gives None for sequence {first_sequence}, which {partition!r} holds"
    assert batch.partition == partition, f"read of {partition!r} gives records of {batch.partition!r}"
    assert batch.first_sequence == first_sequence, (
        f"read from sequence {first_sequence} gives records from {batch.first_sequence} on"
    )
    assert 1 <= len(batch.contents) <= count, f"read of at most {count} records gives {len(batch.contents)}"
    contents = list(batch.contents)
    largest = max(map(len, contents))
    assert batch.content_bytes <= bytes_max + largest, (
        f"read of about {bytes_max} octets gives {batch.content_bytes}, more than one record beyond it"
    )
    return contents


async def read_all(storage: Storage, partition: Partition, first_sequence: int = 0) -> list[bytes]:
    """Every record from a sequence on."""
    info = await read_info(storage, partition)
    contents: list[bytes] = []
    while first_sequence + len(contents) < info.end_sequence:
        contents += await read_some(storage, partition, first_sequence + len(contents), 1000)
    return contents


async def read_times(storage: Storage, partition: Partition, first_sequence: int) -> list[int]:
    """When the records from a sequence to the end were stored; they are the ones that `make_batch` made."""
    info = (await storage.partitions(partition.topic))[partition]
    times: list[int] = []
    async for batch in read_range(storage, partition, first_sequence, info.end_sequence, with_times=True):
        assert batch.stored_at is not None, "read(with_times=True) gives no times"
        contents = make_contents(batch.first_sequence, len(batch))
        assert batch.contents == contents, "read(with_times=True) gives other records"
        assert len(batch.stored_at) == len(batch), f"{len(batch)} records are read with {len(batch.stored_at)} times"
        times += batch.stored_at
    return times


async def read_info(storage: Storage, partition: Partition) -> PartitionInfo:
    """What the storage says that it holds of a partition, but for the times."""
    infos = await list_partitions(storage, partition.topic)
    assert partition in infos, f"partitions({partition.topic!r}) does not know {partition!r}, which holds records"
    return infos[partition]


async def list_partitions(storage: Storage, topic: str | None = None) -> dict[Partition, PartitionInfo]:
    """What the storage says that it holds, but for the times, which differ from run to run."""
    return {
        partition: attrs.evolve(info, earliest_stored_at=None, latest_stored_at=None)
        for partition, info in (await storage.partitions(topic)).items()
    }


async def expect_contents(storage: Storage, partition: Partition, expected: list[bytes], first: int = 0) -> None:
    """The partition holds just these records."""
    contents = await read_all(storage, partition, first)
    assert len(contents) == len(expected), f"{len(expected)} records were appended, {len(contents)} are read"
    for sequence, (content, right) in enumerate(zip(contents, expected, strict=True), first):
        assert content == right, (
            f"the record at sequence {sequence} is read as {content[:40]!r}, was appended as {right[:40]!r}"
        )


async def expect_absent(storage: Storage, partition: Partition, sequences: Iterable[int]) -> None:
    """None of these sequences is held."""
    for sequence in sequences:
        batch = await storage.read(partition, sequence, 10)
        assert batch is None, f"read of sequence {sequence}, which is not held, gives {batch!r} instead of None"


async def expect_refused(storage: Storage, batches: list[RecordBatch], problem: str) -> None:
    """An append of these batches is refused, and says so."""
    try:
        await storage.append(batches)
    except StorageSequenceError:
        return
    raise AssertionError(f"append with {problem} did not raise StorageSequenceError")
