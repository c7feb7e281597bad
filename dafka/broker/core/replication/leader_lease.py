"""LeaseRounds: which brokers have heard this one since when, which is what its leases are made of.

A leader asks the other brokers in rounds, and each answers. The answer says how far the broker's control records reach;
it counts when all of them are known here. So whoever is known to have answered has promised no other leader before, and
promises none until it has not heard this broker for the time that makes one count as dead, from the round on at least.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

ROUNDS_MAX = 64
"""The rounds of which answers count."""


class RoundAnswer(NamedTuple):
    """The answer to a round.

    Attributes:
        number: The number of the round.
        control_end: The sequence after the last control record that the broker has made durable.
    """

    number: int
    control_end: int


class LeaseRounds:
    """The rounds of one broker.

    Args:
        first: The number of the first round, which no round before a restart has had.
    """

    def __init__(self, first: int) -> None:
        self._next = first
        self._sent: deque[tuple[int, float]] = deque(maxlen=ROUNDS_MAX)
        self._heard_since: dict[str, float] = {}
        self._waiting: dict[str, RoundAnswer] = {}

    def begin(self, now: float, *, is_replaceable: bool) -> int:
        """Begin a round. It is sent now or later, never earlier.

        Args:
            now: The time.
            is_replaceable: Whether others may elect another leader as soon as they hear the round; see
                `Brokers.is_replaceable`. Then the answers to this round and to all earlier ones do not count.

        Returns:
            The number of the round.
        """
        if is_replaceable:
            self._sent.clear()
            self._heard_since.clear()
            self._waiting.clear()
        else:
            self._sent.append((self._next, now))
        self._next += 1
        return self._next - 1

    def answered(self, broker: str, answer: RoundAnswer, known_end: int) -> bool:
        """Take in an answer.

        Args:
            broker: The broker that has answered.
            answer: The answer.
            known_end: The sequence after its last control record that is known here.

        Returns:
            Whether it counts. Otherwise it waits for the control records: see `learned`.
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
        """Note how far the control records of a broker are known; return whether an answer counts that has waited."""
        answer = self._waiting.pop(broker, None)
        return answer is not None and self.answered(broker, answer, known_end)

    def heard_since(self, broker: str) -> float:
        """Return when the last round began that a broker is known to have answered; minus infinity if there is none."""
        return self._heard_since.get(broker, float("-inf"))
