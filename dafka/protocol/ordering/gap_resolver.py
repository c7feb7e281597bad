"""Who may still hold what a node is missing: how it learns that records are gone, and where to go on (erratum 26).

A node that has dropped records says so to who asks for them (DIRECT-EARLIEST): from where on it holds the partition,
and which records it knows to be gone, rather than merely not with it. They count as gone when everybody who could have
them has answered so: each store that is connected, and the producer. One that does not speak this command (libdafka's)
is given time to send the records instead.
"""

from __future__ import annotations

from dafka import wire
from dafka.records import SEQUENCE_MAX, Partition
from dafka.wire import Command

HOLDS_NOTHING = wire.NUMBER_8_MAX
"""The `sequence` of who has never held a record of the partition."""

PATIENCE_ATTEMPTS = 5
"""FETCHes in a row without an answer, after which a node that says nothing counts as one that has nothing."""

STORES_MAX = 1024
"""Stores that are waited for; of further ones it is only known what they say."""

ANSWERS_MAX = 10_000
"""Answers that are kept, about all partitions; what is said beyond is forgotten, and said again."""

NODES_MAX = 100_000
"""Nodes that are remembered as being there."""


class GapResolver:
    """Attributes:
    stores: the addresses of the stores that are connected.
    is_settled: whether the nodes that were there before have been found. Until then nothing is given up: somebody
        who holds it may be about to connect.
    """

    def __init__(self) -> None:
        self.stores: set[str] = set()
        self.is_settled = False
        self._nodes: set[str] = set()
        self._subscribed: set[str] = set()
        self._answers: dict[Partition, tuple[int, dict[str, wire.DirectEarliest]]] = {}
        self._answers_count = 0
        self._news: set[Partition] = set()

    def node_settled(self) -> None:
        """Allow giving records up: the nodes that were there before are connected."""
        self.is_settled = True

    def add_node(self, address: str) -> None:
        """Discovery found a node: if a partition is its own, it may hold records of it."""
        if len(self._nodes) < NODES_MAX:
            self._nodes.add(address)
        if address in self._subscribed:
            self.stores.add(address)

    def remove_node(self, address: str) -> None:
        """Discovery lost a node. Its connection may outlive that: a store that is found again is one at once."""
        self._nodes.discard(address)
        self.stores.discard(address)

    def note_subscription(self, subscription: wire.Subscription, own_address: str) -> None:
        """A store is known by its subscription to what consumers greet it with."""
        if subscription.command is Command.CONSUMER_HELLO and subscription.topic not in {"", own_address}:
            if not subscription.active:
                self._subscribed.discard(subscription.topic)
                self.stores.discard(subscription.topic)
            elif len(self._subscribed) < STORES_MAX:
                self._subscribed.add(subscription.topic)
                self.stores.add(subscription.topic)

    def add_answer(self, message: wire.DirectEarliest, next_sequence: int) -> None:
        """Somebody has not got the record at `next_sequence`, for which a FETCH was sent.

        What is said by somebody who is neither a store nor the producer counts for nothing.
        """
        partition = Partition(message.subject, message.partition)
        if message.address not in self._subscribed and message.address != partition.address:
            return
        if partition in self._answers and self._answers[partition][0] != next_sequence:
            self.forget_partition(partition)
        _, answers = self._answers.get(partition, (next_sequence, {}))
        is_possible = next_sequence < message.sequence <= SEQUENCE_MAX or message.sequence == HOLDS_NOTHING
        is_room = len(answers) <= STORES_MAX and self._answers_count < ANSWERS_MAX
        if is_possible and (message.address in answers or is_room):
            self._answers_count += message.address not in answers
            answers[message.address] = message
            self._answers[partition] = next_sequence, answers
            self._news.add(partition)

    def forget_partition(self, partition: Partition) -> None:
        """Nothing is missing of it (any more)."""
        _, answers = self._answers.pop(partition, (0, {}))
        self._answers_count -= len(answers)
        self._news.discard(partition)

    def answered_partitions(self) -> list[Partition]:
        """The partitions about which somebody has answered, once it is known who is there."""
        return list(self._answers) if self.is_settled else []

    def take_newly_answered(self) -> list[Partition]:
        """Those of them about which somebody has answered since this was asked last."""
        news, self._news = self._news, set()
        return [partition for partition in news if partition in self._answers] if self.is_settled else []

    def resume_sequence(self, partition: Partition, next_sequence: int, attempts: int) -> int | None:
        """Where to go on, if the record at `next_sequence` is gone; None where somebody may have it."""
        asked, answers = self._answers.get(partition, (next_sequence, {}))
        if asked != next_sequence:
            self.forget_partition(partition)
            return None
        if not any(answer.gone > next_sequence for answer in answers.values()):
            return None
        asked_for = self.stores | ({partition.address} & self._nodes)
        if asked_for - answers.keys() and attempts < PATIENCE_ATTEMPTS:
            return None
        held = [answer.sequence for answer in answers.values() if answer.sequence != HOLDS_NOTHING]
        return min(held, default=None)
