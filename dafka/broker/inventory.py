"""Lists what a broker has stored: topics with their partitions and sizes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

import attrs
import trio

from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.partition_address import parse_address
from dafka.internal_topics import is_internal_topic
from dafka.protocol import StoreMachine
from dafka.records import Partition
from dafka.storage import PartitionInfo, Storage


class StoredPartition(NamedTuple):
    """A stored partition of a topic, by the address of its producer.

    `is_own` if it is a leader partition, with records that clients of this broker have appended to a log. `lag` records
    up to `known_end`, the end that its producer is known to have, are not durable here.
    """

    address: str
    is_own: bool
    info: PartitionInfo
    known_end: int
    lag: int


class StoredTopic(NamedTuple):
    """The stored part of a topic: the numbers of its partitions and records, and the size of the records' contents.

    The last record was stored at a time in ms since 1970; None if no record is stored.
    """

    name: str
    partitions: int = 0
    records: int = 0
    content_bytes: int = 0
    last_stored_at: int | None = None


SLOW_S = 0.02
"""Seconds from which a measurement of partitions counts as slow."""

REUSED_FACTOR = 20.0
"""A slow measurement is reused for its duration times this factor, to spare the storage."""

MEASUREMENTS_MAX = 100
"""Maximum number of topics with a cached measurement."""


@attrs.define(eq=False)
class _Measurement:
    """A measurement of the partitions of a topic, with times by Trio's clock. It is locked while it is made."""

    lock: trio.Lock = attrs.field(factory=trio.Lock)
    infos: Mapping[Partition, PartitionInfo] = attrs.field(factory=dict)
    begun_at: float = float("-inf")
    good_until: float = float("-inf")


@attrs.define(eq=False, slots=False)
class Inventory:
    """The stored topics and partitions of a broker, without deleted topics.

    Orphans belong to no known topic; see `ClusterState.is_orphan`.
    """

    _machine: StoreMachine
    storage: Storage
    _log_table: LogTable
    _state: ClusterState
    _measurements: OrderedDict[str | None, _Measurement] = attrs.field(init=False, factory=OrderedDict)

    def topics_without_logs(self) -> list[str]:
        """Return the topics that have no logs because Kafka clients cannot use their names."""
        names = [each for each in self._machine.stored.durable if each not in self._log_table.topics]
        return [each for each in names if not is_internal_topic(each) and self.record_count(each)]

    def orphans(self) -> dict[Partition, int]:
        """Return the partitions that belong to no known topic, each with the number of its durable records.

        The broker stores them, but nobody reads them.
        """
        stored = self._machine.stored
        partitions = [Partition(topic, address) for topic, ends in stored.durable.items() for address in ends]
        return {
            each: stored.durable_end(each) - stored.earliest.get(each, 0)
            for each in partitions
            if self._state.is_orphan(each)
        }

    def record_count(self, topic: str) -> int:
        """Return the number of records that have become durable in the partitions of a topic, dropped ones included.

        The logs of a deleted topic do not count: their partitions are still there for a while.
        """
        ends = self._machine.stored.durable.get(topic, {})
        return sum(end for address, end in ends.items() if not self._state.is_deleted(address))

    async def stored_topics(self) -> list[StoredTopic]:
        """Return all topics in the storage, the largest first. Raises `StorageError`."""
        found: dict[str, StoredTopic] = {}
        for partition, info in (await self._measure(None)).items():
            name, partitions, records, content_bytes, last = found.get(partition.topic, StoredTopic(partition.topic))
            stored_at = [each for each in (last, info.latest_stored_at) if each is not None]
            size = content_bytes + info.content_bytes
            found[name] = StoredTopic(name, partitions + 1, records + info.count, size, max(stored_at, default=None))
        return sorted(found.values(), key=lambda topic: (-topic.content_bytes, topic.name))

    async def partitions(self, topic: str) -> list[StoredPartition]:
        """Return the partitions of a topic, by address. Raises `StorageError`."""
        infos = await self._measure(topic)
        return [self._describe(each, infos[each]) for each in sorted(infos, key=lambda partition: partition.address)]

    async def log_bytes(self, topic: str) -> list[int]:
        """Return the size of the records in each log of a topic, in bytes. Raises `StorageError`.

        What its leaders have appended counts for a log. The size of producers' partitions, which all logs share, is
        divided equally between them.
        """
        infos = await self._measure(topic)
        known = self._log_table.topics.get(topic)
        sizes, shared = [0] * len(self._log_table.logs(topic)), 0
        for partition, info in infos.items():
            address = parse_address(partition.address)
            if known is not None and address is not None and address.topic_id == known.topic_id:
                sizes[address.log] += info.content_bytes
            else:
                shared += info.content_bytes
        return [each + shared // len(sizes) for each in sizes]

    async def _measure(self, topic: str | None) -> Mapping[Partition, PartitionInfo]:
        """Measure the partitions of a topic, or of all topics if None. Concurrent calls share one measurement."""
        found = self._measurements.setdefault(topic, _Measurement())
        self._measurements.move_to_end(topic)
        if len(self._measurements) > MEASUREMENTS_MAX:
            self._measurements.popitem(last=False)
        asked_at = trio.current_time()
        async with found.lock:
            if found.begun_at < asked_at and trio.current_time() >= found.good_until:
                found.begun_at = trio.current_time()
                infos = await self.storage.partitions(topic)
                found.infos = {each: info for each, info in infos.items() if not self._state.is_deleted(each.address)}
                now = trio.current_time()
                duration_s = now - found.begun_at
                found.good_until = now + (REUSED_FACTOR * duration_s if duration_s >= SLOW_S else 0.0)
            return found.infos

    def _describe(self, partition: Partition, info: PartitionInfo) -> StoredPartition:
        durable = self._machine.stored.durable_end(partition)
        cursor = self._machine.reassembler.cursors.get(partition)
        known = max(durable, info.end_sequence, 0 if cursor is None else cursor.known_end)
        is_own = self._log_table.is_leader_partition(partition)
        return StoredPartition(partition.address, is_own, info, known, known - max(durable, info.end_sequence))
