"""The transactions in one log, by offsets: which are open, which were aborted, and up to where all are decided.

Only what is durable counts here, since readers see nothing else. Offsets are those of the log, whichever leader has
appended the records or the marker, so they have the same meaning in all its branches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import NamedTuple


class AbortedTransaction(NamedTuple):
    """A transaction whose records readers skip that ask for committed records only.

    Attributes:
        producer_id: The producer.
        first_offset: The offset of its first record in the log.
        last_offset: The offset of the marker that ends it.
    """

    producer_id: int
    first_offset: int
    last_offset: int


class OpenTransactions:
    """The transactions in one log. They begin and end in the order of their offsets."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._ended: deque[tuple[int, int]] = deque()
        self._aborted: list[AbortedTransaction] = []
        self._later_firsts: list[int] = []

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Note records of a transaction. Later records of the same transaction change nothing."""
        self._open.setdefault(producer_id, first_offset)

    def end(self, producer_id: int, offset: int, first_offset: int | None, *, is_commit: bool) -> None:
        """Note the marker that ends a transaction.

        Args:
            producer_id: The producer.
            offset: The offset of the marker.
            first_offset: The offset of the first record, as far as the marker says it; None if it does not. If no
                record was noted either, the transaction has none in this log.
            is_commit: Whether the transaction is committed; otherwise it is aborted.
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

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset up to which all transactions are decided, by markers below the high watermark.

        Args:
            high_watermark: The offset up to which readers may read. It never goes back.

        Returns:
            The last stable offset.
        """
        while self._ended and self._ended[0][0] < high_watermark:
            self._ended.popleft()
        undecided = next(iter(self._open.values()), high_watermark)
        return min(high_watermark, undecided, *(first for _, first in self._ended))

    def aborted_between(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that have records in a range of offsets.

        Args:
            first_offset: The first offset of the range.
            end_offset: The offset after its last one.

        Returns:
            The transactions, in the order of their first offsets: clients of Kafka take the next one from the front.
        """
        found = list[AbortedTransaction]()
        for number in range(bisect_left(self._aborted, first_offset, key=_last_offset), len(self._aborted)):
            if self._aborted[number].first_offset < end_offset:
                found.append(self._aborted[number])
            if self._later_firsts[number] >= end_offset:
                break
        return sorted(found, key=lambda each: each.first_offset)

    def drop_before(self, log_start_offset: int) -> None:
        """Forget aborted transactions of which the log has no record any more."""
        count = bisect_left(self._aborted, log_start_offset, key=_last_offset)
        del self._aborted[:count], self._later_firsts[:count]


def _last_offset(transaction: AbortedTransaction) -> int:
    return transaction.last_offset
