"""A node's questions to the stores for the positions of partitions at a time (docs/spec/positions-by-time.md).

Each connected store that knows GET-POSITION is asked about each partition. An answer is the first record that was made
at the time or later, or that the store holds none. The position is the earliest record of all answers; if no store
holds one, it is the end of the partition in the stores. libdafka's stores do not know the question, and are not asked.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from dafka import wire
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

    def __contains__(self, partition: Partition) -> bool:
        """Return whether a partition is asked about."""
        return partition in self._questions

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
