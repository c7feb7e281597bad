"""Leader leases: since when other brokers have been hearing this one.

A leader asks the other brokers in rounds, and each answers. An answer gives the end of the broker's control records,
and counts when all of these are known here. So a broker whose answer counts has not voted for another leader before. It
votes for none until it has not heard this broker for the time after which a broker counts as dead, measured at the
earliest from the start of the round.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

ROUNDS_MAX = 64
"""How many rounds are remembered. Answers to older ones do not count."""


class RoundAnswer(NamedTuple):
    """The answer to a round, and the sequence after the last durable control record of the broker that answers."""

    number: int
    control_end: int


class LeaseRounds:
    """The rounds of one broker. `first` is a number that was never used before a restart."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._sent: deque[tuple[int, float]] = deque(maxlen=ROUNDS_MAX)
        self._heard_since: dict[str, float] = {}
        self._waiting: dict[str, RoundAnswer] = {}
        self._could_write = True

    def begin(self, now: float, *, can_write: bool) -> int:
        """Begin a round, and return its number. It is sent now or later, never earlier.

        The answers to all earlier rounds do not count any more if this is the first one that says that this broker
        cannot write: as soon as others hear it, they may elect another leader. A broker that answers it votes for none.
        """
        if self._could_write and not can_write:
            self._sent.clear()
            self._heard_since.clear()
            self._waiting.clear()
        self._could_write = can_write
        self._sent.append((self._next, now))
        self._next += 1
        return self._next - 1

    def answered(self, broker: str, answer: RoundAnswer, known_end: int) -> bool:
        """Process an answer. Return whether it counts.

        Otherwise it waits until the broker's control records are known here up to its end; see `learned`.
        """
        at = next((at for number, at in self._sent if number == answer.number), None)
        if at is None:
            return False
        if known_end < answer.control_end:
            self._waiting[broker] = answer
            return False
        self._heard_since[broker] = max(at, self.heard_since(broker))
        return True

    def learned(self, broker: str, known_end: int) -> bool:
        """Update the known end of a broker's control records. Return whether its waiting answer counts now."""
        answer = self._waiting.pop(broker, None)
        return answer is not None and self.answered(broker, answer, known_end)

    def heard_since(self, broker: str) -> float:
        """Return the start of the last round that a broker has answered; minus infinity if there is none."""
        return self._heard_since.get(broker, float("-inf"))
