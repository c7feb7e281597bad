"""Record batches that follow each other are decoded together; a malformed one costs no other."""

from __future__ import annotations

import tracemalloc

import pytest

from dafka.batches import Compression, encode_batch, records_codec
from dafka.batches.codec import UnreadContents, load_compiled
from dafka.batches.header import HEADER_BYTES, join_batch, read_header
from dafka.records import Partition, join
from dafka.wire import BatchDecoder, Dialect, DirectRecordBatchMessage, RecordBatchMessage, RecordRun, codec
from dafka.wire.batch import UNPACKED_BYTES_MAX

HERE, THERE = Partition("orders", "A" * 32), Partition("orders", "B" * 32)
VALUES = [b"%03d" % number for number in range(40)]


def batch_of(first: int, end: int, compression: Compression = Compression.NONE) -> bytes:
    return encode_batch(first, VALUES[first:end], timestamps=7, compression=compression)


def published(data: bytes, partition: Partition = HERE) -> tuple[bytes, ...]:
    return tuple(codec.encode(RecordBatchMessage(partition.address, partition.topic, data), Dialect.RFC46))


def fetched(data: bytes, requestor: str) -> tuple[bytes, ...]:
    return tuple(codec.encode(DirectRecordBatchMessage(requestor, HERE.address, HERE.topic, data), Dialect.RFC46))


def with_wrong_offset_delta(data: bytes) -> bytes:
    """Return a batch whose CRC is right, and whose first record says that it is not the first."""
    records = bytearray(data[HEADER_BYTES:])
    records[3] = 2
    return join_batch(read_header(data), bytes(records))


def decode(*messages: tuple[bytes, ...], keeps_encoded: bool = False) -> tuple[list[RecordRun], dict[str, int]]:
    decoder = BatchDecoder(keeps_encoded=keeps_encoded)
    runs = decoder.decode(messages)
    assert all(isinstance(run, RecordRun) for run in runs)
    return runs, dict(decoder.discarded)  # type: ignore[return-value]


def ranges(runs: list[RecordRun]) -> list[tuple[Partition, int, int]]:
    return [(run.batch.partition, run.batch.first_sequence, run.batch.end_sequence) for run in runs]


def test_batches_that_follow_each_other_are_one_run() -> None:
    encoded = [batch_of(0, 10), batch_of(10, 11), batch_of(11, 40)]
    for keeps_encoded in (False, True):
        (run,), discarded = decode(*map(published, encoded), keeps_encoded=keeps_encoded)
        assert ranges([run]) == [(HERE, 0, 40)]
        assert list(run.batch.values) == VALUES
        assert list(run.batch.timestamps or ()) == [7] * 40
        assert run.batch.encoded == (tuple(encoded) if keeps_encoded else ())
        assert not discarded


def test_a_run_ends_with_what_arrived_together() -> None:
    decoder = BatchDecoder()
    for first in (0, 10):
        (run,) = decoder.decode([published(batch_of(first, first + 10))])
        assert isinstance(run, RecordRun)
        assert ranges([run]) == [(HERE, first, first + 10)]


def test_partitions_and_requestors_have_runs_of_their_own() -> None:
    runs, _ = decode(
        published(batch_of(0, 5)),
        published(batch_of(0, 6), THERE),
        fetched(batch_of(5, 7), "C" * 32),
        published(batch_of(5, 9)),
        published(batch_of(6, 7), THERE),
        fetched(batch_of(7, 9), "D" * 32),
        published(batch_of(20, 25)),
        published(batch_of(25, 30)),
    )
    assert ranges(runs) == [(HERE, 0, 9), (THERE, 0, 7), (HERE, 5, 7), (HERE, 7, 9), (HERE, 20, 30)]
    assert [run.requestor for run in runs] == [None, None, "C" * 32, "D" * 32, None]


def test_a_compressed_batch_is_alone() -> None:
    plain, compressed = batch_of(0, 10), encode_batch(10, [b"x" * 500], timestamps=7, compression=Compression.GZIP)
    after = encode_batch(11, [b"y"], timestamps=7)
    runs, _ = decode(published(plain), published(compressed), published(after))
    assert ranges(runs) == [(HERE, 0, 10), (HERE, 10, 11), (HERE, 11, 12)]


@pytest.mark.parametrize("keeps_encoded", [False, True])
def test_a_malformed_batch_costs_no_other(keeps_encoded: bool) -> None:
    runs, discarded = decode(
        published(batch_of(0, 10)),
        published(with_wrong_offset_delta(batch_of(10, 20))),
        published(batch_of(20, 30)),
        published(batch_of(30, 40)[:-1] + b"!"),
        keeps_encoded=keeps_encoded,
    )
    assert ranges(runs) == [(HERE, 0, 10), (HERE, 20, 30)]
    assert discarded == {"batch: offset delta": 1, "batch: crc": 1}


@pytest.mark.skipif(
    isinstance(load_compiled(), str), reason="only the compiled codec checks values without reading them"
)
def test_values_are_read_from_kept_batches_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    (run,), _ = decode(published(batch_of(0, 10)), published(batch_of(10, 20)), keeps_encoded=True)
    (more,), _ = decode(published(batch_of(20, 40)), keeps_encoded=True)
    with monkeypatch.context() as patch:
        patch.setattr(type(records_codec()), "read_records", None)
        joined = join([run.batch, more.batch])
        assert (len(joined), joined.content_bytes) == (40, 120)
        assert joined.has_only_values
        assert isinstance(joined.values, UnreadContents)
    assert list(joined.values) == VALUES
    assert joined.values[3:5] == VALUES[3:5]
    with pytest.raises(AttributeError):
        joined.values.missing  # noqa: B018


@pytest.mark.parametrize("kind", Compression)
def test_a_batch_beyond_the_limit_costs_no_other(kind: Compression) -> None:
    decoder = BatchDecoder(10_000)
    sizes = (1000, 10_000, 1000)
    messages = [
        published(encode_batch(at, [bytes(size)], timestamps=1, compression=kind)) for at, size in enumerate(sizes)
    ]
    assert [run.batch.first_sequence for run in decoder.decode(messages) if isinstance(run, RecordRun)] == [0, 2]
    assert decoder.discarded == {"batch: records": 1}


def test_few_compressed_batches_are_unpacked_at_a_time() -> None:
    """What a node has no room for is dropped before the next ones are unpacked."""
    size, count = 2**20, 40
    encoded = [encode_batch(at, [bytes(size)], timestamps=7, compression=Compression.ZSTD) for at in range(count)]
    messages = [published(data) for data in encoded]
    sequences: list[int] = []
    tracemalloc.start()
    try:
        for part in BatchDecoder().decode_in_parts(messages):
            assert (
                sum(run.batch.content_bytes for run in part if isinstance(run, RecordRun)) <= UNPACKED_BYTES_MAX + size
            )
            sequences += [run.batch.first_sequence for run in part if isinstance(run, RecordRun)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sequences == list(range(count))
    assert peak < 4 * UNPACKED_BYTES_MAX


def test_batches_that_need_no_unpacking_come_in_one_part() -> None:
    size = UNPACKED_BYTES_MAX // 4
    messages = [published(encode_batch(2 * number, [bytes(size)], timestamps=7)) for number in range(6)]
    assert [len(part) for part in BatchDecoder().decode_in_parts(messages)] == [6]
