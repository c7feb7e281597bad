"""Makes the logs of a topic that the cluster does not know a topic again, from the storage of a stopped broker."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from hashlib import sha256

import attrs

from dafka.batches import decode_batch, read_header
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.topics import Topic, find_name_problem
from dafka.broker.core.partition_address import parse_address
from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.records import NO_EPOCH
from dafka.broker.log.index_reader import restore_log
from dafka.broker.log.reader import LogReader, split_committed
from dafka.broker.replication.stored_logs import StoredLogs, read_stored_logs
from dafka.broker.stored_state import read_state, read_store_ids
from dafka.errors import ConfigError, StorageFormatError
from dafka.internal_topics import is_internal_topic
from dafka.records import Partition, RecordBatch
from dafka.storage import READ_BYTES, Storage
from dafka.storage.tools.partitions import ProgressCallback


@attrs.frozen
class UnnamedTopic:
    """A topic in a storage that the cluster of its broker does not know.

    Attributes:
        topic_id: Its id.
        name: The name that it had.
        log_count: The number of its logs.
    """

    topic_id: str
    name: str
    log_count: int


async def find_unnamed(storage: Storage) -> list[UnnamedTopic]:
    """Return the topics of clients in a storage that the cluster of its broker does not know, by id.

    If no broker has used the storage, these are all. Raise `StorageError`.
    """
    state = await read_state(storage) or ClusterState()
    found: dict[str, UnnamedTopic] = {}
    for partition in await storage.partitions():
        address = parse_address(partition.address)
        if address is not None and state.is_orphan(partition) and not is_internal_topic(partition.topic):
            known = found.get(address.topic_id, UnnamedTopic(address.topic_id, partition.topic, 0))
            found[address.topic_id] = attrs.evolve(known, log_count=max(known.log_count, address.log + 1))
    return [found[each] for each in sorted(found)]


async def adopt(storage: Storage, topic_id: str, name: str, *, progress: ProgressCallback | None = None) -> int:
    """Append the committed records of an unnamed topic to new partitions of a topic, and return their number.

    Each log becomes a partition, in the order of the log, as if a producer had written it. The broker orders these
    records in the logs of the topic when it starts. The former partitions stay. An adoption that was interrupted
    continues when it is repeated.

    Raise `ConfigError` if the storage has no such topic, or the name is not valid, and `StorageError` if it fails.
    """
    problem = find_name_problem(name)
    if problem:
        raise ConfigError(problem)
    topic = next((each for each in await find_unnamed(storage) if each.topic_id == topic_id), None)
    if topic is None:
        raise ConfigError(f"the storage has no partitions of an unnamed topic {topic_id!r}")
    logs, count = await read_stored_logs(storage), 0
    for number in range(topic.log_count):
        partition = Partition(name, _address_of(storage, topic_id, number))
        stored, end = logs.durable_end(partition), 0
        log = await _load_log(logs, topic, number)
        if log is None:
            continue
        async with aclosing(_read_committed(LogReader(storage), log)) as batches:
            async for batch in batches:
                first, end = end, end + len(batch)
                if end > stored:
                    await storage.append([_continue(batch, partition, first, stored)])
                    count += end - max(first, stored)
                if progress is not None:
                    progress(count, None)
    await storage.flush()
    return count


def _address_of(storage: Storage, topic_id: str, number: int) -> str:
    """Return the address of the partition that a log becomes. It is always the same for a storage."""
    return sha256(f"{storage.identity}/{topic_id}/{number}".encode()).hexdigest()[:32].upper()


def _continue(batch: RecordBatch, partition: Partition, first: int, stored: int) -> RecordBatch:
    """Return the records of a batch that a partition does not have, of which some records are stored."""
    skipped = max(stored - first, 0)
    return RecordBatch(
        partition,
        first + skipped,
        batch.values[skipped:],
        keys=None if batch.keys is None else batch.keys[skipped:],
        headers=None if batch.headers is None else batch.headers[skipped:],
        timestamps=None if batch.timestamps is None else batch.timestamps[skipped:],
    )


async def _load_log(logs: StoredLogs, unnamed: UnnamedTopic, number: int) -> Log | None:
    """Return a log of an unnamed topic, as far as it is stored; None if nothing is known of it."""
    first, storage = logs.first_epoch(unnamed.topic_id, number), logs.storage
    if first is None:
        return None
    topic = Topic(unnamed.name, unnamed.topic_id, unnamed.log_count, first_epoch=first.epoch)
    log = await logs.load(topic, number, (first.leader,))
    last = log.replica.local_epochs.log_end().leader_epoch
    if last == NO_EPOCH:
        raise StorageFormatError(f"log {number} of {topic.name} cannot be read: its first leader epoch is not stored")
    # A leader without followers writes no index record for each append, and only its own storage has all of them.
    is_led = last.leader in await read_store_ids(storage)
    table = LogTable(last.leader if is_led else storage.identity)
    table.add_topic(topic)
    state = table.logs(topic.name)[number]
    table.begin_epoch(state, last.epoch)
    await restore_log(storage, log, state, last, is_whole=is_led)
    if is_led:
        ends = {each: info.end_sequence for each, info in logs.partitions.items() if each.topic == topic.name}
        table.finish_epoch(state, ends, {})
    state.high_watermark = state.index.end_offset
    return state


async def _read_committed(reader: LogReader, log: Log) -> AsyncGenerator[RecordBatch, None]:
    """Yield the records of a log that are in no aborted transaction."""
    offset, end = log.index.start_offset, log.last_stable_offset
    while offset < end:
        batches = [(read_header(data), data) for data in await reader.read(log, offset, end, READ_BYTES)]
        next_offset = Offset(batches[-1][0].end_offset) if batches else end
        for (header, data), is_committed in split_committed(batches, log.aborted_between(offset, next_offset)):
            if is_committed:
                found = decode_batch(data, header=header)
                yield RecordBatch(
                    log.leader_partition,
                    header.base_offset,
                    found.values,
                    keys=found.keys,
                    headers=found.headers,
                    timestamps=found.timestamps,
                )
        offset = next_offset
