"""The members of a consumer group: what each one wants, and what it has."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

import attrs

from dafka.broker.core.metadata.log_replicas import LogKey

Assignment: TypeAlias = frozenset[LogKey]
"""The logs that a member reads."""

NOTHING: Assignment = frozenset()


def by_topic(logs: Assignment) -> dict[str, list[int]]:
    """Return the numbers of logs by the ids of their topics, in order."""
    found: dict[str, list[int]] = {}
    for topic_id, number in sorted(logs):
        found.setdefault(topic_id, []).append(number)
    return found


JOINING_EPOCH = 0
"""The epoch in the heartbeat of a member that joins."""

LEAVING_EPOCH = -1
"""The epoch in the heartbeat of a member that leaves."""

PAUSING_EPOCH = -2
"""The epoch in the heartbeat of a static member that leaves for a short time, and of the member until it is back."""


class MemberState(Enum):
    """How far a member has got with its assignment."""

    STABLE = "stable"
    """It has what the assignment of its epoch gives it."""

    REVOKING = "revoking"
    """It must give up logs, and keeps its epoch until it has."""

    WAITING = "waiting"
    """It has the latest epoch, and waits for logs that other members still have."""


@attrs.frozen
class Subscription:
    """What a member wants to read.

    Attributes:
        names: The names of topics.
        pattern: A regular expression for further names; empty if there is none.
        matching: The names that match it, of the topics that the member may read.
        revision: The revision of the cluster's topics at which they were looked up.
        may_read: The `may_read` of the request for which they were looked up.
    """

    names: frozenset[str] = frozenset()
    pattern: str = ""
    matching: frozenset[str] = frozenset()
    revision: int = attrs.field(default=-1, eq=False)
    may_read: Callable[[str], bool] | None = attrs.field(default=None, eq=False)

    @property
    def topics(self) -> frozenset[str]:
        """The names of all topics."""
        return self.names | self.matching


@attrs.frozen
class ClassicProtocol:
    """How a client of the classic protocol takes part in a consumer group.

    Attributes:
        session_timeout_ms: How long it can be silent.
        protocols: Its assignors, the preferred one first, each with its metadata.
    """

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@attrs.frozen(kw_only=True)
class Member:
    """A member of a consumer group.

    Attributes:
        member_id: Its id, which is unique in the group.
        instance_id: The id of its client if it is a static member; else empty.
        rack: Where it runs; empty if it does not say.
        rebalance_timeout_ms: How long it may take to give up logs.
        assignor: The assignor that it prefers; empty for none.
        epoch: The epoch of the assignment that it follows; `PAUSING_EPOCH` while it has left for a short time.
        previous_epoch: The epoch before. A client that has lost a response repeats its heartbeat with it.
        assigned: The logs that it may read.
        revoking: The logs that it must give up first.
        classic: Set if its client speaks the classic protocol.
    """

    member_id: str
    instance_id: str = ""
    rack: str = ""
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int
    subscription: Subscription = Subscription()
    assignor: str = ""
    epoch: int = JOINING_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING
    classic: ClassicProtocol | None = None

    @property
    def is_paused(self) -> bool:
        """Whether it is a static member that has left for a short time."""
        return self.epoch == PAUSING_EPOCH

    @property
    def held(self) -> Assignment:
        """The logs that no other member may read yet."""
        return self.assigned | self.revoking
