"""The directory of a tower: the nodes by role, and the messages that announce them (the second form of beacons).

A node that joins receives all nodes of the roles that it wants, in pages sent to its inbox, and then only changes. A
tower cannot know which messages were lost. Therefore each message about a role has a number, and the pulse repeats the
last numbers: a node that misses a number asks for the directory again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import attrs

from dafka import wire
from dafka.wire import DirectoryEntry, Role

PAGE_BYTES_MAX = 16 * 1024
"""Bytes of the entries of one page."""

ENTRIES_AT_ONCE_MAX = 20_000
"""The maximum number of entries that are sent at once, to all requesting nodes: about ten milliseconds of work."""

REPEAT_S = 0.2
"""Seconds until the same node is sent the directory again."""


@attrs.define
class _Listed:
    entry: DirectoryEntry
    encoded: bytes
    wanted: tuple[Role, ...] | None
    """The roles that it wants; None if it uses the first form of beacons."""
    sent_at: float = float("-inf")


class NodeDirectory:
    """The nodes that a tower introduces to each other. `tower` identifies this incarnation of the tower."""

    def __init__(self, tower: bytes) -> None:
        self._tower = tower
        self._nodes: dict[str, _Listed] = {}
        self._by_role: dict[Role, dict[str, bytes]] = {role: {} for role in Role}
        self._numbers = dict.fromkeys(Role, 0)
        self._changes: dict[Role, list[tuple[bool, bytes]]] = {}
        self._inboxes: set[str] = set()
        self._asked: OrderedDict[str, None] = OrderedDict()

    def put_node(self, entry: DirectoryEntry, wanted: Iterable[Role] | None) -> None:
        """Add a node, or replace its entry. `wanted` is None if it uses the first form of beacons."""
        roles = None if wanted is None else tuple(wanted)
        listed = self._nodes.get(entry.address)
        if listed is not None:
            listed.wanted = roles
            if listed.entry == entry:
                return
        encoded = entry.encode()
        self._by_role[entry.role][entry.address] = encoded
        self._record_change(entry.role, encoded, is_joined=True)
        if listed is None:
            self._nodes[entry.address] = _Listed(entry, encoded, roles)
            return
        if listed.entry.role is not entry.role:
            # Announced after the new role, so that a node that wants both roles does not lose it in between.
            self._remove_from_role(listed)
        listed.entry, listed.encoded = entry, encoded

    def remove_node(self, address: str) -> None:
        """Remove a node. If it is not listed, do nothing."""
        listed = self._nodes.pop(address, None)
        if listed is not None:
            self._remove_from_role(listed)
            self._asked.pop(address, None)

    def second_form_entries(self) -> list[DirectoryEntry]:
        """Return the nodes that use the second form. The tower announces them to the others in the first form."""
        return [listed.entry for listed in self._nodes.values() if listed.wanted is not None]

    def record_inbox(self, address: str, *, is_open: bool, inboxes_max: int) -> None:
        """Record that a node has subscribed to its directory pages, or that the last subscription to them has ended."""
        if not is_open:
            self._inboxes.discard(address)
        elif len(self._inboxes) < inboxes_max or address in self._inboxes:
            self._inboxes.add(address)
            self._queue(address)  # its connection is new, so it may have missed changes

    def ask(self, address: str) -> None:
        """Record that a listed node asks for the directory, which is sent as soon as the node has an inbox."""
        self._queue(address)

    def take_messages(self, now: float) -> list[list[bytes]]:
        """Return the messages to publish: the changes, then the directory for each node that has asked."""
        messages: list[list[bytes]] = []
        for role, changes in self._changes.items():
            self._numbers[role] += 1
            messages.append(wire.encode_changes(role, self._tower, self._numbers[role], changes))
        self._changes.clear()
        room = ENTRIES_AT_ONCE_MAX
        for address in list(self._asked):
            if room <= 0:
                break
            listed = self._nodes[address]
            if now - listed.sent_at < REPEAT_S:
                continue
            del self._asked[address]
            listed.sent_at = now
            entries = [listed.encoded]
            for role in listed.wanted or ():
                entries += [encoded for other, encoded in self._by_role[role].items() if other != address]
            messages += wire.encode_pages(address, self._tower, self._numbers, entries, PAGE_BYTES_MAX)
            room -= len(entries)
        return messages

    @property
    def has_requests(self) -> bool:
        """Whether nodes wait for the directory."""
        return bool(self._asked)

    def count_changes(self) -> int:
        """Return the number of messages about changes."""
        return sum(self._numbers.values())

    def pulse(self, interval_ms: int, pause_ms: int) -> list[bytes]:
        """Return the frames of the tower's heartbeat; see `dafka.wire.Pulse`."""
        return wire.Pulse(self._tower, interval_ms, self._numbers, pause_ms).encode()

    def _queue(self, address: str) -> None:
        listed = self._nodes.get(address)
        if listed is not None and listed.wanted is not None and address in self._inboxes:
            self._asked[address] = None

    def _remove_from_role(self, listed: _Listed) -> None:
        del self._by_role[listed.entry.role][listed.entry.address]
        self._record_change(listed.entry.role, listed.encoded, is_joined=False)

    def _record_change(self, role: Role, encoded: bytes, *, is_joined: bool) -> None:
        self._changes.setdefault(role, []).append((is_joined, encoded))
