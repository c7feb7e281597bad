"""The partition of a producer: a new one, a given one, or the one in its spool, which can be replaced."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

import trio

from dafka.batches import move_records
from dafka.config import Config
from dafka.errors import StorageError, StorageSequenceError
from dafka.protocol import Event, ProducerMachine, StorageFailed
from dafka.records import Partition
from dafka.storage import DeletesPartitions, Storage, read_range

REPLACEMENTS_DOUBLED_MAX = 10
"""The number of new partitions after which the wait for the next one stops doubling. It doubles so that a faulty store
causes few partitions."""

SPOOL_RETRY_S = 1.0
"""Seconds until the producer tries again to begin a new partition in a spool that failed."""

_ACKNOWLEDGED = "acknowledged"
_REPLACEMENTS = "replacements"


def make_machine(
    config: Config,
    partition: Partition,
    next_sequence: int = 0,
    acknowledged_end: int = 0,
    *,
    is_spooled: bool = False,
    is_named: bool = False,
    replaced: int = 0,
) -> ProducerMachine:
    """Return the machine of a partition, after the producer has replaced this number of others.

    A partition is never replaced if the program has given its address (`is_named`).
    """
    stranded_after_s = config.producer.new_partition_after_ms / 1000 * 2 ** min(replaced, REPLACEMENTS_DOUBLED_MAX)
    return ProducerMachine(
        partition,
        config.producer,
        config.fetch.replies_max,
        reply_records_max=config.fetch.reply_records_max,
        next_sequence=next_sequence,
        acknowledged_end=acknowledged_end,
        is_spooled=is_spooled,
        stranded_after_s=0.0 if is_named else stranded_after_s,
    )


async def open_spooled_machine(config: Config, spool: Storage, topic: str) -> ProducerMachine:
    """Return the machine that continues a spool.

    Raise `StorageError` if the spool cannot be read, or ends before records that were acknowledged.
    """
    partition = await find_spooled_partition(spool, topic)
    info = await spool.find_partition(partition)
    acknowledged = await spool.load_positions(_ACKNOWLEDGED)
    end = 0 if info is None else info.end_sequence
    acknowledged_end = max(acknowledged.get(partition, 0), 0 if info is None else info.earliest_sequence)
    if acknowledged_end > end:
        raise StorageSequenceError(
            f"{config.producer.spool}: the spool ends at {end}, before acknowledged records (up to {acknowledged_end})"
        )
    return make_machine(config, partition, end, acknowledged_end, is_spooled=True)


async def find_spooled_partition(spool: Storage, topic: str) -> Partition:
    """Return the partition of a topic that a spool continues: the last replacement, or the one with its identity."""
    replacements = await spool.load_positions(_REPLACEMENTS)
    found = {partition: number for partition, number in replacements.items() if partition.topic == topic}
    return max(found, key=lambda partition: found[partition], default=Partition(topic, spool.identity))


async def trim_spool(
    spool: Storage,
    machine: ProducerMachine,
    wait_change: Callable[[], Awaitable[None]],
    report: Callable[[Event], None],
) -> None:
    """Trim the acknowledged records of a machine's partition until cancelled."""
    partition = machine.partition
    while True:
        earliest = machine.begin_spool_trim()
        if earliest is None:
            await wait_change()
            continue
        try:
            with trio.CancelScope(shield=True):
                await spool.save_positions(_ACKNOWLEDGED, {partition: earliest + 1})
                machine.spool_starts_at(earliest)
                await spool.trim(partition, earliest)
        except StorageError as error:
            report(StorageFailed(str(error)))


async def replace_spooled_partition(
    spool: Storage, partition: Partition, first_sequence: int, new: Partition, report: Callable[[Event], None]
) -> None:
    """Continue a spool with a new partition; retry while that fails, as on a full disk."""
    while True:
        try:
            with trio.CancelScope(shield=True):
                return await copy_spooled_partition(spool, partition, first_sequence, new)
        except StorageError as error:
            report(StorageFailed(str(error)))
            await trio.sleep(SPOOL_RETRY_S)


async def copy_spooled_partition(spool: Storage, partition: Partition, first_sequence: int, new: Partition) -> None:
    """Continue a spool with a new partition, which begins with the records of the old one from a sequence on.

    The saved position decides which partition a spool continues. If the process is killed before it is saved, the copy
    is unused. A failed call can be repeated.
    """
    info = await spool.find_partition(partition)
    end_sequence = 0 if info is None else info.end_sequence
    copied = await spool.find_partition(new)  # by a failed attempt
    first_copied = first_sequence + (0 if copied is None else copied.end_sequence)
    async with aclosing(read_range(spool, partition, first_copied, end_sequence)) as batches:
        async for batch in batches:
            await spool.append([move_records(batch, new, batch.first_sequence - first_sequence)])
    numbers = (await spool.load_positions(_REPLACEMENTS)).values()
    await spool.save_positions(_REPLACEMENTS, {new: max(numbers, default=0) + 1})
    if isinstance(spool, DeletesPartitions):
        await spool.delete_partitions([partition])
    else:
        await spool.trim(partition, end_sequence)
