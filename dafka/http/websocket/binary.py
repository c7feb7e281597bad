"""The binary messages of the subprotocol `dafka.binary.v1`: a fixed header and unchanged record batches."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs

from dafka.broker.core.groups.share.share_partition import AcquiredRange
from dafka.http.server.errors import WebError
from dafka.http.websocket.messages import ID_MAX, RefusedMessageError

PUBLISH = 1
RECORDS = 2
DELIVERIES = 3

_PUBLISH = struct.Struct(">BBHiq")
_RECORDS = struct.Struct(">BBHiqqq")
_DELIVERIES = struct.Struct(">BBHiqi")
_RANGE = struct.Struct(">qqi")

PUBLISH_HEAD_BYTES = _PUBLISH.size
"""The size of the header of `publish`, without the topic."""

RECORDS_HEAD_BYTES = _RECORDS.size
"""The size of the header of `records`."""


@attrs.frozen
class BinaryPublish:
    """Record batches to publish."""

    id: int
    topic: str
    log: int
    batches: memoryview


@attrs.frozen
class BinaryRecords:
    """Whole record batches of a subscription from an offset up to the next message's."""

    id: int
    log: int
    offset: int
    next_offset: int
    batches: memoryview


@attrs.frozen
class BinaryDeliveries:
    """Whole record batches of a queue, and which of their records are locked."""

    id: int
    log: int
    ranges: Sequence[AcquiredRange]
    batches: memoryview

    @property
    def offset(self) -> int:
        """The first offset that is locked."""
        return self.ranges[0].first

    @property
    def next_offset(self) -> int:
        """The offset after the last one that is locked."""
        return self.ranges[-1].end


def decode_publish(data: bytes) -> BinaryPublish:
    """Decode a `publish` that a client has sent as a binary message. Raises `RefusedMessageError`."""
    if len(data) < PUBLISH_HEAD_BYTES:
        raise _refuse(None, f"expected a header of {PUBLISH_HEAD_BYTES} bytes, not {len(data)}")
    kind, _, topic_bytes, log, identifier = _PUBLISH.unpack_from(data)
    if not 0 <= identifier <= ID_MAX:
        raise _refuse(None, "id: expected a whole number from 0 to 2^53 - 1")
    if kind != PUBLISH:
        raise _refuse(identifier, f"expected a message of the type {PUBLISH} (publish), not {kind}")
    end = PUBLISH_HEAD_BYTES + topic_bytes
    try:
        topic = data[PUBLISH_HEAD_BYTES:end].decode()
    except UnicodeDecodeError:
        raise _refuse(identifier, "topic: expected UTF-8") from None
    if not topic or end > len(data):
        raise _refuse(identifier, "topic: expected a name of the length that the header says")
    if log < 0:
        raise _refuse(identifier, f"log: expected the number of a log, not {log}")
    return BinaryPublish(identifier, topic, log, memoryview(data)[end:])


def encode_publish(identifier: int, topic: str, log: int, batches: bytes) -> bytes:
    """Encode a `publish` as a client sends it."""
    name = topic.encode()
    return _PUBLISH.pack(PUBLISH, 0, len(name), log, identifier) + name + batches


def encode_records_head(identifier: int, log: int, offset: int, next_offset: int) -> bytes:
    """Encode the header of `records`. Record batches follow it."""
    return _RECORDS.pack(RECORDS, 0, 0, log, identifier, offset, next_offset)


def decode_records(data: bytes) -> BinaryRecords:
    """Decode `records` that a broker has sent as a binary message. Raises `ValueError` if malformed."""
    if len(data) < RECORDS_HEAD_BYTES:
        raise ValueError(f"expected a header of {RECORDS_HEAD_BYTES} bytes, not {len(data)}")
    kind, _, _, log, identifier, offset, next_offset = _RECORDS.unpack_from(data)
    if kind != RECORDS:
        raise ValueError(f"expected a message of the type {RECORDS} (records), not {kind}")
    return BinaryRecords(identifier, log, offset, next_offset, memoryview(data)[RECORDS_HEAD_BYTES:])


def encode_deliveries_head(identifier: int, log: int, ranges: Sequence[AcquiredRange]) -> bytes:
    """Encode the header of `deliveries`. Record batches follow it."""
    head = _DELIVERIES.pack(DELIVERIES, 0, 0, log, identifier, len(ranges))
    return head + b"".join(_RANGE.pack(first, end - 1, count) for first, end, count in ranges)


def decode_deliveries(data: bytes) -> BinaryDeliveries:
    """Decode `deliveries` that a broker has sent as a binary message. Raises `ValueError` if malformed."""
    try:
        kind, _, _, log, identifier, count = _DELIVERIES.unpack_from(data)
        start, end = _DELIVERIES.size, _DELIVERIES.size + _RANGE.size * count
        ranges = [AcquiredRange(first, last + 1, times) for first, last, times in _RANGE.iter_unpack(data[start:end])]
    except struct.error as error:
        raise ValueError(str(error)) from None
    if kind != DELIVERIES or count < 1 or len(ranges) != count:
        raise ValueError(f"expected a message of the type {DELIVERIES} (deliveries) with ranges")
    return BinaryDeliveries(identifier, log, ranges, memoryview(data)[end:])


def _refuse(identifier: int | None, message: str) -> RefusedMessageError:
    return RefusedMessageError(identifier, WebError("bad_request", f"binary publish: {message}"))
