"""The batches of producers with an id, as far as a broker must know of them after a restart."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

from dafka.protocol.logs.entries import NO_SEQUENCE, TRANSACTIONAL, BatchEntry, MarkerEntry

BATCHES_REMEMBERED = 5
"""The batches that a producer may have under way, of which any may arrive again."""

PRODUCER_EXPIRY_MS = 24 * 60 * 60 * 1000
"""How long a producer that sends nothing is remembered."""


class ProducerBatches:
    """The last batches of each producer in the broker's own partition of one log, and its open transactions."""

    def __init__(self) -> None:
        self._recent: dict[int, deque[BatchEntry]] = {}
        self._open: dict[int, BatchEntry] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of batches that `entries` returns."""
        return self._count + len(self._open)

    def add(self, entry: BatchEntry) -> None:
        """Note a batch that is in the log."""
        recent = self._recent.pop(entry.producer_id, None)
        if recent is None:
            recent = deque(maxlen=BATCHES_REMEMBERED)
        self._count += len(recent) < BATCHES_REMEMBERED
        recent.append(entry)
        self._recent[entry.producer_id] = recent
        if entry.flags & TRANSACTIONAL:
            self._open.setdefault(entry.producer_id, entry)

    def find(self, producer_id: int, producer_epoch: int, base_sequence: int) -> BatchEntry | None:
        """Return a batch of a producer by its first sequence; None if it is not remembered."""
        batches = self._recent.get(producer_id, ())
        found = (
            each for each in batches if (each.producer_epoch, each.base_sequence) == (producer_epoch, base_sequence)
        )
        return next(found, None)

    def end_transaction(self, marker: MarkerEntry) -> None:
        """Note the end of a producer's transaction."""
        self._open.pop(marker.producer_id, None)

    def expire(self, now_ms: int) -> None:
        """Forget producers without a transaction that have sent nothing for a day."""
        for producer_id, recent in list(self._recent.items()):
            if recent[-1].timestamp_ms > now_ms - PRODUCER_EXPIRY_MS:
                return
            if producer_id not in self._open:
                self._count -= len(recent)
                del self._recent[producer_id]

    def entries(self) -> list[BatchEntry]:
        """Return the batches that matter, in their order in the log."""
        found = {entry.sequence: entry for recent in self._recent.values() for entry in recent}
        found.update((entry.sequence, entry) for entry in self._open.values())
        return [found[sequence] for sequence in sorted(found)]


class TransactionRuns:
    """Which records of a broker's own partition belong to a transaction, for storages that keep no record batches."""

    def __init__(self) -> None:
        self._firsts = array("q")
        self._ends = array("q")
        self._producers = array("q")
        self._epochs = array("q")

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, entry: BatchEntry) -> None:
        """Note a batch. What is known of its records stays."""
        if not entry.flags & TRANSACTIONAL or (self._ends and entry.sequence < self._ends[-1]):
            return
        end = entry.sequence + entry.record_count
        producer = (entry.producer_id, entry.producer_epoch)
        if self._ends and self._ends[-1] == entry.sequence and (self._producers[-1], self._epochs[-1]) == producer:
            self._ends[-1] = end
            return
        self._firsts.append(entry.sequence)
        self._ends.append(end)
        self._producers.append(entry.producer_id)
        self._epochs.append(entry.producer_epoch)

    def drop_before(self, sequence: int) -> None:
        """Forget records before a sequence."""
        count = bisect_right(self._ends, sequence)
        del self._firsts[:count], self._ends[:count], self._producers[:count], self._epochs[:count]

    def split(self, first_sequence: int, end_sequence: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield the runs in a range: first sequence, end, producer id, epoch. These are -1 outside transactions."""
        number = bisect_right(self._ends, first_sequence)
        while first_sequence < end_sequence:
            if number == len(self._firsts) or self._firsts[number] >= end_sequence:
                yield first_sequence, end_sequence, -1, -1
                return
            if self._firsts[number] > first_sequence:
                yield first_sequence, self._firsts[number], -1, -1
                first_sequence = self._firsts[number]
            end = min(self._ends[number], end_sequence)
            yield first_sequence, end, self._producers[number], self._epochs[number]
            first_sequence = end
            number += 1

    def entries(self) -> list[BatchEntry]:
        """Return entries from which `add` restores this. They say nothing of the producers' own numbers."""
        columns = zip(self._firsts, self._ends, self._producers, self._epochs, strict=True)
        return [
            BatchEntry(first, end - first, producer, epoch, NO_SEQUENCE, TRANSACTIONAL, 0)
            for first, end, producer, epoch in columns
        ]
