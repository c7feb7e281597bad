"""Drops the records that are before the starts of all logs that need them, on leaders and followers alike."""

from __future__ import annotations

import attrs

from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.core.replication.replicated_logs import ReplicatedLog, ReplicatedLogs
from dafka.broker.log.index_reader import restore_log
from dafka.protocol.machines.stored_partitions import StoredPartitions
from dafka.records import Partition
from dafka.storage import Storage


@attrs.define(eq=False, slots=False)
class LogTrimmer:
    """Finds the records of a broker that no log needs any more.

    Only the start of a log says so, which its leader has moved. A follower has no index of its logs in memory. It reads
    the index of a log again when the start has moved, also where it misses the records that the index names: no node
    may have them any more.
    """

    _storage: Storage
    _stored: StoredPartitions
    _log_table: LogTable
    _logs: ReplicatedLogs
    _followed: dict[str, tuple[Offset, dict[Partition, RecordSequence]]] = attrs.field(init=False, factory=dict)

    async def find_surplus(self, topic: str) -> dict[Partition, int]:
        """Return the partitions of a topic with records to drop, each with the sequence of the first one to keep.

        Raise `StorageError` if the storage fails.
        """
        followed: dict[Log, dict[Partition, RecordSequence] | None] = {}
        for log in self._log_table.logs(topic):
            if not self._log_table.leads(log):
                replicated = self._logs.find(name_log(self._log_table.topics[topic].topic_id, log.number))
                if replicated is None or self._logs.keeps_log(replicated):
                    followed[log] = None if replicated is None else await self._read_needed(replicated)
        needed = self._log_table.find_needed(topic, followed)
        kept = {partition: min(sequence, self._stored.durable_end(partition)) for partition, sequence in needed.items()}
        return {each: sequence for each, sequence in kept.items() if sequence > self._stored.earliest.get(each, 0)}

    async def _read_needed(self, log: ReplicatedLog) -> dict[Partition, RecordSequence] | None:
        """Return what a log needs that another broker leads; None if this broker does not store all of its index."""
        start, epoch = log.local_log.start_offset, log.replica.latest.leader_epoch
        known = self._followed.get(log.name)
        if known is not None and known[0] == start:
            return known[1]
        if not start or log.find_missing_indexes() != []:
            return None
        state = Log(log.topic, log.number, log.leader_partition(epoch), log.index_partition(epoch))
        await restore_log(self._storage, log, state, epoch, is_whole=True)
        self._followed = {name: each for name, each in self._followed.items() if self._logs.find(name) is not None}
        self._followed[log.name] = start, state.needed_from()
        return self._followed[log.name][1]
