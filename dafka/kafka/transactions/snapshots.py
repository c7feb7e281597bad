"""Snapshots of the producers and transactions of a log, so that a restart need not read the log from its start.

A snapshot is JSON text. It is valid for a log that has everything before its `end_offset`: if the log ends earlier
after a crash, the snapshot is not used. Write it when the log is durable up to there.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from dafka.errors import StorageFormatError
from dafka.kafka.transactions.log_producers import BATCHES_REMEMBERED, AppendedBatch, LogProducers, ProducerState
from dafka.kafka.transactions.log_transactions import AbortedTransaction
from dafka.kafka.transactions.settings import TransactionSettings

SNAPSHOT_VERSION = 1
"""The version of snapshots."""


def encode_snapshot(producers: LogProducers, end_offset: int) -> bytes:
    """Return a snapshot.

    Args:
        producers: The producers of a log, which have noted everything in it.
        end_offset: The offset after the log's last record.

    Returns:
        The snapshot.
    """
    transactions = producers.transactions
    fields = {
        "version": SNAPSHOT_VERSION,
        "end_offset": end_offset,
        "producers": [_encode_producer(producer_id, state) for producer_id, state in producers.producers.items()],
        "open_transactions": [
            {"producer_id": producer_id, "first_offset": first_offset}
            for producer_id, first_offset in transactions.open_transactions().items()
        ],
        "aborted_transactions": [each._asdict() for each in transactions.aborted()],
    }
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def decode_snapshot(data: bytes, settings: TransactionSettings) -> tuple[LogProducers, int]:
    """Return the producers that a snapshot describes, and its end offset.

    Args:
        data: The snapshot.
        settings: The limits.

    Returns:
        The producers, and the offset of the first batch to replay.

    Raises:
        StorageFormatError: The snapshot is malformed, or a newer version of dafka has written it. The log can be
            replayed from its start instead.
    """
    try:
        fields = json.loads(data)
        version = int(fields["version"])
        if version > SNAPSHOT_VERSION:
            raise StorageFormatError(
                f"snapshot of producers: expected a version up to {SNAPSHOT_VERSION}, not {version}, which a later "
                "version of dafka wrote"
            )
        producers = LogProducers(settings)
        for each in fields["producers"]:
            producers.restore_producer(int(each["producer_id"]), _decode_producer(each))
        producers.transactions.restore(
            {int(each["producer_id"]): int(each["first_offset"]) for each in fields["open_transactions"]},
            [AbortedTransaction(**each) for each in fields["aborted_transactions"]],
        )
        return producers, int(fields["end_offset"])
    except (KeyError, TypeError, ValueError) as error:
        raise StorageFormatError(f"snapshot of producers: malformed: {error!r}") from error


def _encode_producer(producer_id: int, state: ProducerState) -> dict[str, Any]:
    return {
        "producer_id": producer_id,
        "producer_epoch": state.producer_epoch,
        "last_timestamp_ms": state.last_timestamp_ms,
        "last_sequence": state.last_sequence,
        "known_count": state.known_count,
        "batches": [[each.base_sequence, each.count, each.base_offset, each.timestamp_ms] for each in state.batches],
    }


def _decode_producer(fields: dict[str, Any]) -> ProducerState:
    last_sequence = fields["last_sequence"]
    batches = (AppendedBatch(*(int(number) for number in each)) for each in fields["batches"])
    return ProducerState(
        int(fields["producer_epoch"]),
        int(fields["last_timestamp_ms"]),
        None if last_sequence is None else int(last_sequence),
        int(fields["known_count"]),
        deque(batches, maxlen=BATCHES_REMEMBERED),
    )
