"""The subscriptions of each connection to a publisher, and which of them libzmq is told.

A node that reads record batches subscribes to RECORD-BATCH and to RECORD alike, and to DIRECT-RECORD-BATCH and
DIRECT-RECORD. A publisher of this project has both to offer, and must not send such a node the same records twice. So
the RECORD subscription of a connection that also subscribes to RECORD-BATCH is kept from libzmq, whose XPUB socket in
manual mode knows only the subscriptions that it is told.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from dafka.wire import BATCH_COMMANDS

_BATCH_OF = {single.value: batch.value for single, batch in BATCH_COMMANDS.items()}
_SINGLE_OF = {batch: single for single, batch in _BATCH_OF.items()}

CACHED_MAX = 4096
"""Topics for which is remembered whether anybody listens."""


class SubscriptionTable:
    """The subscriptions of all connections to one socket."""

    def __init__(self, *, sends_batches: bool = True) -> None:
        """Create the table of a publisher without connections, which sends record batches or single records alone."""
        self._batch_of = _BATCH_OF if sends_batches else {}
        self._single_of = _SINGLE_OF if sends_batches else {}
        self._of_connection: defaultdict[int, set[bytes]] = defaultdict(set)
        self._counts: Counter[bytes] = Counter()
        self._entered: Counter[bytes] = Counter()
        self._wanted: dict[bytes, bool] = {}

    def subscribe(self, connection: int, prefix: bytes) -> list[tuple[bool, bytes]]:
        """Note a subscription.

        Args:
            connection: The number of the connection.
            prefix: What it subscribes to.

        Returns:
            What to tell libzmq about this connection: whether to subscribe or unsubscribe it, and the prefix.
        """
        prefixes = self._of_connection[connection]
        if prefix in prefixes:
            return []
        prefixes.add(prefix)
        self._counts[prefix] += 1
        if self._is_kept_back(prefix, prefixes):
            return []
        changes = [self._enter(prefix)]
        if (single := _counterpart(prefix, self._single_of)) in prefixes:
            changes.append(self._withdraw(single))
        return changes

    def unsubscribe(self, connection: int, prefix: bytes) -> list[tuple[bool, bytes]]:
        """Note the end of a subscription, and return what to tell libzmq, as `subscribe` does."""
        prefixes = self._of_connection[connection]
        if prefix not in prefixes:
            return []
        prefixes.remove(prefix)
        self._drop(prefix)
        if self._is_kept_back(prefix, prefixes):
            return []
        changes = [self._withdraw(prefix)]
        if (single := _counterpart(prefix, self._single_of)) in prefixes:
            changes.append(self._enter(single))
        return changes

    def forget_connection(self, connection: int) -> list[bytes]:
        """Forget a connection that has ended, and return the prefixes that nobody subscribes to any more."""
        prefixes = self._of_connection.pop(connection, set())
        for prefix in prefixes:
            if not self._is_kept_back(prefix, prefixes):
                self._withdraw(prefix)
        return [prefix for prefix in prefixes if self._drop(prefix)]

    def has(self, prefix: bytes) -> bool:
        """Return whether any connection subscribes to this prefix."""
        return prefix in self._counts

    def is_wanted(self, topic_frame: bytes) -> bool:
        """Return whether a message with this topic frame reaches anybody."""
        is_wanted = self._wanted.get(topic_frame)
        if is_wanted is None:
            if len(self._wanted) >= CACHED_MAX:
                self._wanted.clear()
            is_wanted = any(topic_frame[:end] in self._entered for end in range(len(topic_frame) + 1))
            self._wanted[topic_frame] = is_wanted
        return is_wanted

    def _is_kept_back(self, prefix: bytes, prefixes: set[bytes]) -> bool:
        """Return whether a connection with these subscriptions gets batches instead of what it subscribes to here."""
        return _counterpart(prefix, self._batch_of) in prefixes

    def _enter(self, prefix: bytes) -> tuple[bool, bytes]:
        self._entered[prefix] += 1
        self._wanted.clear()
        return True, prefix

    def _withdraw(self, prefix: bytes) -> tuple[bool, bytes]:
        self._entered[prefix] -= 1
        if not self._entered[prefix]:
            del self._entered[prefix]
            self._wanted.clear()
        return False, prefix

    def _drop(self, prefix: bytes) -> bool:
        """Count one subscription less, and return whether it was the last one."""
        self._counts[prefix] -= 1
        if self._counts[prefix]:
            return False
        del self._counts[prefix]
        return True


def _counterpart(prefix: bytes, commands: dict[bytes, bytes]) -> bytes | None:
    """Return the same prefix of another command; None if its command has no counterpart."""
    command = commands.get(prefix[:1])
    return None if command is None else command + prefix[1:]
