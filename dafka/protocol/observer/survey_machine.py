"""The observer's state machine: surveys the nodes, topics and partitions of a cluster, and the lag of its stores.

RFC 46 has no such role. An observer can learn:

- Nodes and their endpoints from beacons. The role of a node from the subscriptions with its own address that it makes
  when it connects: a store subscribes to CONSUMER-HELLO, a producer to FETCH, a consumer to STORE-HELLO.
- Topics from the lists of stores (GET-TOPICS, erratum 27; libdafka's stores do not answer), from the HEADs of producers
  that have published, from the subscriptions of consumers and producers, and from the names that the program gives.
- The head of a producer from its HEADs; the head of a store from its answer to GET-HEADS.

A DIRECT-HEAD does not name the store that sends it. The driver of this machine therefore has a separate connection to
each store (`stores`), and passes on its answers with the store's address (`receive_from_store`). After its questions a
FETCH is sent, for a partition that no node can hold, the observer's own, with the number of the question as its topic.
The answer (erratum 26) shows that the store has sent all its heads. A libdafka store does not answer, so the observer
waits for a fixed time. It treats an empty topic in GET-HEADS as all topics.

An observer does not disturb the cluster: it does not subscribe to RECORDs and ACKs, acknowledges and fetches nothing,
and no node mistakes it for a store or a consumer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import attrs

from dafka import wire
from dafka.config import Config
from dafka.endpoints import PeerEndpoint
from dafka.protocol.actions import Action, Publish, Subscribe
from dafka.protocol.events import PeerJoined, PeerLeft
from dafka.protocol.observer.cluster_survey import (
    ClusterSurvey,
    HolderView,
    NodeState,
    NodeView,
    PartitionView,
    TopicView,
)
from dafka.protocol.observer.node_table import OWN_COMMANDS, NodeEntry, NodeTable
from dafka.protocol.observer.poll_schedule import PollSchedule
from dafka.records import Partition
from dafka.wire import Command, Dialect

STORES_MAX = 50
"""The maximum number of stores that are asked; each takes a separate connection."""

TOPICS_MAX = 10_000
"""The maximum number of topics that are remembered and asked for."""

PAGES_MAX = 1000
"""The maximum number of pages of one store in a round; `TOPICS_MAX` topics of the longest names fill 900."""

PARTITIONS_MAX = 20_000
"""The maximum number of partitions that are remembered."""

ALL_TOPICS = ""
"""The topic for which a libdafka store sends the heads of all topics."""

_CONSUMER_COMMANDS = (Command.RECORD, Command.HEAD)
"""The commands that consumers subscribe to with a topic."""


@attrs.define
class _Held:
    """A store's answer, its round, and the end that the producer had announced at that time."""

    end: int
    known_end: int
    round: int


@attrs.define
class _Known:
    """A partition: the end announced by its producer, the answers of stores, and the first question that covers it."""

    question: int
    head_end: int = 0
    held: dict[str, _Held] = attrs.field(factory=dict)


@attrs.define
class _TopicList:
    """A store's list of topics: the last topic received, and how many topics and partitions the store holds."""

    after: str = ""
    pages: int = 0
    is_complete: bool = False
    has_news: bool = False
    topics_held: int | None = None
    partitions_held: int | None = None

    def begin(self) -> None:
        """Begin the list again. The former numbers are kept until new ones arrive."""
        self.after, self.pages, self.is_complete, self.has_news = "", 0, False, False


class SurveyMachine:
    """The state machine of one observer.

    A round of questions begins with `begin_round`, and is over when `is_complete`. The observer looks at the given
    topics; if there are none, at all.
    """

    def __init__(self, address: str, config: Config, topics: Iterable[str] = ()) -> None:
        self.address = address
        self.node_table = NodeTable(
            address, config.beacon.tower_pub, config.beacon.timeout_ms / 1000, config.node.peers_max
        )
        self.stores: dict[str, PeerEndpoint] = {}
        """The endpoints of the stores that need a connection of their own, by address."""
        self.discarded: Counter[str] = Counter()
        self._wire = config.node.wire
        self._named = frozenset(topics)
        self._topics: dict[str, set[Command]] = {topic: set() for topic in self._named}
        self._partitions: dict[Partition, _Known] = {}
        self._stored: set[str] = set()
        self._lists: dict[str, _TopicList] = {}
        self._limits: dict[str, None] = {}
        self._schedule = PollSchedule(config.beacon.interval_ms / 1000)

    @property
    def is_complete(self) -> bool:
        """Whether this round is over: every store has answered, or its time is over."""
        return self._schedule.is_over

    def start(self, now: float) -> list[Action]:
        """Subscribe to all HEADs, and to DIRECT-EARLIEST.

        A producer sends its HEAD at once to a new subscriber. Observers recognize each other by the other subscription.
        """
        heads = wire.subscription_prefix(Command.HEAD)
        return [Subscribe(heads), Subscribe(wire.subscription_prefix(Command.DIRECT_EARLIEST, self.address))]

    def listening_prefixes(self) -> list[bytes]:
        """Return the prefixes to subscribe to on the connection to one store."""
        commands = (Command.DIRECT_HEAD, Command.DIRECT_EARLIEST, Command.DIRECT_TOPICS)
        return [wire.subscription_prefix(command, self.address) for command in commands]

    def begin_round(self, now: float) -> list[Action]:
        """Begin a round: ask every store for the heads of every known topic."""
        self.node_table.forget_silent(now)
        self._limits.clear()
        self._stored.clear()
        for each in self._lists.values():
            each.begin()
        self._schedule.begin_round(now)
        return self.tick(now)

    def record_discovery(self, report: PeerJoined | PeerLeft, now: float) -> None:
        """Record that discovery found or lost a node."""
        entry = self.node_table.record_discovery(report, now)
        if entry is None:
            return
        self._schedule.record_node(now)
        if not entry.is_joined:
            self._drop_store(report.address)
        elif entry.is_store:
            self._add_store(report.address, entry, now)

    def store_connected(self, now: float) -> None:
        """Record that the separate connection to a store is made: its answers arrive only from now on."""
        self._schedule.ask_soon(now, 0.0)

    def receive(self, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        """Process HEADs. `receive_from_store` processes the answers of stores."""
        for message in messages:
            if isinstance(message, wire.Head):
                self._record_head(message, now)
            elif not isinstance(message, wire.DirectEarliest):
                self.discarded["unexpected command"] += 1
        self._schedule.check_soon(now)
        return []

    def receive_from_store(self, store: str, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        """Process the messages of the separate connection to a store. Return the questions for the next topics."""
        actions: list[Action] = []
        for message in messages:
            if not isinstance(message, (wire.DirectHead, wire.DirectEarliest, wire.DirectTopics)):
                self.discarded["unexpected command"] += 1
            elif message.requestor != self.address:
                self.discarded["another requestor"] += 1
            elif store not in self.stores:
                self.discarded["not asked for"] += 1
            elif isinstance(message, wire.DirectHead):
                self._record_held(store, message, now)
            elif isinstance(message, wire.DirectTopics):
                actions += self._record_page(store, message, now)
            elif message.address == store and message.partition == self.address and message.subject.isdecimal():
                # A store may claim a question that was not asked yet; it then counts as answered when it is asked.
                self._schedule.poll.add_answer(store, int(message.subject))
        self._schedule.check_soon(now)
        return actions

    def receive_subscriptions(self, subscriptions: Iterable[wire.Subscription], now: float) -> list[Action]:
        """Learn the roles and the topics of peers from their subscriptions."""
        for subscription in subscriptions:
            command, topic = subscription.command, subscription.topic
            if not topic:
                continue
            if command in OWN_COMMANDS:
                entry = self.node_table.record_subscription(subscription)
                if entry is not None and entry.is_store and entry.is_joined:
                    self._add_store(topic, entry, now)
                continue
            self._record_topic(topic, now)
            if command in _CONSUMER_COMMANDS and topic in self._topics:
                (set.add if subscription.active else set.discard)(self._topics[topic], command)
        self._schedule.check_soon(now)
        return []

    def peer_joined(self, address: str, now: float) -> list[Action]:
        """Do nothing: `record_discovery` is called with more details."""
        return []

    def peer_left(self, address: str, now: float) -> list[Action]:
        """Do nothing: `record_discovery` is called with more details."""
        return []

    def node_settled(self, now: float) -> list[Action]:
        """Allow questions: the nodes that were running before are connected."""
        self._schedule.node_settled(now)
        return self.tick(now)

    def tick(self, now: float) -> list[Action]:
        """Ask, ask again, or end the round."""
        joined = [entry for entry in self.node_table.entries.values() if entry.is_joined]
        has_shown = bool(joined) and all(map(_has_shown, joined))
        answering = [store for store in self.stores if self._can_answer(store)]
        has_silent = len(answering) < len(self.stores)
        is_listing = any(True for _ in self._unlisted())
        is_asking = self._schedule.tick(
            now, answering, has_silent=has_silent, has_shown=has_shown, is_listing=is_listing
        )
        return self._ask() if is_asking else []

    def deadline(self) -> float:
        """Return when to call `tick`."""
        return self._schedule.deadline()

    def survey(self, now: float) -> ClusterSurvey:
        """Return the current survey."""
        nodes = self.node_table.views(now)
        present = {node.address for node in nodes if node.state is not NodeState.SILENT}
        counts = Counter(partition.topic for partition in self._partitions)
        return ClusterSurvey(
            now,
            self.node_table.tower_views(now),
            tuple(self._view_node(node) for node in nodes),
            tuple(
                TopicView(name, counts[name], bool(commands), name in self._stored)
                for name, commands in sorted(self._topics.items())
            ),
            tuple(
                self._view_partition(partition, known, partition.address in present)
                for partition, known in sorted(self._partitions.items(), key=lambda item: item[0])
            ),
            (*self.node_table.limits(), *self._limits),
        )

    def _ask(self) -> list[Action]:
        asks_for_all = not self._named and any(map(self._lists_by_heads, self.stores))
        topics = [ALL_TOPICS, *self._topics] if asks_for_all else list(self._topics)
        actions: list[Action] = [
            Publish(wire.GetTopics(store, self.address, self._lists[store].after)) for store in self._unlisted()
        ]
        actions += [Publish(wire.GetHeads(topic, self.address)) for topic in topics]
        return [*actions, Publish(wire.Fetch(self.address, self.address, str(self._schedule.poll.question), 0, 1))]

    def _has_answered(self, store: str, question: int) -> bool | None:
        """Return whether a store has answered a question; None if it never reports that."""
        if not self._can_answer(store):
            return None
        return self._schedule.poll.has_answered(store, question)

    def _can_answer(self, store: str) -> bool:
        entry = self.node_table.entries.get(store)
        return entry is not None and entry.can_answer

    def _lists_by_heads(self, store: str) -> bool:
        """Return whether a store has no list of topics, but sends the heads of all topics if asked for them."""
        if self._wire == "auto":
            entry = self.node_table.entries.get(store)
            return entry is not None and entry.is_libdafka_store
        return self._wire == Dialect.LIBDAFKA.value

    def _unlisted(self) -> Iterator[str]:
        """Yield the stores that have not listed all of their topics in this round."""
        for store in () if self._named else self.stores:
            entry = self.node_table.entries.get(store)
            if entry is not None and entry.lists_topics and not self._lists[store].is_complete:
                yield store

    def _record_page(self, store: str, page: wire.DirectTopics, now: float) -> list[Action]:
        """Record one page of a store's topics, and return the question for the next one."""
        topics = self._lists[store]
        if page.address != store or page.after != topics.after or topics.is_complete or self._named:
            self.discarded["not asked for"] += 1
            return []
        topics.pages += 1
        for topic in page.subjects:
            topics.has_news = topics.has_news or topic not in self._topics
            if self._record_topic(topic, now, is_listed=True):
                self._stored.add(topic)
        if topics.pages == 1:
            topics.topics_held = len(page.subjects) + page.remaining
        topics.partitions_held = page.partitions
        # A store that never ends its list must not keep this node busy.
        if page.remaining and page.subjects and topics.pages < PAGES_MAX:
            topics.after = page.subjects[-1]
            self._schedule.record_node(now)
            return [Publish(wire.GetTopics(store, self.address, topics.after))]
        topics.is_complete = True
        if topics.has_news:
            self._schedule.ask_soon(now)
        return []

    def _add_store(self, address: str, entry: NodeEntry, now: float) -> None:
        if self.stores.get(address) == entry.endpoint:
            return
        if address not in self.stores and len(self.stores) >= STORES_MAX:
            self._limits[f"only {STORES_MAX} stores are asked: there are more"] = None
            return
        self.stores[address] = entry.endpoint
        self._lists[address] = _TopicList()
        self._schedule.poll.forget_answers(address)
        self._schedule.record_node(now)
        self._schedule.ask_soon(now)

    def _drop_store(self, address: str) -> None:
        if self.stores.pop(address, None) is not None:
            del self._lists[address]
            for known in self._partitions.values():
                known.held.pop(address, None)

    def _record_head(self, head: wire.Head, now: float) -> None:
        entry = self.node_table.entries.get(head.address)
        if entry is not None:
            entry.publishes = True
        known = self._learn(Partition(head.subject, head.address), now)
        if known is None:
            return
        if head.sequence < known.head_end:
            return
        if not known.head_end:
            # Only answers to a later question can be compared with this head.
            self._schedule.record_news(now)
            self._schedule.ask_soon(now)
            known.question = self._schedule.poll.question + 1
        self._schedule.record_progress()
        known.head_end = head.sequence + 1

    def _record_held(self, store: str, head: wire.DirectHead, now: float) -> None:
        known = self._learn(Partition(head.subject, head.address), now)
        if known is not None:
            known.held[store] = _Held(head.sequence + 1, known.head_end, self._schedule.number)

    def _learn(self, partition: Partition, now: float) -> _Known | None:
        known = self._partitions.get(partition)
        if known is not None:
            return known
        if len(self._partitions) >= PARTITIONS_MAX:
            self._limits[f"only {PARTITIONS_MAX} partitions are shown: there are more"] = None
            return None
        is_asked_for = partition.topic in self._topics
        if not self._record_topic(partition.topic, now):
            return None
        self._schedule.record_news(now)
        question = self._schedule.poll.question + (0 if is_asked_for else 1)
        return self._partitions.setdefault(partition, _Known(question))

    def _record_topic(self, topic: str, now: float, *, is_listed: bool = False) -> bool:
        """Record a topic; return whether it is observed. Topics of a list are requested when the list is complete."""
        if topic in self._topics or self._named:
            return topic in self._topics
        if len(self._topics) >= TOPICS_MAX:
            self._limits[f"only {TOPICS_MAX} topics are shown: there are more"] = None
            return False
        self._topics[topic] = set()
        self._schedule.record_news(now)
        if not is_listed:
            self._schedule.ask_soon(now)
        return True

    def _view_node(self, node: NodeView) -> NodeView:
        if node.address not in self.stores:
            return node
        topics = self._lists[node.address]
        return attrs.evolve(
            node,
            has_answered=self._has_answered(node.address, self._schedule.first_question),
            lists_topics=None if self._named or self._lists_by_heads(node.address) else topics.is_complete,
            topics_held=topics.topics_held,
            partitions_held=topics.partitions_held,
        )

    def _view_partition(self, partition: Partition, known: _Known, has_producer: bool) -> PartitionView:
        end = max(known.head_end, *(held.end for held in known.held.values()), 0)
        announced = known.head_end if has_producer else 0
        holders = tuple(self._view_holder(store, known, announced, end) for store in sorted(self.stores))
        return PartitionView(partition, has_producer, end or None, holders)

    def _view_holder(self, store: str, known: _Known, announced: int, end: int) -> HolderView:
        held = known.held.get(store)
        if held is None:
            is_asked = self._schedule.poll.question >= known.question
            is_certain = is_asked and self._has_answered(store, known.question) is not False
            return HolderView(store, 0, end) if is_certain else HolderView(store, None, None)
        is_outdated = (
            held.round < self._schedule.number and self._has_answered(store, self._schedule.first_question) is False
        )
        if is_outdated or (announced and not held.known_end):
            return HolderView(store, held.end, None)
        # Records that were announced or stored after the store's answer are not lag.
        return HolderView(store, held.end, max((held.known_end if announced else end) - held.end, 0))


def _has_shown(entry: NodeEntry) -> bool:
    """Return whether a node has shown its roles, and a producer its head."""
    return bool(entry.commands) and (entry.publishes or not entry.is_producer)
