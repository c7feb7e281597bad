"""The transactions of one log by offset: open ones, aborted ones, and the last stable offset.

Only durable transactions count here, because readers see nothing else. Offsets have the same meaning in all leader
epochs, whichever leader has appended the records or the marker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import NamedTuple

from dafka.broker.core.positions import Offset


class AbortedTransaction(NamedTuple):
    """An aborted transaction: its producer, first record and marker. Readers of committed records skip its records."""

    producer_id: int
    first_offset: Offset
    last_offset: Offset


class OpenTransactions:
    """The transactions of one log. They begin and end in offset order."""

    def __init__(self) -> None:
        self._open: dict[int, Offset] = {}
        self._ended: deque[tuple[Offset, Offset]] = deque()
        self._aborted: list[AbortedTransaction] = []
        self._later_firsts: list[int] = []

    def begin(self, producer_id: int, first_offset: Offset) -> None:
        """Begin a transaction. Later records of the same transaction change nothing."""
        self._open.setdefault(producer_id, first_offset)

    def end(self, producer_id: int, offset: Offset, first_offset: Offset | None, *, is_commit: bool) -> None:
        """End a transaction with a marker at an offset, which can name the offset of its first record.

        If the marker does not name it and the transaction was not begun, it has no record in this log.
        """
        begun = self._open.pop(producer_id, None)
        first = begun if first_offset is None else first_offset
        if first is None or first >= offset:
            return
        self._ended.append((offset, first))
        if not is_commit:
            number = len(self._aborted)
            while number and self._later_firsts[number - 1] > first:
                number -= 1
                self._later_firsts[number] = first
            self._aborted.append(AbortedTransaction(producer_id, first, offset))
            self._later_firsts.append(offset + 1)

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """Return the last stable offset: all earlier transactions have ended with a marker below the high watermark.

        The high watermark never goes back.
        """
        while self._ended and self._ended[0][0] < high_watermark:
            self._ended.popleft()
        undecided = next(iter(self._open.values()), high_watermark)
        return min(high_watermark, undecided, *(first for _, first in self._ended))

    def aborted_between(self, first_offset: Offset, end_offset: Offset) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in a range of offsets.

        They are in the order of their first offsets, as clients of Kafka expect them.
        """
        found = list[AbortedTransaction]()
        for number in range(bisect_left(self._aborted, first_offset, key=_last_offset), len(self._aborted)):
            if self._aborted[number].first_offset < end_offset:
                found.append(self._aborted[number])
            if self._later_firsts[number] >= end_offset:
                break
        return sorted(found, key=lambda each: each.first_offset)

    def drop_before(self, log_start_offset: Offset) -> None:
        """Forget aborted transactions that have no records in the log any more."""
        count = bisect_left(self._aborted, log_start_offset, key=_last_offset)
        del self._aborted[:count], self._later_firsts[:count]


def _last_offset(transaction: AbortedTransaction) -> Offset:
    return transaction.last_offset
