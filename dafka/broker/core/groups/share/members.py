"""The members of a share group, and the group."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import attrs

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.group import KnownTopic, find_topics, name_logs
from dafka.broker.core.groups.consumer.members import JOINING_EPOCH, NOTHING, Assignment
from dafka.broker.core.groups.results import SHARE, DescribedGroup, DescribedMember
from dafka.broker.core.groups.subscriptions import encode_assignment
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.log_replicas import LogKey


class ShareGroupState(Enum):
    """The states of a share group, with Kafka's names."""

    EMPTY = "Empty"
    """It has no members."""

    STABLE = "Stable"
    """It has members. They need not wait for each other."""


@attrs.frozen(kw_only=True)
class ShareMember:
    """A member of a share group.

    Attributes:
        rack: Where it runs; empty if it does not say.
        topics: The names of the topics that it reads.
        epoch: The epoch of the assignment that it follows.
        previous_epoch: The epoch before. A client that has lost a response repeats its heartbeat with it.
        assigned: The logs that it may read. Others can have them, too.
    """

    member_id: str
    rack: str = ""
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    epoch: int = JOINING_EPOCH
    previous_epoch: int = JOINING_EPOCH
    assigned: Assignment = NOTHING


class ShareGroup:
    """One group. It keeps its own state consistent; `ShareMembership` decides when it changes.

    `epoch` grows with each change of the members, of what they read, or of their topics. `topics` has the existing
    topics that they read, as they were looked up at the `revision` of the cluster's topics; -1 before that.
    """

    protocol_type = "share"
    group_type = SHARE

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.state_since_ms = now_ms
        self.topics: dict[str, KnownTopic] = {}
        self.revision = -1
        self.members: dict[str, ShareMember] = {}

    @property
    def state(self) -> ShareGroupState:
        """The state for clients."""
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def has_members(self) -> bool:
        """Whether the group has members."""
        return bool(self.members)

    @property
    def is_unused(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    def subscribed_topics(self) -> frozenset[str]:
        """Return the topics that the members read."""
        return frozenset(name for each in self.members.values() for name in each.topics)

    @property
    def topic_names(self) -> dict[str, str]:
        """The names of `topics`, by id."""
        return {topic.topic_id: name for name, topic in self.topics.items()}

    def refresh(self, log_table: LogTable, *, has_changed: bool) -> list[str] | None:
        """Look up the topics, and assign their logs in a new epoch if these or the members have changed.

        Return the members that have other logs then; None if there is no new epoch.
        """
        if not has_changed and self.revision == log_table.revision:
            return None
        self.revision = log_table.revision
        topics = find_topics(self.subscribed_topics(), log_table)
        if not has_changed and topics == self.topics:
            return None
        self.topics = topics
        self.epoch += 1
        shares = _share_logs({each.member_id: each.topics for each in self.members.values()}, topics)
        changed = [member_id for member_id, logs in shares.items() if self.members[member_id].assigned != logs]
        for member_id in changed:
            self.members[member_id] = attrs.evolve(self.members[member_id], assigned=shares[member_id])
        return changed

    def describe(self) -> DescribedGroup:
        """Return the description for callers that know all types of groups."""
        names = self.topic_names
        members = tuple(
            DescribedMember(
                each.member_id,
                None,
                each.client_id,
                each.client_host,
                b"",
                encode_assignment(name_logs(each.assigned, names)),
            )
            for each in self.members.values()
        )
        return DescribedGroup(
            self.group_id,
            ErrorCode.NONE,
            self.state.value,
            self.protocol_type,
            ASSIGNOR,
            self.epoch,
            members,
            self.group_type,
        )


def _share_logs(subscriptions: Mapping[str, frozenset[str]], topics: Mapping[str, KnownTopic]) -> dict[str, Assignment]:
    """Return the logs of each member, given the names of the topics that it reads.

    Each log has a member, if there is one that reads its topic, and each member has a log of each of its topics. If
    there are more members than logs, several members read the same log.
    """
    found: dict[str, set[LogKey]] = {member_id: set() for member_id in sorted(subscriptions)}
    turn = 0
    for name, topic in sorted(topics.items()):
        readers = [each for each in found if name in subscriptions[each]]
        for number in range(max(len(readers), topic.log_count) if readers else 0):
            reader = readers[(turn + number) % len(readers)]
            found[reader].add(LogKey(topic.topic_id, number % topic.log_count))
        turn += topic.log_count
    return {member_id: frozenset(logs) for member_id, logs in found.items()}


ASSIGNOR = "simple"
"""The name of the only assignor, which is Kafka's."""


@attrs.frozen(kw_only=True)
class ShareHeartbeatRequest:
    """A heartbeat. What has not changed since the last one is None.

    Attributes:
        member_epoch: The epoch that the member follows; 0 to join, -1 to leave.
    """

    group_id: str
    member_id: str
    member_epoch: int
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] | None = None


@attrs.frozen
class ShareHeartbeatResult:
    """The response to a heartbeat. The assignment is None if the client knows it already."""

    error_code: ErrorCode
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    assignment: Assignment | None = None


@attrs.frozen
class DescribedShareGroup:
    """A share group. `topics` are the names of the topics in assignments, by id."""

    group_id: str
    error_code: ErrorCode
    error_message: str | None = None
    state: str = ""
    epoch: int = 0
    members: tuple[ShareMember, ...] = ()
    topics: Mapping[str, str] = attrs.field(factory=dict)
