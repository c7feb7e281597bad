"""The partitions of a consumer that begin at a time, while the stores are asked for the first record.

The consumer does not follow such a partition yet. It drops the partition's records but remembers their range, and
fetches them later if they follow the start. Records that the producer publishes meanwhile are always received, even if
the clock of a store is wrong.
"""

from __future__ import annotations

from collections.abc import Callable

from dafka import wire
from dafka.config import NodeConfig
from dafka.protocol.actions import Action
from dafka.protocol.ordering.gap_resolver import GapResolver
from dafka.protocol.ordering.position_query import PositionQuery
from dafka.protocol.polling import PendingPeers
from dafka.records import Partition

PARTITIONS_MAX = 50_000
"""The maximum number of partitions that wait at the same time."""


class TimedStart:
    """The partitions of one consumer whose first record is being searched.

    `time_ms` is the time from which records are received, in milliseconds since 1970; None for no time. A change
    applies to partitions that are not known yet.
    """

    def __init__(self, address: str, config: NodeConfig, gap_resolver: GapResolver, time_ms: int | None) -> None:
        self.time_ms = time_ms
        self.pending_peers = PendingPeers(config.peers_max)
        self.query = PositionQuery(address, gap_resolver, self.pending_peers)
        self._known_ends: dict[Partition, int] = {}
        self._first_live: dict[Partition, int] = {}

    def __contains__(self, partition: Partition) -> bool:
        """Return whether a partition waits."""
        return partition in self._known_ends

    def __len__(self) -> int:
        """Return how many partitions wait."""
        return len(self._known_ends)

    def has_room(self) -> bool:
        """Return whether one more partition can wait."""
        return len(self._known_ends) < PARTITIONS_MAX

    def add_partition(self, partition: Partition) -> bool:
        """Make a new partition wait; return False if there is no start time."""
        if self.time_ms is None:
            return False
        self._known_ends[partition] = 0
        self.query.add_partition(partition, self.time_ms)
        return True

    def remove_partition(self, partition: Partition) -> int:
        """Stop asking about a partition. Return the sequence after the last record that is known to exist."""
        self.query.remove_partition(partition)
        self._first_live.pop(partition, None)
        return self._known_ends.pop(partition)

    def remove_topic(self, topic: str) -> list[Partition]:
        """Stop asking about the partitions of a topic, and return them."""
        removed = [partition for partition in self._known_ends if partition.topic == topic]
        for partition in removed:
            self.remove_partition(partition)
        return removed

    def record_received(self, partition: Partition, end_sequence: int, first_live: int | None = None) -> bool:
        """Remember the range of a waiting partition's records; return False if the partition does not wait.

        `first_live` is the first record that its producer has just published; None if only a head is known.
        """
        if partition not in self._known_ends:
            return False
        if first_live is not None:
            self._first_live[partition] = min(first_live, self._first_live.get(partition, first_live))
        self._known_ends[partition] = max(self._known_ends[partition], end_sequence)
        return True

    def record_subscription(self, subscription: wire.Subscription) -> None:
        """Record a peer's subscription, to any command, or that it ended."""
        self.query.record_subscription(subscription)
        if subscription.active:
            self.pending_peers.record_subscription(subscription.topic)

    def begin_partitions(self, begin: Callable[[Partition, int, int, float | None], None], now: float) -> list[Action]:
        """Begin the partitions whose first record the stores have reported, and return questions about the others.

        The arguments of `begin` are the partition, the first sequence, the sequence after the last record that is known
        to exist, and the time if only the name of the partition is known.
        """
        if self._known_ends:
            for partition, found in self.query.take_positions(now).items():
                sequence = min(found.sequence, self._first_live.get(partition, found.sequence))
                begin(partition, sequence, self.remove_partition(partition), None if found.is_held else now)
        return self.query.due_questions(now)
