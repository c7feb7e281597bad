"""Records as JSON and back: `{"value": "text", "key": "text", "headers": [["name", "value"]], "timestamp": 1}`.

Contents that are not UTF-8 are in base64, under `value_base64` and `key_base64`; the value of a header is then
`{"base64": "..."}`. A value of null is a tombstone. A record without a key has no field `key`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dafka.batches import Headers, RecordColumns
from dafka.http.server.documents import Count, Document, decode_document, describe_problem, doc, encode_document
from dafka.http.server.errors import WebError
from dafka.packed_bytes import PackedContents, Repeated
from dafka.records import NO_TIMESTAMP

JsonRecord: TypeAlias = dict[str, Any]
"""A record as a JSON object."""

TIMESTAMP_MAX = 2**53 - 1
"""The latest timestamp: the largest number that every JSON parser reads exactly."""

_SEPARATOR = b"\x7f"
"""A character that JSON does not escape and that is rare in texts."""

_PLAIN_RECORD = b'{"offset":%d,"timestamp":%d,"value":"%b"},'


Timestamp: TypeAlias = Annotated[
    int, doc("When the record was made, in milliseconds since 1970.", ge=0, le=TIMESTAMP_MAX)
]


class Base64(Struct, forbid_unknown_fields=True):
    """Bytes that are not UTF-8."""

    base64: bytes


class Record(Document):
    """A record. What is published needs a value only; its log and its offset are ignored."""

    log: Annotated[Count | UnsetType, doc("The number of the log.")] = UNSET
    offset: Annotated[Count | UnsetType, doc("The offset of the record in the log.")] = UNSET
    timestamp: Timestamp | UnsetType | None = UNSET
    key: Annotated[str | UnsetType | None, doc("The key. A record without a key has no such field.")] = UNSET
    key_base64: Annotated[bytes | UnsetType, doc("The key in base64, if it is no UTF-8.")] = UNSET
    value: Annotated[str | UnsetType | None, doc("The value; null for a tombstone.")] = UNSET
    value_base64: Annotated[bytes | UnsetType, doc("The value in base64, if it is no UTF-8.")] = UNSET
    headers: Annotated[
        list[tuple[str, str | Base64 | None]] | UnsetType | None,
        doc('Pairs of a name and a value: text, null, or `{"base64": ...}` if it is no UTF-8.'),
    ] = UNSET


def parse_json_lines(data: bytes, now_ms: int) -> RecordColumns:
    """Parse JSON Lines, one record per line. Empty lines are skipped. Raises `WebError`."""
    found = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if line and not line.isspace():
            try:
                found.append(decode_document(line))
            except WebError as error:
                raise WebError("bad_request", f"line {number}: {error.message}") from None
    return parse_records(found, now_ms)


def parse_records(records: object, now_ms: int) -> RecordColumns:
    """Parse records that a client publishes. Those without a timestamp get `now_ms`. Raises `WebError`."""
    if not isinstance(records, list) or not records:
        raise WebError("bad_request", "records: expected a list of at least one record")
    try:
        values = list(map(str.encode, [each["value"] for each in records]))
        if sum(map(len, records)) == len(records):
            return RecordColumns(values, None, None, Repeated(now_ms, len(records)))
        if set[str]().union(*records) == {"key", "value"}:
            texts = [each["key"] for each in records]
            return RecordColumns(values, list(map(str.encode, texts)), None, Repeated(now_ms, len(records)))
    except (TypeError, KeyError, UnicodeEncodeError):
        pass  # the slow path handles all other records, and reports errors
    try:
        found = msgspec.convert(records, list[Record])
    except msgspec.ValidationError as error:
        raise WebError("bad_request", describe_problem("records", error)) from None
    missing = next((n for n, each in enumerate(found) if each.value is UNSET and each.value_base64 is UNSET), None)
    if missing is not None:
        raise WebError("bad_request", f"records[{missing}]: expected value or value_base64; null is a tombstone")
    keys = _contents("key", [each.key for each in found], [each.key_base64 for each in found])
    headers = None
    if any(each.headers for each in found):
        headers = [_headers(number, each.headers) if each.headers else () for number, each in enumerate(found)]
    return RecordColumns(
        _contents("value", [each.value for each in found], [each.value_base64 for each in found]),
        keys if any(key is not None for key in keys) else None,
        headers,
        [each.timestamp if isinstance(each.timestamp, int) else now_ms for each in found],
    )


def _contents(field: str, texts: Sequence[Any], encoded: Sequence[bytes | UnsetType]) -> list[bytes | None]:
    try:
        if encoded.count(UNSET) == len(encoded):
            return list(map(str.encode, texts))
    except (TypeError, UnicodeEncodeError):
        pass  # not all records have a text
    return [_content(number, field, *pair) for number, pair in enumerate(zip(texts, encoded, strict=True))]


def _content(number: int, field: str, text: str | UnsetType | None, encoded: bytes | UnsetType) -> bytes | None:
    if not isinstance(encoded, UnsetType):
        if text is not UNSET:
            raise WebError("bad_request", f"records[{number}]: expected {field} or {field}_base64, not both")
        return encoded
    return None if not isinstance(text, str) else _encode(number, field, text)


def _headers(number: int, headers: Sequence[tuple[str, str | Base64 | None]] | UnsetType | None) -> Headers:
    found: list[tuple[str, bytes | None]] = []
    for name, content in headers or ():
        _encode(number, "headers", name)
        if isinstance(content, str):
            found.append((name, _encode(number, "headers", content)))
        else:
            found.append((name, None if content is None else content.base64))
    return tuple(found)


def _encode(number: int, field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        problem = f"records[{number}].{field}: expected text that UTF-8 can encode, without lone surrogates"
        raise WebError("bad_request", problem) from None


def encode_records(records: RecordColumns, base_offset: int) -> bytes:
    """Return records as JSON text: objects with commas between them. The first one has the base offset."""
    values = _escape(records)
    if values is None:
        return encode_document(record_objects(records, base_offset))[1:-1]
    # One call formats all records. It creates no object for a record except its value.
    count, times = len(values), records.timestamps
    columns: list[Sequence[Any]] = [range(base_offset, base_offset + count), times, values]
    template = _PLAIN_RECORD
    if isinstance(times, Repeated):
        template = template.replace(b'"timestamp":%d', b'"timestamp":%d' % times.value)
        del columns[1]
    arguments: list[Any] = [None] * (len(columns) * count)
    for number, column in enumerate(columns):
        arguments[number :: len(columns)] = column
    return (template * count % tuple(arguments))[:-1]


def _escape(records: RecordColumns) -> list[bytes] | None:
    """Escape values for JSON strings, without quotes; None if the records have more than text values."""
    values = records.values
    if records.keys is not None or records.headers is not None or not isinstance(values, PackedContents):
        return None
    times = records.timestamps
    if (times.value == NO_TIMESTAMP) if isinstance(times, Repeated) else (NO_TIMESTAMP in times):
        return None
    if _SEPARATOR in values.data:
        return None
    try:
        joined = _SEPARATOR.join(values).decode()
    except UnicodeDecodeError:
        return None
    return encode_document(joined)[1:-1].split(_SEPARATOR)


def record_objects(records: RecordColumns, base_offset: int) -> list[JsonRecord]:
    """Return records as JSON objects with their offsets. The first one has the base offset."""
    offsets = range(base_offset, base_offset + len(records))
    times = records.timestamps
    values = _texts(records.values)
    if values is not None and records.keys is None and records.headers is None and NO_TIMESTAMP not in times:
        return [
            {"offset": offset, "timestamp": timestamp, "value": value}
            for offset, timestamp, value in zip(offsets, times, values, strict=True)
        ]
    return list(_record_objects(records, offsets))


def _record_objects(records: RecordColumns, offsets: Sequence[int]) -> Iterator[JsonRecord]:
    keys = repeat(None) if records.keys is None else records.keys
    headers = repeat(()) if records.headers is None else records.headers
    for offset, timestamp, key, value, pairs in zip(
        offsets, records.timestamps, keys, records.values, headers, strict=False
    ):
        found: JsonRecord = {"offset": offset}
        if timestamp != NO_TIMESTAMP:
            found["timestamp"] = timestamp
        if key is not None:
            _put(found, "key", key)
        _put(found, "value", value)
        if pairs:
            found["headers"] = [_header(name, content) for name, content in pairs]
        yield found


def _put(found: JsonRecord, field: str, content: bytes | None) -> None:
    try:
        found[field] = None if content is None else content.decode()
    except UnicodeDecodeError:
        assert content is not None
        found[f"{field}_base64"] = b64encode(content).decode()


def _header(name: str, content: bytes | None) -> list[Any]:
    name = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if content is None:
        return [name, None]
    try:
        return [name, content.decode()]
    except UnicodeDecodeError:
        return [name, {"base64": b64encode(content).decode()}]


def _texts(contents: Sequence[bytes | None]) -> list[str] | None:
    """Return contents as texts; None if one of them is not text."""
    try:
        return [each.decode() for each in contents]  # type: ignore[union-attr]
    except (UnicodeDecodeError, AttributeError):
        return None


def is_integer(value: object, maximum: int = TIMESTAMP_MAX) -> bool:
    """Return whether a JSON value is a whole number from 0 to a maximum."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum
