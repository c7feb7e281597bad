"""The suite's own decoder of record batches, and what the runner makes of a target without them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dafka import wire
from dafka.batches import Compression, check_crc, decode_batch, encode_batch
from dafka_conformance.catalog import Catalog
from dafka_conformance.clauses import Clauses
from dafka_conformance.grammar import FrameError
from dafka_conformance.grammar.record_batches import (
    ENVELOPE_MAGIC,
    BatchFormatError,
    BatchRecord,
    batch_formats,
    crc_32c,
    read_batch,
    read_content,
    read_envelope,
    seal_batch,
    write_batch,
)
from dafka_conformance.model import Dialect, Outcome, Role, Verdict
from dafka_conformance.runner import run
from dafka_conformance.targets import open_target

SPECIFICATION = Path(__file__).parents[2] / "docs" / "spec" / "record-batches.md"
CLAUSES = Clauses.load()
RECORDS = (BatchRecord(b"x", timestamp=1), BatchRecord(None, b"k", ((b"h", b"2"),), timestamp=2))


def example() -> list[bytes]:
    """Return the frames of the specification's example."""
    _, _, text = SPECIFICATION.read_text("utf-8").partition("## Example")
    frames = [re.findall(r"^(?:frame \d|       ) ((?: ?\b[0-9A-F]{2}\b)+)", part, re.MULTILINE) for part in (text,)]
    return [bytes.fromhex(" ".join(lines)) for lines in (frames[0][:1], frames[0][1:2], frames[0][2:])]


def encoded(compression: Compression = Compression.NONE) -> bytes:
    headers = [(), (("h", b"2"),)]
    return encode_batch(5, [b"x", None], keys=[None, b"k"], headers=headers, timestamps=[1, 2], compression=compression)


def test_example_of_the_specification_is_read() -> None:
    message, dialect = batch_formats().decode(example())
    assert dialect is Dialect.RFC46
    assert (message.name, message.topic, message["address"], message["subject"]) == ("RECORD-BATCH", b"t", b"A", b"t")
    batch = read_batch(message.get_bytes("content"))
    assert (batch.base_offset, batch.records) == (5, RECORDS)


@pytest.mark.parametrize("compression", Compression)
def test_all_compressions_are_read(compression: Compression) -> None:
    data = encode_batch(3, [b"x" * 1000] * 5, timestamps=7, compression=compression)
    batch = read_batch(data)
    assert batch.records == (BatchRecord(b"x" * 1000, timestamp=7),) * 5
    assert (batch.base_offset, batch.compression) == (3, compression.value)
    assert seal_batch(data) == data


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (wire.RecordBatchMessage("A", "t", b"batch"), "RECORD-BATCH"),
        (wire.DirectRecordBatchMessage("C", "A", "t", b"batch"), "DIRECT-RECORD-BATCH"),
    ],
)
def test_formats_agree_with_the_project_codec(
    message: wire.RecordBatchMessage | wire.DirectRecordBatchMessage, name: str
) -> None:
    frames = wire.encode(message, wire.Dialect.RFC46)
    decoded, spoken = batch_formats().decode(frames)
    assert (decoded.name, decoded["content"], spoken) == (name, b"batch", Dialect.RFC46)
    assert batch_formats().encode(decoded, Dialect.RFC46) == list(frames)
    with pytest.raises(FrameError):
        batch_formats().decode([*frames, b""])


def test_crc_is_castagnolis() -> None:
    assert crc_32c(b"123456789") == 0xE3069283


def test_fault_names_its_clause() -> None:
    cases: list[tuple[str, Callable[[bytes], bytes]]] = [
        ("batch.format", lambda data: data[:60]),
        ("batch.format", lambda data: data[:16] + b"\1" + data[17:]),
        ("batch.format", lambda data: seal_batch(data, length=len(data))),
        ("batch.format", lambda data: data + b"\0"),
        ("batch.format", lambda data: seal_batch(data + b"\0")),
        ("batch.format", lambda data: seal_batch(data[:-1])),
        ("batch.format", lambda data: seal_batch(data[:21] + b"\0\x20" + data[23:])),
        ("batch.format", lambda data: seal_batch(data[:21] + b"\0\x10" + data[23:])),
        ("batch.format", lambda data: seal_batch(data[:21] + b"\0\4" + data[23:])),
        ("batch.format", lambda data: seal_batch(data[:21] + b"\0\5" + data[23:])),
        ("batch.format", lambda data: seal_batch(data[:57] + bytes(4) + data[61:])),
        ("batch.format", lambda data: seal_batch(data[:57] + b"\0\0\0\3" + data[61:])),
        ("batch.crc", lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:]),
        ("batch.crc", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
        ("batch.deltas", lambda data: seal_batch(data[:23] + b"\0\0\0\2" + data[27:])),
        ("batch.deltas", lambda data: seal_batch(data[:64] + b"\2" + data[65:])),
        ("batch.base-offset", lambda data: b"\xff" + data[1:]),
    ]
    for clause, change in cases:
        data = encoded()
        assert read_batch(data).records == RECORDS
        with pytest.raises(BatchFormatError) as caught:
            read_batch(change(data))
        assert caught.value.clause == clause
        assert clause in CLAUSES


def test_envelope_has_one_record_without_compression() -> None:
    one = encode_batch(0, [b"v" * 500], keys=[b"k"], timestamps=-1)
    assert read_envelope(ENVELOPE_MAGIC + one) == BatchRecord(b"v" * 500, b"k")
    compressed = encode_batch(0, [b"v" * 500], keys=[b"k"], timestamps=-1, compression=Compression.ZSTD)
    for content in (b"", b"v", ENVELOPE_MAGIC, ENVELOPE_MAGIC + encoded(), ENVELOPE_MAGIC + compressed):
        assert read_envelope(content) is None
        assert read_content(content) == BatchRecord(content)


async def test_target_without_record_batches_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    target = open_target("embedded", {})
    config = target.config  # type: ignore[attr-defined]
    monkeypatch.setattr(type(target), "config", lambda _self, request: config(request).with_node(record_batches="off"))
    finished = await run(Catalog.load(), target, dialects=[Dialect.RFC46], patterns=["*.batch*", "*.envelope*"])
    assert {result.role for result in finished.results} == {Role.PRODUCER, Role.CONSUMER, Role.STORE}
    assert {result.outcome for result in finished.results} == {Outcome.SKIPPED}
    verdicts = [each for each in finished.verdicts if each.clause.section == "Record Batches"]
    assert {each.verdict for each in verdicts} == {Verdict.NOT_TESTED}
    reasons = {each.reason for each in verdicts}
    assert {"the producer sends no record batches", "the store subscribes to no record batches"} <= reasons


@pytest.mark.parametrize("compression", Compression)
def test_written_batches_are_read_by_the_project(compression: Compression) -> None:
    records = [*RECORDS, BatchRecord(b"x" * 1000, b"", ((b"", None),), -1)]
    data = write_batch(7, records, compression.value)
    check_crc(data)
    decoded = decode_batch(data, bytes_max=2**20)
    assert (decoded.header.base_offset, decoded.header.compression) == (7, compression)
    assert decoded.keys is not None
    assert decoded.headers is not None
    assert [(value, key) for value, key in zip(decoded.values, decoded.keys, strict=True)] == [
        (record.value, record.key) for record in records
    ]
    assert [list(each) for each in decoded.headers] == [[], [("h", b"2")], [("", None)]]
    assert list(decoded.timestamps) == [1, 2, -1]
    assert read_batch(data).records == tuple(records)
