"""Schedules an observer's questions to the stores: when to ask, when to repeat, and when a round is over.

A round is over when every discovered node has shown its role, every store has answered, and nothing new was learned for
a moment. For silent stores, it waits until patience runs out. If producers published more records meanwhile, one last
question follows, so that the answers of the stores and the heads of the producers are from the same moment.
"""

from __future__ import annotations

from collections.abc import Collection

from dafka.protocol.polling import StorePoll

PATIENCE_S = 1.5
"""Seconds to wait for silent stores after the last news of a node: longer than a producer's HEAD interval."""

QUIET_S = 0.3
"""Seconds without news after which a round whose stores have all answered is over."""

ASK_S = 0.05
"""Seconds for which new topics are collected, so that one question asks for all of them."""

ASK_AGAIN_S = 0.25
"""Seconds until a question is repeated for stores that have not answered; each following wait is twice as long. The
last question is not repeated; it waits this time for libdafka's stores, which never report that they have answered."""

LAST_S = 1.0
"""Seconds to wait for the answers to the last question."""


class PollSchedule:
    """The rounds of questions of one observer."""

    def __init__(self, beacon_interval: float) -> None:
        self.poll = StorePoll(patience_s=PATIENCE_S, retry_s=ASK_AGAIN_S, retry_factor=2.0, quiet_s=QUIET_S)
        self.number = 0
        """The number of rounds that have begun."""
        self.first_question = 1
        """The number of this round's first question."""
        self.is_over = True
        self._interval = min(beacon_interval, PATIENCE_S)
        self._settled_at = float("inf")
        self._ask_due = float("inf")
        self._has_moved = False
        self._last_at: float | None = None
        self._check_due = float("inf")
        self._checked_at = float("-inf")

    def begin_round(self, now: float) -> None:
        """Begin a round; its first question is due as soon as the node has settled."""
        self.number += 1
        self.first_question = self.poll.question + 1
        self.is_over = False
        self.poll.restart_retries()
        self._last_at = None
        self.record_node(now)
        self.ask_soon(now, 0.0)

    def node_settled(self, now: float) -> None:
        """Allow questions: the nodes that were running before are connected."""
        self._settled_at = now
        self.record_node(now)
        # By then, a node that was too busy to answer this node's beacon has sent its next beacon.
        self.poll.restart_quiet(now, self._interval)
        self.ask_soon(now, 0.0)

    def record_node(self, now: float) -> None:
        """Record news of a node."""
        self.poll.restart_patience(now)
        self.record_news(now)

    def record_news(self, now: float) -> None:
        """Record a new topic or partition."""
        self.poll.restart_quiet(now)

    def record_progress(self) -> None:
        """Record that a producer has announced more records since the last question."""
        self._has_moved = True

    def check_soon(self, now: float) -> None:
        """Check at the next tick whether the round is over."""
        self._check_due = now

    def ask_soon(self, now: float, seconds: float = ASK_S) -> None:
        """Ask after this delay, because there are new topics to ask for."""
        if not self.is_over and now >= self._settled_at:
            self._ask_due = min(self._ask_due, now + seconds)

    def tick(
        self, now: float, stores: Collection[str], *, has_silent: bool, has_shown: bool, is_listing: bool = False
    ) -> bool:
        """Return whether to ask now; end the round if it is over.

        The stores report when they have answered; with `has_silent`, others never report it. `has_shown` says whether
        every discovered node has shown its role, `is_listing` whether a store has not listed all of its topics yet.
        """
        self._check_due = float("inf")
        self._checked_at = now
        is_retry_due = self.poll.take_retry(now)
        if self.is_over or now < self._settled_at:
            return False
        unanswered = is_listing or bool(self.poll.unanswered(stores))
        if self._last_at is not None:
            is_answered = not unanswered and (not has_silent or now >= self._last_at + ASK_AGAIN_S)
            self.is_over = is_answered or now >= self._last_at + LAST_S
            return False
        if self.poll.question >= self.first_question and self._is_enough(
            now, is_pending=unanswered or has_silent or not has_shown
        ):
            self._last_at = now if self._has_moved else None
            self.is_over = not self._has_moved
            return self._has_moved and self._ask(now)
        return (now >= self._ask_due or (is_retry_due and unanswered)) and self._ask(now)

    def deadline(self) -> float:
        """Return when to call `tick`."""
        if self.is_over or self._settled_at == float("inf"):
            return float("inf")
        if self._last_at is None:
            return min(self._check_due, self._ask_due, self.poll.deadline())
        checks = (self._last_at + ASK_AGAIN_S, self._last_at + LAST_S)
        return min(self._check_due, *(check for check in checks if check > self._checked_at), float("inf"))

    def _is_enough(self, now: float, *, is_pending: bool) -> bool:
        is_answered = self.poll.is_answered((), now, is_pending=is_pending)
        return is_answered and (now >= self.poll.patience_until or self.poll.is_quiet(now))

    def _ask(self, now: float) -> bool:
        self.poll.question += 1
        self.poll.record_asked(now)
        self._has_moved = False
        self._ask_due = float("inf")
        return True
