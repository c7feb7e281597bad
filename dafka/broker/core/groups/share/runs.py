"""What a share group has done with the records of a log: runs of offsets that are in the same state."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from enum import IntEnum

import attrs


class RecordState(IntEnum):
    """The states of records. Stored states have Kafka's numbers."""

    AVAILABLE = 0
    """A member can get it."""

    ACQUIRED = 1
    """A member has it, until it acknowledges it or its lock expires."""

    ACKNOWLEDGED = 2
    """A member has accepted it."""

    ARCHIVING = 3
    """It is not delivered again, and its dead letter is possibly not stored yet (KIP-1191)."""

    ARCHIVED = 4
    """It is not delivered again: it was rejected, delivered too often, or there is no record."""


ENDED = frozenset((RecordState.ACKNOWLEDGED, RecordState.ARCHIVED))
"""The states that no record leaves."""


@attrs.frozen
class Run:
    """Neighboring offsets in the same state.

    Attributes:
        first: The first offset.
        end: The offset after the last one.
        delivery_count: How often the records were delivered; 0 in states that have ended.
        member_id: The member that has acquired them; else empty.
        deadline_ms: When its lock expires.
    """

    first: int
    end: int
    state: RecordState = RecordState.AVAILABLE
    delivery_count: int = 0
    member_id: str = ""
    deadline_ms: int = 0

    def continues(self, before: Run) -> bool:
        """Return whether this run and the one before it are in the same state."""
        return attrs.evolve(before, first=self.first, end=self.end) == self


class RunTable:
    """The runs from a first offset on, without gaps. Neighbors are in different states."""

    def __init__(self, start_offset: int, runs: list[Run]) -> None:
        self._start = start_offset
        self._runs = runs

    @property
    def start_offset(self) -> int:
        """The first offset."""
        return self._runs[0].first if self._runs else self._start

    @property
    def end_offset(self) -> int:
        """The offset after the last run."""
        return self._runs[-1].end if self._runs else self._start

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def between(self, first: int, end: int) -> list[Run]:
        """Return the runs in a range of offsets, cut to the range."""
        found = []
        for number in range(max(self._find(first), 0), len(self._runs)):
            run = self._runs[number]
            if run.first >= end:
                break
            if run.end > first:
                found.append(attrs.evolve(run, first=max(run.first, first), end=min(run.end, end)))
        return found

    def put(self, run: Run) -> None:
        """Replace the state of a range of offsets, which begins at the end of the table at the latest."""
        assert self.start_offset <= run.first <= self.end_offset, (run, self.start_offset, self.end_offset)
        first, last = self._find(run.first), self._find(run.end - 1)
        parts = [run]
        if first >= 0 and self._runs[first].first < run.first < self._runs[first].end:
            parts.insert(0, attrs.evolve(self._runs[first], end=run.first))
        elif first >= 0 and self._runs[first].end <= run.first:
            first += 1
        if last >= 0 and self._runs[last].end > run.end:
            parts.append(attrs.evolve(self._runs[last], first=run.end))
        first = max(first, 0)
        self._runs[first : last + 1] = parts
        for number in range(min(first + len(parts), len(self._runs) - 1), max(first - 1, 0), -1):
            if self._runs[number].continues(self._runs[number - 1]):
                joined = attrs.evolve(self._runs[number - 1], end=self._runs[number].end)
                self._runs[number - 1 : number + 1] = [joined]

    def drop_ended(self) -> None:
        """Remove the first runs if their states have ended."""
        count = next((number for number, run in enumerate(self._runs) if run.state not in ENDED), len(self._runs))
        if count:
            self._start = self._runs[count - 1].end
            del self._runs[:count]

    def _find(self, offset: int) -> int:
        """Return the number of the last run that begins at an offset or before it; -1 if there is none."""
        return bisect_right(self._runs, offset, key=lambda run: run.first) - 1
