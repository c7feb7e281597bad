"""Runs of records as batches and back, whole, in parts, moved and compacted, against lists of records."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest

from dafka.batches import (
    HEADER_BYTES,
    SPAN_MAX,
    Compression,
    TimestampType,
    check_crc,
    compression_of,
    decode_batch,
    decode_held,
    decode_records,
    decode_run,
    encode_batch,
    encode_records,
    move_records,
    read_header,
    slice_records,
)
from dafka.batches.compacted import decode_sparse, encode_rest
from dafka.batches.encoding import RECORD_OVERHEAD_BYTES_MAX, encode_part
from dafka.batches.message_sets import decode_message_set, encode_message_set
from dafka.errors import BatchError
from dafka.records import Partition, Record, RecordBatch, join
from tests.seeds import each_seed

HERE, THERE = Partition("orders", "A"), Partition("orders", "B")
FIRST = 100


def draw_records(draw: Random, count: int) -> RecordBatch:
    """Return random records: with and without keys, headers, times and tombstones."""

    def content() -> bytes | None:
        return None if draw.random() < 0.2 else draw.randbytes(draw.randrange(20))

    def headers() -> tuple[tuple[str, bytes | None], ...]:
        return tuple((draw.choice("abø"), content()) for _ in range(draw.randrange(3)))

    has_keys, has_headers, has_times = (draw.random() < 0.5 for _ in range(3))
    return RecordBatch(
        HERE,
        FIRST,
        [content() for _ in range(count)],
        keys=[content() for _ in range(count)] if has_keys else None,
        headers=[headers() for _ in range(count)] if has_headers else None,
        timestamps=[draw.randrange(10**6) for _ in range(count)] if has_times else None,
    )


def decoded(batches: tuple[bytes, ...], partition: Partition = HERE) -> list[Record]:
    for each in batches:
        check_crc(each, may_be_compacted=True)
    return [record for each in batches for record in decode_records(partition, each)]


@each_seed(40)
def test_records_come_back_from_batches_of_limited_size(seed: int) -> None:
    draw = Random(seed)
    records = draw_records(draw, draw.randrange(1, 60))
    kind, bytes_max = draw.choice(list(Compression)), draw.choice((1, 40, 200, 2**16))
    batches = encode_records(records, kind, bytes_max)
    assert decoded(batches) == list(records)
    sequence = FIRST
    for each in batches:
        header = read_header(each)
        assert header.base_offset == sequence
        sequence = header.end_offset
        part = records.between(header.base_offset, header.end_offset)
        assert len(part) == 1 or part.content_bytes <= bytes_max
        assert len(part) == 1 or len(part) * RECORD_OVERHEAD_BYTES_MAX <= bytes_max
        assert header.compression in (kind, Compression.NONE)
    assert compression_of(batches) is read_header(batches[0]).compression
    assert compression_of(()) is Compression.NONE
    kept = decode_records(HERE, batches[0])
    assert kept.encoded == batches[:1]
    assert encode_records(kept, Compression.ZSTD, 1) == batches[:1], "received batches are sent unchanged"
    plain = [(read_header(each), each) for each in batches]
    for is_kept in (True, False):
        run = decode_run(HERE, plain, is_kept=is_kept, stored_at=[7] * len(records))
        assert [record.value for record in run] == [record.value for record in records]
        assert [record.stored_at for record in run] == [7] * len(records)
        assert run.encoded == (batches if is_kept else ())


@each_seed(40)
def test_a_part_of_a_batch_has_its_records_and_its_other_fields(seed: int) -> None:
    draw = Random(seed)
    count = draw.randrange(1, 30)
    records = draw_records(draw, count)
    fields: dict[str, Any] = {
        "producer_id": 5,
        "producer_epoch": 2,
        "leader_epoch": 4,
        "is_transactional": draw.random() < 0.5,
        "timestamp_type": draw.choice(list(TimestampType)),
    }
    sequence = draw.choice((-1, 0, 2**31 - 3))
    kind = draw.choice(list(Compression))
    data = encode_batch(
        FIRST,
        records.values,
        keys=records.keys,
        headers=records.headers,
        timestamps=-1 if records.timestamps is None else records.timestamps,
        base_sequence=sequence,
        compression=kind,
        **fields,
    )
    whole = decode_records(HERE, data)
    first = draw.randrange(FIRST - 2, FIRST + count + 2)
    end = draw.randrange(first, FIRST + count + 3)
    part = slice_records(whole, first, end)
    expected = [record for record in whole if first <= record.sequence < end]
    assert list(part) == expected
    assert slice_records(records, first, end).encoded == ()
    if not expected:
        return
    assert decoded(part.encoded) == expected
    header = read_header(part.encoded[0])
    assert (header.base_offset, header.count) == (expected[0].sequence, len(expected))
    assert {name: getattr(header, name) for name in fields} == fields
    start = expected[0].sequence - FIRST
    assert header.base_sequence == (sequence if sequence < 0 else (sequence + start) % 2**31)
    assert encode_part(read_header(data), start, whole.between(first, end))[HEADER_BYTES:] == (
        part.encoded[0][HEADER_BYTES:] if len(expected) < count else encode_part(read_header(data), 0, whole)[61:]
    )


@each_seed(20)
def test_moved_records_have_another_place_and_the_same_contents(seed: int) -> None:
    draw = Random(seed)
    records = join([decode_records(HERE, each) for each in encode_records(draw_records(draw, 20), bytes_max=60)])
    moved = move_records(records, THERE, 7)
    assert [(record.partition, record.sequence) for record in moved] == [(THERE, 7 + at) for at in range(20)]
    again = decoded(moved.encoded, THERE)
    assert again == list(moved)
    assert [record.value for record in again] == [record.value for record in records]


@each_seed(60)
def test_compacted_records_come_back_at_their_sequences(seed: int) -> None:
    draw = Random(seed)
    count = draw.choice((1, 5, 40))
    share = draw.choice((0.0, 0.3, 0.9, 1.0))
    removed = bytes(draw.random() < share for _ in range(count))
    records = draw_records(draw, count).without(removed)
    kind, bytes_max = draw.choice(list(Compression)), draw.choice((1, 60, 2**16))
    batches = encode_records(records, kind, bytes_max)
    headers = [read_header(each) for each in batches]
    assert [header.base_offset for header in headers] == [FIRST, *(header.end_offset for header in headers[:-1])]
    assert headers[-1].end_offset == FIRST + count, "together they span all sequences"
    assert sum(header.count for header in headers) == records.held_count
    for header in headers:
        times = [record.timestamp for record in records.between(header.base_offset, header.end_offset)]
        assert header.max_timestamp == max((-1 if time is None else time for time in times), default=-1)
    found = [record for each in batches for record in decode_records(HERE, each)]
    assert found == list(records)
    run = decode_run(HERE, list(zip(headers, batches, strict=True)))
    assert list(run) == list(records)
    assert run.encoded == batches
    stored = decode_run(HERE, list(zip(headers, batches, strict=True)), is_kept=False, stored_at=[*range(count)])
    assert [record.stored_at for record in stored] == [record.sequence - FIRST for record in records]
    assert stored.encoded == ()
    assert (run.first_sequence, run.end_sequence, run.held_count) == (FIRST, FIRST + count, records.held_count)
    held = [
        (offset + at, value)
        for header, each in zip(headers, batches, strict=True)
        if header.is_compacted
        for offset, columns in decode_held(header, each)
        for at, value in enumerate(columns.values)
    ]
    assert set(held) <= {(record.sequence, record.value) for record in records}
    first, end = sorted(draw.choices(range(FIRST, FIRST + count + 1), k=2))
    if len(batches) == 1:
        part = slice_records(run, first, end)
        assert list(part) == [record for record in records if first <= record.sequence < end]
        if len(part):
            assert [record for each in part.encoded for record in decode_records(HERE, each)] == list(part)


def test_a_compacted_batch_spans_a_limited_number_of_records() -> None:
    count = 2 * SPAN_MAX + 1
    records = RecordBatch(HERE, FIRST, [b""] * count).without(b"\0" + b"\1" * (count - 2) + b"\0")
    headers = [read_header(each) for each in encode_records(records)]
    spans = [(header.base_offset - FIRST, header.end_offset - FIRST, header.count) for header in headers]
    assert spans == [(0, SPAN_MAX, 1), (SPAN_MAX, 2 * SPAN_MAX, 0), (2 * SPAN_MAX, count, 1)]


def test_malformed_and_too_large_compacted_batches_are_refused() -> None:
    records = RecordBatch(HERE, FIRST, [b"a" * 50, b"b", b"c"], timestamps=[5, 6, 7]).without(b"\0\1\0")
    (data,) = encode_records(records)
    header = read_header(data)
    assert decode_sparse(header, data, 1000).compacted == b"\0\1\0"
    assert list(decode_sparse(header, data, 1000).columns.timestamps) == [5, -1, 7]
    with pytest.raises(BatchError, match="at most 20 bytes"):
        decode_sparse(header, data, 20)
    with pytest.raises(BatchError, match="a compacted batch"):
        decode_batch(data, bytes_max=1000)
    for position in range(HEADER_BYTES, len(data)):
        for value in (0, 1, 3, 0x7F, 0x80):
            changed = data[:position] + bytes((value,)) + data[position + 1 :]
            try:
                found = decode_sparse(header, changed, 1000)
            except BatchError:
                continue
            assert found.compacted.count(0) == header.count
    with pytest.raises(BatchError, match="1 bytes follow"):
        decode_sparse(header, data + b"\0", 1000)


def with_append_time(data: bytes) -> bytes:
    flags = bytearray(data)
    flags[22] |= 0x08
    return bytes(flags)


def test_a_broker_s_time_is_that_of_every_record_of_a_compacted_batch() -> None:
    records = RecordBatch(HERE, FIRST, [b"a", b"b", b"c"], timestamps=[5, 6, 7]).without(b"\0\1\0")
    data = with_append_time(*encode_records(records))
    assert list(decode_sparse(read_header(data), data, 1000).columns.timestamps) == [7, -1, 7]


@pytest.mark.parametrize("times", [[[5, 6], [7, 7], [9, 8, 8]], [[7], [7, 7]], [[5, 6]]])
@pytest.mark.parametrize("are_stored", list(itertools.product((False, True), repeat=3)))
def test_a_broker_s_time_counts_for_its_own_batch_only(are_stored: tuple[bool, ...], times: list[list[int]]) -> None:
    batches, expected, offset = [], [], FIRST
    for made, is_stored in zip(times, are_stored, strict=False):
        data = encode_batch(offset, [b"x"] * len(made), timestamps=made)
        batches.append(with_append_time(data) if is_stored else data)
        expected += [max(made)] * len(made) if is_stored else made
        offset += len(made)
    run = decode_run(HERE, [(read_header(each), each) for each in batches])
    assert [record.timestamp for record in run] == expected


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("seed", range(10))
def test_old_clients_get_the_records_that_compaction_left(seed: int, magic: int) -> None:
    draw = Random(seed)
    count = draw.randrange(2, 20)
    records = draw_records(draw, count).without(b"\0" + bytes(draw.random() < 0.5 for _ in range(count - 1)))
    (data,) = encode_records(records)
    found = decode_message_set(encode_message_set(data, magic), bytes_max=10_000)
    assert list(found.offsets) == [record.sequence for record in records]
    assert list(found.values) == [record.value for record in records]
    assert list(found.keys or [None] * len(found)) == [record.key for record in records]
    if magic:
        assert list(found.timestamps) == [-1 if each.timestamp is None else each.timestamp for each in records]
    whole = encode_batch(FIRST, [b"%d" % at for at in range(count)], timestamps=1)
    for batch, held in ((data, list(found.offsets)), (whole, range(FIRST, FIRST + count))):
        for first in (0, FIRST, FIRST + count // 2, FIRST + count):
            expected = [each for each in held if each >= first]
            rest = encode_message_set(batch, magic, first_offset=first)
            assert not rest if not expected else list(decode_message_set(rest, bytes_max=9999).offsets) == expected


@each_seed(20)
def test_the_rest_of_a_batch_after_compaction_has_its_producer_and_transaction(seed: int) -> None:
    draw = Random(seed)
    fields: dict[str, Any] = {"producer_id": 5, "producer_epoch": 2, "leader_epoch": 4, "is_transactional": True}
    kind, base = draw.choice(list(Compression)), draw.choice((-1, 0, 2**31 - 3))
    records = draw_records(draw, 9)
    data = encode_batch(
        FIRST,
        records.values,
        keys=records.keys,
        timestamps=[*range(9)],
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        compression=kind,
        base_sequence=base,
        **fields,
    )
    rest = decode_records(HERE, data).between(FIRST + seed % 9, FIRST + 9)
    rest = rest.without(bytes(draw.random() < 0.5 for _ in range(len(rest))))
    encoded = encode_rest(data, rest)
    header = read_header(encoded)
    assert list(decode_records(HERE, encoded)) == list(rest)
    assert {name: getattr(header, name) for name in fields} == fields
    assert (header.timestamp_type, header.base_offset) == (TimestampType.CREATE_TIME, rest.first_sequence)
    assert header.end_offset == rest.end_sequence
    assert header.base_sequence == (-1 if base < 0 else (base + seed % 9) % 2**31)
