"""Deletes records before an offset, and partitions of deleted topics or that this broker need not store."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable

import attrs
import trio

from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.topics import Deletion
from dafka.broker.core.node_machine import BrokerMachine
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.checkpoints import CHECKPOINTS_TOPIC
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.log.log_starts import LogStarts
from dafka.broker.log.own_partitions import OwnPartitions
from dafka.broker.log.trimming import LogTrimmer
from dafka.errors import StorageError
from dafka.records import Partition

_LOGGER = logging.getLogger("dafka.broker")

HALTED_S = 1.0
"""Seconds between two looks for partitions that have a gap, after which this broker stores nothing."""


@attrs.frozen
class _Due:
    """Partitions of a deleted topic to delete at a time, and the topic, whose producer partitions are trimmed."""

    at: float
    topic: str
    partitions: tuple[Partition, ...]


class RecordDeletion:
    """Deletes records of a broker.

    Partitions of deleted topics are deleted `delay_s` seconds after their deletion was committed, so that a mistake can
    be undone by hand. Until then, no node and no client sees them. After a restart, the wait begins again.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        storage: BrokerStorage,
        log_table: LogTable,
        own: OwnPartitions,
        starts: LogStarts,
        trimmer: LogTrimmer,
        delay_s: float,
    ) -> None:
        self._machine = machine
        self._storage = storage
        self._log_table = log_table
        self._own = own
        self._starts = starts
        self._trimmer = trimmer
        self._delay_s = delay_s
        self._put, self._due = trio.open_memory_channel[_Due](math.inf)

    async def run(self) -> None:
        """Delete what is due, until cancelled: partitions of deleted topics, and records before gaps."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._trim_halted)
            async for due in self._due:
                await trio.sleep_until(due.at)
                await self.delete_partitions(due.partitions).wait()
                await self._trim_deleted(due.topic)

    async def _trim_halted(self) -> None:
        """Drop the records before gaps, if their logs start after them.

        This broker was away while others deleted the records in the gaps, so that no node can send them.
        """
        while True:
            await trio.sleep(HALTED_S)
            for topic in {each.topic for each in self._machine.halted}:
                try:
                    await self._storage.trim(await self._trimmer.find_surplus(topic))
                except StorageError as error:
                    _LOGGER.warning("records of %s that no log needs any more stay for now: %s", topic, error)

    def delete_partitions(self, partitions: Collection[Partition]) -> trio.Event:
        """Delete partitions that brokers have written. The returned event is set when they are deleted.

        Their checkpoints go, too: the partitions can come back, and are shorter then.
        """
        self._own.forget(partitions)
        keys = (each.address.encode() for each in partitions if each.topic == INDEX_TOPIC)
        known = self._storage.state(CHECKPOINTS_TOPIC)
        if found := [(key, None) for key in keys if key in known]:
            self._storage.write_state(CHECKPOINTS_TOPIC, found)
        return self._storage.delete_partitions(partitions)

    async def delete_before(self, log: Log, offset: Offset) -> None:
        """Delete the records of a log that this broker leads before an offset, from all its partitions.

        Other replicas delete them later. Raise the errors of `LogStarts.move`.
        """
        await self._starts.move(log, offset)
        await self._storage.trim(await self._trimmer.find_surplus(log.topic))

    async def drop_topic(self, deletion: Deletion, logs: Iterable[Log]) -> None:
        """Drop the partitions of a topic later, when its deletion is durable."""
        await self._storage.wait_durable()
        own = [partition for log in logs for partition in (log.leader_partition, log.index_partition)]
        partitions = dict.fromkeys((*own, *self._machine.partitions_of(deletion.topic.topic_id)))
        self.drop_later(deletion.topic.name, partitions)

    def drop_later(self, topic: str, partitions: Iterable[Partition] = ()) -> None:
        """Drop stored partitions of a deleted topic later, and what its producer partitions have of it."""
        found = tuple(partitions)
        self._own.forget(found)
        for partition in found:
            self._machine.forget_own(partition)
        self._put.send_nowait(_Due(trio.current_time() + self._delay_s, topic, found))

    async def _trim_deleted(self, topic: str) -> None:
        """Drop the records of deleted topics with a name from producer partitions."""
        partitions = [Partition(topic, address) for address in self._storage.stored.durable.get(topic, {})]
        starts = self._log_table.producer_starts
        try:
            await self._storage.trim({each: starts[each] for each in partitions if each in starts})
        except StorageError as error:  # the next start of the broker drops them
            _LOGGER.warning("cannot drop records of a deleted topic %s: %s", topic, error)
