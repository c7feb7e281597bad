"""What a broker does with its storage before it starts: read topics, indexes and state, and order what is in no log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection

from dafka.config import Config
from dafka.contents import LENGTH_BYTES, PackedContents
from dafka.protocol.logs import (
    INDEX_TOPIC,
    TOPICS_TOPIC,
    LogOrder,
    ProducerEntry,
    Topic,
    decode_topic,
    encode_topic,
    find_name_problem,
)
from dafka.protocol.logs.log_state import LogState
from dafka.records import Partition, RecordBatch, new_address
from dafka.roles.state_log import StateLogs
from dafka.storage import DeletesPartitions, KeepsRecordBatches, PartitionInfo, RetentionPolicy, Storage
from dafka.storage.base import read_range
from dafka.storage.plugin_helpers import now_ms

STATE_TOPICS = (TOPICS_TOPIC, "$groups", "$offsets", "$transactions")
"""The topics of a broker's state."""

_INTERNAL_TOPICS = frozenset((INDEX_TOPIC, *STATE_TOPICS))

_COUNTED_RECORDS = 10**6
"""Records without contents that are placed together."""


def is_internal(partition: Partition, identity: str) -> bool:
    """Return whether a partition has a broker's indexes or state. The broker has this identity."""
    return partition.topic in _INTERNAL_TOPICS and partition.address.partition("/")[0] == identity


def retention_of(topic: Topic | None, default: RetentionPolicy) -> RetentionPolicy:
    """Return the limits of what a topic's partitions keep.

    Args:
        topic: The topic, whose own settings count most; None if it has no logs.
        default: The limits of topics without settings of their own.

    Returns:
        The limits.
    """
    if topic is None:
        return default

    def choose(name: str, otherwise: int | None) -> int | None:
        text = topic.settings.get(name)
        return otherwise if text is None else (int(text) if int(text) >= 0 else None)

    return RetentionPolicy(
        age_ms=choose("retention.ms", default.age_ms),
        bytes_max=choose("retention.bytes", default.bytes_max),
        records_max=default.records_max,
    )


async def delete_partitions(storage: Storage, partitions: Collection[Partition]) -> None:
    """Delete partitions, or at least their records if the storage cannot delete partitions. Raises `StorageError`."""
    if isinstance(storage, DeletesPartitions):
        await storage.delete_partitions(partitions)
        return
    held = await storage.partitions()
    for partition in partitions:
        if partition in held:
            await storage.trim(partition, held[partition].end_sequence)


async def load_broker(
    storage: Storage, config: Config, restore_producer: Callable[[LogState, ProducerEntry], None]
) -> tuple[LogOrder, StateLogs, dict[Partition, PartitionInfo]]:
    """Read what a broker needs of its storage, and give records that are in no log their offsets.

    Args:
        storage: The storage.
        config: The configuration.
        restore_producer: Takes what producers with an id have done in the logs.

    Returns:
        The logs, the state, and the partitions that other nodes may see.

    Raises:
        StorageError: The storage fails, or a newer version of dafka has written it.
    """
    state = StateLogs(storage.identity, STATE_TOPICS)
    await state.load(storage)
    order = LogOrder(storage.identity, keeps_record_batches=isinstance(storage, KeepsRecordBatches))
    for key, value in state.values(TOPICS_TOPIC).items():
        order.add_topic(decode_topic(key.decode(), value))
    held = await storage.partitions()
    await _delete_orphans(storage, order, held)
    for log in order.all_logs():
        await _load_index(storage, order, log, held, restore_producer)
    visible = {partition: info for partition, info in held.items() if not is_internal(partition, storage.identity)}
    for name in {partition.topic: None for partition in visible}:
        if name not in order.topics and not find_name_problem(name):
            topic = Topic(name, new_address(), config.kafka.log_count)
            order.add_topic(topic)
            state.put(TOPICS_TOPIC, [(name.encode(), encode_topic(topic))])
    await _order_rest(storage, order, state, visible)
    return order, state, visible


async def _delete_orphans(storage: Storage, order: LogOrder, held: dict[Partition, PartitionInfo]) -> None:
    """Delete what is left of deleted topics."""
    known = {partition for log in order.all_logs() for partition in (log.own, log.index_partition)}
    mark = f"{storage.identity}/"
    orphans = [each for each in held if each.address.startswith(mark) and each not in known]
    if orphans:
        await delete_partitions(storage, orphans)
        for partition in orphans:
            del held[partition]


async def _load_index(
    storage: Storage,
    order: LogOrder,
    log: LogState,
    held: dict[Partition, PartitionInfo],
    restore_producer: Callable[[LogState, ProducerEntry], None],
) -> None:
    info = held.get(log.index_partition)
    if info is None:
        return
    log.index_end = info.end_sequence
    log.index_first = log.index_trimmed = info.earliest_sequence
    async for batch in read_range(storage, log.index_partition, info.earliest_sequence, info.end_sequence):
        for sequence, value in enumerate(batch.values, batch.first_sequence):
            for entry in order.restore(log, sequence, value or b""):
                restore_producer(log, entry)


async def _order_rest(
    storage: Storage, order: LogOrder, state: StateLogs, held: dict[Partition, PartitionInfo]
) -> None:
    """Order the records that a store has kept before it became a broker, the oldest partitions first."""
    ends = {partition: info.end_sequence for partition, info in held.items()}
    earliest = {partition: info.earliest_sequence for partition, info in held.items() if info.earliest_sequence}
    rest = order.finish_restoring(ends, earliest)
    for partition, first_sequence in sorted(rest, key=lambda each: held[each[0]].earliest_stored_at or 0):
        async for batch in _placeable_batches(storage, order, partition, first_sequence, ends[partition]):
            plan = order.plan([batch], now_ms())
            await storage.append([*plan.index_records, *state.begin_write(now_ms())])
            order.commit(plan)
            state.write_done()
    for log in order.all_logs():
        order.skip_dropped(log, earliest)


async def _placeable_batches(
    storage: Storage, order: LogOrder, partition: Partition, first_sequence: int, end_sequence: int
) -> AsyncIterator[RecordBatch]:
    """Yield records as far as their places depend on them: where a topic has one log, their number is enough."""
    if len(order.logs(partition.topic)) == 1:
        for first in range(first_sequence, end_sequence, _COUNTED_RECORDS):
            count = min(_COUNTED_RECORDS, end_sequence - first)
            yield RecordBatch(partition, first, PackedContents(b"", bytes(LENGTH_BYTES * count)))
        return
    async for batch in read_range(storage, partition, first_sequence, end_sequence):
        yield batch
