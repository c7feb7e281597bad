"""The producers of one log, and the batches that they have appended, to recognize duplicates.

A producer numbers its records in each log with sequences, from 0 in each of its epochs. After 2^31 - 1 it continues at
0. A batch is accepted if it follows the previous one. A batch that arrives again, because the producer has lost the
response, gets the same response again, if it is one of the last five.

If a log has several replicas, a batch can reach a new leader before earlier ones. The producer is asked to send it
again. With the availability "branch", the earlier ones can be on the other side of a network partition. If they do not
come, the batch is accepted without them (`ProducerStates.is_lasting_gap`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from operator import itemgetter
from typing import NamedTuple

import attrs

from dafka.batches import BatchHeader
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.entries import TRANSACTIONAL, BatchEntry, MarkerEntry
from dafka.broker.core.log.producer_batches import BATCHES_REMEMBERED, PRODUCER_EXPIRY_MS
from dafka.broker.core.log.sequence_ranges import SEQUENCES, SequenceRanges
from dafka.broker.core.positions import Position, ProducerSequence, RecordSequence

FORMER_EPOCHS_MAX = 8
"""The number of earlier epochs of a producer whose sequences are remembered, to merge divergent leader epochs."""

GAP_WAIT_MS = 1000
"""How long a producer must retry a batch whose predecessors are missing. They come in this time if the producer sends
them again, or if they are on the other side of a network partition that has ended."""


class Marker(NamedTuple):
    """The end of a transaction in a log, as Kafka's control batches have it."""

    producer_id: int
    producer_epoch: int
    is_commit: bool


class Producer(NamedTuple):
    """A producer as requests name it."""

    producer_id: int
    producer_epoch: int


@attrs.frozen(kw_only=True)
class ProducerStateSettings:
    """The limits on the producers that a log remembers."""

    producer_id_expiration_ms: int = PRODUCER_EXPIRY_MS
    producers_max: int = 100_000  # above it, the longest inactive ones are forgotten; Kafka has no such limit


@attrs.frozen
class AppendedBatch:
    """A batch in a log."""

    base_sequence: ProducerSequence
    count: int
    position: Position | None  # None if it came from a divergent epoch and has no offset in this log yet
    timestamp_ms: int

    @classmethod
    def from_entry(cls, entry: BatchEntry, position: Position | None) -> AppendedBatch:
        """Return a batch that was found in an index."""
        assert entry.base_sequence is not None
        return cls(entry.base_sequence, entry.record_count, position, entry.timestamp_ms)


@attrs.frozen
class BatchCheck:
    """The decision whether to append a batch.

    The error is NONE if it must be appended, or was appended before: then the response has the offset of the duplicate.
    """

    error_code: ErrorCode
    duplicate_of: AppendedBatch | None = None


@attrs.frozen
class Gap:
    """The records before a record of a producer, which it has probably sent to another leader."""

    producer_epoch: int
    base_sequence: ProducerSequence
    noticed_ms: int


@attrs.define
class ProducerState:
    """The state of a producer in a log. `appended` and `batches` belong to its latest epoch."""

    producer_epoch: int
    last_timestamp_ms: int
    last_sequence: ProducerSequence | None = None  # -1 if 0 comes next, None if any sequence can come next
    appended: SequenceRanges = attrs.field(factory=SequenceRanges)
    batches: deque[AppendedBatch] = attrs.field(factory=lambda: deque(maxlen=BATCHES_REMEMBERED))
    gap: Gap | None = None  # the gap before the batch that it currently sends
    former: tuple[tuple[int, SequenceRanges], ...] = ()  # the latest earlier epochs, and their known sequences

    def find_duplicate(self, base_sequence: ProducerSequence, count: int) -> AppendedBatch | None:
        """Return the remembered batch with these sequences."""
        for batch in self.batches:
            if batch.base_sequence == base_sequence and batch.count == count:
                return batch
        return None

    def is_next(self, base_sequence: ProducerSequence) -> bool:
        """Return whether a batch of this epoch follows the last one."""
        return self.last_sequence is None or base_sequence == (self.last_sequence + 1) % SEQUENCES

    def is_older(self, base_sequence: ProducerSequence, count: int) -> bool:
        """Return whether a batch was appended before, but its offset is not remembered."""
        if not self.appended.covers(base_sequence, count):
            return False
        first = self.appended.ordinal_of(base_sequence)
        remembered = ((self.appended.ordinal_of(each.base_sequence), each.count) for each in self.batches)
        return not any(each < first + count and first < each + length for each, length in remembered)

    def check_epoch(self, header: BatchHeader) -> ErrorCode:
        """Return the error of a batch of another epoch, or NONE. A later epoch begins with sequence 0."""
        if header.producer_epoch < self.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if header.base_sequence else ErrorCode.NONE

    def check_sequence(self, base_sequence: ProducerSequence, count: int) -> ErrorCode:
        """Return the error of a batch of this epoch that is not a remembered one, or NONE."""
        if self.is_next(base_sequence):
            return ErrorCode.NONE
        is_older = self.is_older(base_sequence, count)
        return ErrorCode.DUPLICATE_SEQUENCE_NUMBER if is_older else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def enter_epoch(self, producer_epoch: int) -> None:
        """Enter an epoch, in which sequences start again."""
        self._add_former(self.producer_epoch, self.appended)
        self.producer_epoch = producer_epoch
        self.last_sequence = ProducerSequence(-1)
        self.appended = SequenceRanges()
        self.batches.clear()

    def has_appended(self, producer_epoch: int, batch: AppendedBatch) -> bool:
        """Return whether a batch of this epoch or of an earlier one is known to be in the log."""
        appended = dict([*self.former, (self.producer_epoch, self.appended)]).get(producer_epoch)
        return appended is not None and appended.covers(batch.base_sequence, batch.count)

    def add_batch(self, batch: AppendedBatch) -> None:
        """Add an appended batch of this epoch."""
        self.gap = None
        self.last_timestamp_ms = batch.timestamp_ms
        if self.appended.add(batch.base_sequence, batch.count):
            self.batches.append(batch)
            self.last_sequence = ProducerSequence((batch.base_sequence + batch.count - 1) % SEQUENCES)

    def add_earlier_batch(self, producer_epoch: int, batch: AppendedBatch) -> None:
        """Add a batch of an earlier epoch, which was appended to a divergent leader epoch."""
        appended = dict(self.former).get(producer_epoch)
        if appended is None:
            self._add_former(producer_epoch, appended := SequenceRanges())
        appended.add(batch.base_sequence, batch.count)

    def _add_former(self, producer_epoch: int, appended: SequenceRanges) -> None:
        former = [*self.former, (producer_epoch, appended)]
        self.former = tuple(sorted(former, key=itemgetter(0))[-FORMER_EPOCHS_MAX:])


class ProducerStates:
    """The producers of one log, and their open transactions.

    The caller checks a batch, appends it to the log and adds it here in one step, so that the next batch is checked
    against it. The response to a duplicate of a batch that is not durable yet waits until it is.

    After a restart the caller adds again what it has stored: the last batches of each producer, the first batch of each
    open transaction, and all markers.
    """

    def __init__(self, settings: ProducerStateSettings | None = None) -> None:
        self._settings = settings or ProducerStateSettings()
        self._producers: dict[int, ProducerState] = {}
        self._open: dict[int, Position] = {}

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def producers(self) -> dict[int, ProducerState]:
        """The producers by id, the longest inactive ones first."""
        return self._producers

    @property
    def open_transactions(self) -> Mapping[int, Position]:
        """The position of the first record of each open transaction, by producer."""
        return self._open

    def check_batch(self, header: BatchHeader) -> BatchCheck:
        """Decide whether to append a batch of a client. Batches without a producer id are always appended."""
        error = _check_header(header)
        state = self._producers.get(header.producer_id)
        if error or state is None:
            return BatchCheck(error)
        if header.producer_epoch != state.producer_epoch:
            return BatchCheck(state.check_epoch(header))
        base_sequence = ProducerSequence(header.base_sequence)
        duplicate = state.find_duplicate(base_sequence, header.count)
        error = ErrorCode.NONE if duplicate is not None else state.check_sequence(base_sequence, header.count)
        if not error and not header.is_transactional and header.producer_id in self._open:
            error = ErrorCode.INVALID_TXN_STATE
        return BatchCheck(error, duplicate)

    def is_lasting_gap(self, header: BatchHeader, now_ms: int) -> bool:
        """Return whether the records before a batch are missing for good, after `check_batch` has found a gap.

        The producer resends the earliest batch that was not acknowledged. If that is this batch, all earlier ones were
        acknowledged on the other side of a network partition. Their records come when both sides meet. Otherwise the
        producer must retry.
        """
        state = self._producers[header.producer_id]
        gap, found = state.gap, Gap(header.producer_epoch, ProducerSequence(header.base_sequence), now_ms)
        if gap is None or gap.producer_epoch != found.producer_epoch:
            state.gap = found
            return False
        ahead = (found.base_sequence - gap.base_sequence) % SEQUENCES
        if ahead >= SEQUENCES // 2:  # an earlier one
            state.gap = found
        return not ahead and not 0 <= now_ms - gap.noticed_ms < GAP_WAIT_MS

    def add_batch(self, header: BatchHeader, sequence: RecordSequence, now_ms: int) -> None:
        """Add an appended batch, except control batches. `sequence` is that of its first record."""
        batch = AppendedBatch(ProducerSequence(header.base_sequence), header.count, sequence, now_ms)
        self._add(Producer(header.producer_id, header.producer_epoch), batch, is_transactional=header.is_transactional)

    def _add(self, producer: Producer, batch: AppendedBatch, *, is_transactional: bool) -> None:
        producer_id, epoch = producer
        known = self._producers.get(producer_id)
        if producer_id < 0:
            return
        if known is not None and epoch < known.producer_epoch:
            known.add_earlier_batch(epoch, batch)
            return
        self._enter_epoch(producer_id, epoch, batch.timestamp_ms).add_batch(batch)
        if is_transactional and batch.position is not None:
            self._open.setdefault(producer_id, batch.position)
        if len(self._producers) > self._settings.producers_max:
            self._forget_quietest()

    def add_marker(self, marker: Marker, now_ms: int) -> None:
        """Add a transaction marker that is appended, or that was found in the log and appended at about this time."""
        state = self._producers.get(marker.producer_id)
        if state is not None and marker.producer_epoch < state.producer_epoch:
            return
        self._enter_epoch(marker.producer_id, marker.producer_epoch, now_ms).last_timestamp_ms = now_ms
        self._open.pop(marker.producer_id, None)

    def restore(self, entry: BatchEntry | MarkerEntry) -> None:
        """Add a batch or a marker that was found in the index of the log."""
        if isinstance(entry, MarkerEntry):
            marker = Marker(entry.producer_id, entry.producer_epoch, bool(entry.is_commit))
            self.add_marker(marker, entry.timestamp_ms)
        else:
            batch = AppendedBatch.from_entry(entry, entry.position)
            producer = Producer(entry.producer_id, entry.producer_epoch)
            self._add(producer, batch, is_transactional=bool(entry.flags & TRANSACTIONAL))

    def admit_divergent(self, entry: BatchEntry) -> bool:
        """Add a batch of a divergent leader epoch. Return False if its producer has appended it to this log, too."""
        batch = AppendedBatch.from_entry(entry, None)
        producer = Producer(entry.producer_id, entry.producer_epoch)
        state = self._producers.get(entry.producer_id)
        if state is not None and state.has_appended(entry.producer_epoch, batch):
            return False
        self._add(producer, batch, is_transactional=False)
        return True

    def expire(self, now_ms: int) -> None:
        """Forget producers that have been inactive for too long. Their next batches can have any sequence."""
        until_ms = now_ms - self._settings.producer_id_expiration_ms
        for producer_id, state in list(self._producers.items()):
            if state.last_timestamp_ms > until_ms:
                break
            if producer_id not in self._open:
                del self._producers[producer_id]

    def _enter_epoch(self, producer_id: int, producer_epoch: int, now_ms: int) -> ProducerState:
        """Return the state of a producer, moved to the end, in this epoch."""
        state = self._producers.pop(producer_id, None) or ProducerState(producer_epoch, now_ms)
        if producer_epoch > state.producer_epoch:
            state.enter_epoch(producer_epoch)
        self._producers[producer_id] = state
        return state

    def _forget_quietest(self) -> None:
        for producer_id in self._producers:
            if producer_id not in self._open:
                del self._producers[producer_id]
                return


def _check_header(header: BatchHeader) -> ErrorCode:
    """Return the error of a client's batch that does not depend on earlier ones, or NONE."""
    if header.producer_id < 0:
        is_valid = not header.is_transactional
    else:
        is_valid = header.producer_epoch >= 0 and header.base_sequence >= 0
    return ErrorCode.NONE if is_valid and not header.is_control else ErrorCode.INVALID_RECORD
