"""The requests of the members of consumer groups, and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.members import Assignment, Member


def permit_all(_topic: str) -> bool:
    """Permit everybody to read any topic."""
    return True


@attrs.frozen(kw_only=True)
class ConsumerHeartbeatRequest:
    """A heartbeat. What has not changed since the last one is None.

    Attributes:
        member_epoch: The epoch that the member follows; 0 to join, -1 to leave, -2 to leave for a short time.
        pattern: A regular expression for topics.
        owned: The logs that the client reads.
        may_read: Whether the user of the client may read a topic. It equals that of the last request, unless
            permissions have changed.
    """

    group_id: str
    member_id: str = ""
    member_epoch: int
    instance_id: str = ""
    rack: str = ""
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int | None = None
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None
    may_read: Callable[[str], bool] = permit_all

    @property
    def is_complete(self) -> bool:
        """Whether the client says everything, as it does when it joins or has lost a response."""
        is_subscribed = self.topics is not None or self.pattern is not None
        return self.rebalance_timeout_ms is not None and is_subscribed and self.owned is not None


@attrs.frozen
class ConsumerHeartbeatResult:
    """The response to a heartbeat. The assignment is None if the client knows it already."""

    error_code: ErrorCode
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    assignment: Assignment | None = None


@attrs.frozen
class DescribedMember:
    """A member, and what the group's assignment gives it."""

    member: Member
    target: Assignment


@attrs.frozen
class DescribedConsumerGroup:
    """A consumer group. `topics` are the names of the topics in assignments, by id."""

    group_id: str
    error_code: ErrorCode
    error_message: str | None = None
    state: str = ""
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedMember, ...] = ()
    topics: Mapping[str, str] = attrs.field(factory=dict)
