"""The control batches that end transactions."""

from __future__ import annotations

import pytest

from dafka.batches import check_crc, decode_batch, encode_marker


@pytest.mark.parametrize(("is_commit", "key"), [(True, b"\0\0\0\1"), (False, b"\0\0\0\0")])
def test_marker_is_a_control_batch(is_commit: bool, key: bytes) -> None:
    batch = encode_marker(2**40, 7, 1_700_000_000_000, is_commit=is_commit, base_offset=12, coordinator_epoch=3)
    header = check_crc(batch)
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    assert (header.producer_id, header.producer_epoch) == (2**40, 7)
    assert (header.base_offset, header.count, header.max_timestamp) == (12, 1, 1_700_000_000_000)
    decoded = decode_batch(batch, bytes_max=100)
    assert list(decoded.keys or ()) == [key]
    assert list(decoded.values) == [b"\0\0\0\0\0\3"]
