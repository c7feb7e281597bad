"""The leader of a log, its replicas, and which of them are in sync."""

from __future__ import annotations

import attrs


class ReplicaSet:
    """The replicas of a log, and the learners among them."""

    __slots__ = ()

    replicas: tuple[str, ...]
    learners: tuple[str, ...]

    @property
    def voters(self) -> tuple[str, ...]:
        """The replicas that count for a quorum."""
        return tuple(each for each in self.replicas if each not in self.learners) if self.learners else self.replicas


@attrs.frozen
class LeaderAndIsr(ReplicaSet):
    """The leader and the replicas of a log, as far as a broker knows.

    Attributes:
        leader: The address of the leader; empty if there is none at present.
        presumed_leader: The last known leader, if this broker does not hear most of the replicas, so that it cannot
            know whether there is another leader. Otherwise empty.
        epoch: The leader epoch.
        is_led: Whether this broker leads the log, and can append to it.
        replicas: The replicas.
        in_sync: The replicas in sync, as far as the leader knows, without those that are still joining. Only known at
            the leader.
        learners: The replicas that copy the log, and do not count for a quorum yet.
        is_follower_readable: Whether clients can read the log up to `high_watermark` at followers.
    """

    leader: str
    epoch: int = 0
    is_led: bool = True
    replicas: tuple[str, ...] = ()
    in_sync: tuple[str, ...] = ()
    is_follower_readable: bool = False
    presumed_leader: str = ""
    learners: tuple[str, ...] = ()
