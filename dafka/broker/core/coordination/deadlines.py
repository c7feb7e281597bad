"""Deadlines of many keys, most of which are postponed again and again."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

SUPERSEDED_MAX = 1000
"""Obsolete entries that the heap can have, besides as many as there are deadlines."""


class Deadlines(Generic[Key]):
    """One deadline for each key. Postponing takes constant time: the heap is corrected later."""

    def __init__(self) -> None:
        self._deadlines: dict[Key, int] = {}
        self._queued: dict[Key, int] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._ticket = itertools.count()

    def __contains__(self, key: Key) -> bool:
        return key in self._deadlines

    def set(self, key: Key, deadline_ms: int) -> None:
        """Set the deadline of a key. It replaces the former one."""
        self._deadlines[key] = deadline_ms
        queued_ms = self._queued.get(key)
        if queued_ms is None or deadline_ms < queued_ms:
            self._push(key, deadline_ms)

    def cancel(self, key: Key) -> None:
        """Remove the deadline of a key, if it has one."""
        self._deadlines.pop(key, None)

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline; None if there is none."""
        while self._heap:
            at_ms, _, key = self._heap[0]
            deadline_ms, is_queued = self._deadlines.get(key), self._queued.get(key) == at_ms
            if is_queued and deadline_ms == at_ms:
                return at_ms
            heapq.heappop(self._heap)
            if is_queued:
                del self._queued[key]
                if deadline_ms is not None:
                    self._push(key, deadline_ms)  # it may replace the heap
        return None

    def pop_due(self, now_ms: int) -> Key | None:
        """Remove and return the key with the earliest deadline; None if no deadline has passed."""
        deadline_ms = self.next_deadline_ms()
        if deadline_ms is None or deadline_ms > now_ms:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._queued[key], self._deadlines[key]
        return key

    def _push(self, key: Key, deadline_ms: int) -> None:
        if len(self._heap) > 2 * len(self._deadlines) + SUPERSEDED_MAX:
            self._heap = [(at_ms, next(self._ticket), each) for each, at_ms in self._deadlines.items()]
            self._queued = dict(self._deadlines)
            heapq.heapify(self._heap)
            return
        self._queued[key] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, next(self._ticket), key))
