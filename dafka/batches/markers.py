"""The control batches that end transactions in logs.

Such a batch has one record. Its key is a version (16 bits, 0) and a type (16 bits: 0 abort, 1 commit). Its value is a
version (16 bits, 0) and the epoch of the coordinator (32 bits).
"""

from __future__ import annotations

import struct

from dafka.batches.encoding import encode_batch

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1


def encode_marker(
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    *,
    is_commit: bool,
    base_offset: int = 0,
    coordinator_epoch: int = 0,
) -> bytes:
    """Return the control batch that ends a transaction in a log.

    Args:
        producer_id: The producer.
        producer_epoch: The epoch of the producer.
        timestamp_ms: The time.
        is_commit: Whether the transaction is committed; otherwise it is aborted.
        base_offset: The offset of the batch in the log.
        coordinator_epoch: The epoch of the transaction's coordinator.

    Returns:
        A record batch.
    """
    return encode_batch(
        base_offset,
        [_VALUE.pack(0, coordinator_epoch)],
        keys=[_KEY.pack(0, _COMMIT if is_commit else _ABORT)],
        timestamps=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )
