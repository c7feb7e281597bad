"""When a replica claims its log: how long claims wait for promises and for others, and their reasons last."""

from __future__ import annotations

from collections.abc import Callable

from dafka.broker.core.replication.settings import ReplicaSettings

CLAIM_DOUBLINGS = 3
"""How often the wait for promises doubles."""

RETURNED_DOUBLINGS = 1
"""How many of these doublings are taken back when brokers come or go. Some stay: brokers that seem to come and go
because they are slow must not make replicas claim so often that no claim gets its promises in time."""


class ElectionTimer:
    """When one replica makes its next claim.

    A claim has more time after each one of which no branch has come that the replica holds: records may take longer to
    be written, and a leader may take longer to read what is before its branch.

    Args:
        settings: How the log is replicated.
    """

    def __init__(self, settings: ReplicaSettings) -> None:
        self._settings = settings
        self._due: float | None = None
        self._not_before = float("-inf")
        self._fruitless = 0

    @property
    def is_running(self) -> bool:
        """Whether a claim is due at some time."""
        return self._due is not None

    def is_due(self, now: float, wait_s: Callable[[], float]) -> bool:
        """Return whether to claim now.

        Args:
            now: The time.
            wait_s: Returns how long to wait, in seconds, if there was nothing to claim before.

        Returns:
            Whether it is time.
        """
        if self._due is None:
            self._due = max(now + wait_s(), self._not_before)
        return now >= self._due

    def wait_for_promises(self, now: float, place: int) -> None:
        """Leave time to a claim that is being made. Some of it is left even if brokers come and go meanwhile.

        Args:
            now: The time.
            place: How many replicas are preferred to this one as leaders.
        """
        self._due = now + self._wait_s(self._fruitless, place)
        claims_before = min(self._fruitless, CLAIM_DOUBLINGS) - RETURNED_DOUBLINGS
        self._not_before = now + self._wait_s(max(claims_before, 0), place)

    def shorten_wait(self, now: float, place: int) -> None:
        """Wait no longer than for a first claim: what has made claims wait longer and longer may be over."""
        if self._due is not None:
            self._due = min(self._due, max(now + self._wait_s(0, place), self._not_before))

    def stop(self) -> None:
        """Note that there is nothing to claim."""
        self._due = None

    def reset(self) -> None:
        """Forget all times: the clock was set back."""
        self._due, self._not_before = None, float("-inf")

    def note_claim(self) -> None:
        """Note a claim that this replica has made, or has promised to follow. It may remain fruitless."""
        self._fruitless += 1

    def note_branch(self) -> None:
        """Note that this replica holds another branch."""
        self._fruitless = 0

    def _wait_s(self, claims_before: int, place: int) -> float:
        timeout_s = self._settings.election_timeout_s * 2.0 ** min(claims_before, CLAIM_DOUBLINGS)
        return timeout_s + place * self._settings.stagger_s


class Debounce:
    """How long something has been true without a break."""

    def __init__(self) -> None:
        self._since: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was true when that was last asked."""
        return self._since is not None

    def has_lasted(self, is_true: bool, now: float, duration_s: float) -> bool:
        """Return whether something has been true for some time.

        Args:
            is_true: Whether it is true now.
            now: The time.
            duration_s: For how long it has to be true, in seconds.

        Returns:
            Whether it is true, and has been since then.
        """
        if not is_true:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= duration_s

    def end(self) -> None:
        """Begin to count again."""
        self._since = None
