"""Records in requests and responses: a single value, JSON Lines, and the formats of Kafka REST (version 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from dafka.batches import Headers, RecordColumns
from dafka.http.logs.publishing import Published
from dafka.http.logs.records import Timestamp
from dafka.http.server.documents import Count, Document, decode_document, doc, encode_document, parse_document
from dafka.http.server.errors import WebError
from dafka.records import Header

KAFKA_JSON = "application/vnd.kafka.json.v2+json"
KAFKA_BINARY = "application/vnd.kafka.binary.v2+json"
KAFKA_ANSWER = "application/vnd.kafka.v2+json"

RECORD_OVERHEAD_BYTES = 64
"""An upper bound on a record's overhead in a batch, without its contents and headers."""

BATCH_OVERHEAD_BYTES = 128
"""An upper bound on a batch's overhead, without its records."""

LogNumber: TypeAlias = Annotated[Count, doc("The number of the log.")]
RecordOffset: TypeAlias = Annotated[Count, doc("The offset of the record in the log.")]


class PublishedRecords(Document):
    """Where the records are."""

    offsets: list[Published]


class KafkaRestHeader(Document):
    """A header of a record, for Kafka REST. It has a name."""

    name: Annotated[str | None, doc("The name.")] = None
    key: Annotated[str | None, doc("The name, too: some clients call it so.")] = None
    value: Annotated[bytes | None, doc("The value in base64.")] = None


class KafkaRestRecord(Document):
    """A record, for Kafka REST."""

    key: Annotated[Any, doc("The key: any JSON value.")] = None
    value: Annotated[Any, doc("The value: any JSON value.")] = None
    partition: LogNumber | None = None
    timestamp: Timestamp | None = None
    headers: Annotated[list[KafkaRestHeader] | None, doc("The headers.")] = None


class KafkaRestRecords(Document):
    """Records to publish, for Kafka REST."""

    records: Annotated[Sequence[KafkaRestRecord], Meta(min_length=1)]


class KafkaRestBinaryRecord(KafkaRestRecord):
    """A record with a key and a value in base64, for Kafka REST."""

    key: Annotated[bytes | None, doc("The key in base64.")] = None
    value: Annotated[bytes | None, doc("The value in base64.")] = None


class KafkaRestBinaryRecords(KafkaRestRecords):
    """Binary records to publish, for Kafka REST."""

    records: Annotated[Sequence[KafkaRestBinaryRecord], Meta(min_length=1)]


class KafkaRestOffset(Document):
    """Where one record is, or why it was refused."""

    partition: LogNumber | None
    offset: RecordOffset | None
    error_code: Annotated[Count | None, doc("1 if the record was refused.")]
    error: Annotated[str | None, doc("Why it was refused.")]


class KafkaRestOffsets(Document):
    """Where the records are, for Kafka REST."""

    offsets: list[KafkaRestOffset]
    key_schema_id: Annotated[Count | None, doc("Always null.")]
    value_schema_id: Annotated[Count | None, doc("Always null.")]


class DeletedRecords(Document):
    """A log after its first records were deleted."""

    log: LogNumber
    start_offset: Annotated[Count, doc("The offset of the first record that is left.")]


class LogOffsets(Document):
    """The offsets of a log."""

    log: LogNumber
    start_offset: Annotated[Count, doc("The offset of its first record.")]
    end_offset: Annotated[Count, doc("The offset after its last record.")]
    offset: Annotated[
        Count | UnsetType, doc("The offset of the first record that was made at the time or later, or else the end.")
    ] = UNSET


class Offsets(Document):
    """The offsets of the logs of a topic."""

    offsets: list[LogOffsets]


class RestRecord(NamedTuple):
    """A record of Kafka REST."""

    log: int | None
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers


def parse_rest_records(body: bytes, now_ms: int, *, is_binary: bool) -> list[RestRecord]:
    """Parse the records in a body of Kafka REST. Those without a timestamp get `now_ms`. Raises `WebError`.

    Binary keys and values are in base64. Others are any JSON values, and are stored as JSON.
    """
    document = parse_document(decode_document(body), KafkaRestBinaryRecords if is_binary else KafkaRestRecords)
    return [_parse(number, each, now_ms) for number, each in enumerate(document.records)]


def _parse(number: int, record: KafkaRestRecord, now_ms: int) -> RestRecord:
    key, value = (
        encode_document(given) if given is not None and not isinstance(given, bytes) else given
        for given in (record.key, record.value)
    )
    headers = tuple(_parse_header(number, each) for each in record.headers or ())
    timestamp = now_ms if record.timestamp is None else record.timestamp
    return RestRecord(record.partition, key, value, timestamp, headers)


def _parse_header(number: int, header: KafkaRestHeader) -> Header:
    name = header.key if header.name is None else header.name
    if name is None:
        raise WebError("bad_request", f"record {number}.headers: expected objects with a name, and a value in base64")
    return name, header.value


def join_rest_records(records: Sequence[RestRecord]) -> RecordColumns:
    """Convert records to columns."""
    keys = [each.key for each in records]
    return RecordColumns(
        [each.value for each in records],
        keys if any(each is not None for each in keys) else None,
        [each.headers for each in records] if any(each.headers for each in records) else None,
        [each.timestamp for each in records],
    )


def split_records(records: RecordColumns, bytes_max: int) -> Iterator[RecordColumns]:
    """Yield records in parts, each of which fits into a batch of a size.

    Raises `WebError` before the first part if a single record is too large.
    """
    capacity = bytes_max - BATCH_OVERHEAD_BYTES
    cuts, size = [0], 0
    for number in range(len(records)):
        record_bytes = _record_bytes(records, number)
        if record_bytes > capacity:
            expected = f"expected at most {bytes_max} bytes with its headers (max.message.bytes)"
            raise WebError("too_large", f"record {number}: {expected}, not {record_bytes}")
        if size + record_bytes > capacity:
            cuts.append(number)
            size = 0
        size += record_bytes
    for first, end in zip(cuts, [*cuts[1:], len(records)], strict=True):
        yield records[first:end]


def _record_bytes(records: RecordColumns, number: int) -> int:
    size = RECORD_OVERHEAD_BYTES + len(records.values[number] or b"")
    if records.keys is not None:
        size += len(records.keys[number] or b"")
    if records.headers is not None:
        for name, content in records.headers[number]:
            size += len(name.encode("utf-8", "surrogateescape")) + len(content or b"") + 16
    return size
