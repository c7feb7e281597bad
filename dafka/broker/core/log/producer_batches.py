"""The batches of idempotent and transactional producers that a broker needs after a restart."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

from dafka.broker.core.log.entries import TRANSACTIONAL, BatchEntry, MarkerEntry
from dafka.broker.core.positions import AtOffset, Offset, ProducerSequence, log_order

BATCHES_REMEMBERED = 5
"""The maximum number of batches in flight of a producer. Any of them can arrive again."""

PRODUCER_EXPIRY_MS = 24 * 60 * 60 * 1000
"""How long an inactive producer is remembered."""


class ProducerBatches:
    """The last batches of each producer in one log, and its open transactions.

    Only batches of open transactions are marked as transactional: the marker that ends one can be dropped before them.
    """

    def __init__(self) -> None:
        self._recent: dict[int, deque[BatchEntry]] = {}
        self._open: dict[int, BatchEntry] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of batches that `entries` returns."""
        return self._count + len(self._open)

    def add(self, entry: BatchEntry) -> None:
        """Add a batch of the log."""
        recent = self._recent.pop(entry.producer_id, None)
        if recent is None:
            recent = deque(maxlen=BATCHES_REMEMBERED)
        self._count += len(recent) < BATCHES_REMEMBERED
        recent.append(entry)
        self._recent[entry.producer_id] = recent
        if entry.flags & TRANSACTIONAL:
            self._open.setdefault(entry.producer_id, entry)

    def find(self, producer_id: int, producer_epoch: int, base_sequence: ProducerSequence) -> BatchEntry | None:
        """Return a batch of a producer by its first sequence; None if it is not remembered."""
        batches = self._recent.get(producer_id, ())
        found = (
            each for each in batches if (each.producer_epoch, each.base_sequence) == (producer_epoch, base_sequence)
        )
        return next(found, None)

    def end_transaction(self, marker: MarkerEntry) -> None:
        """End a producer's transaction."""
        self._open.pop(marker.producer_id, None)
        recent = self._recent.get(marker.producer_id, ())
        for number, each in enumerate(recent):
            if each.flags & TRANSACTIONAL:
                self._recent[marker.producer_id][number] = each._replace(flags=each.flags & ~TRANSACTIONAL)

    def expire(self, now_ms: int) -> None:
        """Forget producers without an open transaction that have sent nothing for a day."""
        for producer_id, recent in list(self._recent.items()):
            if recent[-1].timestamp_ms > now_ms - PRODUCER_EXPIRY_MS:
                return
            if producer_id not in self._open:
                self._count -= len(recent)
                del self._recent[producer_id]

    def entries(self) -> list[BatchEntry]:
        """Return the remembered batches, in log order."""
        found = {entry.position: entry for recent in self._recent.values() for entry in recent}
        found.update((entry.position, entry) for entry in self._open.values())
        return [found[position] for position in sorted(found, key=log_order)]


class TransactionRuns:
    """The ranges of offsets that belong to transactions.

    They are for records that are stored without their record batches: not all storages keep these, and a replica that
    gets records from the middle of a batch, or from a replica that has none, has none either.
    """

    def __init__(self) -> None:
        self._firsts = array("q")
        self._ends = array("q")
        self._producers = array("q")
        self._epochs = array("q")

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, offset: Offset, entry: BatchEntry) -> None:
        """Add a batch of a transaction at an offset. Ranges that are already known stay."""
        if self._ends and offset < self._ends[-1]:
            return
        end = offset + entry.record_count
        producer = (entry.producer_id, entry.producer_epoch)
        if self._ends and self._ends[-1] == offset and (self._producers[-1], self._epochs[-1]) == producer:
            self._ends[-1] = end
            return
        self._firsts.append(offset)
        self._ends.append(end)
        self._producers.append(entry.producer_id)
        self._epochs.append(entry.producer_epoch)

    def drop_before(self, offset: Offset) -> None:
        """Forget records before an offset."""
        count = bisect_right(self._ends, offset)
        del self._firsts[:count], self._ends[:count], self._producers[:count], self._epochs[:count]

    def split(self, offset: Offset, end_offset: Offset) -> Iterator[tuple[int, int, int, int]]:
        """Yield the runs in a range: first offset, end, producer id, epoch. These are -1 outside transactions."""
        number = bisect_right(self._ends, offset)
        while offset < end_offset:
            if number == len(self._firsts) or self._firsts[number] >= end_offset:
                yield offset, end_offset, -1, -1
                return
            if self._firsts[number] > offset:
                yield offset, self._firsts[number], -1, -1
                offset = Offset(self._firsts[number])
            end = Offset(min(self._ends[number], end_offset))
            yield offset, end, self._producers[number], self._epochs[number]
            offset = end
            number += 1

    def entries(self) -> list[BatchEntry]:
        """Return entries from which `add` restores these ranges. They have no producer sequences."""
        columns = zip(self._firsts, self._ends, self._producers, self._epochs, strict=True)
        return [
            BatchEntry(AtOffset(Offset(first)), end - first, producer, epoch, None, TRANSACTIONAL, 0)
            for first, end, producer, epoch in columns
        ]
