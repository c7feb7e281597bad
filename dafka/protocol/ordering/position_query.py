"""A node's questions to the stores for the positions of partitions at a time (docs/spec/positions-by-time.md).

Each connected store that knows GET-POSITION is asked about each partition. An answer is the first record that was made
at the time or later, or that the store holds none. The position is the earliest record of all answers; if no store
holds one, it is the end of the partition in the stores. libdafka's stores do not know the question, and are not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from dafka import wire
from dafka.config import NodeConfig
from dafka.protocol.actions import Action, Publish
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING, STORES_MAX, GapResolver
from dafka.protocol.polling import PendingPeers
from dafka.records import SEQUENCE_MAX, Partition
from dafka.wire import Command

PATIENCE_S = 2.0
"""Seconds to wait for discovered nodes that have not connected: they may be stores."""

RETRY_S = 0.5
"""Seconds until unanswered questions are repeated for the first time. Each following wait is twice as long."""

RETRY_MAX_S = 8.0
"""The longest wait for a repetition. A store that is still searching ignores it."""

PARTITIONS_MAX = 50_000
"""The maximum number of partitions that wait for their first record at the same time."""


@attrs.define
class _Question:
    time_ms: int
    answers: dict[str, wire.DirectPosition] = attrs.field(factory=dict)


@attrs.frozen
class FoundPosition:
    """The position of a partition at a time: the sequence of the next record."""

    sequence: int
    is_held: bool
    """Whether a store holds records of the partition, or once held some."""


class PositionQuery:
    """The questions of one node."""

    def __init__(self, address: str, gap_resolver: GapResolver, pending_peers: PendingPeers) -> None:
        self._address = address
        self._gap_resolver = gap_resolver
        self._pending_peers = pending_peers
        self._answering: set[str] = set()
        self._questions: dict[Partition, _Question] = {}
        self._unasked: dict[Partition, None] = {}
        self._changed: dict[Partition, None] = {}
        self._checked_stores: set[str] = set()
        self._patience_until = float("inf")
        self._checked_at = float("-inf")
        self._retry_due = float("inf")
        self._retry_s = RETRY_S

    @property
    def stores(self) -> set[str]:
        """The connected stores that answer."""
        return self._answering & self._gap_resolver.stores

    def add_partition(self, partition: Partition, time_ms: int) -> None:
        """Begin to ask about a partition; `due_questions` returns the questions."""
        self._questions[partition] = _Question(time_ms)
        self._unasked[partition] = None
        self._retry_s = RETRY_S

    def remove_partition(self, partition: Partition) -> None:
        """Stop asking about a partition."""
        self._questions.pop(partition, None)
        self._unasked.pop(partition, None)
        self._changed.pop(partition, None)

    def record_subscription(self, subscription: wire.Subscription) -> None:
        """Recognize a store that answers by its subscription to GET-POSITION with its address."""
        if subscription.command is not Command.GET_POSITION or subscription.topic in {"", self._address}:
            return
        if not subscription.active:
            self._answering.discard(subscription.topic)
        elif len(self._answering) < STORES_MAX:
            self._answering.add(subscription.topic)
            self.ask_again()

    def node_settled(self, now: float) -> None:
        """Record that the nodes that were running before are connected, or about to connect."""
        self._patience_until = now + PATIENCE_S

    def ask_again(self) -> None:
        """Repeat the questions that are not answered: a store that could not hear them may be connected now."""
        self._unasked.update(dict.fromkeys(self._questions))

    def receive(self, answer: wire.DirectPosition) -> str:
        """Process an answer. Return the reason to discard it, or an empty text."""
        partition = Partition(answer.subject, answer.partition)
        question = self._questions.get(partition)
        if answer.requestor != self._address:
            return "another requestor"
        if question is None or question.time_ms != answer.time or answer.address not in self._answering:
            return "not asked for"
        if answer.end > SEQUENCE_MAX or SEQUENCE_MAX < answer.sequence != HOLDS_NOTHING:
            return "impossible position"
        question.answers[answer.address] = answer
        self._changed[partition] = None
        return ""

    def due_questions(self, now: float) -> list[Action]:
        """Return the questions to send now."""
        unasked, self._unasked = self._unasked, {}
        if not unasked:
            return []
        if self._retry_due == float("inf"):
            self._retry_due = now + self._retry_s
        stores = sorted(self.stores)
        return [
            Publish(wire.GetPosition(store, self._address, each.address, each.topic, self._questions[each].time_ms))
            for each in unasked
            for store in stores
            if store not in self._questions[each].answers
        ]

    def take_positions(self, now: float) -> dict[Partition, FoundPosition]:
        """Return the positions that have become certain since the last call, and stop asking about them."""
        stores = self.stores
        is_waiting = bool(self._pending_peers.addresses) and now < self._patience_until
        if not stores or not self._gap_resolver.is_settled or is_waiting:
            self._checked_stores = set()
            return {}
        checked = list(self._changed if stores == self._checked_stores else self._questions)
        self._checked_stores = stores
        self._changed.clear()
        found: dict[Partition, FoundPosition] = {}
        for partition in checked:
            answers = self._questions[partition].answers
            if stores <= answers.keys():
                found[partition] = _earliest(answers.values())
                self.remove_partition(partition)
        return found

    def tick(self, now: float) -> None:
        """Schedule the repetition of unanswered questions; `due_questions` returns them."""
        self._checked_at = now
        if now < self._retry_due:
            return
        self._retry_due = float("inf")
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        self.ask_again()

    def deadline(self) -> float:
        """Return when to call `tick`; `take_positions` may return more then."""
        if not self._questions:
            return float("inf")
        return min(self._retry_due, self._patience_until if self._patience_until > self._checked_at else float("inf"))


def _earliest(answers: Iterable[wire.DirectPosition]) -> FoundPosition:
    answers = list(answers)
    found = [answer.sequence for answer in answers if answer.sequence != HOLDS_NOTHING]
    end = max(answer.end for answer in answers)
    return FoundPosition(min(found, default=end), end > 0)


class TimedStart:
    """The partitions of a consumer that begin at a time, while the stores are asked for the first record.

    The consumer does not follow such a partition yet. It drops the partition's records but remembers their range, and
    fetches them later if they follow the start. Records that the producer publishes meanwhile are always received, even
    if the clock of a store is wrong.

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

    def has_capacity(self) -> bool:
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
