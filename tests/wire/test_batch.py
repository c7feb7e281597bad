import tracemalloc

import pytest

from dafka.records import Partition, RecordBatch
from dafka.wire import (
    BatchDecoder,
    BatchEncoder,
    Dialect,
    Record,
    RecordRun,
    batch,
    encode,
)
from dafka.wire.batch import EncodedRun

PARTITION = Partition("t", "P")


def run(first_sequence: int, count: int) -> RecordRun:
    contents = [b"%d" % sequence for sequence in range(first_sequence, first_sequence + count)]
    return RecordRun(RecordBatch(PARTITION, first_sequence, contents))


def test_a_run_does_not_continue_in_the_next_batch() -> None:
    decoder = BatchDecoder()
    assert decoder.decode(BatchEncoder(Dialect.RFC46).encode([run(0, 2)])) == [run(0, 2)]
    assert decoder.decode(BatchEncoder(Dialect.RFC46).encode([run(2, 2)])) == [run(2, 2)]


def test_a_peer_that_invents_partitions_does_not_grow_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "HEADERS_MAX", 100)
    decoder = BatchDecoder()

    def invent(first: int) -> int:
        for number in range(first, first + 1000):
            decoder.decode([encode(Record(f"{number:032X}", "t", number, b"%d" % number), Dialect.RFC46)])
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = invent(0)
        after = invent(1000)
    finally:
        tracemalloc.stop()
    assert after - before < 100_000


# Runs gathered by the transport


def test_a_gathered_run_with_a_malformed_header_is_counted_by_message() -> None:
    decoder = BatchDecoder()
    malformed = EncodedRun(b"Mt", b"\xaa\xa5M\2\1P\1t", 0, [b"0", b"1"])
    assert decoder.decode([malformed, EncodedRun(None, b"M", 0, [b"0"]), EncodedRun(b"Mt", b"", 0, [])]) == []
    assert decoder.discarded == {"version": 3}
