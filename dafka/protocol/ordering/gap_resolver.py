"""Decides when missing records are unrecoverable, and the position after them (erratum 26).

A node that has dropped records answers a FETCH for them with DIRECT-EARLIEST: the first record of the partition that it
holds, and the records that it knows to be unrecoverable rather than merely missing. Records are given up when every
node that could hold them, which means every connected store and the producer, has answered that it does not. For a node
that does not know this command (libdafka's), this node waits for a limited time.
"""

from __future__ import annotations

from dafka import wire
from dafka.records import SEQUENCE_MAX, Partition
from dafka.wire import Command

HOLDS_NOTHING = wire.NUMBER_8_MAX
"""The `sequence` in the answer of a node that holds no record of the partition."""

PATIENCE_ATTEMPTS = 5
"""Consecutive FETCHes without an answer after which a silent node counts as one that holds nothing."""

STORES_MAX = 1024
"""The maximum number of stores to wait for. Answers of more stores count, but are not waited for."""

ANSWERS_MAX = 10_000
"""The maximum number of answers kept, about all partitions. More are dropped; the next FETCH brings them again."""

NODES_MAX = 100_000
"""The maximum number of discovered nodes that are remembered."""


class GapResolver:
    """The peers that may hold missing records, and their answers."""

    def __init__(self) -> None:
        self.stores: set[str] = set()
        """The addresses of the connected stores."""
        self.answering: set[str] = set()
        """The connected nodes that know DIRECT-EARLIEST."""
        self.is_settled = False
        """Whether the nodes that were running before are connected. Until then no record is given up, because a node
        that holds it may be about to connect."""
        self._nodes: set[str] = set()
        self._subscribed: set[str] = set()
        self._answers: dict[Partition, tuple[int, dict[str, wire.DirectEarliest]]] = {}
        self._answers_count = 0
        self._news: dict[Partition, None] = {}

    def node_settled(self) -> None:
        """Allow giving up records: the nodes that were running before are connected."""
        self.is_settled = True

    def add_node(self, address: str) -> None:
        """Record that discovery found a node: it may be the producer of a partition."""
        if len(self._nodes) < NODES_MAX:
            self._nodes.add(address)
        if address in self._subscribed:
            self.stores.add(address)

    def remove_node(self, address: str) -> None:
        """Record that discovery lost a node. If its connection remains, it counts as a store once it is found again."""
        self._nodes.discard(address)
        self.stores.discard(address)

    def has_node(self, address: str) -> bool:
        """Return whether discovery knows a node."""
        return address in self._nodes

    def record_subscription(self, subscription: wire.Subscription, own_address: str) -> None:
        """Recognize a store by its subscription to CONSUMER-HELLO with its own address."""
        if subscription.command is Command.DIRECT_EARLIEST and subscription.topic:
            if not subscription.active:
                self.answering.discard(subscription.topic)
            elif len(self.answering) < NODES_MAX:
                self.answering.add(subscription.topic)
        if subscription.command is Command.CONSUMER_HELLO and subscription.topic not in {"", own_address}:
            if not subscription.active:
                self._subscribed.discard(subscription.topic)
                self.stores.discard(subscription.topic)
            elif len(self._subscribed) < STORES_MAX:
                self._subscribed.add(subscription.topic)
                self.stores.add(subscription.topic)

    def add_answer(self, message: wire.DirectEarliest, next_sequence: int) -> None:
        """Record that a node does not hold the fetched record at `next_sequence`.

        Answers of nodes that are neither a store nor the partition's producer are ignored.
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
            self._news[partition] = None

    def forget_partition(self, partition: Partition) -> None:
        """Forget the answers about a partition."""
        _, answers = self._answers.pop(partition, (0, {}))
        self._answers_count -= len(answers)
        self._news.pop(partition, None)

    def answered_partitions(self) -> list[Partition]:
        """Return the partitions about which there are answers, once the node has settled."""
        return list(self._answers) if self.is_settled else []

    def take_newly_answered(self) -> list[Partition]:
        """Return the partitions about which there are answers since the last call, once the node has settled."""
        news, self._news = self._news, {}
        return [partition for partition in news if partition in self._answers] if self.is_settled else []

    def resume_sequence(self, partition: Partition, next_sequence: int, attempts: int) -> int | None:
        """Return the first record that a node holds after the missing record `next_sequence`.

        Return None if the missing record is not known to be unrecoverable. `attempts` consecutive FETCHes for it went
        unanswered.
        """
        asked, answers = self._answers.get(partition, (next_sequence, {}))
        if asked != next_sequence:
            self.forget_partition(partition)
            return None
        if not any(answer.unrecoverable_end > next_sequence for answer in answers.values()):
            return None
        asked_for = self.stores | ({partition.address} & self._nodes)
        if asked_for - answers.keys() and attempts < PATIENCE_ATTEMPTS:
            return None
        held = [answer.sequence for answer in answers.values() if answer.sequence != HOLDS_NOTHING]
        return min(held, default=None)
