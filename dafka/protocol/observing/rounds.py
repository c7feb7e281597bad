"""When an observer asks, when it asks again, and when it has asked enough. Time and counts alone.

A round is over when everybody who was found has shown what it is, every store has told all, and nothing new has been
heard for a moment; what says nothing is waited for in vain for a while. Where producers have gone on meanwhile, the
last question is asked then, so that what they and the stores have told is of the same moment.
"""

from __future__ import annotations

from collections.abc import Collection

PATIENCE_S = 1.5
"""What says nothing is waited for so long after the last news of nodes: longer than between two HEADs of a producer."""

QUIET_S = 0.3
"""Where everybody has told everything, nothing new may have been heard for so long."""

ASK_S = 0.05
"""Topics heard of one soon after the other are asked for together."""

ASK_AGAIN_S = 0.25
"""Until a question is repeated for stores that have not answered: then after twice as long, and so on. The last one is
not repeated; who never says when it has told all (libdafka's stores) is given so long for it."""

LAST_S = 1.0
"""How long the last answers are waited for."""


class Rounds:
    """Attributes:
    number: how many rounds have begun.
    question: how many questions have been asked, in all rounds.
    first_question: the number of this round's first one.
    is_over: whether this round is.
    """

    def __init__(self, beacon_interval: float) -> None:
        self.number = 0
        self.question = 0
        self.first_question = 1
        self.is_over = True
        self._interval = min(beacon_interval, PATIENCE_S)
        self._settled_at = float("inf")
        self._found_at = 0.0
        self._news_at = 0.0
        self._ask_due = float("inf")
        self._ask_again_due = float("inf")
        self._wait = ASK_AGAIN_S
        self._has_moved = False
        self._last_at: float | None = None
        self._look_due = float("inf")
        self._looked_at = float("-inf")

    def begin(self, now: float) -> None:
        """A new round; its first question is due as soon as the node has settled."""
        self.number += 1
        self.first_question = self.question + 1
        self.is_over = False
        self._wait = ASK_AGAIN_S
        self._last_at = None
        self.found(now)
        self.ask_soon(now, 0.0)

    def settled(self, now: float) -> None:
        """The nodes that were there before have been found, and are connected to."""
        self._settled_at = now
        self.found(now)
        self.ask_soon(now, 0.0)

    def found(self, now: float) -> None:
        """There is news of a node."""
        self._found_at = now
        self.news(now)

    def news(self, now: float) -> None:
        """There is news of a topic or a partition."""
        self._news_at = now

    def moved(self) -> None:
        """A producer has announced more than before the last question."""
        self._has_moved = True

    def look(self, now: float) -> None:
        """Something has been told or shown: the round may be over."""
        self._look_due = now

    def ask_soon(self, now: float, seconds: float = ASK_S) -> None:
        """There is more to be asked."""
        if not self.is_over and now >= self._settled_at:
            self._ask_due = min(self._ask_due, now + seconds)

    def tick(self, now: float, answers: Collection[bool | None], *, has_shown: bool) -> bool:
        """Is it time to ask? `answers`: of each store, has it answered the last question? None where it never does.

        `has_shown`: has everybody shown what it is?
        """
        self._look_due = float("inf")
        self._looked_at = now
        if self.is_over or now < self._settled_at:
            return False
        if self._last_at is not None:
            is_told = all(answers) or (False not in answers and now >= self._last_at + ASK_AGAIN_S)
            self.is_over = is_told or now >= self._last_at + LAST_S
            return False
        if self.question >= self.first_question and self._is_enough(now, has_all=has_shown and all(answers)):
            self._last_at = now if self._has_moved else None
            self.is_over = not self._has_moved
            return self._has_moved and self._ask(now)
        is_due, is_repeat_due = now >= self._ask_due, now >= self._ask_again_due
        if is_repeat_due:
            self._ask_again_due = float("inf")
        return (is_due or (is_repeat_due and False in answers)) and self._ask(now)

    def deadline(self) -> float:
        """When `tick` next has something to do."""
        if self.is_over or self._settled_at == float("inf"):
            return float("inf")
        if self._last_at is not None:
            looks = (self._last_at + ASK_AGAIN_S, self._last_at + LAST_S)
            asks: tuple[float, ...] = ()
        else:
            looks = (max(self._settled_at + self._interval, self._news_at + QUIET_S), self._found_at + PATIENCE_S)
            asks = (self._ask_due, self._ask_again_due)
        return min(self._look_due, *asks, *(look for look in looks if look > self._looked_at), float("inf"))

    def _is_enough(self, now: float, *, has_all: bool) -> bool:
        # After the interval a node that was too busy to answer this one's beacon has sent its next.
        if now < self._settled_at + self._interval:
            return False
        return now >= self._found_at + PATIENCE_S or (has_all and now >= self._news_at + QUIET_S)

    def _ask(self, now: float) -> bool:
        self.question += 1
        self._has_moved = False
        self._ask_due = float("inf")
        self._ask_again_due = now + self._wait
        self._wait *= 2
        return True
