"""The header of a batch at the bounds of every field, and the numbers of variable length at theirs."""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import pytest

from dafka.batches import (
    HEADER_BYTES,
    SPAN_MAX,
    BatchHeader,
    Compression,
    TimestampType,
    check_crc,
    encode_batch,
    iter_batches,
    read_header,
    scan_batches,
    with_base_offset,
)
from dafka.batches.compression import compress
from dafka.batches.encoding import PLAIN
from dafka.batches.header import OFFSET_MAX, join_batch, move_in_place, with_producer
from dafka.batches.varints import read_varint, write_natural, write_uvarint, write_varint
from dafka.errors import BatchError

RECORD = bytes((12, 0, 0, 0, 1, 1, 0))
FIELDS = {
    "leader_epoch": (-(2**31), -1, 0, 2**31 - 1),
    "base_timestamp": (-(2**63), -1, 0, 2**63 - 1),
    "max_timestamp": (-(2**63), -1, 0, 2**63 - 1),
    "producer_id": (-(2**63), -1, 0, 2**63 - 1),
    "producer_epoch": (-(2**15), -1, 0, 2**15 - 1),
    "base_sequence": (-(2**31), -1, 0, 2**31 - 1),
    "compression": tuple(Compression),
    "timestamp_type": tuple(TimestampType),
    "is_transactional": (False, True),
    "is_control": (False, True),
}


def make(**fields: Any) -> bytes:
    """Return a batch of one record with these fields of its header."""
    return join_batch(attrs.evolve(PLAIN, **{"count": 1, **fields}), RECORD)


def refusal(data: bytes) -> tuple[str, int | None]:
    with pytest.raises(BatchError) as caught:
        read_header(data)
    return caught.value.field, caught.value.offset


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_comes_back_at_its_bounds(name: str) -> None:
    for value in FIELDS[name]:
        field: dict[str, Any] = {name: value}
        header = read_header(make(**field))
        assert getattr(header, name) == value
        size, crc = header.size, header.crc
        assert attrs.evolve(header, size=0, crc=0) == attrs.evolve(PLAIN, count=1, **field)
        assert check_crc(make(**field)) == header
        assert (size, crc != 0) == (HEADER_BYTES + len(RECORD), True)


@pytest.mark.parametrize("delta", [0, 1, 5, SPAN_MAX - 1])
def test_offsets_end_at_the_largest(delta: int) -> None:
    last = OFFSET_MAX - delta - 1
    header = read_header(make(base_offset=last, last_offset_delta=delta))
    assert (header.base_offset, header.end_offset) == (last, OFFSET_MAX)
    for wrong in (last + 1, -1):
        assert refusal(make(base_offset=wrong, last_offset_delta=delta)) == ("base offset", 0)


@pytest.mark.parametrize(
    ("count", "delta", "field"),
    [
        (1, 0, ""),
        (1, 1, ""),
        (1, SPAN_MAX - 1, ""),
        (1, SPAN_MAX, "last offset delta"),
        (0, 0, ""),
        (0, SPAN_MAX - 1, ""),
        (0, -1, "count"),
        (2, 1, "count"),
        (-1, 0, "count"),
        (1, -1, "last offset delta"),
        (1, -(2**31), "last offset delta"),
    ],
)
def test_a_batch_spans_its_records_and_a_limited_number_of_removed_ones(count: int, delta: int, field: str) -> None:
    data = make(count=count, last_offset_delta=delta)
    if field:
        assert refusal(data) == (field, {"count": 57, "last offset delta": 23}[field])
        return
    header = read_header(data)
    assert (header.count, header.is_compacted) == (count, count != delta + 1)
    if header.is_compacted:
        with pytest.raises(BatchError, match="a compacted batch"):
            check_crc(data)
    assert check_crc(data, may_be_compacted=True) == header


def test_unknown_bits_of_the_attributes_and_other_versions_are_refused() -> None:
    data = make()
    for bits in range(2**16):
        if bits & 0x3F != bits or bits & 7 > 4:
            changed = data[:21] + bits.to_bytes(2, "big") + data[23:]
            if bits < 256 or bits & (bits - 1) == 0:
                assert refusal(changed) == ("attributes", 21)
    for magic in set(range(256)) - {2}:
        assert refusal(data[:16] + bytes((magic,)) + data[17:]) == ("magic", 16)


def test_a_header_needs_all_of_its_bytes_and_room_for_its_records() -> None:
    data = make()
    for size in range(HEADER_BYTES):
        assert refusal(data[:size]) == ("header", 0)
    for length, is_valid in ((HEADER_BYTES - 12 + 7, True), (HEADER_BYTES - 12 + 5, False), (-1, False)):
        changed = data[:8] + length.to_bytes(4, "big", signed=True) + data[12:]
        if is_valid:
            assert read_header(changed).size == length + 12
        else:
            assert refusal(changed) == ("length", 8)
    smallest = make(compression=Compression.GZIP)[:HEADER_BYTES]
    assert (
        read_header(smallest[:8] + (HEADER_BYTES - 12 + 6).to_bytes(4, "big") + smallest[12:]).size == HEADER_BYTES + 6
    )
    with pytest.raises(BatchError, match=f"at most {len(data) - 13}, not {len(data) - 12}"):
        check_crc(data[:-1])


def test_every_damage_that_the_crc_covers_is_refused() -> None:
    data = make(base_offset=9, leader_epoch=5)
    for position in range(17, len(data)):
        changed = data[:position] + bytes((data[position] ^ 0x01,)) + data[position + 1 :]
        with pytest.raises(BatchError):
            check_crc(changed, may_be_compacted=True)
    with pytest.raises(BatchError, match="crc at byte 17"):
        check_crc(b"log" + data[:-1] + b"!", 3)
    assert check_crc(b"log" + data + b"!", 3) == read_header(data)


def test_a_log_is_its_batches_and_ends_with_a_whole_one() -> None:
    log = b"".join(make(base_offset=number) for number in range(3))
    size = HEADER_BYTES + len(RECORD)
    found = scan_batches(log)
    assert [(position, header.base_offset) for position, header in found] == [(0, 0), (size, 1), (2 * size, 2)]
    assert list(iter_batches(log, size)) == found[1:]
    assert check_crc(log, size) == found[1][1]
    for cut in (1, size - 1):
        with pytest.raises(BatchError):
            scan_batches(log[:-cut])


@pytest.mark.parametrize("epoch", [None, -1, 0, 2**31 - 1])
def test_the_base_offset_and_the_epoch_are_changed_without_a_new_crc(epoch: int | None) -> None:
    data = make(leader_epoch=5)
    changed = with_base_offset(data, 2**40, leader_epoch=epoch)
    expected = attrs.evolve(read_header(data), base_offset=2**40, leader_epoch=5 if epoch is None else epoch)
    assert check_crc(changed) == expected
    assert changed[21:] == data[21:]


@pytest.mark.parametrize("difference", [-3, 0, 2**40])
def test_batches_of_a_log_are_moved_in_their_place(difference: int) -> None:
    batches = [make(base_offset=5 + number, compression=kind) for number, kind in enumerate(Compression)]
    log = bytearray(b"".join(batches))
    move_in_place(memoryview(log), difference, 9)
    expected = [with_base_offset(each, 5 + number + difference, leader_epoch=9) for number, each in enumerate(batches)]
    assert log == b"".join(expected)


def test_the_fields_of_a_producer_are_changed_with_a_new_crc() -> None:
    data = make(base_offset=9, compression=Compression.GZIP)
    header, changed = with_producer(read_header(data), data, 7, 3, 2**31 - 1)
    assert check_crc(changed) == header
    assert header == attrs.evolve(
        read_header(data), producer_id=7, producer_epoch=3, base_sequence=2**31 - 1, crc=header.crc
    )
    assert changed[HEADER_BYTES:] == data[HEADER_BYTES:]


@pytest.mark.parametrize("kind", [kind for kind in Compression if kind is not Compression.NONE])
def test_records_are_compressed_only_if_that_makes_them_smaller(kind: Compression) -> None:
    incompressible = bytes((number * 167 + number // 7) % 256 for number in range(60))
    sizes: set[int] = set()
    for count, length in itertools.product(range(60), range(52, 60)):
        value = bytes(count) + incompressible[:length]
        plain = encode_batch(0, [value], timestamps=1)[HEADER_BYTES:]
        compressed = compress(kind, plain)
        sizes.add(min(max(len(compressed) - len(plain), -1), 1))
        batch = encode_batch(0, [value], timestamps=1, compression=kind)
        header: BatchHeader = read_header(batch)
        expected = (kind, compressed) if len(compressed) < len(plain) else (Compression.NONE, plain)
        assert (header.compression, batch[HEADER_BYTES:]) == expected
    assert sizes == {-1, 0, 1}


BITS = (0, 1, 6, 7, 13, 14, 20, 21, 27, 28, 30, 31, 34, 35, 62, 63)


@pytest.mark.parametrize("bits", [32, 64])
def test_varints_come_back_up_to_their_bounds_and_not_beyond(bits: int) -> None:
    for power, sign, near in itertools.product(BITS, (1, -1), (-1, 0, 1)):
        number = sign * 2**power + near
        if -(2**63) <= number < 2**63:
            data = b"x" + write_varint(number) + b"y"
            if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
                assert read_varint(data, 1, len(data) - 1, "n", bits) == (number, len(data) - 1)
                assert number < 0 or write_natural(number) == write_varint(number)
            else:
                with pytest.raises(BatchError, match=f"n at byte 1: expected a number of {bits} bits"):
                    read_varint(data, 1, len(data) - 1, "n", bits)
            for end in range(1, len(data) - 1):
                if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
                    with pytest.raises(BatchError, match="a complete number"):
                        read_varint(data, 1, end, "n", bits)


@pytest.mark.parametrize(
    ("number", "data"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (2**14 - 1, "ff7f"),
        (2**14, "808001"),
        (2**31, "8080808008"),
    ],
)
def test_unsigned_varints_in_bytes(number: int, data: str) -> None:
    assert write_uvarint(number).hex() == data
