"""The table of a replica's transitions. `Replica` changes its state by these rows only.

`docs/explanation/replication-safety.md` prints the table. The simulation checks every transition against it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import attrs

from dafka.broker.core.replication.effects import (
    Acknowledge,
    AdvanceHighWatermark,
    Lead,
    ReplicaAction,
    StepDown,
    WriteControl,
)
from dafka.broker.core.replication.records import EpochStart, Vote, VoteRequest

FOLLOWER = ("Follower", "Follower + election")
LEADER = ("Leader", "Leader + election")
EVERY_STATE = (*FOLLOWER, "Elected", "Starting", *LEADER)


@attrs.frozen
class Row:
    """A row of the table: an event, and the condition under which it changes one of some states into another.

    The state stays if there are no targets. The type of a control record among the effects stands for writing one.
    """

    sources: tuple[str, ...]
    event: str
    condition: str
    targets: tuple[str, ...]
    effects: tuple[type, ...]

    def allows(self, source: str, target: str, effects: Iterable[ReplicaAction]) -> bool:
        """Return whether the row has a change between two states, and its effects."""
        kinds = (type(each.record) if isinstance(each, WriteControl) else type(each) for each in effects)
        is_target = target in self.targets if self.targets else target == source
        return source in self.sources and is_target and all(each in self.effects for each in kinds)


class Transition(Enum):
    """The transitions of a replica."""

    RESUME = Row(
        ("Follower",),
        "restart",
        "the latest epoch is its own, it has everything before it, and it has voted for no later one",
        ("Leader",),
        (Lead,),
    )
    VOTE = Row(
        EVERY_STATE,
        "VoteRequest of another replica; Vote for one that was refused",
        "the epoch is later than its votes and its log, and it follows no living leader that others follow, too",
        FOLLOWER,
        (StepDown, Vote),
    )
    FOLLOW = Row(
        EVERY_STATE,
        "EpochStart of another replica; restart",
        "the epoch is later than its votes",
        FOLLOWER,
        (StepDown, Vote),
    )
    REQUEST_VOTES = Row(
        (*FOLLOWER, "Elected"),
        "tick, timer due",
        "no living leader, and enough living replicas for a quorum",
        ("Follower + election",),
        (VoteRequest,),
    )
    REQUEST_TRANSFER = Row(
        (*FOLLOWER, "Elected"),
        "tick, timer due; transfer of leadership",
        "the leader is alive, this replica has everything, and it is preferred or the leader asks it to lead; or two "
        "divergent epochs have leaders",
        ("Follower + election",),
        (VoteRequest,),
    )
    REQUEST_NEXT_EPOCH = Row(
        LEADER,
        "tick, timer due",
        "it misses records before its epoch, a replica has voted for a later one, or a divergent epoch should continue",
        ("Leader + election",),
        (VoteRequest,),
    )
    CHANGE_REPLICAS = Row(
        LEADER,
        "other replicas are wanted",
        "it has everything before its epoch, and remains a replica",
        ("Leader + election",),
        (VoteRequest,),
    )
    PROMOTE_LEARNERS = Row(
        LEADER,
        "tick",
        "all learners have been in sync for some time",
        ("Leader + election",),
        (VoteRequest,),
    )
    WITHDRAW = Row(
        ("Follower + election",),
        "tick",
        "a leader has appeared, or too few replicas are alive; the election is no transfer",
        ("Follower",),
        (),
    )
    ELECT = Row(
        ("Follower + election", "Leader + election"),
        "Vote, change of living replicas",
        "a quorum elects it if it votes, too, and the epoch is later than its votes and its log",
        ("Elected",),
        (StepDown, Vote),
    )
    START = Row(
        ("Elected",),
        "Vote, EpochStart, own Vote durable, change of living replicas",
        "its own vote is durable, all epochs of the votes are known, and a quorum of each former voter set has voted",
        ("Starting",),
        (EpochStart,),
    )
    RECOVER = Row(
        EVERY_STATE,
        "an operator continues the log with this replica alone",
        "a quorum is lost for good, as the operator says",
        ("Starting",),
        (StepDown, EpochStart),
    )
    LEAD = Row(("Starting",), "own EpochStart durable", "", ("Leader",), (Lead,))
    RESIGN_CUT_OFF = Row(
        (*FOLLOWER, *LEADER),
        "tick",
        "others see it as leader, and it has heard no quorum for the election timeout",
        ("Follower",),
        (StepDown, Vote),
    )
    RESIGN_INCOMPLETE = Row(
        (*FOLLOWER, *LEADER),
        "tick, timer due",
        "others see it as leader, it misses records before its epoch, and another replica could lead",
        ("Follower",),
        (StepDown, Vote),
    )
    ACKNOWLEDGE = Row(
        FOLLOWER,
        "records are durable, EpochStart of another replica, restart, repetition",
        "its log has grown, and it has voted for no later epoch than that of its log's end",
        (),
        (Acknowledge,),
    )
    COMMIT = Row(
        EVERY_STATE,
        "acknowledgement, change of living replicas",
        "enough replicas have acknowledged a larger offset, and it has the records",
        (),
        (AdvanceHighWatermark,),
    )
