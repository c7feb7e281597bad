"""Turns lines into records for `dafka produce`, and records into lines for `dafka consume`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat

import attrs

from dafka.records import NO_TIMESTAMP, Header, ProducerRecord, RecordBatch, encode_text
from dafka.storage.tools.json_lines import format_lines
from dafka.text import format_time, parse_time

NULL = "NULL"
"""What `dafka consume` prints for a null value, or for the key of a record without one."""

ABSENT = b"-"
"""What `--output full` prints for an unknown time, and for the headers of a record without any."""

_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"\\": b"\\"}
_TOKEN = re.compile(rb"\\x([0-9A-Fa-f]{2})|\\(.?)|%(.?)", re.DOTALL)


@attrs.frozen
class LineFormat:
    """How lines become records.

    With a `key_separator`, the key comes before it; a line without it is a value without a key. The timestamp of every
    record is in milliseconds since 1970 UTC; None for the time of sending. The text `null`, if any, stands for a null
    key or value.
    """

    key_separator: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp: int | None = None
    null: bytes | None = None

    def to_records(self, lines: Sequence[bytes]) -> Sequence[bytes | None] | Sequence[ProducerRecord]:
        """Return the records of lines: their values, if the lines give nothing else."""
        separator, null = self.key_separator, self.null
        if separator is None:
            values = lines if null is None else [None if line == null else line for line in lines]
            if not self.headers and self.timestamp is None:
                return values
            return [ProducerRecord(value, None, self.headers, self.timestamp) for value in values]
        records = []
        for line in lines:
            key, found, value = line.partition(separator)
            if found:
                records.append(self._make_record(None if key == null else key, value))
            else:
                records.append(self._make_record(None, line))
        return records

    def _make_record(self, key: bytes | None, value: bytes) -> ProducerRecord:
        return ProducerRecord(None if value == self.null else value, key, self.headers, self.timestamp)


Formatter = Callable[[RecordBatch], bytes]
"""Formats a batch of records for a file, a pipe or a terminal."""


def make_formatter(output: str, null: str = NULL) -> Formatter:
    """Return the formatter of `--output`: one line per record, each with its line feed.

    The output is `value` for the values alone; `full` for topic, partition, sequence, timestamp, key, headers and
    value; or `json`. `null` stands for a null value, or for the key of a record without one. JSON has a null of its
    own.
    """
    encoded = os.fsencode(null)
    if output == "value":
        return lambda batch: b"\n".join(_or_null(batch.values, encoded)) + b"\n"
    if output == "full":
        template = b"%b %b %b %b %b %b %b\n"
        topic, partition, sequence, key, value = (_FIELDS[name] for name in (b"t", b"p", b"o", b"k", b"s"))
        columns = (topic, partition, sequence, _times, key, _headers_or_absent, value)
        return lambda batch: _fill(template, columns, batch, encoded)
    return lambda batch: format_lines(batch).encode("ascii")


def parse_template(template: str, null: str = NULL) -> Formatter:
    r"""Return the formatter of a template, which is text with fields such as `%s` and escapes such as `\n`.

    Nothing is added to the template: `\n` ends a line. `null` stands for a null value, or for the key of a record
    without one. Raise `ValueError`, which says what is expected, if a field or an escape is unknown.
    """
    columns: list[_Column] = []

    def replace(token: re.Match[bytes]) -> bytes:
        field = token[3]
        if field is None:
            return _unescape(token).replace(b"%", b"%%")
        if field == b"%":
            return b"%%"
        if field not in _FIELDS:
            known = ", ".join(f"%{name.decode()}" for name in _FIELDS)
            raise ValueError(f"expected {known} or %% after a percent sign, not %{os.fsdecode(field)}")
        columns.append(_FIELDS[field])
        return b"%b"

    filled = _TOKEN.sub(replace, os.fsencode(template))
    encoded = os.fsencode(null)
    return lambda batch: _fill(filled, columns, batch, encoded)


def parse_separator(text: str) -> bytes:
    r"""Return the bytes of a separator, in which `\t`, `\n`, `\r`, `\\` and `\xNN` stand for one byte.

    Raise `ValueError` if it is empty, has an unknown escape, or has a line feed.
    """
    separator = _TOKEN.sub(lambda token: token[0] if token[3] is not None else _unescape(token), os.fsencode(text))
    if not separator:
        raise ValueError("expected at least one character")
    if b"\n" in separator:
        raise ValueError("expected no line feed, which ends the line")
    return separator


def parse_header(text: str) -> Header:
    """Return the header `NAME=VALUE`; of `NAME` alone, one with a null value.

    Raise `ValueError` if there is no name, or it is not UTF-8.
    """
    name, found, value = text.partition("=")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"expected a name in UTF-8, not {os.fsencode(name)!r}") from None
    if not name:
        raise ValueError(f"expected NAME=VALUE, not {text!r}")
    return name, os.fsencode(value) if found else None


def parse_timestamp(text: str) -> int:
    """Return a time in milliseconds since 1970, which is given as this number or as `parse_time` reads it.

    Raise `ValueError` if it is neither, or before 1970.
    """
    expected = "expected milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z"
    if text.isascii() and text.isdigit():
        if (number := int(text)) >= 2**63:
            raise ValueError(f"{expected}, not {text!r}")
        return number
    try:
        time_ms = parse_time(text)
    except ValueError:
        raise ValueError(f"{expected}, not {text!r}") from None
    if time_ms < 0:
        raise ValueError(f"{expected}, not {text!r}, which is before 1970")
    return time_ms


def _unescape(token: re.Match[bytes]) -> bytes:
    """Return the byte that an escape stands for."""
    if token[1] is not None:
        return bytes.fromhex(token[1].decode())
    if token[2] not in _ESCAPES:
        raise ValueError(rf"expected \n, \t, \r, \\ or \xNN after a backslash, not \{os.fsdecode(token[2])}")
    return _ESCAPES[token[2]]


_Column = Callable[[RecordBatch, bytes], Iterable[bytes]]
"""Returns a field of each record of a batch. The second argument stands for null."""


def _fill(template: bytes, columns: Sequence[_Column], batch: RecordBatch, null: bytes) -> bytes:
    if not columns:
        return template % () * len(batch)
    return b"".join([template % row for row in zip(*(column(batch, null) for column in columns), strict=False)])


def _timestamps(batch: RecordBatch, _null: bytes) -> Iterator[bytes]:
    if batch.timestamps is None:
        return repeat(b"%d" % NO_TIMESTAMP, len(batch))
    return (b"%d" % time_ms for time_ms in batch.timestamps)


def _times(batch: RecordBatch, _null: bytes) -> Iterator[bytes]:
    if batch.timestamps is None:
        return repeat(ABSENT, len(batch))
    return (ABSENT if time_ms == NO_TIMESTAMP else format_time(time_ms).encode() for time_ms in batch.timestamps)


def _headers(batch: RecordBatch, null: bytes) -> Iterable[bytes]:
    if batch.headers is None:
        return repeat(b"", len(batch))
    return (b",".join([_format_header(header, null) for header in headers]) for headers in batch.headers)


def _headers_or_absent(batch: RecordBatch, null: bytes) -> Iterable[bytes]:
    return (formatted or ABSENT for formatted in _headers(batch, null))


_FIELDS: dict[bytes, _Column] = {
    b"t": lambda batch, _: repeat(encode_text(batch.partition.topic, "topic"), len(batch)),
    b"p": lambda batch, _: repeat(encode_text(batch.partition.address, "partition"), len(batch)),
    b"o": lambda batch, _: (b"%d" % sequence for sequence in range(batch.first_sequence, batch.end_sequence)),
    b"k": lambda batch, null: repeat(null, len(batch)) if batch.keys is None else _or_null(batch.keys, null),
    b"K": lambda batch, _: repeat(b"-1", len(batch)) if batch.keys is None else map(_length, batch.keys),
    b"s": lambda batch, null: _or_null(batch.values, null),
    b"S": lambda batch, _: map(_length, batch.values),
    b"h": _headers,
    b"T": _timestamps,
}


def _or_null(items: Sequence[bytes | None], null: bytes) -> Iterable[bytes]:
    return (null if item is None else item for item in items)


def _length(item: bytes | None) -> bytes:
    return b"-1" if item is None else b"%d" % len(item)


def _format_header(header: Header, null: bytes) -> bytes:
    name, value = header
    return b"%b=%b" % (name.encode("utf-8", "surrogateescape"), null if value is None else value)
