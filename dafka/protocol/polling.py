"""What is said again a few times, ever more rarely, where nobody tells whether it was heard.

A question that nobody has an answer to, and one whose answer a full queue has dropped, look alike: no answer comes.
"""

from __future__ import annotations

from typing import Generic, TypeVar

REPEAT_WAITS = (5.0, 30.0)
"""Seconds after which something is said a second and a third time."""

KEYS_MAX = 10_000
"""Different things to be repeated; of further ones the first are let go."""

_Key = TypeVar("_Key")


class RetrySchedule(Generic[_Key]):
    """Keeps what is still to be repeated, and when."""

    def __init__(self) -> None:
        self._due: dict[_Key, tuple[float, int]] = {}

    def schedule(self, key: _Key, now: float) -> None:
        """This has just been said for the first time, or for a new reason."""
        self._due.pop(key, None)
        self._due[key] = now + REPEAT_WAITS[0], 0
        if len(self._due) > KEYS_MAX:
            del self._due[next(iter(self._due))]

    def cancel(self, key: _Key) -> None:
        """This need not be said any more."""
        self._due.pop(key, None)

    def take_due(self, now: float) -> list[_Key]:
        """What is to be said again now."""
        due = [key for key, (time, _) in self._due.items() if time <= now]
        for key in due:
            number = self._due[key][1] + 1
            if number < len(REPEAT_WAITS):
                self._due[key] = now + REPEAT_WAITS[number], number
            else:
                del self._due[key]
        return due

    def deadline(self) -> float:
        """When `take` next gives something."""
        return min((time for time, _ in self._due.values()), default=float("inf"))


class PendingPeers:
    """Attributes:
    awaited: the addresses of nodes that discovery has found, and that have subscribed to nothing here so far.
    """

    def __init__(self, peers_max: int) -> None:
        self.awaited: set[str] = set()
        self._connected: set[str] = set()
        self._peers_max = peers_max

    def add_node(self, address: str) -> None:
        """Discovery found a node, which will subscribe to something with its address; then it shows what it is."""
        if address and address not in self._connected:
            self.awaited.add(address)

    def remove_node(self, address: str) -> None:
        """Discovery lost a node."""
        self.awaited.discard(address)
        self._connected.discard(address)

    def note_subscription(self, topic: str) -> None:
        """Somebody subscribed to this: the node, if it is a node's address, is connected."""
        self.awaited.discard(topic)
        if len(self._connected) < self._peers_max:
            self._connected.add(topic)
