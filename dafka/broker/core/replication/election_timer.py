"""Decides when a replica requests votes."""

from __future__ import annotations

from collections.abc import Callable

from dafka.broker.core.replication.settings import ReplicaSettings

WAIT_DOUBLINGS = 3
"""How often the wait for votes can double."""

RETURNED_DOUBLINGS = 1
"""How many doublings are taken back when brokers come or go. The others stay: brokers that only seem to come and go
because they are slow must not cause elections so often that none gets its votes in time."""


class ElectionTimer:
    """Decides when one replica requests votes next.

    Each election that ends without a new stored epoch makes the next wait longer: writes can take longer than expected,
    and a new leader needs time to read the records before its epoch.
    """

    __slots__ = ("_due", "_not_before", "_settings", "_unsuccessful")

    def __init__(self, settings: ReplicaSettings) -> None:
        self._settings = settings
        self._due: float | None = None
        self._not_before = float("-inf")
        self._unsuccessful = 0

    @property
    def is_running(self) -> bool:
        """Whether a vote request is scheduled."""
        return self._due is not None

    def is_due(self, now: float, wait_s: Callable[[], float]) -> bool:
        """Return whether to request votes now. `wait_s` returns the wait if no vote request was scheduled before."""
        if self._due is None:
            self._due = max(now + wait_s(), self._not_before)
        return now >= self._due

    def wait_for_votes(self, now: float, rank: int) -> None:
        """Give an election time to get its votes. A part of it remains even if brokers come and go meanwhile.

        `rank` is the number of replicas that are preferred to this one as leaders.
        """
        self._due = now + self._wait_s(self._unsuccessful, rank)
        elections_before = min(self._unsuccessful, WAIT_DOUBLINGS) - RETURNED_DOUBLINGS
        self._not_before = now + self._wait_s(max(elections_before, 0), rank)

    def shorten_wait(self, now: float, rank: int) -> None:
        """Wait no longer than for a first election: the cause of the long waits can be over."""
        if self._due is not None:
            self._due = min(self._due, max(now + self._wait_s(0, rank), self._not_before))

    def stop(self) -> None:
        """Cancel the scheduled vote request."""
        self._due = None

    def reset(self) -> None:
        """Forget all times, because the clock was set back."""
        self._due, self._not_before = None, float("-inf")

    def record_request(self) -> None:
        """Count a vote request that this replica has sent or voted for. It can remain without success."""
        self._unsuccessful += 1

    def record_new_epoch(self) -> None:
        """Start again with short waits: this replica stores a new epoch."""
        self._unsuccessful = 0

    def _wait_s(self, elections_before: int, rank: int) -> float:
        timeout_s = self._settings.election_timeout_s * 2.0 ** min(elections_before, WAIT_DOUBLINGS)
        return timeout_s + rank * self._settings.stagger_s


class Debounce:
    """Measures for how long a condition has been true without a break."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether the condition was true at the last check."""
        return self._since is not None

    def has_lasted(self, is_true: bool, now: float, duration_s: float) -> bool:
        """Return whether the condition is true, and has been so for a number of seconds."""
        if not is_true:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= duration_s

    def due_at(self, duration_s: float) -> float:
        """Return when the condition, which is true, will have been so for a number of seconds."""
        assert self._since is not None
        return self._since + duration_s

    def end(self) -> None:
        """Start to measure again."""
        self._since = None
