"""Parses records in request bodies: a single value, JSON Lines, and the formats of Kafka REST (version 2)."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dafka.batches import Headers, RecordColumns
from dafka.http.server.documents import decode_document, encode_document
from dafka.http.server.errors import WebError
from dafka.packed_bytes import Repeated

KAFKA_JSON = "application/vnd.kafka.json.v2+json"
KAFKA_BINARY = "application/vnd.kafka.binary.v2+json"
KAFKA_ANSWER = "application/vnd.kafka.v2+json"

RECORD_OVERHEAD_BYTES = 64
"""An upper bound on a record's overhead in a batch, without its contents and headers."""

BATCH_OVERHEAD_BYTES = 128
"""An upper bound on a batch's overhead, without its records."""

_FIELDS = {"key", "value", "partition", "headers", "timestamp"}


class RestRecord(NamedTuple):
    """A record of Kafka REST.

    Attributes:
        log: The log that the client has chosen; None if it has not.
        key: The key.
        value: The value.
        timestamp: Its timestamp, in milliseconds since 1970.
        headers: The headers.
    """

    log: int | None
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers


def make_record(value: bytes, key: str | None, now_ms: int) -> RecordColumns:
    """Return one record."""
    return RecordColumns([value], None if key is None else [key.encode()], None, Repeated(now_ms, 1))


def parse_rest_records(body: bytes, now_ms: int, *, is_binary: bool) -> list[RestRecord]:
    """Parse the records in a body of Kafka REST.

    Args:
        body: The body, a JSON document.
        now_ms: The timestamp of records without one.
        is_binary: Whether keys and values are in base64. Otherwise they are any JSON values, and are stored as JSON.

    Returns:
        The records.

    Raises:
        WebError: The body has another form.
    """
    document = decode_document(body)
    records = document.get("records") if isinstance(document, Mapping) else None
    if not isinstance(records, list) or not records:
        raise WebError("bad_request", "the body: expected an object with a list of records, at least one")
    return [_parse(number, each, is_binary, now_ms) for number, each in enumerate(records)]


def _parse(number: int, record: Any, is_binary: bool, now_ms: int) -> RestRecord:
    where = f"record {number}"
    if not isinstance(record, Mapping) or not record.keys() <= _FIELDS:
        expected = "expected an object with key, value, headers, partition and timestamp"
        raise WebError("bad_request", f"{where}: {expected}")
    log, timestamp = record.get("partition"), record.get("timestamp")
    if log is not None and (not isinstance(log, int) or isinstance(log, bool)):
        raise WebError("bad_request", f"{where}: expected a number as partition")
    if timestamp is not None and (
        not isinstance(timestamp, int) or isinstance(timestamp, bool) or not 0 <= timestamp < 2**53
    ):
        raise WebError("bad_request", f"{where}: expected a timestamp in milliseconds since 1970")
    contents = []
    for name in ("key", "value"):
        given = record.get(name)
        contents.append(None if given is None else _encode(given, f"{where}.{name}", is_binary))
    headers = _parse_headers(record.get("headers"), f"{where}.headers")
    return RestRecord(log, contents[0], contents[1], now_ms if timestamp is None else timestamp, headers)


def _parse_headers(given: Any, where: str) -> Headers:
    """Parse headers: objects with a `name` (or `key`), and a `value` in base64 or null."""
    found = []
    if given is not None and not isinstance(given, list):
        raise WebError("bad_request", f"{where}: expected a list")
    for each in given or ():
        name = each.get("name", each.get("key")) if isinstance(each, Mapping) else None
        if not isinstance(name, str) or not each.keys() <= {"name", "key", "value"}:
            raise WebError("bad_request", f"{where}: expected objects with a name, and a value in base64")
        value = each.get("value")
        found.append((name, None if value is None else _encode(value, f"{where}.{name[:100]}", is_binary=True)))
    return tuple(found)


def _encode(given: Any, where: str, is_binary: bool) -> bytes:
    if not is_binary:
        return encode_document(given)
    if isinstance(given, str):
        try:
            return b64decode(given, validate=True)
        except (binascii.Error, ValueError):
            pass
    raise WebError("bad_request", f"{where}: expected base64")


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
    """Yield records in parts, each of which fits into a batch.

    Args:
        records: The records.
        bytes_max: The size of the largest batch.

    Yields:
        A part.

    Raises:
        WebError: A single record is too large. It is raised before the first part is yielded.
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
