"""The settings of replication."""

from __future__ import annotations

from enum import Enum

import attrs


class Availability(Enum):
    """What the sides of a partitioned network can do."""

    BRANCH = "branch"
    """Each side continues. When they meet again, one epoch continues, and the records of the other are merged."""
    MAJORITY = "majority"
    """The side with more than half of the replicas continues."""


@attrs.frozen(kw_only=True)
class ReplicaSettings:
    """The settings of a log's replication.

    Attributes:
        availability: What the sides of a partitioned network can do.
        election_timeout_s: How long a replica waits for votes before it requests them again, in seconds.
        stagger_s: How much later each less preferred replica requests votes, in seconds.
        preferred_leader_after_s: How long a preferred leader must be caught up before it takes leadership back, in
            seconds. Each log waits for a different time, up to twice as long, so that the logs do not all change
            leaders at once.
        learners_in_sync_s: For how many seconds learners must be in sync before they become voters. A reassignment can
            make one a voter sooner, together with the removal of another replica.
    """

    availability: Availability = Availability.MAJORITY
    election_timeout_s: float = 1.0
    stagger_s: float = 0.25
    preferred_leader_after_s: float = 30.0
    learners_in_sync_s: float = 3.0
