"""The states of a replica. `transitions.py` has the changes between them."""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import attrs

from dafka.broker.core.replication.election import Election
from dafka.broker.core.replication.records import LeaderAndEpoch


@attrs.frozen
class Follower:
    """The replica leads no epoch and begins none.

    If it has requested votes, it votes for itself last. So until others elect it, it follows the present leader: this
    is a pre-vote.
    """

    election: Election | None = None
    led_epoch: ClassVar[LeaderAndEpoch | None] = None

    @property
    def name(self) -> str:
        """The name of the state in the table of transitions."""
        return "Follower" if self.election is None else "Follower + election"


@attrs.frozen
class Elected:
    """Enough others have elected the replica, and it has voted for itself."""

    election: Election
    led_epoch: ClassVar[LeaderAndEpoch | None] = None
    name: ClassVar[str] = "Elected"


@attrs.frozen
class Starting:
    """The replica makes the start of its epoch durable."""

    leader_epoch: LeaderAndEpoch
    election: ClassVar[Election | None] = None
    led_epoch: ClassVar[LeaderAndEpoch | None] = None
    name: ClassVar[str] = "Starting"


@attrs.frozen
class Leader:
    """The replica leads an epoch. If it has requested votes, it wants to begin its next epoch."""

    led_epoch: LeaderAndEpoch
    election: Election | None = None

    @property
    def name(self) -> str:
        """The name of the state in the table of transitions."""
        return "Leader" if self.election is None else "Leader + election"

    def is_superseded_by(self, voted_epoch: int) -> bool:
        """Return whether a replica that has voted for an epoch no longer follows this leader.

        A vote for the leader's own next epoch does not count.
        """
        is_own = self.election is not None and voted_epoch == self.election.leader_epoch.epoch
        return voted_epoch > self.led_epoch.epoch and not is_own


State: TypeAlias = Follower | Elected | Starting | Leader
