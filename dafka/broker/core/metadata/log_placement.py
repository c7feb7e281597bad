"""Where the replicas of a log are, and why they change."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

import attrs


class Reason(Enum):
    """The reason why the replicas of a log change."""

    ASKED = "an operator has named the brokers that keep it"
    DRAINED = "a broker that keeps it is drained"
    DEAD = "a broker that keeps it has been dead for too long"
    MISSING = "it has fewer replicas than it should"
    SHARE = "a broker that has come gets its share of the logs"
    SURPLUS = "it has more replicas than it should"


@attrs.frozen
class LogPlacement:
    """A log, as the balancer sees it."""

    name: str
    leader: str  # empty if it has none
    replicas: tuple[str, ...]
    wanted: int  # how many replicas it should have
    in_sync: Collection[str] = ()  # only needed at the leader
    is_fixed: bool = False  # an operator has chosen its replicas, so that they stay


@attrs.frozen
class Reassignment:
    """A change of a log's replicas."""

    log: str
    replicas: tuple[str, ...]
    reason: Reason
