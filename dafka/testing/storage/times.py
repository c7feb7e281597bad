"""Checks of times: when records were stored, and finding records by time."""

from __future__ import annotations

import attrs

from dafka.records import Partition, RecordBatch
from dafka.storage import Storage
from dafka.storage.plugin_helpers import now_ms
from dafka.testing.storage.expectations import make_batch, new_partition, read_times


async def _check_time_of_storing(storage: Storage) -> None:
    """Records without a time are stored with the current time; times are returned only on request."""
    partition = new_partition()
    before = now_ms()
    await storage.append([make_batch(partition, 0, 3)])
    after = now_ms()
    times = await read_times(storage, partition, 0)
    assert len(times) == 3, f"3 records are read with {len(times)} times"
    assert before <= times[0] <= times[-1] <= after, f"stored between {before} and {after}, read as {times!r}"
    batch = await storage.read(partition, 0, 3)
    assert batch is not None
    assert batch.stored_at is None, "read returned times that were not requested"


async def _check_given_times_are_kept(storage: Storage) -> None:
    """Each record keeps its given time, independent of the clock."""
    partition = new_partition()
    times = [1_000, 1_000, 1_001, 5_000, 5_000, 2**41]
    await storage.append([_timed(partition, 0, times[:4])])
    await storage.append([_timed(partition, 4, times[4:])])
    for first_sequence in (0, 2):
        read = await read_times(storage, partition, first_sequence)
        assert read == times[first_sequence:], f"times {times[first_sequence:]!r} are read as {read!r}"
    info = (await storage.partitions(partition.topic))[partition]
    assert (info.earliest_stored_at, info.latest_stored_at) == (1_000, 2**41), f"times {times!r} are listed as {info!r}"
    await storage.trim(partition, 3)
    info = (await storage.partitions(partition.topic))[partition]
    assert info.earliest_stored_at == 5_000, f"trimmed to a record of time 5000, it is listed as {info!r}"
    await storage.trim(partition, 6)
    info = (await storage.partitions(partition.topic))[partition]
    assert (info.earliest_stored_at, info.latest_stored_at) == (None, None), (
        f"without a record, it is listed as {info!r}"
    )


async def _check_a_time_for_each_record(storage: Storage) -> None:
    """Every record of a batch may have a different time."""
    partition = new_partition()
    times = list(range(10**12, 10**12 + 1_200))
    await storage.append([_timed(partition, 0, times)])
    assert await read_times(storage, partition, 0) == times, "1200 records with a time each are read with others"


async def _check_times_never_go_back(storage: Storage) -> None:
    """Times never decrease within a partition."""
    partition = new_partition()
    future = now_ms() + 3_600_000
    await storage.append([_timed(partition, 0, [7_000, 6_000, 8_000])])
    await storage.append([_timed(partition, 3, [5_000, future]), make_batch(partition, 5, 1)])
    await storage.append([make_batch(partition, 6, 1)])
    times = await read_times(storage, partition, 0)
    expected = [7_000, 7_000, 8_000, 8_000, future, future, future]
    assert times == expected, f"times that go back are read as {times!r}, expected {expected!r}"
    await storage.trim(partition, 7)
    await storage.append([_timed(partition, 7, [9_000])])
    assert await read_times(storage, partition, 7) == [future], "times go back in a partition that was trimmed"


async def _check_find_time(storage: Storage) -> None:
    """`find_sequence_by_time` returns the first record of a time or later."""
    partition = new_partition()
    assert await storage.find_sequence_by_time(partition, 0) == 0, (
        "find_sequence_by_time of an unknown partition returned a sequence, expected 0"
    )
    for first_sequence in range(100, 200, 10):
        times = [1_000 + 10 * (sequence // 2) for sequence in range(first_sequence, first_sequence + 10)]
        await storage.append([_timed(partition, first_sequence, times)])
    await storage.trim(partition, 105)
    # Records 104 and 105 were stored at 1520, 106 and 107 at 1530, and so on up to 198 and 199 at 1990.
    for stored_at, sequence in ((0, 105), (1_520, 105), (1_521, 106), (1_530, 106), (1_985, 198), (1_990, 198)):
        found = await storage.find_sequence_by_time(partition, stored_at)
        assert found == sequence, f"find_sequence_by_time({stored_at}) returned {found}, expected {sequence}"
    for stored_at in (1_991, 2**60):
        found = await storage.find_sequence_by_time(partition, stored_at)
        assert found == 200, (
            f"find_sequence_by_time({stored_at}), later than all records, returned {found}, expected the end, 200"
        )


def _timed(partition: Partition, first_sequence: int, times: list[int]) -> RecordBatch:
    return attrs.evolve(make_batch(partition, first_sequence, len(times)), stored_at=times)
