"""The node that reads the topic of a group from the stores.

It connects to stores only, so that it reads only durable records. A survey asks all stores for the heads of the topic;
the FETCH that follows each question has the number of the survey as its topic, and the answer repeats it. So an answer
to an earlier survey is never taken for one to this survey. Between surveys, the ACKs that stores send to the living
members announce more records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dafka import wire
from dafka.config import Config
from dafka.protocol.actions import Action, Deliver, Notify, Publish, Subscribe, Unsubscribe
from dafka.protocol.groups.records import READ_BACK_RECORDS
from dafka.protocol.ordering.reassembler import Reassembler
from dafka.protocol.presence.peer_limits import ABSURD_SEQUENCE, MANY_PARTITIONS, TOO_OFTEN, PeerLimits
from dafka.records import SEQUENCE_MAX, Partition
from dafka.wire import Command

RETRY_S = 0.25
"""Seconds until a store that has not answered a survey is asked again."""

RESTART_S = 2.0
"""Seconds until a survey restarts because no node sends its records: the store that answered may be gone."""

_SURVEY_TOPIC = "$survey/"

_OWN_COMMANDS = (Command.DIRECT_RECORD, Command.DIRECT_HEAD, Command.STORE_HELLO, Command.DIRECT_EARLIEST)


class GroupReaderMachine:
    """The machine of one node that reads the topic of a group."""

    def __init__(self, address: str, config: Config, topic: str) -> None:
        self.address = address
        self.discarded: Counter[str] = Counter()
        self._topic = topic
        self._reassembler = Reassembler(address, config.fetch)
        self._gap_resolver = self._reassembler.gap_resolver
        self._limits = PeerLimits(config.node)
        self._partitions_max = config.node.partitions_max
        self._watched: frozenset[str] = frozenset()
        self._survey = 0
        self._is_surveying = False
        self._answered: set[str] = set()
        self._ends: dict[Partition, int] = {}
        self._retry_due = float("inf")
        self._restart_due = float("inf")

    @property
    def stores(self) -> int:
        """The number of connected stores."""
        return len(self._gap_resolver.stores)

    def ends(self) -> dict[str, int]:
        """Return, by member, the sequence after the last record that the stores have reported."""
        return {partition.address: cursor.known_end for partition, cursor in self._reassembler.cursors.items()}

    def begin_survey(self, now: float) -> list[Action]:
        """Ask all stores for the heads of the topic. `surveyed` says how many have answered."""
        self._survey += 1
        self._is_surveying = True
        self._answered.clear()
        self._ends.clear()
        self._retry_due, self._restart_due = now + RETRY_S, now + RESTART_S
        return [action for store in sorted(self._gap_resolver.stores) for action in self._ask(store)]

    def surveyed(self) -> int:
        """Return how many stores have answered the survey, once all of their records have been read; 0 until then."""
        cursors = self._reassembler.cursors
        is_read = all(cursors[partition].next_sequence >= end for partition, end in self._ends.items())
        return len(self._answered) if self._is_surveying and is_read else 0

    def end_survey(self) -> None:
        """Stop asking."""
        self._is_surveying = False
        self._retry_due = self._restart_due = float("inf")

    def watch(self, members: frozenset[str]) -> list[Action]:
        """Listen only to the ACKs that stores send to these members."""
        added, removed, self._watched = members - self._watched, self._watched - members, members
        subscribed = [Subscribe(wire.subscription_prefix(Command.ACK, each)) for each in sorted(added)]
        return [*subscribed, *(Unsubscribe(wire.subscription_prefix(Command.ACK, each)) for each in sorted(removed))]

    def start(self, now: float) -> list[Action]:
        """Subscribe to messages that are addressed to this node."""
        return [Subscribe(wire.subscription_prefix(command, self.address)) for command in _OWN_COMMANDS]

    def receive(self, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        """Take records, heads, ACKs and answers; discard and count everything else."""
        actions: list[Action] = []
        for message in messages:
            if isinstance(message, wire.RecordRun):
                actions += self._receive_run(message, now)
            elif isinstance(message, wire.Ack):
                if message.subject == self._topic and message.partition in self._watched:
                    self._record_end(Partition(message.subject, message.partition), message.sequence + 1)
            elif isinstance(message, wire.DirectHead):
                if message.requestor == self.address and message.subject == self._topic:
                    self._receive_head(message)
            elif isinstance(message, wire.DirectEarliest):
                self._receive_earliest(message)
            elif isinstance(message, wire.StoreHello):
                if message.consumer == self.address and self._is_surveying and self._may_ask(message.address, now):
                    actions += self._ask(message.address)
            else:
                self.discarded["unexpected command"] += 1
        return actions + self._reassembler.skip_unrecoverable(only_new=True) + self._fetches(now)

    def receive_subscriptions(self, subscriptions: Iterable[wire.Subscription], now: float) -> list[Action]:
        """Ask a store that has connected, and repeat unanswered FETCHes."""
        actions: list[Action] = []
        for subscription in subscriptions:
            stores = self.stores
            self._gap_resolver.record_subscription(subscription, self.address)
            if not subscription.active:
                continue
            if self.stores > stores and self._is_surveying and self._may_ask(subscription.topic, now):
                actions += self._ask(subscription.topic)
            elif subscription.command is Command.FETCH:
                self._reassembler.refetch_unanswered(subscription, now)
        return actions + self._fetches(now)

    def peer_joined(self, address: str, now: float) -> list[Action]:
        """Record that discovery found a node."""
        self._gap_resolver.add_node(address)
        self._limits.peer_joined(address)
        return []

    def peer_left(self, address: str, now: float) -> list[Action]:
        """Record that discovery lost a node."""
        self._gap_resolver.remove_node(address)
        self._limits.peer_left(address)
        return self._reassembler.skip_unrecoverable()

    def node_settled(self, now: float) -> list[Action]:
        """Record that the nodes that were there before are connected."""
        self._gap_resolver.node_settled()
        return self._reassembler.skip_unrecoverable()

    def tick(self, now: float) -> list[Action]:
        """Repeat unanswered questions and FETCHes."""
        actions: list[Action] = [Notify(event) for event in self._reassembler.tick(now)]
        if now >= self._restart_due:
            actions += self.begin_survey(now)
        elif now >= self._retry_due:
            self._retry_due = now + RETRY_S
            for store in sorted(self._gap_resolver.stores - self._answered):
                actions += self._ask(store)
        return actions + self._reassembler.skip_unrecoverable() + self._fetches(now)

    def deadline(self) -> float:
        """Return when to call `tick`."""
        return min(self._reassembler.deadline(), self._retry_due, self._restart_due)

    def _ask(self, store: str) -> list[Action]:
        """Ask a store for its heads.

        The second message is for a partition that no store holds; the answer shows that all heads were sent.
        """
        hello = wire.ConsumerHello(store, self.address, (self._topic,))
        return [Publish(hello), Publish(wire.Fetch(store, self.address, f"{_SURVEY_TOPIC}{self._survey}", 0, 1))]

    def _may_ask(self, store: str, now: float) -> bool:
        is_allowed = self._limits.allow_request(store, now)
        self.discarded.update([] if is_allowed else [TOO_OFTEN])
        return is_allowed

    def _receive_run(self, run: wire.RecordRun, now: float) -> list[Action]:
        batch = run.batch
        if run.requestor != self.address or batch.partition not in self._reassembler.cursors:
            self.discarded["not asked for"] += len(batch)
            return []
        self._reassembler.record_answer(now)
        return [Deliver(ready) for ready in self._reassembler.add_batch(batch)]

    def _receive_head(self, head: wire.DirectHead) -> None:
        partition = Partition(head.subject, head.address)
        if self._record_end(partition, head.sequence + 1):
            self._ends[partition] = max(self._ends.get(partition, 0), head.sequence + 1)

    def _receive_earliest(self, message: wire.DirectEarliest) -> None:
        if message.address == message.partition and message.address in self._gap_resolver.stores:
            if message.requestor == self.address and message.subject == f"{_SURVEY_TOPIC}{self._survey}":
                self._answered.add(message.address)
            return
        reason = self._reassembler.receive_earliest(message)
        self.discarded.update([reason] if reason else [])

    def _record_end(self, partition: Partition, end_sequence: int) -> bool:
        """Record how many records of a member exist. A member that was unknown is read from shortly before the end."""
        cursors = self._reassembler.cursors
        if end_sequence > SEQUENCE_MAX:
            self.discarded[ABSURD_SEQUENCE] += 1
            return False
        if partition not in cursors:
            if len(cursors) >= self._partitions_max:
                self.discarded[MANY_PARTITIONS] += 1
                return False
            self._reassembler.follow_partition(partition, max(end_sequence - READ_BACK_RECORDS, 0))
        self._reassembler.record_known_end(partition, end_sequence)
        return True

    def _fetches(self, now: float) -> list[Action]:
        return [Publish(fetch) for fetch in self._reassembler.due_fetches(now)]
