"""The state of idempotent and transactional producers in the logs of a broker."""

from __future__ import annotations

import attrs

from dafka.batches import BatchHeader, Compression, TimestampType
from dafka.broker.core.log.entries import TRANSACTIONAL, BatchEntry, IndexRewriteEntry, MarkerEntry, ProducerEntry
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.producer_state import LogProducers, Marker, ProducerStateSettings

_BATCH = BatchHeader(0, 0, 0, 0, Compression.NONE, TimestampType.CREATE_TIME, False, False, 0, 0, 0, -1, -1, -1, 0)
"""The header of a batch of which only the producer data is known."""


class ProducerTable:
    """The producer state of each log. Its offsets are positions: see `Log.find_offset`."""

    def __init__(self, settings: ProducerStateSettings) -> None:
        self._settings = settings
        self._producers: dict[Log, LogProducers] = {}

    def of(self, log: Log) -> LogProducers:
        """Return the producer state of a log."""
        found = self._producers.get(log)
        if found is None:
            found = LogProducers(self._settings)
            if not log.is_gone:  # a request for a deleted log may still be in progress
                self._producers[log] = found
        return found

    def forget(self, log: Log) -> None:
        """Remove the producer state of a deleted log."""
        self._producers.pop(log, None)

    def items(self) -> list[tuple[Log, LogProducers]]:
        """Return all logs with producer state."""
        return list(self._producers.items())

    def expire(self, time_ms: int) -> None:
        """Remove producers that have sent nothing for a day."""
        for producers in self._producers.values():
            producers.expire(time_ms)

    def restore(self, log: Log, entry: ProducerEntry) -> None:
        """Restore the state of a producer from an index entry of a log."""
        if isinstance(entry, IndexRewriteEntry):
            self.forget(log)
            return
        if isinstance(entry, MarkerEntry):
            marker = Marker(entry.producer_id, entry.producer_epoch, bool(entry.is_commit))
            self.of(log).add_marker(marker, entry.timestamp_ms)
            return
        self.of(log).add_batch(_header_of(entry), entry.timestamp_ms)

    def admit(self, log: Log, entry: BatchEntry) -> bool:
        """Record a batch of another leader epoch of a log, and return whether the log did not have it."""
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
