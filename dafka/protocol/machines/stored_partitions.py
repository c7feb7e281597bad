"""The partitions of one store: their durable records, the partitions that have ended, and the capacity for more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from dafka.config import Config, NodeConfig
from dafka.protocol.actions import Action, Notify
from dafka.protocol.ordering.reassembler import Reassembler
from dafka.protocol.presence.peer_limits import MANY_PARTITIONS, MANY_UNPROVEN, PeerLimits
from dafka.protocol.store_events import StoreFull, StoreHasRoom
from dafka.records import Partition

RESTART_GRACE_S = 3600.0
"""The minimum seconds that a store runs before it forgets a partition, unless the setting is lower: before the restart,
it may have heard producers and other stores."""

CROWDED_S = 3600.0
"""Seconds without a message about a partition after which it can be forgotten if there are very many ended ones."""

UNPROVEN_S = 3600.0
"""The maximum seconds without a message about a partition of which no record was ever received; then it is dropped. A
store that has its records names it from time to time."""

COUNT_S = 1.0
"""Seconds for which a count of the ended partitions is used."""

ROOM_CHECK_S = 1.0
"""Seconds between two checks whether a full store accepts partitions again."""


class StoredPartitions:
    """The range of durable records of each partition that a store holds."""

    def __init__(self, earliest: Mapping[Partition, int]) -> None:
        self.durable: dict[str, dict[str, int]] = {}
        """By topic and by the producer's address, the sequence after the last durable record."""
        self.earliest: dict[Partition, int] = dict(earliest)
        """The sequence of the first record held, of each partition that has lost any."""
        self._by_address: dict[str, dict[str, None]] = {}

    def durable_end(self, partition: Partition) -> int:
        """Return the sequence after the partition's last durable record; 0 if there is none."""
        return self.durable.get(partition.topic, {}).get(partition.address, 0)

    def readable_range(self, partition: Partition) -> range:
        """Return the sequences of a partition that are durable, and so may be sent."""
        return range(self.durable_end(partition))

    def topics_of(self, address: str) -> Collection[str]:
        """Return the topics of a producer's partitions."""
        return self._by_address.get(address, {})

    def set_durable_end(self, partition: Partition, end: int) -> None:
        """Record that a partition is durable up to, not including, this sequence, which is not 0."""
        self.durable.setdefault(partition.topic, {})[partition.address] = end
        self._by_address.setdefault(partition.address, {})[partition.topic] = None

    def set_earliest(self, partition: Partition, sequence: int) -> None:
        """Record that the storage holds no records of a partition before this sequence."""
        self.earliest[partition] = sequence

    def remove(self, partition: Partition) -> None:
        """Remove a partition that the storage has deleted."""
        self.earliest.pop(partition, None)
        self.durable[partition.topic].pop(partition.address, None)
        if not self.durable[partition.topic]:
            del self.durable[partition.topic]
        self._by_address[partition.address].pop(partition.topic, None)
        if not self._by_address[partition.address]:
            del self._by_address[partition.address]


class EndedPartitions:
    """The partitions of a store that have ended: they are empty, and their producers are gone.

    The store keeps the end of an ended partition. So a producer that comes back with its spool continues it, and
    another store that still has its records does not bring them back. The partition is forgotten when neither its
    producer nor another store has sent a message about it for a time (`[store] forget_empty_after_ms`).

    `idle_s` has, by partition, the seconds since its last record was appended, when the store started.
    """

    def __init__(
        self, config: Config, has_producer: Callable[[Partition], bool], idle_s: Mapping[Partition, float]
    ) -> None:
        self._after_s = config.store.forget_empty_after_ms / 1000
        self._count_max = config.node.partitions_max
        self._has_producer = has_producer
        self._idle_s = dict(idle_s)
        self._started_at = 0.0
        self._heard_at: dict[Partition, float] = {}
        self._empty: dict[Partition, None] = {}
        self._count = 0
        self._counted_at = float("-inf")

    def start(self, now: float) -> None:
        """Begin to wait for messages about partitions.

        The time before the start counts, except for the last part of the wait.
        """
        self._started_at = now
        credit_max = max(self._after_s - RESTART_GRACE_S, 0.0)
        for partition, seconds in self._idle_s.items():
            self._heard_at[partition] = now - min(max(seconds, 0.0), credit_max)
        self._idle_s.clear()

    def record_heard(self, partition: Partition, now: float) -> None:
        """Record a message about a partition, from its producer or from another store that holds records of it."""
        self._heard_at[partition] = now

    def heard_at(self, partition: Partition) -> float:
        """Return the time of the last message about a partition."""
        return self._heard_at.get(partition, self._started_at)

    def record_range(self, partition: Partition, earliest: int, end: int) -> None:
        """Record the range of records that the store holds of a partition."""
        if earliest < end or not end:
            self._empty.pop(partition, None)
        else:
            self._empty[partition] = None

    def remove(self, partition: Partition) -> None:
        """Remove a partition that the store has forgotten."""
        self._empty.pop(partition, None)
        self._heard_at.pop(partition, None)

    def __contains__(self, partition: Partition) -> bool:
        """Return whether a partition has ended."""
        return partition in self._empty and not self._has_producer(partition)

    def count(self, now: float) -> int:
        """Return how many partitions have ended, as of at most a second ago."""
        if now - self._counted_at >= COUNT_S:
            self._count, self._counted_at = sum(each in self for each in self._empty), now
        return self._count

    def is_unproven_silent(self, partition: Partition, now: float) -> bool:
        """Return whether a partition without any record has been silent for long enough to be dropped."""
        silent_s = min(self._after_s or UNPROVEN_S, UNPROVEN_S)
        return now - self.heard_at(partition) >= silent_s

    def silent_partitions(self, now: float) -> list[Partition]:
        """Return the ended partitions that have been silent for long enough, the longest silent first."""
        if not self._after_s:
            return []
        silent_s = self._after_s
        if len(self._empty) > self._count_max and self.count(now) > self._count_max:
            silent_s = min(silent_s, CROWDED_S)
        found = [each for each in self._empty if now - self.heard_at(each) >= silent_s and each in self]
        return sorted(found, key=self.heard_at)


class PartitionCapacity:
    """The capacity of one store for partitions. `full_reason` says why it accepts no new ones; empty if it does."""

    def __init__(
        self, config: NodeConfig, reassembler: Reassembler, ended: EndedPartitions, limits: PeerLimits
    ) -> None:
        self.full_reason = ""
        self._config = config
        self._reassembler = reassembler
        self._ended = ended
        self._limits = limits
        self._check_due = float("inf")
        self._notices: list[Action] = []

    def admit_partition(self, partition: Partition, now: float, *, is_live: bool) -> str:
        """Admit a partition, or return the reason to discard its messages; see `PeerLimits.admit_partition`."""
        reason = self._limits.admit_partition(partition, self._count_living(now), is_live=is_live)
        if not reason and not self._reassembler.has_capacity():
            self._limits.forget_partition(partition)
            reason = MANY_UNPROVEN
        if reason in {MANY_PARTITIONS, MANY_UNPROVEN}:
            self._record_full(reason, now)
        return reason

    def partition_followed(self, now: float) -> None:
        """Record that one more partition is followed."""
        if len(self._reassembler.cursors) >= self._config.partitions_max:
            self.check(now)

    def check(self, now: float) -> None:
        """Check whether the store accepts more partitions; while it does not, check again each second."""
        if self._count_living(now) >= self._config.partitions_max:
            self._record_full(MANY_PARTITIONS, now)
        elif not self._reassembler.has_capacity():
            self._record_full(MANY_UNPROVEN, now)
        elif self.full_reason:
            self.full_reason = ""
            self._check_due = float("inf")
            self._notices.append(Notify(StoreHasRoom()))

    def tick(self, now: float) -> None:
        """Check a full store again."""
        if now >= self._check_due:
            self.check(now)

    def deadline(self) -> float:
        """Return when to call `tick`."""
        return self._check_due

    def take_notices(self) -> list[Action]:
        """Return the events for the program since the last call."""
        notices, self._notices = self._notices, []
        return notices

    def _count_living(self, now: float) -> int:
        """Return how many partitions count for the limit: those with records or a producer.

        Ended ones have a second limit of the same size.
        """
        followed, limit = len(self._reassembler.cursors), self._config.partitions_max
        if followed < limit:
            return followed
        return followed - min(self._ended.count(now), limit)

    def _record_full(self, reason: str, now: float) -> None:
        self._check_due = now + ROOM_CHECK_S
        if not self.full_reason:
            is_total = reason == MANY_PARTITIONS
            event = StoreFull(reason, self._config.partitions_max if is_total else self._config.partitions_unproven_max)
            self.full_reason = str(event)
            self._notices.append(Notify(event))
