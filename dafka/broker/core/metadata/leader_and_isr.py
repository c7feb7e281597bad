"""Who leads a log, who keeps it, and which replicas are in sync."""

from __future__ import annotations

import attrs


class ReplicaSet:
    """What names the replicas of a log, and those of them that still copy it."""

    __slots__ = ()

    replicas: tuple[str, ...]
    learners: tuple[str, ...]

    @property
    def voters(self) -> tuple[str, ...]:
        """The replicas that count for majorities."""
        return tuple(each for each in self.replicas if each not in self.learners) if self.learners else self.replicas


@attrs.frozen
class LeaderAndIsr(ReplicaSet):
    """Who leads a log, and who keeps it, as far as a broker knows.

    Attributes:
        leader: The address of the leader; empty if there is none at present.
        presumed_leader: The last known leader, if this broker does not hear most of the replicas and cannot know
            whether there is another leader by now. Otherwise empty.
        epoch: The leader epoch.
        is_led: Whether this broker leads the log, and may append to it.
        replicas: The brokers that keep the log.
        in_sync: Those of them that have all of it, as far as the leader knows, without those that still join; only at
            the leader.
        learners: Those of the replicas that copy the log, and do not count for majorities yet.
        is_follower_readable: Whether clients may read the log up to `high_watermark` at brokers that do not lead it.
    """

    leader: str
    epoch: int = 0
    is_led: bool = True
    replicas: tuple[str, ...] = ()
    in_sync: tuple[str, ...] = ()
    is_follower_readable: bool = False
    presumed_leader: str = ""
    learners: tuple[str, ...] = ()
