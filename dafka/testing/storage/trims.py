"""Checks of dropping records: `trim`, `reset_to`, retention, totals afterward, and deleting partitions."""

from __future__ import annotations

from dafka.errors import StorageSequenceError
from dafka.records import Partition, RecordBatch, new_address
from dafka.storage import DeletesPartitions, PartitionInfo, RetentionPolicy, Storage
from dafka.storage.plugin_helpers import now_ms
from dafka.testing.storage.expectations import (
    SEQUENCE_BEYOND,
    expect_absent,
    expect_contents,
    expect_refused,
    list_partitions,
    make_batch,
    make_contents,
    new_partition,
    read_info,
    read_some,
)


async def _check_trim(storage: Storage) -> None:
    partition, neighbor = new_partition(), new_partition()
    await storage.append(
        [make_batch(partition, 0, 10, size=3), make_batch(partition, 10, 10, size=3), make_batch(neighbor, 0, 5)]
    )
    for earliest, held_from in ((5, 5), (2, 5), (0, 5), (13, 13)):
        await storage.trim(partition, earliest)
        info = await read_info(storage, partition)
        expected = PartitionInfo(held_from, 20, 3 * (20 - held_from))
        assert info == expected, f"after trim({earliest}) expected {expected!r}, found {info!r}"
    await expect_absent(storage, partition, [0, 4, 12, 20])
    await expect_contents(storage, partition, make_contents(13, 7, size=3), 13)
    await expect_contents(storage, neighbor, make_contents(0, 5))
    await expect_refused(storage, [make_batch(partition, 0, 1)], "records that were trimmed")
    await storage.append([make_batch(partition, 20, 2, size=3)])
    await expect_contents(storage, partition, make_contents(13, 9, size=3), 13)


async def _check_trim_of_everything(storage: Storage) -> None:
    partition = new_partition()
    await storage.append([make_batch(partition, 0, 10)])
    for earliest in (10, 1000, SEQUENCE_BEYOND):
        await storage.trim(partition, earliest)
        info = await read_info(storage, partition)
        assert info == PartitionInfo(10, 10, 0), f"a partition whose records were all trimmed is listed as {info!r}"
    await expect_absent(storage, partition, [0, 9, 10])
    await expect_refused(storage, [make_batch(partition, 0, 1)], "a trimmed partition that starts again")
    await expect_refused(storage, [make_batch(partition, 11, 1)], "a gap after trimming")
    await storage.append([make_batch(partition, 10, 3)])
    await expect_contents(storage, partition, make_contents(10, 3), 10)


async def _check_trim_of_nothing(storage: Storage) -> None:
    partition = new_partition()
    await storage.trim(partition, 5)
    assert await list_partitions(storage, partition.topic) == {}, "trimming an unknown partition created it"
    await storage.append([make_batch(partition, 0, 1)])


async def _check_reset(storage: Storage) -> None:
    """A partition continues at a later sequence, without its records."""
    partition, neighbor = new_partition(), new_partition()
    await storage.append([make_batch(partition, 0, 10), make_batch(neighbor, 0, 5)])
    await storage.reset_to(partition, 50)
    info = await read_info(storage, partition)
    assert info == PartitionInfo(50, 50, 0), f"after reset_to(50) it is listed as {info!r}"
    await expect_absent(storage, partition, [0, 9, 10, 49, 50])
    await expect_refused(storage, [make_batch(partition, 10, 1)], "records before a reset")
    await expect_refused(storage, [make_batch(partition, 51, 1)], "a gap after a reset")
    await storage.append([make_batch(partition, 50, 3)])
    await expect_contents(storage, partition, make_contents(50, 3), 50)
    await storage.reset_to(partition, 53)
    info = await read_info(storage, partition)
    assert info == PartitionInfo(53, 53, 0), f"after a reset to its own end it is listed as {info!r}"
    await expect_contents(storage, neighbor, make_contents(0, 5))


async def _check_reset_goes_forward(storage: Storage) -> None:
    """A partition cannot be reset to before its end."""
    partition = new_partition()
    await storage.append([make_batch(partition, 0, 10)])
    for sequence in (0, 5, 9):
        try:
            await storage.reset_to(partition, sequence)
        except StorageSequenceError:
            continue
        raise AssertionError(f"reset_to({sequence}) of a partition that ends at 10 did not raise StorageSequenceError")
    await expect_contents(storage, partition, make_contents(0, 10))


async def _check_reset_creates_a_partition(storage: Storage) -> None:
    """An unknown partition is created, without records."""
    partition = new_partition()
    await storage.reset_to(partition, 7)
    info = await read_info(storage, partition)
    assert info == PartitionInfo(7, 7, 0), f"an unknown partition after reset_to(7) is listed as {info!r}"
    await expect_refused(storage, [make_batch(partition, 8, 1)], "a gap after a reset that created the partition")
    await storage.append([make_batch(partition, 7, 2)])
    await expect_contents(storage, partition, make_contents(7, 2), 7)


async def _check_retention_keeps_what_it_must(storage: Storage) -> None:
    """No record within the limits is dropped, and the result matches what was dropped."""
    time_ms = now_ms()
    limits = (
        (RetentionPolicy(records_max=30), 30),
        (RetentionPolicy(bytes_max=2_000), 20),
        (RetentionPolicy(age_ms=10 * 3_600_000 + 1_800_000), 10),
        (RetentionPolicy(age_ms=10**12, bytes_max=10**9, records_max=10**9), 40),
        (RetentionPolicy(records_max=25, bytes_max=3_000), 25),
    )
    for policy, kept in limits:
        partition, neighbor = new_partition(), new_partition()
        for first_sequence in range(0, 40, 4):
            times = [time_ms - (40 - sequence) * 3_600_000 for sequence in range(first_sequence, first_sequence + 4)]
            contents = make_contents(first_sequence, 4, size=100)
            await storage.append([RecordBatch(partition, first_sequence, contents, stored_at=times)])
        await storage.append([make_batch(neighbor, 0, 40)])
        moved = await storage.apply_retention(policy, partition.topic)
        info = await read_info(storage, partition)
        assert info.end_sequence == 40, f"{policy!r} moved the end to {info.end_sequence}"
        assert info.count >= kept, f"{policy!r} left {info.count} of 40 records, {kept} are within the limits"
        assert info.content_bytes == 100 * info.count, f"{policy!r} left {info!r}"
        earliest = info.earliest_sequence
        expected = {partition: earliest} if earliest else {}
        assert moved == expected, f"{policy!r} left {info!r}, and returned {moved!r}"
        await expect_absent(storage, partition, range(earliest))
        await expect_contents(storage, partition, make_contents(earliest, 40 - earliest, size=100), earliest)
        await expect_contents(storage, neighbor, make_contents(0, 40))
        await storage.append([make_batch(partition, 40, 1)])


async def _check_retention_of_nothing(storage: Storage) -> None:
    """If the limits keep nothing, all records are dropped, and the partitions continue at their ends."""
    for policy in (RetentionPolicy(records_max=0), RetentionPolicy(bytes_max=0), RetentionPolicy(age_ms=1_000)):
        topic = f"check-{new_address()}"
        partitions = [Partition(topic, new_address()) for _ in range(3)]
        old = [now_ms() - 60_000] * 20
        await storage.append([RecordBatch(each, 5, make_contents(5, 20), stored_at=old) for each in partitions])
        moved = await storage.apply_retention(policy, topic)
        assert moved == dict.fromkeys(partitions, 25), f"{policy!r} returned {moved!r}, expected 25 for each of three"
        found = await list_partitions(storage, topic)
        assert set(found.values()) == {PartitionInfo(25, 25, 0)}, f"{policy!r} left {found!r}"
        assert await storage.apply_retention(policy, topic) == {}, "retention that drops nothing returned partitions"
        await storage.append([make_batch(each, 25, 1) for each in partitions])
        await expect_contents(storage, partitions[1], make_contents(25, 1), 25)


async def _check_retention_is_of_every_topic(storage: Storage) -> None:
    """Without a topic, the policy applies to all topics."""
    partitions = [new_partition(), new_partition()]
    await storage.append([make_batch(each, 0, 10) for each in partitions])
    moved = await storage.apply_retention(RetentionPolicy(records_max=0))
    assert {each: moved.get(each) for each in partitions} == dict.fromkeys(partitions, 10), (
        f"apply_retention returned {moved!r}"
    )
    held = {each: info for each, info in (await list_partitions(storage)).items() if info.count}
    assert not held, f"retention of nothing left {held!r}"


async def _check_statistics(storage: Storage) -> None:
    before = await storage.statistics()
    partition = new_partition()
    await storage.append([make_batch(partition, 0, 100, size=50), make_batch(new_partition(), 3, 10)])
    await storage.trim(partition, 60)
    after = await storage.statistics()
    added = (
        after.partitions - before.partitions,
        after.records - before.records,
        after.content_bytes - before.content_bytes,
    )
    assert added == (2, 50, 40 * 50 + 13), f"50 records in 2 partitions are counted as {added!r}"
    assert after.stored_bytes > 0, "a storage that holds records reports 0 stored bytes"


async def _check_found_partitions(storage: Storage) -> None:
    first, second, unknown = (new_partition() for _ in range(3))
    await storage.append([make_batch(first, 0, 10), make_batch(second, 3, 10)])
    await storage.trim(second, 13)
    for partition in (first, second, unknown):
        found = await storage.find_partition(partition)
        listed = (await storage.partitions(partition.topic)).get(partition)
        assert found == listed, f"find_partition returned {found!r}, partitions lists {listed!r}"


async def _check_delete(storage: Storage) -> None:
    """A deleted partition is unknown, and may begin again anywhere. Others and consumers' positions are kept."""
    if not isinstance(storage, DeletesPartitions):
        return
    topic, name = f"check-{new_address()}", new_address()
    full, trimmed, reset, kept = (Partition(topic, new_address()) for _ in range(4))
    await storage.append([make_batch(each, 3, 40, size=100) for each in (full, trimmed, kept)])
    await storage.trim(trimmed, 43)
    await storage.reset_to(reset, 7)
    await storage.save_positions(name, {full: 20})
    before = await storage.statistics()
    await storage.delete_partitions([full, trimmed, reset, new_partition()])
    await storage.delete_partitions([])
    found = await list_partitions(storage, topic)
    assert found == {kept: PartitionInfo(3, 43, 4000)}, f"after delete_partitions of the others, found {found!r}"
    for deleted in (full, trimmed, reset):
        await expect_absent(storage, deleted, [3, 42, 43])
        assert await storage.find_sequence_by_time(deleted, 0) == 0, "a deleted partition is searched"
    await storage.trim(full, 10)
    after = await storage.statistics()
    dropped = before.partitions - after.partitions, before.records - after.records
    assert dropped == (3, 40), f"3 partitions with 40 records were deleted, the statistics lost {dropped!r}"
    assert await storage.load_positions(name) == {full: 20}, "delete_partitions changed a consumer's positions"
    await expect_contents(storage, kept, make_contents(3, 40, size=100), 3)
    await storage.append([make_batch(kept, 43, 1), make_batch(full, 0, 5), make_batch(trimmed, 50, 5)])
    await storage.reset_to(reset, 2)
    await expect_contents(storage, full, make_contents(0, 5))
    await expect_contents(storage, trimmed, make_contents(50, 5), 50)
    await expect_refused(storage, [make_batch(full, 43, 1)], "the end of a partition before it was deleted")
    await read_some(storage, full, 0, 3)
    await storage.delete_partitions([full])
    await storage.append([RecordBatch(full, 0, make_contents(10, 5))])
    for sequence in (3, 0):  # the first one continues the read before the deletion
        found_contents = await read_some(storage, full, sequence, 1)
        assert found_contents == make_contents(10 + sequence, 1), (
            f"sequence {sequence} of a partition that was deleted and began again is read as {found_contents!r}"
        )
    info = await read_info(storage, reset)
    assert info == PartitionInfo(2, 2, 0), f"a deleted partition that was created by reset_to(2) is listed as {info!r}"
    assert await storage.find_damage() == [], "find_damage reports a deleted partition"


async def _check_last_append(storage: Storage) -> None:
    """A storage that reports the time of the last append still reports it after the records are dropped."""
    partition = new_partition()
    await storage.append([RecordBatch(partition, 0, make_contents(0, 3), stored_at=[1_000, 1_000, 2_000])])
    for earliest in (0, 2, 3):
        await storage.trim(partition, earliest)
        last_append_at = (await storage.partitions(partition.topic))[partition].last_append_at
        assert last_append_at in {None, 2_000}, f"records stored until 2000 were last appended at {last_append_at}"
