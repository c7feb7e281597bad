"""A log that remembers its producers, and the index from which it restores them."""

from __future__ import annotations

import attrs

from dafka.batches import BatchHeader, Compression, TimestampType
from dafka.broker.core.log.entries import TRANSACTIONAL, BatchEntry, MarkerEntry
from dafka.broker.core.log.producer_batches import ProducerBatches
from dafka.broker.core.log.producer_state import Marker, ProducerStates, ProducerStateSettings
from dafka.broker.core.positions import Offset, Position, ProducerSequence, RecordSequence


def make_header(
    base_offset: int,
    count: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    *,
    is_transactional: bool = False,
    is_control: bool = False,
) -> BatchHeader:
    return BatchHeader(
        base_offset,
        100,
        -1,
        0,
        Compression.NONE,
        TimestampType.CREATE_TIME,
        is_transactional,
        is_control,
        count - 1,
        0,
        0,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )


@attrs.frozen
class Entry:
    """A batch in a log."""

    header: BatchHeader
    marker: Marker | None
    appended_at_ms: int
    first_position: Position | None = None


class Log:
    """A log with the batches and markers of its producers."""

    def __init__(self, settings: ProducerStateSettings) -> None:
        self.settings = settings
        self.entries: list[Entry] = []
        self.batches = ProducerBatches()
        self.producers = ProducerStates(settings)

    @property
    def end_offset(self) -> int:
        return self.entries[-1].header.end_offset if self.entries else 0

    def append(self, header: BatchHeader, now_ms: int) -> int:
        header = attrs.evolve(header, base_offset=self.end_offset)
        self.producers.add_batch(header, RecordSequence(header.base_offset), now_ms)
        self._put(Entry(header, None, now_ms))
        return header.base_offset

    def append_marker(self, marker: Marker, now_ms: int) -> None:
        first_position = self.producers.open_transactions.get(marker.producer_id)
        self.producers.add_marker(marker, now_ms)
        header = make_header(self.end_offset, 1, *marker[:2], -1, is_transactional=True, is_control=True)
        self._put(Entry(header, marker, now_ms, first_position))

    def _put(self, entry: Entry) -> None:
        self.entries.append(entry)
        found = index_entry(entry)
        if isinstance(found, MarkerEntry):
            self.batches.end_transaction(found)
        elif found.producer_id >= 0:
            self.batches.add(found)

    def restart(self) -> None:
        """Restore the producers from a rewritten index: from what is kept of their batches, and from all markers."""
        markers = [entry for entry in map(index_entry, self.entries) if isinstance(entry, MarkerEntry)]
        kept: list[BatchEntry | MarkerEntry] = [*self.batches.entries(), *markers]
        self.producers = ProducerStates(self.settings)
        for entry in sorted(kept, key=lambda entry: entry[0]):
            self.producers.restore(entry)


def index_entry(entry: Entry) -> BatchEntry | MarkerEntry:
    header, marker, at = entry.header, entry.marker, entry.appended_at_ms
    offset = header.base_offset
    if marker is not None:
        producer, next_sequence = marker[:2], RecordSequence(offset + 1)
        return MarkerEntry(Offset(offset), next_sequence, *producer, marker.is_commit, at, entry.first_position)
    flags, base_sequence = TRANSACTIONAL * header.is_transactional, ProducerSequence(header.base_sequence)
    producer = header.producer_id, header.producer_epoch
    return BatchEntry(RecordSequence(offset), header.count, *producer, base_sequence, flags, at)
