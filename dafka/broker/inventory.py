"""What a broker has stored: its topics with their partitions and sizes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import attrs
import trio

from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.internal_topics import is_internal_topic
from dafka.protocol import StoreMachine
from dafka.records import Partition
from dafka.storage import PartitionInfo, Storage


class StoredPartition(NamedTuple):
    """A partition of a topic.

    Attributes:
        address: The address of its producer.
        is_own: Whether it has the records that the broker's clients have appended to a log.
        info: The records that the storage has.
        known_end: The sequence behind the last record that its producer is known to have.
        lag: How many of these records are not durable here.
    """

    address: str
    is_own: bool
    info: PartitionInfo
    known_end: int
    lag: int


class StoredTopic(NamedTuple):
    """What a storage holds of a topic.

    Attributes:
        name: The name.
        partitions: The number of its partitions.
        records: The number of its records.
        content_bytes: The total size of their values, keys and headers, in bytes.
        last_stored_at: The time at which the last record was stored, in ms since 1970; None if none is held.
    """

    name: str
    partitions: int = 0
    records: int = 0
    content_bytes: int = 0
    last_stored_at: int | None = None


SLOW_S = 0.02
"""Measuring partitions for longer than this is slow."""

REUSED_FACTOR = 20.0
"""A slow measurement is used again for so many times as long as it has taken, so that the storage serves others."""

MEASUREMENTS_MAX = 100
"""Of how many topics measurements are kept."""


@attrs.define(eq=False)
class _Measurement:
    """The partitions of a topic as they were measured.

    Attributes:
        lock: Held while they are measured.
        infos: The partitions.
        begun_at: When the measurement has begun, by Trio's clock.
        good_until: Until when it is used again.
    """

    lock: trio.Lock = attrs.field(factory=trio.Lock)
    infos: Mapping[Partition, PartitionInfo] = attrs.field(factory=dict)
    begun_at: float = float("-inf")
    good_until: float = float("-inf")


class Inventory:
    """What a broker has stored.

    Args:
        machine: The broker's machine.
        storage: The storage.
        order: The topics and their logs.
        is_orphan: Returns whether a partition belongs to no topic that is known; see `TopicTable.is_orphan`.

    Attributes:
        storage: The storage.
    """

    def __init__(
        self, machine: StoreMachine, storage: Storage, order: OffsetAssigner, is_orphan: Callable[[Partition], bool]
    ) -> None:
        self._machine = machine
        self.storage = storage
        self._order = order
        self._measurements: OrderedDict[str | None, _Measurement] = OrderedDict()
        self._is_orphan = is_orphan

    def topics_without_logs(self) -> list[str]:
        """Return the topics that have no logs, because Kafka's clients cannot use their names."""
        names = self._machine.stored.durable
        return [each for each in names if each not in self._order.topics and not is_internal_topic(each)]

    def orphans(self) -> dict[Partition, int]:
        """Return the partitions that belong to no topic that is known, each with the number of its durable records.

        They are kept, and nobody reads them.
        """
        stored = self._machine.stored
        partitions = [Partition(topic, address) for topic, held in stored.durable.items() for address in held]
        return {
            each: stored.durable_end(each) - stored.earliest.get(each, 0)
            for each in partitions
            if self._is_orphan(each)
        }

    def record_count(self, topic: str) -> int:
        """Return how many records the partitions of a topic have had that are durable here."""
        return sum(self._machine.stored.durable.get(topic, {}).values())

    async def stored_topics(self) -> list[StoredTopic]:
        """Return all topics in the storage, the largest first. Raises `StorageError`."""
        found: dict[str, StoredTopic] = {}
        for partition, info in (await self._measure(None)).items():
            name, partitions, records, content_bytes, last = found.get(partition.topic, StoredTopic(partition.topic))
            times = [each for each in (last, info.latest_stored_at) if each is not None]
            found[name] = StoredTopic(
                name,
                partitions + 1,
                records + info.count,
                content_bytes + info.content_bytes,
                max(times, default=None),
            )
        return sorted(found.values(), key=lambda topic: (-topic.content_bytes, topic.name))

    async def partitions(self, topic: str) -> list[StoredPartition]:
        """Return the partitions of a topic, by address. Raises `StorageError`."""
        infos = await self._measure(topic)
        return [self._describe(each, infos[each]) for each in sorted(infos, key=lambda partition: partition.address)]

    async def log_bytes(self, topic: str) -> list[int]:
        """Return the size of the records in each log of a topic, in bytes. Raises `StorageError`.

        Records of partitions that all logs share count for each of them alike.
        """
        infos = dict(await self._measure(topic))
        logs = self._order.logs(topic)
        own = [infos.pop(log.leader_partition).content_bytes if log.leader_partition in infos else 0 for log in logs]
        shared = sum(each.content_bytes for each in infos.values())
        return [each + shared // len(logs) for each in own]

    async def _measure(self, topic: str | None) -> Mapping[Partition, PartitionInfo]:
        """Return the partitions of a topic, or of all. All who ask while they are being measured share the result."""
        found = self._measurements.setdefault(topic, _Measurement())
        self._measurements.move_to_end(topic)
        if len(self._measurements) > MEASUREMENTS_MAX:
            self._measurements.popitem(last=False)
        asked_at = trio.current_time()
        async with found.lock:
            if found.begun_at < asked_at and trio.current_time() >= found.good_until:
                found.begun_at = trio.current_time()
                found.infos = await self.storage.partitions(topic)
                now = trio.current_time()
                took = now - found.begun_at
                found.good_until = now + (REUSED_FACTOR * took if took >= SLOW_S else 0.0)
            return found.infos

    def _describe(self, partition: Partition, info: PartitionInfo) -> StoredPartition:
        durable = self._machine.stored.durable_end(partition)
        cursor = self._machine.reassembler.cursors.get(partition)
        known = max(durable, info.end_sequence, 0 if cursor is None else cursor.known_end)
        is_own = self._order.is_leader_partition(partition)
        return StoredPartition(partition.address, is_own, info, known, known - max(durable, info.end_sequence))
