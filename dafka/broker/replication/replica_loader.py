"""Loads the replicas of logs that this broker shares with other brokers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing

import trio

from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import INDEX_TOPIC, name_log
from dafka.broker.core.replication.checkpoints import Checkpoint
from dafka.broker.core.replication.replicated_logs import ReplicatedLog
from dafka.broker.core.replication.settings import Availability
from dafka.broker.core.tables import BrokerTables
from dafka.broker.interbroker.mesh import BrokerMesh
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.log.damaged_logs import DamagedLogs
from dafka.broker.log.index_reader import read_index
from dafka.broker.log.own_partitions import OwnPartitions
from dafka.broker.replication.checkpoints import Checkpoints
from dafka.broker.replication.pending_logs import PendingLogs
from dafka.errors import StorageCorruptError, StorageError
from dafka.records import Partition, RecordBatch

_LOGGER = logging.getLogger("dafka.broker")

ADOPTED_TOGETHER = 50
"""Number of logs that are loaded before other tasks run."""


class ReplicaLoader:
    """Loads the replicas of one broker.

    A broker cannot vote or acknowledge for a log before it has read what it stores of the log. `indexes` has the stored
    partitions of indexes, by the name of their log. `take_part` is called with each loaded log and its state.
    """

    def __init__(
        self,
        tables: BrokerTables,
        storage: BrokerStorage,
        own: OwnPartitions,
        mesh: BrokerMesh,
        checkpoints: Checkpoints,
        indexes: Mapping[str, AbstractSet[Partition]],
        damaged: DamagedLogs,
        take_part: Callable[[ReplicatedLog, Log], None],
    ) -> None:
        self._log_table = tables.log_table
        self._logs = tables.logs
        self._policy = tables.policy
        self._storage = storage
        self._own = own
        self._mesh = mesh
        self._checkpoints = checkpoints
        self._indexes = indexes
        self._damaged = damaged
        self._take_part = take_part
        self._waiting = PendingLogs[Log]()

    def put(self, log: Log) -> None:
        """Load a log soon."""
        self._waiting.put(log)

    async def load_first(self) -> None:
        """Load the logs that other brokers are known to replicate, before these learn of this broker."""
        for state in list(self._waiting):
            if not state.is_gone and not self._log_table.leads(state):
                await self._load(self._log_table.topics[state.topic], state)

    async def run(self) -> None:
        """Load logs until cancelled."""
        while True:
            states = await self._waiting.take()
            own = [each for each in states if self._log_table.leads(each) and not each.is_replicated]
            if own:
                for state in own:
                    self._log_table.replicate(state)
                self._storage.write()
                await self._storage.wait_durable()
            for number, state in enumerate(states):
                if self._log_table.find_log(state.topic, state.number) is state:
                    await self._load(self._log_table.topics[state.topic], state)
                if number % ADOPTED_TOGETHER == 0:
                    await trio.lowlevel.checkpoint()
            self._mesh.ask_heads((*{each.topic for each in states}, INDEX_TOPIC))

    async def _load(self, topic: Topic, state: Log) -> None:
        number, name = state.number, name_log(topic.topic_id, state.number)
        if self._logs.find(name) is not None:
            return
        replicas = topic.placement[number] if number < len(topic.placement) else (self._mesh.address,)
        checkpoints = self._checkpoints.take(topic.name, self._indexes.get(name, ()))
        try:
            index, ends = await self._read_indexes(name, checkpoints)
        except StorageError as error:
            if not isinstance(error, StorageCorruptError):  # that was logged once
                _LOGGER.warning("cannot load the log %s of %s yet: %s", number, topic.name, error)
            self._waiting.put_failed(state)
            return
        if self._log_table.find_log(topic.name, number) is not state:
            return
        log = self._logs.add(topic, number, replicas, index, checkpoints)
        self._announce_ended(state, log, ends)
        self._take_part(log, state)

    async def _read_indexes(
        self, name: str, checkpoints: Mapping[Partition, Checkpoint]
    ) -> tuple[list[RecordBatch], dict[Partition, int]]:
        """Read the stored indexes of a log, including records that arrive meanwhile, from the checkpoints on.

        Return the index records, and the end of each index partition.
        """
        found: list[RecordBatch] = []
        ends: dict[Partition, int] = {}
        while unread := [
            each for each in self._indexes.get(name, ()) if self._storage.durable_end(each) > ends.get(each, -1)
        ]:
            for partition in unread:
                known = checkpoints[partition].index_end if partition in checkpoints else 0
                first = ends.get(partition, known)
                ends[partition] = max(first, self._storage.durable_end(partition))
                try:
                    async with aclosing(read_index(self._storage.storage, partition, first)) as index:
                        async for batch in index:
                            found.append(batch)
                            ends[partition] = max(ends[partition], batch.end_sequence)
                except StorageCorruptError as error:
                    self._damaged.record(partition, error)
                    raise
        return found, ends

    def _announce_ended(self, state: Log, log: ReplicatedLog, ends: Mapping[Partition, int]) -> None:
        """Serve other brokers the epochs that this broker led before it was restarted.

        With "majority", they know from the epoch starts what they miss of all but the latest epochs.
        """
        led = state.index_partition if self._log_table.leads(state) else None
        latest = log.replica.latest
        announced = {log.index_partition(epoch) for epoch in (latest.leader_epoch, latest.parent.leader_epoch)}
        announces_all = log.replica.availability is Availability.BRANCH
        for partition, end in ends.items():
            if partition != led and self._policy.owns(partition):
                self._own.announce_until(partition, end, is_announced=announces_all or partition in announced)
