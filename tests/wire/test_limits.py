"""The edges of the wire's limits, and the state that a decoder keeps from one message to the next."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dafka.errors import WireError
from dafka.records import Partition, RecordBatch
from dafka.wire import (
    Ack,
    BatchDecoder,
    BatchEncoder,
    ConsumerHello,
    Dialect,
    Message,
    Record,
    RecordRun,
    batch,
    codec,
    decode,
    encode,
)
from dafka.wire.batch import EncodedRun
from dafka.wire.primitives import FrameReader


def record(sequence: int, *, address: str = "P", dialect: Dialect = Dialect.RFC46) -> list[bytes]:
    return encode(Record(address, "t", sequence, b"%d" % sequence), dialect)


def run(first_sequence: int, count: int, *, address: str = "P") -> RecordRun:
    contents = [b"%d" % sequence for sequence in range(first_sequence, first_sequence + count)]
    return RecordRun(RecordBatch(Partition("t", address), first_sequence, contents))


# Numbers and texts


def test_more_topics_than_one_greeting_may_have_are_rejected_before_they_are_read() -> None:
    largest = ConsumerHello("S", "C", ("",) * 65_536)
    for dialect in Dialect:
        assert decode(encode(largest, dialect)) == (largest, dialect)
    hello = encode(ConsumerHello("S", "C", ("",) * 65_537), Dialect.RFC46)
    with pytest.raises(WireError, match="at most 65536 strings") as caught:
        decode(hello)
    assert caught.value.offset == len(b"\xaa\xa5W\1\1C")


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"\0\0\0\2\0\0\0\1a\0\0\0", 4),  # 2 strings need 8 bytes, and 8 are left: the second one lacks one
        (b"\0\0\0\2\0\0\0\1a\0\0\0\2b", 13),  # the second text is cut
        (b"\0\0\0\1\0\0\1\0" + b"a" * 256, 4),  # a text of 256 bytes
        (b"\0\0\0\2\0\0\0", 0),  # no room for two lengths
    ],
)
def test_malformed_strings_are_rejected_at_their_offset(data: bytes, offset: int) -> None:
    reader = FrameReader(b"x" + data, 1)
    with pytest.raises(WireError) as caught:
        reader.read_strings("subjects")
    assert caught.value.field == "subjects"
    assert caught.value.offset is not None
    assert caught.value.offset - 1 >= offset


# The batch decoder


def test_an_empty_gathered_run_of_a_known_partition_is_no_message() -> None:
    decoder = BatchDecoder()
    assert decoder.decode([record(0)]) == [run(0, 1)]
    assert decoder.decode([EncodedRun(b"Mt", b"\xaa\xa5M\1\1P\1t", 1, [])]) == []
    assert decoder.discarded == {}


class SlowDecodes:
    """Counts the messages that the batch decoder cannot recognize by their headers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(codec, "decode", self._decode)

    def _decode(self, frames: Sequence[bytes]) -> tuple[Message, Dialect]:
        self.count += 1
        return decode(frames)


def test_headers_are_remembered_up_to_the_limit_and_then_all_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "HEADERS_MAX", 3)
    slow = SlowDecodes(monkeypatch)
    decoder = BatchDecoder()
    for sequence in range(4):
        for address in "ABC":
            decoder.decode([record(sequence, address=address)])
    assert slow.count == 3, "each header is decoded once while there is room"
    decoder.decode([record(0, address="D")])
    assert slow.count == 4
    decoder.decode([record(4, address="A"), record(1, address="D")])
    assert slow.count == 5, "the fourth header made room for itself and three others"


def test_one_answer_more_than_the_limit_closes_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "OPEN_RUNS_MAX", 3)
    messages = [record(sequence) for sequence in (0, 100, 200, 300, 101, 201, 301, 1)]
    assert BatchDecoder().decode(messages) == [run(0, 1), run(100, 2), run(200, 2), run(300, 2), run(1, 1)]


def test_a_gathered_run_continues_an_earlier_run_after_another_one() -> None:
    gathered = EncodedRun(b"Mt", b"\xaa\xa5M\1\1P\1t", 2, [b"2", b"3"])
    decoder = BatchDecoder()
    assert decoder.decode([record(0), record(1), record(9), gathered, record(4)]) == [run(0, 5), run(9, 1)]


def test_a_run_does_not_continue_in_the_next_batch() -> None:
    decoder = BatchDecoder()
    assert decoder.decode(BatchEncoder(Dialect.RFC46).encode([run(0, 2)])) == [run(0, 2)]
    assert decoder.decode(BatchEncoder(Dialect.RFC46).encode([run(2, 2)])) == [run(2, 2)]


def test_a_gathered_run_with_a_malformed_header_is_counted_by_message() -> None:
    decoder = BatchDecoder()
    malformed = EncodedRun(b"Mt", b"\xaa\xa5M\2\1P\1t", 0, [b"0", b"1"])
    assert decoder.decode([malformed, EncodedRun(None, b"M", 0, [b"0"]), EncodedRun(b"Mt", b"", 0, [])]) == []
    assert decoder.discarded == {"version": 3}


# The batch encoder


@pytest.mark.parametrize(("first_sequence", "is_written"), [(2**64 - 2, True), (2**64 - 1, False)])
def test_a_run_of_two_records_must_end_at_the_largest_sequence(first_sequence: int, is_written: bool) -> None:
    encoder = BatchEncoder(Dialect.RFC46)
    assert bool(encoder.encode([run(first_sequence, 2)])) is is_written
    assert encoder.discarded == ({} if is_written else {"sequence": 1})


@pytest.mark.parametrize(("partition", "is_named"), [("A", True), ("A/1", True), ("A1", False), ("B", False)])
def test_acks_of_all_partitions_of_a_node_of_this_project_name_their_store(partition: str, is_named: bool) -> None:
    ack = Ack(partition, "t", 3, "S")
    expected = encode(ack, Dialect.RFC46 if is_named else Dialect.LIBDAFKA)
    assert BatchEncoder(Dialect.LIBDAFKA, {"A"}).encode([ack]) == [expected]
