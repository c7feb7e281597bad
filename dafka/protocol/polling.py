"""Repeated questions to all stores: which stores have answered, when to ask again, and when to stop waiting.

RFC 46 has no message that ends a list of answers. A node that needs to know the records of the stores asks each of
them, and repeats the question until all have answered. This project's stores answer even if they hold nothing (erratum
26). libdafka's stores then stay silent, so a poll also ends when its patience runs out.

Three users share `StorePoll`: `HeldEndQuery` (one partition), `ReaderMachine` (the topics of one reader) and
`PollSchedule` (the whole cluster, for an observer). `PendingPeers` knows whether a discovered node may still turn out
to be a store. `RetrySchedule` repeats messages that have no answer, and `LastingQuestion` repeats a question whose
answer can change at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar
from zlib import crc32

RETRY_WAITS_S = (5.0, 30.0)
"""Seconds after which a message is sent for the second and the third time."""

KEYS_MAX = 10_000
"""The maximum number of messages of one schedule that wait for repetition; beyond it, the oldest is dropped."""

LASTING_INTERVAL_S = 60.0
"""Seconds between two repetitions of a lasting question in the long run."""

_Key = TypeVar("_Key")


class StorePoll:
    """A question to every store, repeated until all have answered or patience runs out.

    Each new question gets the next number. An answer to one question also answers the earlier ones. Each wait for a
    repetition is `retry_factor` times longer than the one before. Times are seconds on any steady clock.
    """

    def __init__(self, *, patience_s: float, retry_s: float, retry_factor: float = 1.0, quiet_s: float = 0.0) -> None:
        self.question = 0
        """The number of the last question that was asked; 0 before the first."""
        self.patience_until = float("inf")
        """The time at which stores that have not answered count as stores that hold nothing."""
        self.quiet_until = float("-inf")
        """The time at which the answers count as complete if there is no news until then."""
        self.retry_due = float("inf")
        self._patience_s = patience_s
        self._quiet_s = quiet_s
        self._retry_s = self._next_retry_s = retry_s
        self._retry_factor = retry_factor
        self._answered: dict[str, int] = {}
        self._checked_at = float("-inf")

    def restart_patience(self, now: float) -> None:
        """Wait for answers from this time on: there is a new store, or the node is only now connected to its peers."""
        self.patience_until = now + self._patience_s

    def restart_quiet(self, now: float, quiet_s: float | None = None) -> None:
        """Record that something new was learned, and that more may follow."""
        self.quiet_until = max(self.quiet_until, now + (self._quiet_s if quiet_s is None else quiet_s))

    def restart_retries(self) -> None:
        """Wait the shortest time before the next repetition."""
        self._next_retry_s = self._retry_s

    def record_asked(self, now: float, retry_s: float | None = None) -> None:
        """Schedule the next repetition, by default after the usual time: the question has just been sent."""
        self.retry_due = now + (self._next_retry_s if retry_s is None else retry_s)
        self._next_retry_s *= self._retry_factor

    def take_retry(self, now: float) -> bool:
        """Return whether to repeat the question now. If so, no repetition is due until `record_asked`."""
        self._checked_at = now
        if now < self.retry_due:
            return False
        self.retry_due = float("inf")
        return True

    def add_answer(self, store: str, question: int | None = None) -> None:
        """Record that a store has answered this question, by default the last one.

        An answer to a question that was not asked yet counts when it is.
        """
        number = self.question if question is None else question
        self._answered[store] = max(self._answered.get(store, number), number)

    def forget_answers(self, store: str) -> None:
        """Expect an answer from this store again: its connection is new."""
        self._answered.pop(store, None)

    def has_answered(self, store: str, question: int | None = None) -> bool:
        """Return whether a store has answered this question, by default the last one."""
        return self._answered.get(store, -1) >= (self.question if question is None else question)

    def unanswered(self, stores: Iterable[str]) -> list[str]:
        """Return the stores among these that have not answered the last question."""
        return [store for store in stores if not self.has_answered(store)]

    def is_answered(self, stores: Iterable[str], now: float, *, is_pending: bool) -> bool:
        """Return whether all stores have answered and nothing else is pending, or patience has run out."""
        return now >= self.patience_until or not (is_pending or self.unanswered(stores))

    def is_quiet(self, now: float) -> bool:
        """Return whether nothing new has been learned for long enough."""
        return now >= self.quiet_until

    def deadline(self) -> float:
        """Return when to call `take_retry`, and to look at the answers again."""
        looks = (look for look in (self.patience_until, self.quiet_until) if look > self._checked_at)
        return min(self.retry_due, *looks, float("inf"))


class PendingPeers:
    """The discovered nodes that have not connected yet, by address: they may turn out to be stores."""

    def __init__(self, peers_max: int) -> None:
        self.addresses: set[str] = set()
        self._connected: set[str] = set()
        self._peers_max = peers_max

    def add_node(self, address: str) -> None:
        """Record that discovery found a node. It has connected when it subscribes to something with its address."""
        if address and address not in self._connected:
            self.addresses.add(address)

    def remove_node(self, address: str) -> None:
        """Record that discovery lost a node."""
        self.addresses.discard(address)
        self._connected.discard(address)

    def record_subscription(self, topic: str) -> None:
        """Record that a peer subscribed to a topic. If that is a node's address, the node has connected."""
        self.addresses.discard(topic)
        if len(self._connected) < self._peers_max:
            self._connected.add(topic)


class RetrySchedule(Generic[_Key]):
    """Messages to send a second and a third time, because their arrival is not confirmed.

    A question that no node can answer cannot be distinguished from one whose answer a full queue has dropped.
    """

    def __init__(self) -> None:
        self._due: dict[_Key, tuple[float, int]] = {}

    def schedule(self, key: _Key, now: float) -> None:
        """Schedule the repetitions of a message that has just been sent, or was sent again for a new reason."""
        self._due.pop(key, None)
        self._due[key] = now + RETRY_WAITS_S[0], 0
        if len(self._due) > KEYS_MAX:
            del self._due[next(iter(self._due))]

    def cancel(self, key: _Key) -> None:
        """Cancel the repetitions of a message."""
        self._due.pop(key, None)

    def take_due(self, now: float) -> list[_Key]:
        """Return the messages to repeat now."""
        due = [key for key, (time, _) in self._due.items() if time <= now]
        for key in due:
            number = self._due[key][1] + 1
            if number < len(RETRY_WAITS_S):
                self._due[key] = now + RETRY_WAITS_S[number], number
            else:
                del self._due[key]
        return due

    def deadline(self) -> float:
        """Return when `take_due` next returns something."""
        return min((time for time, _ in self._due.values()), default=float("inf"))


class LastingQuestion:
    """A question that is repeated as long as there is a node to answer it.

    It is repeated after `first_waits_s`, and then at an interval. Nodes of different addresses ask at different times.
    """

    def __init__(self, address: str, first_waits_s: Sequence[float] = ()) -> None:
        self._address = address
        self._first_waits_s = tuple(first_waits_s)
        self._number = 0
        self._due = float("inf")

    @property
    def is_asked(self) -> bool:
        """Whether the question was asked, and will be repeated."""
        return self._due < float("inf")

    def record_asked(self, now: float, interval_s: float = LASTING_INTERVAL_S) -> None:
        """Restart the schedule: the question has just been sent, to a node that may not have received it."""
        self._number = 0
        self._schedule(now, interval_s)

    def stop(self) -> None:
        """Stop asking: there is no node to answer."""
        self._due = float("inf")

    def take_due(self, now: float, interval_s: float = LASTING_INTERVAL_S) -> bool:
        """Return whether to repeat the question now; if so, schedule the next time."""
        if now < self._due:
            return False
        self._number += 1
        self._schedule(now, interval_s)
        return True

    def deadline(self) -> float:
        """Return when `take_due` next returns True."""
        return self._due

    def _schedule(self, now: float, interval_s: float) -> None:
        is_first = self._number < len(self._first_waits_s)
        wait_s = self._first_waits_s[self._number] if is_first else interval_s
        self._due = now + jittered(wait_s, self._address, self._number)


def jittered(seconds: float, address: str, number: int) -> float:
    """Return a time between 75 % and 125 % of this one, which differs between nodes and between repetitions."""
    return seconds * (0.75 + 0.5 * crc32(f"{address} {number}".encode()) / 2**32)
