"""Deletes records before an offset, and the partitions of deleted topics."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

import trio

from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.topics import Deletion
from dafka.broker.core.node_machine import BrokerMachine
from dafka.broker.core.positions import Offset
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.log.own_partitions import OwnPartitions
from dafka.errors import StorageError, TopicDeletedError
from dafka.records import Partition

_LOGGER = logging.getLogger("dafka.broker")


class RecordDeletion:
    """Deletes records of a broker.

    Args:
        machine: The machine of the broker's store.
        storage: The storage.
        log_table: The logs.
        own: The partitions that only this broker writes.
    """

    def __init__(self, machine: BrokerMachine, storage: BrokerStorage, log_table: LogTable, own: OwnPartitions) -> None:
        self._machine = machine
        self._storage = storage
        self._log_table = log_table
        self._own = own

    def delete_partitions(self, partitions: Collection[Partition]) -> trio.Event:
        """Delete partitions that brokers have written. The returned event is set when they are deleted."""
        self._own.forget(partitions)
        return self._storage.delete_partitions(partitions)

    async def delete_before(self, log: Log, offset: Offset) -> None:
        """Delete the records of a log before an offset, from all its partitions.

        A partition with records in several logs is trimmed up to the first record that one of these logs still has.

        Args:
            log: The log.
            offset: The offset of the first record that is kept.

        Raises:
            TopicDeletedError: The topic was deleted meanwhile.
            StorageError: The storage fails.
        """
        partitions = [log.partition_of(address) for address in log.index.addresses()]
        self._storage.waits.check()
        self._log_table.delete_before(log, offset)
        written = self._storage.write()
        with self._storage.waits.bounded():
            await written.wait()
        if log.is_gone:
            raise TopicDeletedError(log.topic)
        await self._storage.trim({each: self._log_table.first_needed(each) for each in partitions})

    async def drop_topic(self, deletion: Deletion, logs: Iterable[Log]) -> None:
        """Drop the partitions of a topic after its deletion is durable."""
        await self._storage.wait_durable()
        own = [partition for log in logs for partition in (log.leader_partition, log.index_partition)]
        partitions = self._machine.partitions_of(deletion.topic.topic_id)
        await self.delete_partitions(dict.fromkeys((*own, *partitions))).wait()
        await self.trim_deleted(deletion.topic.name)

    async def trim_deleted(self, name: str) -> None:
        """Drop the records of deleted topics of a name from producer partitions."""
        partitions = [Partition(name, address) for address in self._storage.stored.durable.get(name, {})]
        starts = self._log_table.producer_starts
        try:
            await self._storage.trim({each: starts[each] for each in partitions if each in starts})
        except StorageError as error:  # the next start of the broker drops them
            _LOGGER.warning("cannot drop records of a deleted topic %s: %s", name, error)
