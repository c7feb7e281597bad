from itertools import pairwise
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.errors import EncodingError
from dafka.records import (
    NO_TIMESTAMP,
    RECORD_MEMORY_BYTES,
    Partition,
    Record,
    RecordBatch,
    decode_text,
    encode_text,
    join,
    new_address,
    record_bytes,
)
from tests.seeds import each_seed

PARTITION = Partition("orders", "P1")


def batch(first_sequence: int, end_sequence: int) -> RecordBatch:
    contents = [b"%d" % sequence for sequence in range(first_sequence, end_sequence)]
    return RecordBatch(PARTITION, first_sequence, contents)


@given(st.binary(max_size=255))
def test_any_bytes_survive_decoding_and_encoding(data: bytes) -> None:
    assert encode_text(decode_text(data)) == data


@given(st.text(st.characters(codec=None), max_size=255))
def test_a_text_survives_encoding_and_decoding_or_is_rejected(text: str) -> None:
    try:
        data = encode_text(text)
    except EncodingError:
        assert len(text) > 63 or any("\ud800" <= character <= "\udfff" for character in text)
    else:
        assert decode_text(data) == text


NO_TEXTS: list[Any] = ["t" * 256, "ø" * 128, "\ud800", "a\udc7f", "\udcc3\udcb8", b"t", 1, None]


def test_a_text_that_cannot_be_encoded_is_rejected_by_its_field() -> None:
    for text in NO_TEXTS:
        with pytest.raises(EncodingError) as caught:
            encode_text(text, "subject")
        assert caught.value.field == "subject"


def test_addresses_are_32_upper_case_hexadecimal_digits_and_differ() -> None:
    addresses = {new_address() for _ in range(100)}
    assert len(addresses) == 100
    assert all(len(address) == 32 and set(address) <= set("0123456789ABCDEF") for address in addresses)


def test_partitions_differ_by_topic_and_address() -> None:
    assert Partition("t", "a") == Partition("t", "a")
    assert len({Partition("t", "a"), Partition("t", "b"), Partition("u", "a"), Partition("t", "a")}) == 3
    assert sorted([Partition("u", "a"), Partition("t", "b"), Partition("t", "a")])[0] == Partition("t", "a")
    assert str(PARTITION) == "orders/P1"


@pytest.mark.parametrize(("start", "end"), [(5, 8), (0, 8), (5, 99), (0, 99)])
def test_between_does_not_copy_a_whole_batch(start: int, end: int) -> None:
    whole = batch(5, 8)
    assert whole.between(start, end) is whole


def test_consecutive_batches_are_joined() -> None:
    partition = batch(5, 6).partition
    runs = [RecordBatch(partition, 5, [b"5", b"6"], stored_at=[1, 2]), RecordBatch(partition, 7, [b"7"], stored_at=[3])]
    assert join(runs) == RecordBatch(partition, 5, [b"5", b"6", b"7"], stored_at=[1, 2, 3])
    assert join(runs[:1]) is runs[0]
    untimed = [runs[0], RecordBatch(partition, 7, [b"7"])]
    assert join(untimed) == RecordBatch(partition, 5, [b"5", b"6", b"7"])
    columns = RecordBatch(partition, 7, [b"7"], keys=[b"k"], headers=[(("h", b"1"),)], timestamps=[8])
    missing: dict[str, Any] = {"keys": [None, None, b"k"], "headers": [(), (), (("h", b"1"),)]}
    assert join([runs[0], columns]) == RecordBatch(
        partition, 5, [b"5", b"6", b"7"], timestamps=[NO_TIMESTAMP] * 2 + [8], **missing
    )


class Rows:
    """Random records as a list, and the same records as one batch."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = Random(seed)
        self.partition = Partition("hello", "A")
        count = draw.randrange(1, 30)
        self.records = [self._record(5 + number) for number in range(count)]
        self.removed = bytes(draw.random() < 0.3 for _ in range(count)) if seed % 2 else bytes(count)
        whole = RecordBatch.from_records(self.partition, 5, self.records, 77)
        stored_at = [each.stored_at or 0 for each in self.records] if seed % 3 else None
        self.encoded = (b"12345", b"678") if seed % 5 else ()
        self.batch = attrs.evolve(whole, stored_at=stored_at, encoded=self.encoded).without(self.removed)
        if not seed % 3:
            self.records = [attrs.evolve(each, stored_at=None) for each in self.records]
        self.held = [each for each, gone in zip(self.records, self.removed, strict=True) if not gone]

    def _record(self, sequence: int) -> Record:
        draw = self.draw
        value, key = (None if draw.random() < 0.2 else draw.randbytes(draw.randrange(9)) for _ in range(2))
        headers = tuple((draw.choice("aø"), draw.choice((None, b"", b"12"))) for _ in range(draw.randrange(3)))
        return Record(self.partition, sequence, value, key, headers, draw.choice((77, 5, 0)), 1000 + sequence)


def size_of(record: Record) -> int:
    """Return the bytes of a record's value, key and headers."""
    contents = [record.value, record.key, *(part for name, value in record.headers for part in (name.encode(), value))]
    return len(b"".join(each for each in contents if each is not None))


@each_seed(40)
def test_a_batch_is_a_list_of_records_in_every_part(seed: int) -> None:
    rows = Rows(seed)
    batch, draw = rows.batch, rows.draw
    assert list(batch) == rows.held
    assert (len(batch), batch.held_count) == (len(rows.records), len(rows.held))
    assert batch.content_bytes == sum(map(size_of, rows.held))
    assert list(map(record_bytes, rows.held)) == list(map(size_of, rows.held))
    sizes = [0 if gone else size_of(each) for each, gone in zip(rows.records, rows.removed, strict=True)]
    assert list(batch.record_sizes()) == sizes
    assert batch.encoded == (() if 1 in rows.removed else rows.encoded), "they would have the removed records"
    assert batch.memory_bytes == sum(sizes) + RECORD_MEMORY_BYTES * len(batch) + sum(map(len, batch.encoded))
    assert batch.between(6, 99).encoded == ()
    assert (batch.compacted is not None) == (1 in rows.removed)
    first, end = draw.randrange(3, 37), draw.randrange(3, 37)
    assert list(batch.between(first, end)) == [each for each in rows.held if first <= each.sequence < end]
    assert [record for run in batch.held_runs() for record in run] == rows.held
    assert all(run.compacted is None for run in batch.held_runs())
    for bytes_max in (0, 1, 20, 10**6):
        parts = list(batch.parts(bytes_max))
        assert join(parts) == batch
        assert all(part.content_bytes <= bytes_max or len(part) == 1 for part in parts)
        assert all(
            sum(sizes[left.first_sequence - 5 : right.first_sequence - 4]) > bytes_max
            for left, right in pairwise(parts)
        ), "no part could have taken one more record"
        assert batch.within(bytes_max) == parts[0]
    cut = draw.randrange(5, batch.end_sequence + 1)
    halves = [part for part in (batch.between(0, cut), batch.between(cut, 99)) if len(part)]
    assert join(halves) == batch


@each_seed(10)
def test_removed_records_stay_removed(seed: int) -> None:
    rows = Rows(seed)
    again = bytes(rows.draw.random() < 0.3 for _ in rows.records)
    fewer = rows.batch.without(again)
    assert list(fewer) == [each for each, *gone in zip(rows.records, rows.removed, again, strict=True) if not any(gone)]
    assert rows.batch.without(bytes(len(rows.records))) is rows.batch
    assert list(RecordBatch.removed(rows.partition, 3, 9)) == []
    assert (RecordBatch.removed(rows.partition, 3, 9).end_sequence, fewer.encoded) == (9, ())


def test_a_batch_with_only_values_is_told_from_others() -> None:
    partition = Partition("t", "A")
    assert RecordBatch(partition, 0, [b"a"]).has_only_values
    assert not RecordBatch(partition, 0, [b"a", None]).has_only_values
    assert not RecordBatch(partition, 0, [b"a"], keys=[None]).has_only_values
    assert not RecordBatch(partition, 0, [b"a"], headers=[()]).has_only_values


def test_joined_records_keep_their_record_batches_if_all_have_some() -> None:
    partition = Partition("t", "A")
    with_batch = RecordBatch(partition, 0, [b"a"], encoded=(b"1", b"2"))
    assert join([with_batch, RecordBatch(partition, 1, [b"b"], encoded=(b"3",))]).encoded == (b"1", b"2", b"3")
    assert join([with_batch, RecordBatch(partition, 1, [b"b"])]).encoded == ()
