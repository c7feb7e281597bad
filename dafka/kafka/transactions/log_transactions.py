"""The transactions in one log: which are open, which were aborted, and up to where everything is decided."""

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
        last_stable_offset: The log's last stable offset after that marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class LogTransactions:
    """The transactions in one log."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._decided: deque[tuple[int, int]] = deque()
        self._aborted: list[AbortedTransaction] = []

    def is_open(self, producer_id: int) -> bool:
        """Return whether a producer has a transaction in the log that no marker has ended."""
        return producer_id in self._open

    def open_transactions(self) -> dict[int, int]:
        """Return the first offset of each open transaction, by producer."""
        return dict(self._open)

    def aborted(self) -> list[AbortedTransaction]:
        """Return all aborted transactions of which the log still has records, in the order of their markers."""
        return list(self._aborted)

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Note records of a transaction. Later records of the same transaction change nothing."""
        self._open.setdefault(producer_id, first_offset)

    def end(self, producer_id: int, offset: int, first_offset: int | None = None, *, is_commit: bool) -> None:
        """Note the marker at an offset. It does nothing if the producer has no open transaction, unless it is given."""
        found = self._open.pop(producer_id, None)
        if first_offset is None:
            first_offset = found
        if first_offset is None:
            return
        self._decided.append((offset, first_offset))
        if not is_commit:
            self._limit_last_stable_offsets(first_offset)
            last_stable_offset = next(iter(self._open.values()), offset + 1)
            self._aborted.append(AbortedTransaction(producer_id, first_offset, offset, last_stable_offset))

    def _limit_last_stable_offsets(self, first_offset: int) -> None:
        """Note that a transaction was open since an offset. After a restart, this is known from its marker alone."""
        for number in reversed(range(len(self._aborted))):
            each = self._aborted[number]
            if each.last_stable_offset <= first_offset:
                return
            self._aborted[number] = each._replace(last_stable_offset=first_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset up to which all transactions are decided, by markers below the high watermark.

        Args:
            high_watermark: The offset after the last durable record. It never goes back.

        Returns:
            The last stable offset.
        """
        while self._decided and self._decided[0][0] < high_watermark:
            self._decided.popleft()
        undecided = next(iter(self._open.values()), high_watermark)
        return min(high_watermark, undecided, *(first_offset for _, first_offset in self._decided))

    def aborted_between(self, fetch_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that have records in a range of offsets, for the answer to a fetch.

        Args:
            fetch_offset: The first offset of the range.
            end_offset: The offset after its last one.

        Returns:
            The transactions in the order of their markers.
        """
        found = list[AbortedTransaction]()
        start = bisect_left(self._aborted, fetch_offset, key=lambda each: each.last_offset)
        for number in range(start, len(self._aborted)):
            each = self._aborted[number]
            if each.first_offset < end_offset:
                found.append(each)
            if each.last_stable_offset >= end_offset:
                break
        return found

    def drop_before(self, log_start_offset: int) -> None:
        """Forget aborted transactions of which the log has no record any more."""
        del self._aborted[: bisect_left(self._aborted, log_start_offset, key=lambda each: each.last_offset)]
