"""Finds the end of a partition in the stores: a reader's questions, and when the answers are certain.

RFC 46 has no question for the head of one partition. Two mechanisms together answer it. A store that holds records of a
partition sends its ACK to every node that subscribes to the partition's ACKs, as it does to a producer that has
reconnected; so the end in each store becomes known, and stays known. A store that holds no record answers a FETCH
accordingly (erratum 26). libdafka's stores do not answer; they are greeted for their heads, and silence counts as
"holds nothing".
"""

from __future__ import annotations

from enum import Enum

import attrs

from dafka import wire
from dafka.config import Config
from dafka.protocol.actions import Action, Publish, Subscribe, Unsubscribe
from dafka.protocol.ordering.gap_resolver import STORES_MAX, GapResolver
from dafka.protocol.polling import PendingPeers, StorePoll
from dafka.records import Partition
from dafka.wire import Command, Dialect

PROBE_S = 0.5
"""Seconds until a question is repeated."""

PATIENCE_S = 2.0
"""Seconds to wait for stores that have not answered, and for discovered nodes that have not connected. A store that
holds records sends its ACK as soon as it is connected."""

QUIET_S = 1.0
"""Seconds without growth after which an end is final. Records of a failed producer may still be on their way to a disk,
and a live producer continues to publish."""


class Incomplete(Enum):
    """The reason why the stores' end of a partition is not known yet."""

    STORES = "stores"
    """The cluster has not been found, or fewer stores than required."""
    ANSWERS = "answers"
    """A store has not answered, or a discovered node may still turn out to be a store."""
    QUIET = "quiet"
    """Records have just been added."""


@attrs.define
class _Question:
    poll: StorePoll
    ends: dict[str, int] = attrs.field(factory=dict)

    @property
    def end(self) -> int:
        return max(self.ends.values(), default=0)


class HeldEndQuery:
    """A reader's questions to the stores about the ends of partitions."""

    def __init__(self, address: str, config: Config, gap_resolver: GapResolver, pending_peers: PendingPeers) -> None:
        self._address = address
        self._wire = config.node.wire
        self._gap_resolver = gap_resolver
        self._pending_peers = pending_peers
        self._questions: dict[Partition, _Question] = {}
        self._settled_at = float("inf")

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._questions

    def add_partition(self, partition: Partition, now: float) -> list[Action]:
        """Begin to ask about a partition."""
        poll = StorePoll(patience_s=PATIENCE_S, retry_s=PROBE_S, quiet_s=QUIET_S)
        poll.restart_patience(max(now, self._settled_at))
        poll.restart_quiet(now)
        self._questions[partition] = _Question(poll)
        return [Subscribe(_ack_prefix(partition)), *self._ask(partition, now)]

    def remove_partition(self, partition: Partition) -> list[Action]:
        """Stop asking about a partition."""
        del self._questions[partition]
        return [Unsubscribe(_ack_prefix(partition))]

    def held_end(self, partition: Partition, min_stores: int, now: float) -> int | Incomplete:
        """Return the sequence after the last record that any store holds, or the reason why it is not certain yet.

        The partition is one that is being asked about. `min_stores` stores must be connected.
        """
        question = self._questions[partition]
        stores = self._gap_resolver.stores
        if not self._gap_resolver.is_settled or len(stores) < min_stores:
            return Incomplete.STORES
        if not question.poll.is_answered(stores, now, is_pending=bool(self._pending_peers.addresses)):
            return Incomplete.ANSWERS
        return Incomplete.QUIET if question.end and not question.poll.is_quiet(now) else question.end

    def add_answer(self, partition: Partition, store: str, end_sequence: int, now: float) -> None:
        """Record that a store holds the records before a sequence.

        The store is empty if the message does not name it. The partition need not be one that is asked about.
        """
        question = self._questions.get(partition)
        if question is None:
            return
        if end_sequence > question.end:
            question.poll.restart_quiet(now)
        if store not in question.ends and len(question.ends) >= STORES_MAX:
            store = ""
        question.ends[store] = max(question.ends.get(store, 0), end_sequence)
        question.poll.add_answer(store)

    def node_settled(self, now: float) -> list[Action]:
        """Start waiting for answers: the nodes that were running before are connected."""
        self._settled_at = now
        for question in self._questions.values():
            question.poll.restart_patience(now)
        return self.ask_again(now)

    def ask_again(self, now: float) -> list[Action]:
        """Repeat all questions: a peer that could not hear them before may be connected now."""
        return [action for partition in self._questions for action in self._ask(partition, now)]

    def tick(self, now: float) -> list[Action]:
        """Repeat the questions that are due."""
        due = [partition for partition, question in self._questions.items() if question.poll.take_retry(now)]
        return [action for partition in due for action in self._ask(partition, now)]

    def deadline(self) -> float:
        """Return when to call `tick`, or when `held_end` may return more."""
        return min((question.poll.deadline() for question in self._questions.values()), default=float("inf"))

    def _ask(self, partition: Partition, now: float) -> list[Action]:
        self._questions[partition].poll.record_asked(now)
        actions: list[Action] = [Publish(wire.Fetch(partition.address, self._address, partition.topic, 0, 1))]
        # Not GET-HEADS: producers answer it too, and their records may not be stored.
        hello = (partition.topic,)
        return actions + [Publish(wire.ConsumerHello(store, self._address, hello)) for store in self._greeted_stores()]

    def _greeted_stores(self) -> set[str]:
        """Return the stores that may be libdafka's, which do not answer a FETCH for records that they do not hold."""
        if self._wire == Dialect.RFC46.value:
            return set()
        stores = self._gap_resolver.stores
        return stores if self._wire == Dialect.LIBDAFKA.value else stores - self._gap_resolver.answering


def _ack_prefix(partition: Partition) -> bytes:
    return wire.subscription_prefix(Command.ACK, partition.address)
