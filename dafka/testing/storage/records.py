"""Checks of appending, reading and listing: one small check for each rule."""

from __future__ import annotations

import random
from contextlib import aclosing

import trio

from dafka.exceptions import unwrap_group
from dafka.records import Partition, RecordBatch, decode_text, new_address
from dafka.storage import PartitionInfo, Storage, read_range
from dafka.testing.storage.expectations import (
    MIB,
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

_CANCEL_AFTER_S = (0.0, 0.0001, 0.0003, 0.001, 0.003, 0.01)


async def _check_append_and_read(storage: Storage) -> None:
    partition = new_partition()
    await storage.append([make_batch(partition, 0, 10)])
    await storage.append([make_batch(partition, 10, 1), make_batch(partition, 11, 9)])
    await expect_contents(storage, partition, make_contents(0, 20))
    assert await read_some(storage, partition, 4, 3) == make_contents(4, 3)
    assert await read_some(storage, partition, 19, 1000) == make_contents(19, 1)


async def _check_append_is_all_or_nothing(storage: Storage) -> None:
    known, unknown = new_partition(), new_partition()
    await storage.append([make_batch(known, 0, 3)])
    good, bad = make_batch(unknown, 0, 3), make_batch(known, 4, 1)
    for batches in ([good, bad], [bad, good], [make_batch(known, 3, 2), good, make_batch(unknown, 4, 1)]):
        await expect_refused(storage, batches, "one bad batch in the list")
        found = await list_partitions(storage, unknown.topic)
        assert not found, f"a refused append wrote the valid batches of the list: {found!r}"
        await expect_contents(storage, known, make_contents(0, 3))
        await expect_absent(storage, unknown, [0])
    await storage.append([good, make_batch(known, 3, 2)])
    await expect_contents(storage, known, make_contents(0, 5))
    await expect_contents(storage, unknown, make_contents(0, 3))


async def _check_gap_is_refused(storage: Storage) -> None:
    partition = new_partition()
    await storage.append([make_batch(partition, 0, 5)])
    await expect_refused(storage, [make_batch(partition, 6, 1)], "a gap")
    await expect_refused(storage, [make_batch(partition, 5, 1), make_batch(partition, 7, 1)], "a gap within the list")
    await expect_contents(storage, partition, make_contents(0, 5))


async def _check_overlap_is_refused(storage: Storage) -> None:
    partition = new_partition()
    await storage.append([make_batch(partition, 0, 5)])
    await expect_refused(storage, [make_batch(partition, 4, 2)], "an overlap")
    await expect_refused(storage, [make_batch(partition, 0, 5)], "the same records again")
    await expect_refused(
        storage, [make_batch(partition, 5, 1), make_batch(partition, 5, 1)], "an overlap within the list"
    )
    await expect_contents(storage, partition, make_contents(0, 5))


async def _check_partition_may_begin_anywhere(storage: Storage) -> None:
    partition = new_partition()
    await storage.append([make_batch(partition, 2**40, 3)])
    info = await read_info(storage, partition)
    assert info == PartitionInfo(2**40, 2**40 + 3, 3 * 13), f"3 records from 2**40 on are listed as {info!r}"
    await expect_contents(storage, partition, make_contents(2**40, 3), 2**40)
    await expect_absent(storage, partition, [0, 2**40 - 1, 2**40 + 3])


async def _check_reads_are_bounded(storage: Storage) -> None:
    partition = new_partition()
    await storage.append([make_batch(partition, 0, 300, size=1000)])
    assert len(await read_some(storage, partition, 0, 300, bytes_max=10_000)) < 300
    assert len(await read_some(storage, partition, 7, 300, bytes_max=1)) <= 2
    assert len(await read_some(storage, partition, 0, 7)) == 7


async def _check_ranges_are_read_lazily(storage: Storage) -> None:
    partition = new_partition()
    await storage.append([make_batch(partition, 0, 40, size=100_000)])
    sequence, batches = 5, 0
    async with aclosing(read_range(storage, partition, 5, 1000)) as read:
        async for batch in read:
            first = batch.first_sequence
            assert first == sequence, f"a range continues at {first}, expected {sequence}"
            assert batch.values == make_contents(sequence, len(batch), 100_000), f"wrong records from {sequence} on"
            assert batch.content_bytes <= 2 * MIB, f"a batch of a range has {batch.content_bytes} bytes"
            sequence, batches = batch.end_sequence, batches + 1
    assert sequence == 40, f"a range up to 40 ends at {sequence}"
    assert batches > 1, "4 MB were read as one batch"


async def _check_reads_past_either_end(storage: Storage) -> None:
    partition = new_partition()
    await expect_absent(storage, partition, [0, 1])
    await storage.append([make_batch(partition, 7, 3)])
    await expect_absent(storage, partition, [0, 6, 10, 11, 10**9, SEQUENCE_BEYOND])
    await expect_absent(storage, Partition(partition.topic, new_address()), [7])
    await expect_absent(storage, Partition(new_address(), partition.address), [7])


async def _check_empty_contents(storage: Storage) -> None:
    mixed, empty = new_partition(), new_partition()
    contents = [b"", b"1", b"", b"", b"4", b""]
    await storage.append([RecordBatch(mixed, 0, contents), RecordBatch(empty, 0, [b""] * 3)])
    await storage.append([RecordBatch(empty, 3, [b""])])
    await expect_contents(storage, mixed, contents)
    await expect_contents(storage, empty, [b""] * 4)
    assert (await read_info(storage, mixed)).content_bytes == 2, "empty contents count as bytes"
    assert await read_info(storage, empty) == PartitionInfo(0, 4, 0), "a partition of empty contents is listed wrongly"


async def _check_batch_without_records(storage: Storage) -> None:
    partition = new_partition()
    await storage.append([])
    await storage.append([RecordBatch(partition, 5, [])])
    found = await list_partitions(storage, partition.topic)
    assert not found, f"a batch without records created a partition: {found!r}"
    await storage.append([make_batch(partition, 0, 2), RecordBatch(partition, 9, []), make_batch(partition, 2, 1)])
    await expect_contents(storage, partition, make_contents(0, 3))


async def _check_large_content(storage: Storage) -> None:
    partition = new_partition()
    large = random.Random(5).randbytes(5 * MIB)
    await storage.append([RecordBatch(partition, 0, [b"0", large, b"2"])])
    await expect_contents(storage, partition, [b"0", large, b"2"])
    assert await read_some(storage, partition, 1, 1, bytes_max=1) == [large]
    assert (await read_info(storage, partition)).content_bytes == 5 * MIB + 2


async def _check_every_byte(storage: Storage) -> None:
    partition = new_partition()
    contents = [bytes((value,)) for value in range(256)] + [bytes(range(256)), b"\0" * 10, b"\xff" * 10]
    await storage.append([RecordBatch(partition, 0, contents)])
    await expect_contents(storage, partition, contents)


async def _check_every_topic(storage: Storage) -> None:
    names = ["", "\0", "a", "A", "a\0", "a\0b", "a%", "a_", "_", "*", "'; --", "a/b", "..", " ", "é", "e\u0301", "😀"]
    binary = [b"\xff", b"\xff" * 255, b"\x80a", bytes(range(255)), bytes(range(1, 256)), b"123", b"\xc3", b"a" * 255]
    topics = names + [decode_text(topic) for topic in binary]
    partitions = [Partition(topic, new_address() + tail) for topic in topics for tail in ("", "\0", "\udcfe")]
    await storage.append([RecordBatch(partition, 0, [b"0 %d" % i]) for i, partition in enumerate(partitions)])
    for i, partition in enumerate(partitions):
        found = await list_partitions(storage, partition.topic)
        wrong = [other for other in found if other.topic != partition.topic]
        assert not wrong, f"partitions({partition.topic!r}) returned partitions of another topic: {wrong!r}"
        assert partition in found, f"partitions({partition.topic!r}) lacks {partition!r}"
        await expect_contents(storage, partition, [b"0 %d" % i])
    await storage.save_positions(name := new_address(), {partition: i for i, partition in enumerate(partitions)})
    assert await storage.load_positions(name) == {partition: i for i, partition in enumerate(partitions)}


async def _check_many_partitions(storage: Storage) -> None:
    topics = [f"check-{new_address()}" for _ in range(5)]
    partitions = [Partition(topic, new_address()) for topic in topics for _ in range(20)]
    for first_sequence in range(0, 30, 3):
        await storage.append([make_batch(partition, first_sequence, 3) for partition in partitions])
    for partition in partitions:
        await expect_contents(storage, partition, make_contents(0, 30))
    for topic in topics:
        found = await list_partitions(storage, topic)
        assert set(found) == {partition for partition in partitions if partition.topic == topic}


async def _check_partitions_are_listed(storage: Storage) -> None:
    first = new_partition()
    second, other = Partition(first.topic, new_address()), new_partition()
    assert await list_partitions(storage, first.topic) == {}, "a topic never used has partitions"
    await storage.append([make_batch(first, 0, 11), make_batch(second, 5, 1), make_batch(other, 0, 1)])
    await storage.append([make_batch(second, 6, 2, size=100)])
    expected = {first: PartitionInfo(0, 11, 12), second: PartitionInfo(5, 8, 201)}
    found = await list_partitions(storage, first.topic)
    assert found == expected, f"expected {expected!r}, partitions of the topic are {found!r}"
    found = await list_partitions(storage)
    assert expected.items() <= found.items(), "partitions of all topics lack some of one topic"
    assert found.get(other) == PartitionInfo(0, 1, 1), "partitions of all topics lack those of another topic"


async def _check_tasks_take_turns(storage: Storage) -> None:
    partitions = [new_partition() for _ in range(4)]

    async def write(partition: Partition) -> None:
        for first_sequence in range(0, 40, 4):
            await storage.append([make_batch(partition, first_sequence, 4)])

    async def read(partition: Partition) -> None:
        end = 0
        while end < 40:
            info = (await list_partitions(storage, partition.topic)).get(partition, PartitionInfo())
            assert info.end_sequence % 4 == 0, f"half of a batch of 4 is listed: {info!r}"
            assert info.end_sequence >= end, f"a partition shrank from {end} to {info.end_sequence}"
            end = info.end_sequence
            if end:
                assert await read_some(storage, partition, end - 1, 1) == make_contents(end - 1, 1)

    with unwrap_group():
        async with trio.open_nursery() as nursery:
            for partition in partitions:
                nursery.start_soon(write, partition)
                nursery.start_soon(read, partition)
    for partition in partitions:
        await expect_contents(storage, partition, make_contents(0, 40))


async def _check_cancelled_append_is_all_or_nothing(storage: Storage) -> None:
    first, second = new_partition(), new_partition()
    end = 0
    for delay in _CANCEL_AFTER_S:
        batches = [make_batch(first, end, 500, size=100), make_batch(second, end, 500)]
        with trio.move_on_after(delay) as scope:
            await storage.append(batches)
        infos = {**await list_partitions(storage, first.topic), **await list_partitions(storage, second.topic)}
        ends = [infos.get(partition, PartitionInfo()).end_sequence for partition in (first, second)]
        assert ends in ([end, end], [end + 500, end + 500]), f"a cancelled append of 500 to {end} left ends {ends}"
        assert scope.cancelled_caught or ends[0] == end + 500, "append returned without having appended"
        end = ends[0]
    await storage.append([make_batch(first, end, 1, size=100), make_batch(second, end, 1)])
    await expect_contents(storage, first, make_contents(0, end + 1, size=100))
    await expect_contents(storage, second, make_contents(0, end + 1))
