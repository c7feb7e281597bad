"""How a log is replicated."""

from __future__ import annotations

from enum import Enum

import attrs


class Availability(Enum):
    """What the sides of a split may do."""

    BRANCH = "branch"
    """Each side goes on; when they meet again, one branch continues, and gets the records of the other one."""
    MAJORITY = "majority"
    """The side with more than half of the replicas goes on."""


@attrs.frozen(kw_only=True)
class ReplicaSettings:
    """How a log is replicated.

    Attributes:
        availability: What the sides of a split may do.
        claim_timeout_s: How long a claim waits for promises until another one is made, in seconds.
        stagger_s: How much later each less preferred replica claims.
        preferred_leader_after_s: How long a preferred leader must be caught up before it takes leadership back. Each
            log waits for another time, up to twice as long, so that not all logs move at once.
    """

    availability: Availability = Availability.MAJORITY
    election_timeout_s: float = 1.0
    stagger_s: float = 0.25
    preferred_leader_after_s: float = 30.0
