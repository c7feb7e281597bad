"""What is encoded is decoded to the same records, whatever they are."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dafka.batches import (
    Compression,
    PackedHeaders,
    TimestampType,
    batch_bytes_max,
    check_crc,
    decode_batch,
    decode_records,
    encode_batch,
    encode_marker,
    encode_records,
    encoding,
    slice_records,
)
from dafka.batches import records as batch_records
from dafka.batches.header import read_header
from dafka.errors import EncodingError
from dafka.packed_bytes import PackedContents, Repeated
from dafka.records import Partition, RecordBatch, join
from tests.batches.samples import BYTES_MAX, COMPRESSIONS, RECORDS, SHAPES, TIME, Records


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_records_of_every_shape_come_back(name: str, compression: Compression) -> None:
    records = SHAPES[name]
    batch = records.encode(7, compression=compression)
    header = check_crc(batch)
    decoded = decode_batch(batch, bytes_max=BYTES_MAX)
    records.expect(decoded)
    assert decoded.header == header
    assert (header.base_offset, header.end_offset, header.size) == (7, 7 + len(records.values), len(batch))
    assert (header.base_timestamp, header.max_timestamp) == (records.times[0], max(records.times))
    assert header.compression in {compression, Compression.NONE}


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
    assert len(batch) <= batch_bytes_max(records.values, keys=records.keys, headers=records.headers)
    again = encode_batch(
        2**40,
        decoded.values,
        keys=decoded.keys,
        headers=decoded.headers,
        timestamps=decoded.timestamps,
        compression=compression,
    )
    assert again == batch


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records_that_compress_are_compressed(compression: Compression) -> None:
    batch = SHAPES["alike"].encode(compression=compression)
    assert check_crc(batch).compression is compression
    assert len(batch) < 200_000 or compression is Compression.NONE


def test_every_field_of_the_header_comes_back() -> None:
    batch = encode_batch(
        2**62,
        [b"v"],
        timestamps=TIME,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        leader_epoch=3,
        producer_id=2**40,
        producer_epoch=5,
        base_sequence=6,
        is_transactional=True,
        is_control=True,
    )
    header = check_crc(batch)
    assert (header.base_offset, header.leader_epoch, header.count) == (2**62, 3, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 5, 6)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.is_transactional
    assert header.is_control


def test_a_batch_that_a_broker_stamped_has_one_time() -> None:
    records = SHAPES["times"]
    decoded = decode_batch(records.encode(timestamp_type=TimestampType.LOG_APPEND_TIME), bytes_max=BYTES_MAX)
    assert decoded.timestamps == Repeated(max(records.times), len(records.values))


def test_columns_need_no_object_for_a_record() -> None:
    plain = decode_batch(SHAPES["packed"].encode(), bytes_max=BYTES_MAX)
    assert isinstance(plain.values, PackedContents)
    assert isinstance(plain.timestamps, Repeated)
    full = decode_batch(SHAPES["headers"].encode(), bytes_max=BYTES_MAX)
    assert isinstance(full.headers, PackedHeaders)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(("start", "end"), [(0, 500), (0, 1), (0, 100), (63, 65), (499, 500)])
def test_a_slice_is_a_batch_of_its_own(start: int, end: int, compression: Compression) -> None:
    records = SHAPES["everything"]
    batch = records.encode(1000, compression=compression, producer_id=8, producer_epoch=1, base_sequence=2**31 - 10)
    whole = decode_records(Partition("t", "A"), batch)
    (part,) = slice_records(whole, 1000 + start, 1000 + end).encoded
    header = check_crc(part)
    assert (header.base_offset, header.end_offset) == (1000 + start, 1000 + end)
    assert header.base_sequence == (2**31 - 10 + start) % 2**31
    assert (header.producer_id, header.producer_epoch) == (8, 1)
    assert records.keys is not None
    assert records.headers is not None
    expected = Records(
        records.values[start:end], records.times[start:end], records.keys[start:end], records.headers[start:end]
    )
    expected.expect(decode_batch(part, bytes_max=BYTES_MAX))


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
