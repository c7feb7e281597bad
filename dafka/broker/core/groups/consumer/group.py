"""A consumer group: its members, the topics that they read, and which member has which logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple, TypeVar

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.assignors import Assignor, Subscriber, choose_assignor
from dafka.broker.core.groups.consumer.members import NOTHING, Assignment, Member, MemberState, by_topic
from dafka.broker.core.groups.results import CONSUMER, DescribedGroup, DescribedMember
from dafka.broker.core.groups.subscriptions import encode_assignment
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.log_replicas import LogKey

_T = TypeVar("_T")

EXPECTED_MAX = 1000
"""The largest number of ids with which clients are expected to join."""


class ConsumerGroupState(Enum):
    """The states of a consumer group, with Kafka's names."""

    EMPTY = "Empty"
    """It has no members. It can have offsets."""

    ASSIGNING = "Assigning"
    """Its assignment is older than its members or topics."""

    RECONCILING = "Reconciling"
    """Members do not have what the assignment gives them yet."""

    STABLE = "Stable"
    """Every member has its assignment."""


class KnownTopic(NamedTuple):
    """A topic, as groups see it."""

    topic_id: str
    log_count: int


def find_topics(names: Iterable[str], log_table: LogTable) -> dict[str, KnownTopic]:
    """Return the existing topics with some names."""
    found = ((name, log_table.find_client_topic(name)) for name in sorted(names))
    return {name: KnownTopic(topic.topic_id, topic.log_count) for name, topic in found if topic is not None}


class StoredGroup(NamedTuple):
    """The state of a group without its members, as it is stored."""

    epoch: int
    target_epoch: int
    state_since_ms: int
    assignor: str
    topics: Mapping[str, KnownTopic]


class ConsumerGroup:
    """One group. It keeps its own state consistent; `ConsumerMembership` decides when it changes.

    `epoch` grows with each change of the members, of what they read, or of their topics, and `target_epoch` is that of
    the present assignment, `targets`. `topics` has the existing topics that the members read, as they were looked up at
    the `revision` of the cluster's topics; -1 before that. `expected` has the ids with which classic
    clients are about to join, the oldest first.
    """

    protocol_type = "consumer"
    group_type = CONSUMER

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.target_epoch = 0
        self.state_since_ms = now_ms
        self.assignor = ""
        self.topics: dict[str, KnownTopic] = {}
        self.targets: dict[str, Assignment] = {}
        self.revision = -1
        self.expected: dict[str, None] = {}
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        self._held: Counter[LogKey] = Counter()
        self._subscribed: Counter[str] = Counter()

    @property
    def members(self) -> Mapping[str, Member]:
        """The members by id."""
        return self._members

    @property
    def state(self) -> ConsumerGroupState:
        """The state for clients."""
        if not self._members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        is_settled = all(
            each.is_paused or (each.epoch == self.target_epoch and each.state is MemberState.STABLE)
            for each in self._members.values()
        )
        return ConsumerGroupState.STABLE if is_settled else ConsumerGroupState.RECONCILING

    @property
    def is_unused(self) -> bool:
        """Whether the group has no members."""
        return not self._members

    @property
    def has_members(self) -> bool:
        """Whether the group has members."""
        return bool(self._members)

    def restore(self, stored: StoredGroup) -> None:
        """Restore the stored state. Members are restored by `put` and `targets`."""
        self.epoch, self.target_epoch = stored.epoch, stored.target_epoch
        self.state_since_ms, self.assignor = stored.state_since_ms, stored.assignor
        self.topics = dict(stored.topics)

    def subscribed_topics(self) -> frozenset[str]:
        """Return the topics that the members read."""
        return frozenset(self._subscribed)

    def find_static(self, instance_id: str) -> Member | None:
        """Return the static member with an instance id; None if there is none."""
        member_id = self._static.get(instance_id) if instance_id else None
        return None if member_id is None else self._members[member_id]

    def expect(self, member_id: str) -> None:
        """Expect a classic client to join with an id. Of too many ids, the oldest is forgotten."""
        self.expected[member_id] = None
        if len(self.expected) > EXPECTED_MAX:
            del self.expected[next(iter(self.expected))]

    def is_held_by_others(self, member_id: str, log: LogKey) -> bool:
        """Return whether a member other than this one may still read a log."""
        own = self._members.get(member_id)
        return self._held[log] > (own is not None and log in own.held)

    def put(self, member: Member) -> None:
        """Add or replace a member."""
        former = self._members.get(member.member_id)
        if former is not None:
            self._forget(former)
        self._members[member.member_id] = member
        self.expected.pop(member.member_id, None)
        if member.instance_id:
            self._static[member.instance_id] = member.member_id
        self._held.update(member.held)
        self._subscribed.update(member.subscription.topics)

    def remove(self, member_id: str, now_ms: int) -> None:
        """Remove a member."""
        member = self._members.pop(member_id)
        self._forget(member)
        if self._static.get(member.instance_id) == member_id:
            del self._static[member.instance_id]
        if not self._members:
            self.state_since_ms = now_ms

    def _forget(self, member: Member) -> None:
        for log in member.held:
            _discard(self._held, log)
        for name in member.subscription.topics:
            _discard(self._subscribed, name)

    @property
    def topic_names(self) -> dict[str, str]:
        """The names of `topics`, by id."""
        return {topic.topic_id: name for name, topic in self.topics.items()}

    def find_topics(self, log_table: LogTable) -> dict[str, KnownTopic]:
        """Return the existing topics that the members read."""
        return find_topics(self._subscribed, log_table)

    def describe(self) -> DescribedGroup:
        """Return the description for callers that know all types of groups."""
        names = self.topic_names
        members = tuple(
            DescribedMember(
                each.member_id,
                each.instance_id or None,
                each.client_id,
                each.client_host,
                b"",
                encode_assignment(name_logs(each.assigned, names)),
            )
            for each in self._members.values()
        )
        state, protocol = self.state.value, self.protocol_type
        return DescribedGroup(
            self.group_id, ErrorCode.NONE, state, protocol, self.assignor, self.epoch, members, self.group_type
        )

    def assign(self, assignors: Mapping[str, Assignor]) -> list[str]:
        """Assign the logs of the present topics to the present members. Return the members whose logs change."""
        name = choose_assignor((each.assignor for each in self._members.values()), assignors)
        ids = {name: topic.topic_id for name, topic in self.topics.items()}
        subscribers = {
            member_id: Subscriber(
                frozenset(ids[name] for name in each.subscription.topics if name in ids),
                self.targets.get(member_id, NOTHING),
                each.instance_id,
                each.rack,
            )
            for member_id, each in self._members.items()
        }
        counts = {topic.topic_id: topic.log_count for topic in self.topics.values()}
        found = assignors[name].assign(subscribers, counts)
        changed = [each for each in self._members if found.get(each, NOTHING) != self.targets.get(each)]
        self.targets = {each: found.get(each, NOTHING) for each in self._members}
        self.target_epoch, self.assignor = self.epoch, name
        return changed


def name_logs(logs: Assignment, names: Mapping[str, str]) -> dict[str, list[int]]:
    """Return the numbers of logs by the names of their topics. Logs of topics without a name are left out."""
    return {names[topic_id]: numbers for topic_id, numbers in by_topic(logs).items() if topic_id in names}


def _discard(counter: Counter[_T], item: _T) -> None:
    """Count an item one time less."""
    counter[item] -= 1
    if not counter[item]:
        del counter[item]
