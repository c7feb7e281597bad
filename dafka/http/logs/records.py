"""Records as JSON and back: `{"value": "text", "key": "text", "headers": [["name", "value"]], "timestamp": 1}`.

Contents that are not UTF-8 are in base64, under `value_base64` and `key_base64`; the value of a header is then
`{"base64": "..."}`. A value of null is a tombstone. A record without a key has no field `key`.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, TypeAlias

from dafka.batches import Headers, RecordColumns
from dafka.http.server.documents import decode_document, encode_document
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

_FIELDS = {"value", "value_base64", "key", "key_base64", "headers", "timestamp", "offset", "log"}
"""All fields of a record. `offset` and `log` are ignored, so that records that were read can be published again."""


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
        texts = [each["value"] for each in records]
        if sum(map(len, records)) == len(records):
            return RecordColumns(list(map(str.encode, texts)), None, None, Repeated(now_ms, len(records)))
    except (TypeError, KeyError, UnicodeEncodeError):
        pass  # the slow path handles tombstones, and reports errors
    if set(map(type, records)) != {dict}:
        number = next(number for number, each in enumerate(records) if not isinstance(each, dict))
        raise _wrong(number, f'expected an object such as {{"value": "text"}}, not {_kind(records[number])}')
    fields = set[str]().union(*records)
    if not fields <= _FIELDS:
        unknown = min(fields - _FIELDS)
        raise _wrong(_first_with(records, unknown), f"there is no field {unknown!r}")
    return RecordColumns(
        _parse_contents(records, "value", is_needed=True, has_base64="value_base64" in fields),
        _parse_contents(records, "key", is_needed=False, has_base64="key_base64" in fields)
        if "key" in fields or "key_base64" in fields
        else None,
        [_parse_headers(number, each.get("headers")) for number, each in enumerate(records)]
        if "headers" in fields
        else None,
        _parse_timestamps(records, now_ms) if "timestamp" in fields else Repeated(now_ms, len(records)),
    )


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


def _parse_contents(
    records: Sequence[JsonRecord], field: str, *, is_needed: bool, has_base64: bool
) -> list[bytes | None]:
    if not has_base64:
        column: list[Any] = (
            [each[field] for each in records]
            if is_needed and all(field in each for each in records)
            else [each.get(field, _MISSING if is_needed else None) for each in records]
        )
        try:
            return list(map(str.encode, column))
        except (TypeError, UnicodeEncodeError):
            pass  # the slow path reports the error
    return [_parse_content(number, each, field, is_needed) for number, each in enumerate(records)]


_MISSING = object()


def _parse_content(number: int, record: JsonRecord, field: str, is_needed: bool) -> bytes | None:
    text = record.get(field, _MISSING)
    encoded = record.get(f"{field}_base64", _MISSING)
    if text is not _MISSING and encoded is not _MISSING:
        raise _wrong(number, f"expected {field} or {field}_base64, not both")
    if encoded is not _MISSING:
        return _parse_base64(number, f"{field}_base64", encoded)
    if text is _MISSING:
        if is_needed:
            raise _wrong(number, f"expected {field} or {field}_base64; null is a tombstone")
        return None
    if text is not None and not isinstance(text, str):
        raise _wrong(number, f"{field}: expected text or null, not {_kind(text)}")
    return None if text is None else _encode(number, field, text)


def _parse_base64(number: int, field: str, encoded: object) -> bytes:
    try:
        if isinstance(encoded, str):
            return b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise _wrong(number, f"{field}: expected base64")


def _parse_headers(number: int, headers: object) -> Headers:
    if headers is None:
        return ()
    if not isinstance(headers, list):
        raise _wrong(number, f'headers: expected a list such as [["name", "value"]], not {_kind(headers)}')
    found: list[tuple[str, bytes | None]] = []
    for pair in headers:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise _wrong(number, 'headers: expected pairs such as ["name", "value"]')
        name, content = pair
        _encode(number, "header name", name)
        if isinstance(content, dict) and content.keys() == {"base64"}:
            found.append((name, _parse_base64(number, "header base64", content["base64"])))
        elif content is None:
            found.append((name, None))
        elif isinstance(content, str):
            found.append((name, _encode(number, "header value", content)))
        else:
            raise _wrong(number, f'headers: expected text, null or {{"base64": "..."}}, not {_kind(content)}')
    return tuple(found)


def _parse_timestamps(records: Sequence[JsonRecord], now_ms: int) -> list[int]:
    found = []
    for number, each in enumerate(records):
        timestamp = each.get("timestamp")
        if timestamp is None:
            timestamp = now_ms
        elif not is_integer(timestamp, TIMESTAMP_MAX):
            raise _wrong(number, "timestamp: expected milliseconds since 1970, a whole number")
        found.append(timestamp)
    return found


def is_integer(value: object, maximum: int = TIMESTAMP_MAX) -> bool:
    """Return whether a JSON value is a whole number from 0 to a maximum."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum


def _encode(number: int, field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _wrong(number, f"{field}: expected text that UTF-8 can encode, without lone surrogates") from None


def _first_with(records: Sequence[JsonRecord], field: str) -> int:
    return next(number for number, each in enumerate(records) if field in each)


def _wrong(number: int, what: str) -> WebError:
    return WebError("bad_request", f"record {number}: {what}")


_KINDS = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "null")
