"""Starts a broker: reads topics, indexes and state from its storage, and assigns missing offsets."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial

import attrs
import trio

from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.metadata.brokers import BROKERS_TOPIC
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.features import SUPPORTED, FeatureSupport
from dafka.broker.core.metadata.snapshots import SNAPSHOTS_TOPIC
from dafka.broker.core.metadata.store_record import (
    CLUSTER_TOPIC,
    COUNTERS_KEY,
    STORE_KEY,
    decode_counters,
    decode_store_record,
    encode_counters,
    encode_store_record,
)
from dafka.broker.core.node_machine import BrokerMachine
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.core.replication.checkpoints import CHECKPOINTS_TOPIC
from dafka.broker.core.replication.records import BRANCHES_TOPIC
from dafka.broker.core.tables import make_tables
from dafka.broker.local_state import LocalState
from dafka.broker.node import BrokerNode
from dafka.config import Config
from dafka.errors import ConfigError, OutdatedStoreError, StorageFormatError
from dafka.exceptions import unwrap_group
from dafka.packed_bytes import LENGTH_BYTES, PackedContents
from dafka.protocol.machines.stored_partitions import StoredPartitions
from dafka.protocol.presence.identity import owner_of
from dafka.records import Partition, RecordBatch, new_address
from dafka.roles.sockets import NodeSockets, open_sockets
from dafka.roles.store import describe_held
from dafka.steady_clock import steady_now_ms
from dafka.storage import PartitionInfo, Storage, open_storage
from dafka.storage.opening import delete_partitions, read_range, read_ranges
from dafka.wire import Role

_LOGGER = logging.getLogger("dafka.broker")

_COUNTED_RECORDS = 10**6
"""Maximum number of records without contents that get offsets in one batch."""

_STATE_TOPICS = (BROKERS_TOPIC, BRANCHES_TOPIC, CHECKPOINTS_TOPIC)
"""The topics of a broker's state, whose partitions have its address."""

_STORE_TOPICS = (CLUSTER_TOPIC, SNAPSHOTS_TOPIC)
"""The topics of its state whose partitions have the address of the storage, which never changes."""

_FORMER_TOPIC = "$topics"
"""The topic in which brokers kept their topics before the first release."""

_INTERNAL_TOPICS = frozenset((INDEX_TOPIC, *_STATE_TOPICS, *_STORE_TOPICS))


async def load_broker(
    broker: BrokerNode, state: LocalState, stored: dict[Partition, PartitionInfo], lost: str = ""
) -> None:
    """Load the state of a broker from its storage before it starts, and assign offsets to records that are in no log.

    `lost` says which records the storage has lost; it is empty if it has lost none. Raise `StorageError` if the storage
    fails, or a newer version of dafka wrote it, and `OutdatedStoreError` if it has lost records that other brokers rely
    on.
    """
    storage, log_table, replicator = broker.storage.storage, broker.log_table, broker.replicator
    _restore_state(broker, state.values(CLUSTER_TOPIC), stored)
    for topic in (BROKERS_TOPIC, BRANCHES_TOPIC):
        for partition in [each for each in stored if each.topic == topic]:
            replicator.learn(partition, await _read_control(storage, partition, stored[partition]))
    replicator.apply_state()
    _drop_deleted(broker, stored)
    replicator.record_indexes(stored)
    cluster = broker.tables.state
    checkpoints = broker.storage.state(CHECKPOINTS_TOPIC)
    forgotten = lost or replicator.checkpoints.load(checkpoints, stored, cluster.name_of)
    if forgotten:
        if cluster.brokers.keys() > {broker.address}:
            raise OutdatedStoreError(f"the storage has forgotten records: {forgotten}")
        _LOGGER.warning("the storage has forgotten records, and no other broker can have them: %s", forgotten)
    await _load_indexes(storage, log_table, stored)
    visible = {partition: info for partition, info in stored.items() if not _is_internal(partition, broker.address)}
    await _assign_missing_offsets(storage, log_table, state, visible)


def _restore_state(broker: BrokerNode, stored: Mapping[bytes, bytes], found: Mapping[Partition, PartitionInfo]) -> None:
    """Restore the state of the cluster, as this broker has last applied it."""
    if STORE_KEY not in stored:
        if any(each.topic == _FORMER_TOPIC for each in found):
            raise StorageFormatError(
                "a development version of dafka has used this storage for a broker: start the broker with an empty "
                "storage; `dafka storage copy --topic NAME` and `dafka storage export` read the records of this one"
            )
        return
    record = decode_store_record(stored[STORE_KEY])
    own = {each: info.end_sequence for each, info in found.items() if owner_of(each.address) == broker.address}
    broker.identity.restore(record, stored, own)
    cluster = broker.tables.state
    cluster.restore(stored)
    cluster.applied = Offset(record.applied)
    broker.metadata.snapshots.load(broker.storage.state(SNAPSHOTS_TOPIC))
    broker.metadata.recent.restart(cluster.applied)
    broker.membership.update_registration(
        cluster_id=record.cluster_id, first_voters=record.first_voters, is_open=cluster.is_open
    )
    broker.replicator.observe_metadata(record)


async def _read_control(
    storage: Storage, partition: Partition, info: PartitionInfo
) -> list[tuple[bytes | None, bytes | None]]:
    """Return the control records of a broker in their order, without those that it has removed."""
    records: list[tuple[bytes | None, bytes | None]] = []
    async with aclosing(read_range(storage, partition, info.earliest_sequence, info.end_sequence)) as stored:
        async for batch in stored:
            records += zip(batch.keys or (), batch.values, strict=True)
    return [(key, value) for key, value in dict(records).items() if value is not None]


def _drop_deleted(broker: BrokerNode, stored: dict[Partition, PartitionInfo]) -> None:
    """Drop the remaining partitions of deleted topics later.

    Partitions of unknown topics stay, because a topic can become known later.
    """
    deleted = [each for each in stored if broker.tables.state.is_deleted(each.address)]
    for partition in deleted:
        del stored[partition]
    names = {partition.topic for partition in (*deleted, *broker.log_table.producer_starts)}
    for name in sorted(names):
        broker.deletion.drop_later(name, [each for each in deleted if each.topic == name])


async def _load_indexes(storage: Storage, log_table: LogTable, stored: dict[Partition, PartitionInfo]) -> None:
    """Restore the logs that this broker leads. Many indexes are read at once: there can be thousands of short ones."""
    led = {
        log.index_partition: log
        for log in log_table.all_logs()
        if log_table.leads(log) and log.index_partition in stored
    }
    for partition, log in led.items():
        log.index_end = RecordSequence(stored[partition].end_sequence)
        log.index_first = log.index_trimmed = RecordSequence(stored[partition].earliest_sequence)
    ranges = {partition: (stored[partition].earliest_sequence, stored[partition].end_sequence) for partition in led}
    async with aclosing(read_ranges(storage, ranges)) as indexes:
        async for batch in indexes:
            log = led[batch.partition]
            for sequence, value in enumerate(batch.values, batch.first_sequence):
                log_table.restore(log, RecordSequence(sequence), value or b"")


async def _assign_missing_offsets(
    storage: Storage, log_table: LogTable, state: LocalState, stored: dict[Partition, PartitionInfo]
) -> None:
    """Assign offsets to records that a store had before it became a broker, the oldest partitions first."""
    ends = {partition: info.end_sequence for partition, info in stored.items()}
    earliest = {partition: info.earliest_sequence for partition, info in stored.items() if info.earliest_sequence}
    assigner = OffsetAssigner(log_table)
    unordered = log_table.finish_restoring(ends, earliest)
    led = {log.topic for log in log_table.all_logs() if log_table.leads(log)}
    unordered = [each for each in unordered if each[0].topic in led]
    for partition, first_sequence in sorted(unordered, key=lambda each: stored[each[0]].earliest_stored_at or 0):
        end = ends[partition]
        async with aclosing(_batches_to_order(storage, log_table, partition, first_sequence, end)) as batches:
            async for batch in batches:
                plan = assigner.plan([batch], steady_now_ms())
                await storage.append([*plan.index_records, *state.begin_write(steady_now_ms())])
                assigner.commit(plan)
                state.write_done()
    for log in log_table.all_logs():
        if log_table.leads(log):
            log_table.skip_dropped(log, earliest)


async def _batches_to_order(
    storage: Storage, log_table: LogTable, partition: Partition, first_sequence: int, end_sequence: int
) -> AsyncGenerator[RecordBatch]:
    """Yield the records of a partition. For a topic with one log, their number is enough: they have no contents."""
    if len(log_table.logs(partition.topic)) == 1:
        for first in range(first_sequence, end_sequence, _COUNTED_RECORDS):
            count = min(_COUNTED_RECORDS, end_sequence - first)
            yield RecordBatch(partition, first, PackedContents(b"", bytes(LENGTH_BYTES * count)))
        return
    async with aclosing(read_range(storage, partition, first_sequence, end_sequence)) as batches:
        async for batch in batches:
            yield batch


async def serve_broker(
    config: Config | None = None,
    *,
    task_status: trio.TaskStatus[BrokerNode] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker until cancelled. It is also a store, with the settings of `[store]`; see `serve_store`.

    It has started when it listens, or sooner if it belongs to a cluster of several: see `BrokerNode.has_started`. Raise
    the errors of `serve_store` and of `run_broker`.
    """
    config = config or Config()
    connect = partial(
        open_sockets,
        config=config,
        role=Role.STORE,
        high_watermark=config.store.high_watermark,
        keeps_record_batches=True,
    )
    with unwrap_group():
        async with open_storage(config.storage_url) as storage:
            await run_broker(config, storage, connect, task_status=task_status)


async def run_broker(
    config: Config,
    storage: Storage,
    connect: Callable[[str], AbstractAsyncContextManager[NodeSockets]],
    support: FeatureSupport = SUPPORTED,
    *,
    task_status: trio.TaskStatus[BrokerNode] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker with an open storage until cancelled. `connect` opens the sockets of a node with an address.

    The broker has this `support` for features. Raise `ConfigError` if others would not hear its heartbeats in time.

    If the storage is an older copy or a clone of a broker's store, the broker gives up its store id, and starts again
    with another one. If it had started already, it raises `OutdatedStoreError` instead, and has the other id when it is
    run again. See `serve_broker`.
    """
    heartbeat_ms, timeout_ms = config.broker.heartbeat_ms, config.broker.leader_timeout_ms
    if heartbeat_ms >= timeout_ms:
        raise ConfigError(
            f"[broker] heartbeat_ms: expected less than leader_timeout_ms, which is {timeout_ms}, not {heartbeat_ms}: "
            "otherwise others take over the logs of this broker between two heartbeats"
        )
    has_started, lost = False, next((str(each) for each in storage.repairs if each.is_lost), "")
    while True:
        state = LocalState()
        try:
            with unwrap_group():
                async with trio.open_nursery() as nursery:
                    node = await nursery.start(_run_node, config, storage, state, connect, support, lost)
                    has_started = True
                    task_status.started(node)
            return
        except OutdatedStoreError as error:
            store_id, lost = await _give_up_store_id(storage, await state.written_since_load(storage)), ""
            if has_started:
                raise
            _LOGGER.warning("%s; this broker goes on as the store %s, and keeps the records", error, store_id)


async def _give_up_store_id(storage: Storage, written: Collection[Partition]) -> str:
    """Give a store another id, durably, and return it. The partitions of its former id become those of another broker.

    It takes the place of the last id under which the cluster knows it. Another broker may run with the former id, and
    write other records than this one has `written` in the partitions of its state, and count other writes. So these
    are dropped, and the records are fetched from the others. Raise `StorageError` if the storage fails.
    """
    state, cluster = LocalState(), ClusterState()
    await state.load(storage, Partition(CLUSTER_TOPIC, storage.identity))
    stored = state.values(CLUSTER_TOPIC)
    record = decode_store_record(stored[STORE_KEY])
    cluster.restore(stored)
    former = record.store_id or storage.identity
    replaced = former if former in cluster.brokers else record.replaces or former
    changed = attrs.evolve(record, store_id=new_address(), replaces=replaced, starts=(), pending_recovery=0)
    diverged = {each for each in written if each.topic in _STATE_TOPICS}
    await delete_partitions(storage, diverged | {Partition(CHECKPOINTS_TOPIC, former)})
    counters = decode_counters(stored.get(COUNTERS_KEY, b"{}"))
    kept = {store_id: each for store_id, each in counters.items() if store_id != former}
    state.put(CLUSTER_TOPIC, [(STORE_KEY, encode_store_record(changed)), (COUNTERS_KEY, encode_counters(kept))])
    await storage.append(state.begin_write(steady_now_ms()))
    await storage.flush()
    return changed.store_id


async def _run_node(
    config: Config,
    storage: Storage,
    state: LocalState,
    connect: Callable[[str], AbstractAsyncContextManager[NodeSockets]],
    support: FeatureSupport,
    lost: str,
    *,
    task_status: trio.TaskStatus[BrokerNode],
) -> None:
    await state.load(storage, Partition(CLUSTER_TOPIC, storage.identity))
    await state.load(storage, Partition(SNAPSHOTS_TOPIC, storage.identity), are_large=True)
    stored_record = state.values(CLUSTER_TOPIC).get(STORE_KEY)
    store_id = "" if stored_record is None else decode_store_record(stored_record).store_id
    address = store_id or storage.identity
    await state.load(storage, *(Partition(topic, address) for topic in _STATE_TOPICS))
    found = await storage.partitions()
    visible = {each: info for each, info in found.items() if not _is_internal(each, address)}
    ends, earliest, idle_s = describe_held(visible)
    stored = StoredPartitions(earliest)
    log_table = LogTable(address)
    tables = make_tables(address, config, stored, log_table, support)
    machine = BrokerMachine(address, config, ends, idle_s, found.keys() - visible.keys(), stored, tables.policy)
    async with connect(address) as sockets:
        broker = BrokerNode(machine, sockets, storage, config, tables, state)
        await load_broker(broker, state, found, lost)
        broker.store.report_opened(config.store.storage, visible)
        await broker.run(task_status=task_status)


def _is_internal(partition: Partition, address: str) -> bool:
    """Return whether a partition has indexes or state of the broker with an address."""
    is_own = partition.topic in _STORE_TOPICS or partition.address.partition("/")[0] == address
    return partition.topic in _INTERNAL_TOPICS and is_own
