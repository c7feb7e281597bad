"""What the logs of a broker know of producers with an id."""

from __future__ import annotations

import attrs

from dafka.batches import BatchHeader, Compression, TimestampType
from dafka.broker.core.log.entries import TRANSACTIONAL, BatchEntry, IndexRewriteEntry, MarkerEntry, ProducerEntry
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.producer_state import LogProducers, Marker, ProducerStateSettings

_BATCH = BatchHeader(0, 0, 0, 0, Compression.NONE, TimestampType.CREATE_TIME, False, False, 0, 0, 0, -1, -1, -1, 0)
"""The header of a batch of which only the producer is known."""


class ProducerTable:
    """What each log knows of its producers. Offsets in it are positions: see `Log.find_offset`."""

    def __init__(self, settings: ProducerStateSettings) -> None:
        self._settings = settings
        self._producers: dict[Log, LogProducers] = {}

    def of(self, log: Log) -> LogProducers:
        """Return what a log knows of its producers."""
        found = self._producers.get(log)
        if found is None:
            found = LogProducers(self._settings)
            if not log.is_gone:  # a request for it may still be under way
                self._producers[log] = found
        return found

    def forget(self, log: Log) -> None:
        """Forget a log that is deleted."""
        self._producers.pop(log, None)

    def items(self) -> list[tuple[Log, LogProducers]]:
        """Return all logs that know any producers."""
        return list(self._producers.items())

    def expire(self, time_ms: int) -> None:
        """Forget producers that have sent nothing for a day."""
        for producers in self._producers.values():
            producers.expire(time_ms)

    def restore(self, log: Log, entry: ProducerEntry) -> None:
        """Note what a producer has done, as it was found in the index of a log."""
        if isinstance(entry, IndexRewriteEntry):
            self.forget(log)
            return
        if isinstance(entry, MarkerEntry):
            marker = Marker(entry.producer_id, entry.producer_epoch, bool(entry.is_commit))
            self.of(log).add_marker(marker, entry.timestamp_ms)
            return
        self.of(log).add_batch(_header_of(entry), entry.timestamp_ms)

    def admit(self, log: Log, entry: BatchEntry) -> bool:
        """Record a divergent batch of a log, and return whether the log does not have it yet."""
        producers = self.of(log)
        header = attrs.evolve(_header_of(entry), is_transactional=False)
        if producers.has_appended(header):
            return False
        producers.add_batch(header, entry.timestamp_ms, has_offset=False)
        return True


def _header_of(entry: BatchEntry) -> BatchHeader:
    assert entry.base_sequence is not None
    return attrs.evolve(
        _BATCH,
        base_offset=entry.sequence,
        count=entry.record_count,
        last_offset_delta=entry.record_count - 1,
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        base_sequence=entry.base_sequence,
        is_transactional=bool(entry.flags & TRANSACTIONAL),
    )
