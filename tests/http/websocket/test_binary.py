"""Binary messages: what is encoded is decoded again, and nothing else is."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import pytest

from dafka.broker.core.groups.share.share_partition import AcquiredRange
from dafka.http.websocket.binary import (
    BinaryDeliveries,
    BinaryPublish,
    BinaryRecords,
    decode_deliveries,
    decode_publish,
    decode_records,
    encode_deliveries_head,
    encode_publish,
    encode_records_head,
)
from dafka.http.websocket.messages import ID_MAX, RefusedMessageError
from tests.seeds import each_seed


@each_seed(50)
def test_each_message_is_decoded_as_it_was_encoded_and_a_part_or_another_kind_is_refused(seed: int) -> None:
    draw = Random(seed)
    identifier, log, batches = draw.choice([0, 7, ID_MAX]), draw.choice([0, 2**31 - 1]), draw.randbytes(seed % 3)
    offset, count, topic = draw.randrange(2**62), draw.randint(1, 4), draw.choice(["t", "törpics"])
    ranges = [
        AcquiredRange(first, first + draw.randint(1, 9), draw.randint(1, 5)) for first in range(0, count * 10, 10)
    ]
    heads = {
        1: encode_publish(identifier, topic, log, b""),
        2: encode_records_head(identifier, log, offset, offset + count),
        3: encode_deliveries_head(identifier, log, ranges),
    }
    decoders: dict[int, Any] = {1: decode_publish, 2: decode_records, 3: decode_deliveries}
    data = memoryview(batches)
    messages = [
        BinaryPublish(identifier, topic, log, data),
        BinaryRecords(identifier, log, offset, offset + count, data),
        BinaryDeliveries(identifier, log, ranges, data),
    ]
    for (kind, head), message in zip(heads.items(), messages, strict=True):
        decode = decoders[kind]
        assert decode(head + batches) == message
        for size in range(len(head)):
            with pytest.raises((ValueError, RefusedMessageError)):
                decode(head[:size])
        for other in (0, *(heads.keys() - {kind}), 4):
            with pytest.raises((ValueError, RefusedMessageError)):
                decode(bytes([other]) + head[1:])
    deliveries = messages[2]
    assert isinstance(deliveries, BinaryDeliveries)
    assert (deliveries.offset, deliveries.next_offset) == (ranges[0].first, ranges[-1].end)
    with pytest.raises(ValueError, match="with ranges"):
        decode_deliveries(encode_deliveries_head(identifier, log, []) + batches)


def test_the_layout_of_messages_is_that_of_the_documentation() -> None:
    """Clients in other languages rely on it."""
    assert encode_publish(9, "t", 3, b"x") == struct.pack(">BBHIQ", 1, 0, 1, 3, 9) + b"tx"
    assert encode_records_head(9, 3, 10, 12) == struct.pack(">BBHIQQQ", 2, 0, 0, 3, 9, 10, 12)
    ranges = [AcquiredRange(10, 12, 1), AcquiredRange(15, 16, 2)]
    assert encode_deliveries_head(9, 3, ranges) == struct.pack(
        ">BBHIQIQQIQQI", 3, 0, 0, 3, 9, 2, *(10, 11, 1), *(15, 15, 2)
    )
