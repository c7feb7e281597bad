"""Loads replicated logs from the storage of a stopped broker."""

from __future__ import annotations

from collections import defaultdict
from contextlib import aclosing

import attrs

from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import INDEX_TOPIC, EpochAddress, name_log, parse_address
from dafka.broker.core.replication.records import (
    BRANCHES_TOPIC,
    NO_EPOCH,
    EpochStart,
    LeaderAndEpoch,
    decode_control,
)
from dafka.broker.core.replication.replicated_logs import ReplicatedLog, ReplicatedLogs
from dafka.broker.core.replication.settings import ReplicaSettings
from dafka.broker.local_state import LocalStatePartition
from dafka.broker.log.index_reader import read_index
from dafka.protocol.presence.identity import owner_of
from dafka.records import Partition, RecordBatch
from dafka.storage import PartitionInfo, Storage


@attrs.define(eq=False)
class StoredLogs:
    """The replicated logs in a storage, as its broker would load them. `read_stored_logs` makes it."""

    storage: Storage
    partitions: dict[Partition, PartitionInfo]
    _logs: ReplicatedLogs = attrs.field(init=False)
    _starts: defaultdict[str, list[EpochStart]] = attrs.field(init=False, factory=lambda: defaultdict(list))

    def __attrs_post_init__(self) -> None:
        topics = frozenset((METADATA_TOPIC,))
        self._logs = ReplicatedLogs(
            self.storage.identity, lambda: 0, self.durable_end, ReplicaSettings(), observed_topics=topics
        )

    def durable_end(self, partition: Partition) -> int:
        """Return the sequence after the last record of a partition; 0 if it is not stored."""
        found = self.partitions.get(partition)
        return 0 if found is None else found.end_sequence

    def first_epoch(self, topic_id: str, number: int) -> LeaderAndEpoch | None:
        """Return the first known leader epoch of a log, whose index can be empty; None if there is none."""
        name = name_log(topic_id, number)
        starts = (each.parent.leader_epoch for each in self._starts.get(name, ()))
        found = [*(each for each in starts if each != NO_EPOCH), *map(_epoch_of, self._epochs(name))]
        return min(found, default=None)

    def _epochs(self, name: str) -> list[EpochAddress]:
        """Return the leader epochs of a log whose indexes are stored."""
        found = (parse_address(each.address) for each in self.partitions if each.topic == INDEX_TOPIC)
        return [each for each in found if each is not None and each.log_name == name]

    async def read_control(self) -> None:
        """Read the control records of all brokers. Raise `StorageError`."""
        for partition in self.partitions:
            if partition.topic == BRANCHES_TOPIC:
                control = LocalStatePartition(partition)
                await control.load(self.storage)
                for value in control.values.values():
                    record = decode_control(value)
                    self._logs.record_control(owner_of(partition.address), record)
                    if isinstance(record, EpochStart):
                        self._starts[record.log].append(record)

    async def load(self, topic: Topic, number: int, replicas: tuple[str, ...]) -> ReplicatedLog:
        """Load a log, with the replicas of its first leader epoch. Raise `StorageError`."""
        index: list[RecordBatch] = []
        for address in self._epochs(name_log(topic.topic_id, number)):
            async with aclosing(read_index(self.storage, Partition(INDEX_TOPIC, str(address)))) as batches:
                index += [batch async for batch in batches]
        return self._logs.add(topic, number, replicas, index)


async def read_stored_logs(storage: Storage) -> StoredLogs:
    """Return the replicated logs in a storage. Raise `StorageError`."""
    logs = StoredLogs(storage, await storage.partitions())
    await logs.read_control()
    return logs


def _epoch_of(address: EpochAddress) -> LeaderAndEpoch:
    return LeaderAndEpoch(address.epoch, address.leader)
