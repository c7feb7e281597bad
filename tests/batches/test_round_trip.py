"""What is encoded is decoded to the same records, whatever they are."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dafka.batches import (
    Compression,
    batch_bytes_max,
    check_crc,
    decode_batch,
    decode_records,
    encode_batch,
    encode_marker,
    encode_records,
    encoding,
)
from dafka.batches import records as batch_records
from dafka.batches.header import read_header
from dafka.errors import EncodingError
from dafka.records import Partition, RecordBatch, join
from tests.batches.samples import BYTES_MAX, COMPRESSIONS, RECORDS, TIME, Records


def test_more_records_than_one_batch_may_have_are_encoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_records, "PART_BYTES_MAX", 20)
    monkeypatch.setattr(encoding, "BATCH_BYTES_LIMIT", 40)
    values = [b"%05d" % number for number in range(50)]
    batch = RecordBatch(Partition("t", "A"), 7, values, keys=[b"k"] * 50, timestamps=list(range(50)))
    encoded = encode_records(batch, bytes_max=1000)
    assert [read_header(data).base_offset for data in encoded] == [*range(7, 57, 3)]
    assert list(join([decode_records(batch.partition, data, bytes_max=BYTES_MAX) for data in encoded])) == list(batch)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(records=RECORDS, compression=st.sampled_from(COMPRESSIONS))
def test_any_records_come_back(records: Records, compression: Compression) -> None:
    batch = records.encode(2**40, compression=compression)
    check_crc(batch)
    decoded = decode_batch(batch, bytes_max=BYTES_MAX)
    records.expect(decoded)
    spare = batch_bytes_max(records.values, keys=records.keys, headers=records.headers) - len(records.encode(2**40))
    assert 0 <= spare <= 30 * len(records.values)
    again = encode_batch(
        2**40,
        decoded.values,
        keys=decoded.keys,
        headers=decoded.headers,
        timestamps=decoded.timestamps,
        compression=compression,
    )
    assert again == batch


IMPOSSIBLE: list[tuple[dict[str, object], str]] = [
    ({"values": []}, "values"),
    ({"values": ["text"]}, "values and keys"),
    ({"values": [7]}, "values and keys"),
    ({"values": [bytearray(7)]}, "values and keys"),
    ({"keys": [b"k", b"l"]}, "keys"),
    ({"keys": ["k"]}, "values and keys"),
    ({"headers": []}, "headers"),
    ({"headers": [((b"name", b""),)]}, "header name"),
    ({"headers": [(("\ud800", b""),)]}, "header name"),
    ({"headers": [(("name", "text"),)]}, "header value"),
    ({"timestamps": []}, "timestamps"),
    ({"timestamps": 2**63}, "timestamps"),
    ({"timestamps": ["now"]}, "timestamps"),
    ({"values": [b"a", b"b"], "timestamps": [-(2**63), 2**63 - 1]}, "timestamps"),
    ({"base_offset": -1}, "base offset"),
    ({"base_offset": 2**63 - 1}, "base offset"),
    ({"values": [bytes(2**28)] * 5, "timestamps": 0}, "batch"),
]


def test_what_a_batch_cannot_contain_is_refused() -> None:
    for arguments, field in IMPOSSIBLE:
        given: dict[str, object] = {"base_offset": 0, "values": [b"v"], "timestamps": TIME, **arguments}
        with pytest.raises(EncodingError) as caught:
            encode_batch(**given)  # type: ignore[arg-type]
        assert caught.value.field == field


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
