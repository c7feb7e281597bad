"""Makes entries of indexes from plain numbers."""

from dafka.broker.core.log.entries import BatchEntry, MarkerEntry, RunEntry
from dafka.broker.core.positions import Offset, ProducerSequence, RecordSequence
from dafka.broker.core.replication.records import EpochEnd, LeaderAndEpoch


def run_entry(offset: int, address: str, first_sequence: int, record_count: int) -> RunEntry:
    return RunEntry(Offset(offset), address, RecordSequence(first_sequence), record_count)


def batch_entry(
    sequence: int,
    record_count: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    flags: int,
    timestamp_ms: int,
) -> BatchEntry:
    producer = producer_id, producer_epoch, ProducerSequence(base_sequence)
    return BatchEntry(RecordSequence(sequence), record_count, *producer, flags, timestamp_ms)


def marker_entry(
    offset: int,
    sequence: int,
    producer_id: int,
    producer_epoch: int,
    is_commit: int,
    timestamp_ms: int,
    first_sequence: int | None,
) -> MarkerEntry:
    producer = producer_id, producer_epoch
    first = None if first_sequence is None else RecordSequence(first_sequence)
    return MarkerEntry(Offset(offset), RecordSequence(sequence), *producer, is_commit, timestamp_ms, first)


def epoch_end(leader_epoch: LeaderAndEpoch, end_offset: int) -> EpochEnd:
    return EpochEnd(leader_epoch, Offset(end_offset))
