"""The subscriptions of each connection to a publisher, and which of them libzmq knows.

A node that reads record batches subscribes to RECORD-BATCH and RECORD, and to DIRECT-RECORD-BATCH and DIRECT-RECORD. A
publisher of this project offers both, and must not send such a node the same records twice. So the RECORD subscription
of a connection that also subscribes to RECORD-BATCH is not passed to libzmq, whose XPUB socket is in manual mode. A
connection that subscribes to everything may not know batches, so for libzmq it subscribes to each command of RFC 46.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from dafka.wire import BATCH_COMMANDS, Command

_BATCH_OF = {single.value: batch.value for single, batch in BATCH_COMMANDS.items()}
_SINGLE_OF = {batch: single for single, batch in _BATCH_OF.items()}

_RFC46_COMMANDS = frozenset(command.value for command in Command if command.value not in _SINGLE_OF)
"""The commands for nodes that have not subscribed to record batches."""

CACHED_MAX = 4096
"""The maximum number of topics for which the table caches whether there is a subscriber."""


class SubscriptionTable:
    """The subscriptions of all connections to one socket."""

    def __init__(self, *, sends_batches: bool) -> None:
        self._batch_of = _BATCH_OF if sends_batches else {}
        self._single_of = _SINGLE_OF if sends_batches else {}
        self._everything = _RFC46_COMMANDS if sends_batches else frozenset((b"",))
        self._of_connection: defaultdict[int, set[bytes]] = defaultdict(set)
        self._counts: Counter[bytes] = Counter()
        self._told: Counter[bytes] = Counter()
        self._longer: Counter[bytes] = Counter()
        """The beginnings of subscriptions to more than a topic: libdafka's first frame continues after the topic."""
        self._wanted: dict[bytes, bool] = {}

    def subscribe(self, connection: int, prefix: bytes) -> list[tuple[bool, bytes]]:
        """Record a subscription, and return the changes for libzmq.

        Each is whether to subscribe or unsubscribe this connection, and the prefix.
        """
        prefixes = self._of_connection[connection]
        if prefix in prefixes:
            # The first one may have come from an earlier connection with the same descriptor, just before it ended.
            return [(True, told) for told in sorted(self._find_told(prefix, prefixes))]
        before = self._find_told(prefix, prefixes)
        prefixes.add(prefix)
        self._counts[prefix] += 1
        return self._change(before, self._find_told(prefix, prefixes))

    def unsubscribe(self, connection: int, prefix: bytes) -> list[tuple[bool, bytes]]:
        """Record the end of a subscription, and return the changes for libzmq, as `subscribe` does."""
        prefixes = self._of_connection[connection]
        if prefix not in prefixes:
            return []
        before = self._find_told(prefix, prefixes)
        prefixes.remove(prefix)
        self._drop(prefix)
        return self._change(before, self._find_told(prefix, prefixes))

    def forget_connection(self, connection: int) -> list[bytes]:
        """Forget a connection that has ended, and return the prefixes without a remaining subscriber."""
        prefixes = self._of_connection.pop(connection, set())
        self._change({told for prefix in prefixes for told in self._find_told(prefix, prefixes)}, set())
        return [prefix for prefix in prefixes if self._drop(prefix)]

    def has(self, prefix: bytes) -> bool:
        """Return whether any connection subscribes to this prefix."""
        return prefix in self._counts

    def is_wanted(self, topic_frame: bytes) -> bool:
        """Return whether a message with this topic frame reaches any subscriber."""
        is_wanted = self._wanted.get(topic_frame)
        if is_wanted is None:
            if len(self._wanted) >= CACHED_MAX:
                self._wanted.clear()
            is_wanted = topic_frame in self._longer or any(
                topic_frame[:end] in self._told for end in range(len(topic_frame) + 1)
            )
            self._wanted[topic_frame] = is_wanted
        return is_wanted

    def _find_told(self, changed: bytes, prefixes: set[bytes]) -> set[bytes]:
        """Return the part of libzmq's subscriptions, for these subscriptions, that another one could change."""
        concerned = {changed} if changed else set(self._everything)
        single = _counterpart(changed, self._single_of)
        if single is not None:
            concerned.add(single)
        return {each for each in concerned if self._is_told(each, prefixes)}

    def _is_told(self, prefix: bytes, prefixes: set[bytes]) -> bool:
        if b"" in prefixes and prefix in self._everything:
            return True
        return bool(prefix) and prefix in prefixes and _counterpart(prefix, self._batch_of) not in prefixes

    def _change(self, before: set[bytes], after: set[bytes]) -> list[tuple[bool, bytes]]:
        """Record libzmq's subscriptions of a connection, and return the difference."""
        for prefix in after - before:
            self._told[prefix] += 1
            topic_frame, nul, _ = prefix.partition(b"\0")
            if nul:
                self._longer[topic_frame] += 1
        for prefix in before - after:
            _count_down(self._told, prefix)
            topic_frame, nul, _ = prefix.partition(b"\0")
            if nul:
                _count_down(self._longer, topic_frame)
        if before != after:
            self._wanted.clear()
        ended, begun = sorted(before - after), sorted(after - before)
        return [*((False, prefix) for prefix in ended), *((True, prefix) for prefix in begun)]

    def _drop(self, prefix: bytes) -> bool:
        """Count one subscription less, and return whether it was the last one."""
        _count_down(self._counts, prefix)
        return prefix not in self._counts


def _count_down(counts: Counter[bytes], prefix: bytes) -> None:
    counts[prefix] -= 1
    if not counts[prefix]:
        del counts[prefix]


def _counterpart(prefix: bytes, commands: dict[bytes, bytes]) -> bytes | None:
    """Return the same prefix of another command; None if its command has no counterpart."""
    command = commands.get(prefix[:1])
    return None if command is None else command + prefix[1:]
