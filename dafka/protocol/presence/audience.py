"""Who listens to what is addressed to them, as far as their subscriptions show it.

Nothing is withheld from those of whom it is not known: a peer may well subscribe to shorter prefixes than its own
address. But they come after those who do, and where there is too much to do they are let go first.
"""

from __future__ import annotations

from collections.abc import Iterator

from dafka import wire
from dafka.wire import Command


class Audience:
    """Remembers at most `listeners_max` subscribers to one command."""

    def __init__(self, command: Command, listeners_max: int) -> None:
        self._command = command
        self._listeners_max = listeners_max
        self._listeners: dict[str, None] = {}

    def __contains__(self, address: str) -> bool:
        return address in self._listeners

    def __iter__(self) -> Iterator[str]:
        return iter(self._listeners)

    def subscribed(self, subscription: wire.Subscription) -> None:
        """A peer subscribed, to this or to something else, or unsubscribed."""
        if subscription.command is not self._command or not subscription.topic:
            return
        if not subscription.active:
            self._listeners.pop(subscription.topic, None)
        elif len(self._listeners) < self._listeners_max:
            self._listeners[subscription.topic] = None
