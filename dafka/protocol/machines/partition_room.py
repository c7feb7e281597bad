"""Decides whether a store accepts more partitions, and reports when that changes."""

from __future__ import annotations

from dafka.config import NodeConfig
from dafka.protocol.actions import Action, Notify
from dafka.protocol.machines.stored_partitions import EndedPartitions
from dafka.protocol.ordering.reassembler import Reassembler
from dafka.protocol.presence.peer_limits import MANY_PARTITIONS, MANY_UNPROVEN, PeerLimits
from dafka.protocol.store_events import StoreFull, StoreHasRoom
from dafka.records import Partition

ROOM_CHECK_S = 1.0
"""Seconds between two checks whether a full store accepts partitions again."""


class PartitionRoom:
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
        if not reason and not self._reassembler.has_room():
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
        elif not self._reassembler.has_room():
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
