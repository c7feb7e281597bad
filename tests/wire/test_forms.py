"""The forms of records on the wire: single ones, envelopes and batches, depending on their readers."""

from __future__ import annotations

from random import Random

import pytest

from dafka.batches import Compression, check_crc, decode_records, encode_batch
from dafka.packed_bytes import pack
from dafka.records import Partition, Record, RecordBatch
from dafka.wire import (
    BatchDecoder,
    BatchEncoder,
    Command,
    Dialect,
    DirectRecordBatchMessage,
    RecordBatchMessage,
    RecordRun,
    decode,
    with_batches,
)
from dafka.wire.batch import EncodedRun, iter_frames
from dafka.wire.envelope import ENVELOPE_MAGIC, unwrap_records, wrap_records
from tests.seeds import each_seed

HERE = Partition("orders", "A")
FORMS = {b"Borders": "batches", b"Morders": "single", b"CME": "batches", b"DME": "single"}


def draw_records(draw: Random, *, is_plain: bool) -> RecordBatch:
    contents = [b"", b"x", ENVELOPE_MAGIC, ENVELOPE_MAGIC + b"x", b"x" + ENVELOPE_MAGIC, b"value" * 20]
    records = [
        Record(
            HERE,
            7 + number,
            draw.choice(contents if is_plain else [None, *contents]),
            None if is_plain else draw.choice((None, b"", b"key")),
            () if is_plain else draw.choice(((), (("a", None), ("ø", b"1")))),
            draw.choice((None, 0, 5)),
        )
        for number in range(draw.randrange(1, 8))
    ]
    return RecordBatch.from_records(HERE, 7, records, -1)


def rows(records: RecordBatch, *, has_times: bool = True) -> list[tuple[object, ...]]:
    return [
        (each.sequence, each.value, each.key, each.headers, each.timestamp if has_times else None) for each in records
    ]


@each_seed(40)
def test_records_come_back_from_the_contents_of_single_ones(seed: int) -> None:
    draw = Random(seed)
    records = draw_records(draw, is_plain=seed % 2 == 0)
    contents = wrap_records(records)
    assert len(contents) == len(records)
    for record, content in zip(records, contents, strict=True):
        is_plain = record.value is not None and record.key is None and not record.headers
        if is_plain and not (record.value or b"").startswith(ENVELOPE_MAGIC):
            assert content == record.value, "a node of libdafka reads it"
        else:
            assert content.startswith(ENVELOPE_MAGIC)
    for given in (contents, pack(list(contents))):
        found = unwrap_records(HERE, 7, given)
        assert rows(found, has_times=False) == rows(records, has_times=False)
        for record, other, content in zip(records, found, contents, strict=True):
            assert other.timestamp == (record.timestamp if content.startswith(ENVELOPE_MAGIC) else None)


def test_an_envelope_of_two_records_is_a_value() -> None:
    envelope = bytearray(wrap_records(RecordBatch(HERE, 7, [None]))[0])
    two = ENVELOPE_MAGIC + encode_batch(0, [b"a", b"b"], timestamps=1)
    assert [record.value for record in unwrap_records(HERE, 7, [two, bytes(envelope)])] == [two, None]


def test_removed_records_are_sent_as_empty_ones() -> None:
    records = RecordBatch(HERE, 7, [b"a", b"b", None]).without(b"\0\1\0")
    assert [content[:4] for content in wrap_records(records)] == [b"a", b"", ENVELOPE_MAGIC]


@pytest.mark.parametrize("requestor", [None, "ME"])
@pytest.mark.parametrize("wanted", [(), ("single",), ("batches",), ("single", "batches")])
@pytest.mark.parametrize("seed", range(5))
def test_records_are_encoded_in_the_forms_that_are_read(
    seed: int, wanted: tuple[str, ...], requestor: str | None
) -> None:
    draw = Random(seed)
    records = draw_records(draw, is_plain=False)
    asked: list[bytes] = []

    def is_wanted(topic: bytes) -> bool:
        asked.append(topic)
        return FORMS[topic] in wanted

    kind = draw.choice(list(Compression))
    encoder = BatchEncoder(Dialect.RFC46, is_wanted=is_wanted, compression=kind)
    encoded = encoder.encode([RecordRun(records, requestor)])
    assert sorted(asked) == ([b"Borders", b"Morders"] if requestor is None else [b"CME", b"DME"])
    kinds = ["single" if isinstance(each, EncodedRun) else "batches" for each in encoded]
    assert sorted(set(kinds)) == sorted(wanted)
    for each in encoded:
        if not isinstance(each, EncodedRun):
            message, _ = decode(each)
            assert isinstance(message, RecordBatchMessage if requestor is None else DirectRecordBatchMessage)
            check_crc(message.content)
        decoder = BatchDecoder()
        (found,) = decoder.decode([each])
        assert isinstance(found, RecordRun)
        assert (found.requestor, found.batch.partition) == (requestor, HERE)
        has_times = not isinstance(each, EncodedRun)
        assert rows(found.batch, has_times=has_times) == rows(records, has_times=has_times)
        assert decoder.discarded == {}
    assert encoder.compresses("orders") == ("batches" in wanted and kind is not Compression.NONE)
    for frames in iter_frames(encoded):
        assert frames[0][:1] in (b"B", b"M") if requestor is None else frames[0][:1] in (b"C", b"D")


def test_records_are_compressed_once_and_in_batches_of_limited_size() -> None:
    encoder = BatchEncoder(
        Dialect.RFC46, is_wanted=FORMS.__contains__, compression=Compression.GZIP, batch_bytes_max=500
    )
    records = RecordBatch(HERE, 7, [bytes(100)] * 10)
    compressed = encoder.compress(records)
    assert [len(decode_records(HERE, each)) for each in compressed.encoded] == [5, 5]
    sent = [decode(each)[0] for each in encoder.encode([RecordRun(compressed)]) if not isinstance(each, EncodedRun)]
    assert [each.content for each in sent if isinstance(each, RecordBatchMessage)] == list(compressed.encoded)
    assert not BatchEncoder(Dialect.RFC46, compression=Compression.GZIP).compresses("orders")


@pytest.mark.parametrize(("kind", "counts"), [(Compression.NONE, [6, 6, 6]), (Compression.GZIP, [18])])
def test_compressed_batches_are_larger_by_default(kind: Compression, counts: list[int]) -> None:
    records = RecordBatch(HERE, 7, [bytes(10_000)] * 18)
    for encoder in (
        BatchEncoder(Dialect.RFC46, is_wanted=FORMS.__contains__, compression=kind),
        BatchEncoder(Dialect.RFC46, is_wanted=FORMS.__contains__, compression=kind, batch_bytes_max=2**30),
    ):
        assert [len(decode_records(HERE, each)) for each in encoder.compress(records).encoded] == counts


@pytest.mark.parametrize(
    ("prefix", "prefixes"),
    [(b"Morders", (b"Borders", b"Morders")), (b"M", (b"B", b"M")), (b"DME", (b"CME", b"DME"))]
    + [(command.value + b"x", (command.value + b"x",)) for command in Command if command.value not in b"MD"]
    + [(b"", (b"",)), (b"x", (b"x",))],
)
def test_a_reader_of_batches_subscribes_to_them_first(prefix: bytes, prefixes: tuple[bytes, ...]) -> None:
    assert with_batches(prefix) == prefixes
