"""The messages of a cluster with record batches, as recorded by tests/vectors/record_batches.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka.batches import Compression, decode_batch, encode_batch
from dafka.wire import (
    Dialect,
    DirectRecordBatchMessage,
    RecordBatchMessage,
    decode,
    encode,
)
from dafka_conformance.grammar.record_batches import BatchRecord, read_batch, read_content
from tests.vectors.record_batches import FOLDER, RECORDS

RECORDINGS = sorted(FOLDER.glob("*.json"))
BYTES_MAX = 2**20


def recorded(path: Path, connection: str, ids: bytes) -> Iterator[list[bytes]]:
    """Yield the messages with these command ids on a connection."""
    for event in json.loads(path.read_text("utf-8")):
        frames = [bytes.fromhex(frame) for frame in event["frames"]]
        if event["connection"] == connection and frames[0][0] in ids:
            yield frames


def batches(path: Path) -> Iterator[RecordBatchMessage | DirectRecordBatchMessage]:
    for frames in recorded(path, "batches", b"BC"):
        message, _ = decode(frames)
        assert isinstance(message, (RecordBatchMessage, DirectRecordBatchMessage))
        yield message


def expected() -> list[BatchRecord]:
    """Return what was published. A record without a timestamp got that of its sending."""
    return [
        BatchRecord(
            record.value,
            record.key,
            tuple((name.encode(), value) for name, value in record.headers),
            -1 if record.timestamp is None else record.timestamp,
        )
        for record in RECORDS
    ]


def without_time(records: list[BatchRecord]) -> list[tuple[bytes | None, bytes | None, object, int | None]]:
    return [
        (each.value, each.key, each.headers, None if original.timestamp is None else each.timestamp)
        for each, original in zip(records, RECORDS, strict=True)
    ]


def test_there_is_a_recording_for_each_compression() -> None:
    assert {path.stem for path in RECORDINGS} == {compression.name.lower() for compression in Compression}


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_recorded_messages_are_read_and_written_back_byte_for_byte(path: Path) -> None:
    found = list(recorded(path, "batches", b"BCKE"))
    assert {frames[0][:1] for frames in found} == {b"B", b"C", b"K", b"E"}
    for frames in found:
        message, dialect = decode(frames)
        assert dialect is Dialect.RFC46
        assert list(encode(message, dialect)) == frames


@pytest.mark.parametrize("kind", [RecordBatchMessage, DirectRecordBatchMessage])
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_recorded_batches_have_all_of_the_records(path: Path, kind: type) -> None:
    contents = [message.content for message in batches(path) if isinstance(message, kind)]
    found = [read_batch(content) for content in contents]
    assert {batch.compression for batch in found} == {Compression[path.stem.upper()].value}
    assert found[0].base_offset == 0
    assert without_time([record for batch in found for record in batch.records]) == without_time(expected())
    for content in contents:
        decoded = decode_batch(content, bytes_max=BYTES_MAX)
        again = encode_batch(
            decoded.header.base_offset,
            decoded.values,
            keys=decoded.keys,
            headers=decoded.headers,
            timestamps=decoded.timestamps,
        )
        assert read_batch(again).records == read_batch(content).records
        assert again == content or path.stem != "none"


@pytest.mark.parametrize("ids", [b"M", b"D"])
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_recorded_single_records_are_the_same(path: Path, ids: bytes) -> None:
    assert not list(recorded(path, "rfc46", b"BC"))
    assert not list(recorded(path, "batches", b"MD"))
    found = [read_content(frames[-1]) for frames in recorded(path, "rfc46", ids)]
    wanted = [(each.value, each.key, each.headers) for each in expected()]
    assert [(each.value, each.key, each.headers) for each in found] == wanted
