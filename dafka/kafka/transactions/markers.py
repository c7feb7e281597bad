"""The control batches that end transactions in logs.

Such a batch has one record. Its key is a version (16 bits, 0) and a type (16 bits: 0 abort, 1 commit). Its value is a
version (16 bits, 0) and the epoch of the coordinator (32 bits).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from dafka.batches import decode_batch, encode_batch
from dafka.errors import BatchError

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1
_MARKER_BYTES_MAX = 4096


class Marker(NamedTuple):
    """The end of a transaction in a log."""

    producer_id: int
    producer_epoch: int
    is_commit: bool


def encode_marker(marker: Marker, timestamp_ms: int, *, base_offset: int = 0, coordinator_epoch: int = 0) -> bytes:
    """Return the control batch that ends a transaction in a log.

    Args:
        marker: What it says.
        timestamp_ms: The time.
        base_offset: Its offset in the log.
        coordinator_epoch: Counts the coordinators of the transaction.

    Returns:
        A record batch.
    """
    return encode_batch(
        base_offset,
        [_VALUE.pack(0, coordinator_epoch)],
        keys=[_KEY.pack(0, _COMMIT if marker.is_commit else _ABORT)],
        timestamps=timestamp_ms,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def read_marker(batch: bytes | memoryview) -> Marker | None:
    """Return what a control batch says.

    Args:
        batch: A whole batch, whose header says that it is a control batch.

    Returns:
        The marker; None if the batch is of another kind, which readers skip.

    Raises:
        BatchError: The batch is malformed.
    """
    decoded = decode_batch(batch, bytes_max=_MARKER_BYTES_MAX)
    key = decoded.keys[0] if decoded.keys else None
    if key is None or len(key) < _KEY.size:
        raise BatchError("key", f"at least {_KEY.size} bytes in a control record")
    _, kind = _KEY.unpack_from(key)
    if kind not in {_ABORT, _COMMIT}:
        return None
    return Marker(decoded.header.producer_id, decoded.header.producer_epoch, kind == _COMMIT)
