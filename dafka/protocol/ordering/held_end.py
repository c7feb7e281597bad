"""How much of a partition the stores hold: what a reader asks, and when the answer is certain.

RFC 46 has no question for one partition's head. Two things together answer it. A store that holds records of a
partition sends its ACK to whoever subscribes to the partition's ACKs, as to a producer that has come back; so each
store's end is known, and stays known. A store that holds nothing of it says so in answer to a FETCH (erratum 26).
The C implementation's stores do not; they are greeted for their heads, and their silence has to do for a no.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import attrs

from dafka import wire
from dafka.config import Config
from dafka.protocol.actions import Action, Publish, Subscribe, Unsubscribe
from dafka.protocol.ordering.gap_resolver import GapResolver
from dafka.protocol.polling import PendingPeers
from dafka.records import Partition
from dafka.wire import Command, Dialect

PROBE_S = 0.5
"""An unanswered question is asked again after so long."""

PATIENCE_S = 2.0
"""Nodes that were found and have not connected, and stores that have not answered, are waited for so long: a store
that holds records and has connected sends its ACK at once."""

QUIET_S = 1.0
"""Where something is held, nothing may have been added for so long: what a producer that died had sent may still be on
its way to a disk, and one that lives goes on adding."""


class Incomplete(Enum):
    """Why it is not known yet how much is held."""

    STORES = "stores"
    """The cluster has not been found, or fewer stores than there must be."""
    ANSWERS = "answers"
    """A store has not answered, or who was found may be one."""
    QUIET = "quiet"
    """Records have just been added."""


@attrs.define
class _Question:
    since: float
    moved_at: float
    ends: dict[str, int] = attrs.field(factory=dict)


class HeldEndQuery:
    """The questions of one node."""

    def __init__(self, address: str, config: Config, holders: GapResolver, pending_peers: PendingPeers) -> None:
        self._address = address
        self._is_libdafka = config.node.wire == Dialect.LIBDAFKA.value
        self._gap_resolver = holders
        self._pending_peers = pending_peers
        self._questions: dict[Partition, _Question] = {}
        self._settled_at = float("inf")
        self._probe_due = float("inf")
        self._looked_at = float("-inf")

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._questions

    def ask(self, partition: Partition, now: float) -> list[Action]:
        """Begins to ask about a partition."""
        self._questions[partition] = _Question(now, now)
        self._probe_due = min(self._probe_due, now + PROBE_S)
        return [Subscribe(_acks_of(partition)), *self._probe(partition)]

    def drop(self, partition: Partition) -> list[Action]:
        """Ends asking about it."""
        del self._questions[partition]
        if not self._questions:
            self._probe_due = float("inf")
        return [Unsubscribe(_acks_of(partition))]

    def held_end(self, partition: Partition, min_stores: int, now: float) -> int | Incomplete:
        """The sequence after the last record that any store holds, where `min_stores` are there and all have told."""
        question = self._questions[partition]
        stores = self._gap_resolver.stores
        if not self._gap_resolver.is_settled or len(stores) < min_stores:
            return Incomplete.STORES
        has_all = not self._pending_peers.awaited and question.ends.keys() >= stores
        if not has_all and now < self._patient_until(question):
            return Incomplete.ANSWERS
        end = max(question.ends.values(), default=0)
        return Incomplete.QUIET if end and now < question.moved_at + QUIET_S else end

    def learn(self, partition: Partition, store: str, end_sequence: int, now: float) -> None:
        """A store, its address empty where that is not told, holds the records before this sequence (0: none)."""
        question = self._questions.get(partition)
        if question is None:
            return
        if end_sequence > max(question.ends.values(), default=0):
            question.moved_at = now
        question.ends[store] = max(question.ends.get(store, 0), end_sequence)

    def settled(self, now: float) -> list[Action]:
        """The nodes that were there before have been found."""
        self._settled_at = now
        return self.probe(now)

    def probe(self, now: float) -> list[Action]:
        """Asks again: somebody may only now be able to hear it, or his answer to arrive."""
        self._probe_due = now + PROBE_S if self._questions else float("inf")
        return [action for partition in self._questions for action in self._probe(partition)]

    def tick(self, now: float) -> list[Action]:
        """Asks again what was not answered."""
        self._looked_at = now
        return self.probe(now) if now >= self._probe_due else []

    def deadline(self) -> float:
        """When `tick` next has something to do, or `held_end` may tell more."""
        return min(self._probe_due, *(look for look in self._looks() if look > self._looked_at), float("inf"))

    def _looks(self) -> Iterator[float]:
        for question in self._questions.values():
            yield self._patient_until(question)
            yield question.moved_at + QUIET_S

    def _patient_until(self, question: _Question) -> float:
        return max(question.since, self._settled_at) + PATIENCE_S

    def _probe(self, partition: Partition) -> list[Action]:
        actions: list[Action] = [Publish(wire.Fetch(partition.address, self._address, partition.topic, 0, 1))]
        if self._is_libdafka:
            # GET-HEADS would do, but producers answer it, too, and not with what is stored.
            hellos = [
                wire.ConsumerHello(store, self._address, (partition.topic,)) for store in self._gap_resolver.stores
            ]
            actions += map(Publish, hellos)
        return actions


def _acks_of(partition: Partition) -> bytes:
    return wire.subscription_prefix(Command.ACK, partition.address)
