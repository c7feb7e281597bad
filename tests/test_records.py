import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.errors import EncodingError
from dafka.records import Partition, Record, RecordBatch, decode_text, encode_text, join, new_address

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


@pytest.mark.parametrize("text", ["t" * 256, "ø" * 128, "\ud800", "a\udc7f", "\udcc3\udcb8", b"t", 1, None])
def test_a_text_that_cannot_be_encoded_is_rejected_by_its_field(text: str) -> None:
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


def test_a_batch_yields_its_records_with_their_sequences() -> None:
    assert list(batch(9, 12)) == [Record(PARTITION, sequence, b"%d" % sequence) for sequence in (9, 10, 11)]
    assert [record.topic for record in batch(9, 11)] == ["orders", "orders"]


@pytest.mark.parametrize(("first", "end", "size"), [(0, 0, 0), (7, 7, 0), (0, 10, 10), (9, 12, 5)])
def test_a_batch_knows_its_end_and_its_size(first: int, end: int, size: int) -> None:
    assert len(batch(first, end)) == end - first
    assert batch(first, end).end_sequence == end
    assert batch(first, end).content_bytes == size


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 20), st.integers(0, 20))
def test_between_returns_the_records_between_and_no_others(first: int, count: int, start: int, end: int) -> None:
    whole = batch(first, first + count)
    part = whole.between(start, end)
    assert list(part) == [record for record in whole if start <= record.sequence < end]
    assert all(record.value == b"%d" % record.sequence for record in part)


@pytest.mark.parametrize(("start", "end"), [(5, 8), (0, 8), (5, 99), (0, 99)])
def test_between_does_not_copy_a_whole_batch(start: int, end: int) -> None:
    whole = batch(5, 8)
    assert whole.between(start, end) is whole


@pytest.mark.parametrize(("start", "end"), [(0, 5), (8, 99), (6, 6), (7, 6), (99, 0), (99, 100)])
def test_between_outside_a_batch_is_empty(start: int, end: int) -> None:
    part = batch(5, 8).between(start, end)
    assert not part
    assert part.end_sequence == part.first_sequence


@pytest.mark.parametrize(
    ("bytes_max", "count"), [(0, 1), (1, 1), (3, 1), (4, 2), (8, 2), (9, 3), (11, 3), (12, 4), (999, 4)]
)
def test_within_returns_at_least_one_record(bytes_max: int, count: int) -> None:
    whole = RecordBatch(batch(5, 6).partition, 5, [b"123", b"4", b"56789", b"012"], stored_at=[1, 2, 3, 4])
    part = whole.within(bytes_max)
    assert part == RecordBatch(whole.partition, 5, whole.values[:count], stored_at=[1, 2, 3, 4][:count])


def test_consecutive_batches_are_joined() -> None:
    partition = batch(5, 6).partition
    runs = [RecordBatch(partition, 5, [b"5", b"6"], stored_at=[1, 2]), RecordBatch(partition, 7, [b"7"], stored_at=[3])]
    assert join(runs) == RecordBatch(partition, 5, [b"5", b"6", b"7"], stored_at=[1, 2, 3])
    assert join(runs[:1]) is runs[0]
    untimed = [runs[0], RecordBatch(partition, 7, [b"7"])]
    assert join(untimed) == RecordBatch(partition, 5, [b"5", b"6", b"7"])
