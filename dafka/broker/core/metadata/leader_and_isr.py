"""The leader of a log, its epoch, its replicas, and which of them are in sync."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import attrs

EPOCH_STEP = 1024
"""The distance between leader epochs. It has space for the number of a broker, so no two brokers use the same epoch."""


def next_epoch(latest: int, number: int) -> int:
    """Return a leader epoch that is larger than the latest one, and that no other broker uses.

    The latest one is -1 if there is none. The number of the broker is less than `EPOCH_STEP`.
    """
    return (latest // EPOCH_STEP + 1) * EPOCH_STEP + number


class ReplicaSet:
    """The replicas of a log, and the learners among them."""

    __slots__ = ()

    replicas: tuple[str, ...]
    learners: tuple[str, ...]

    @property
    def voters(self) -> tuple[str, ...]:
        """The replicas that count for a quorum."""
        return tuple(each for each in self.replicas if each not in self.learners) if self.learners else self.replicas


@lru_cache(maxsize=2**12)
def _share(replicas: tuple[str, ...]) -> tuple[str, ...]:
    return replicas


def share_replicas(replicas: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of replicas as a tuple that logs with the same replicas share, to save memory."""
    return _share(tuple(replicas))


NOBODY: frozenset[str] = frozenset()
"""No brokers. Logs share this set, to save memory: each other empty set takes 216 bytes."""


@lru_cache(maxsize=2**12)
def share_set(replicas: tuple[str, ...]) -> frozenset[str]:
    """Return the addresses of replicas as a set that logs with the same replicas share, to save memory."""
    return frozenset(replicas)


@attrs.frozen
class LeaderAndIsr(ReplicaSet):
    """The leader and the replicas of a log, as far as a broker knows.

    If this broker does not hear most of the replicas, it cannot know whether there is another leader. Then the last
    known one is the `presumed_leader`.
    """

    leader: str  # empty if there is none at present
    epoch: int = 0
    is_led: bool = True  # by this broker, which can append to it
    replicas: tuple[str, ...] = ()
    in_sync: tuple[str, ...] = ()  # without learners; only known at the leader
    is_follower_readable: bool = False  # up to `high_watermark`
    presumed_leader: str = ""
    learners: tuple[str, ...] = ()  # copy the log, and do not count for a quorum yet
