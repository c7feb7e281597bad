"""The headers of a record as the column `headers` stores them: JSON text that SQLite's own functions read.

    [["trace", "4bf92f"], ["trace", "a3ce92"], ["signed", null], ["signature", {"hex": "00ff"}]]

Each header is a pair of its name and its value, in order. Bytes that are not UTF-8, or contain a zero byte, at which
many programs end a text, are an object with the bytes in hexadecimal digits. A record without headers has NULL.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dafka.records import Header, decode_text


def encode_headers(headers: Sequence[Header]) -> str | None:
    """Return headers as the column stores them."""
    if not headers:
        return None
    pairs = [
        [_encode(name.encode("utf-8", "surrogateescape")), None if value is None else _encode(value)]
        for name, value in headers
    ]
    return json.dumps(pairs, ensure_ascii=False, separators=(",", ":"))


def decode_headers(column: object) -> tuple[Header, ...]:
    """Return the headers that a column stores. Raise `ValueError` if it was not written by `encode_headers`."""
    if column is None:
        return ()
    if not isinstance(column, str):
        raise ValueError(f"expected text, not {type(column).__name__}")
    try:
        return tuple(
            (decode_text(_decode(name)), None if value is None else _decode(value))
            for name, value in json.loads(column)
        )
    except (TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ValueError(f"expected pairs of names and values: {error}") from None


def _encode(data: bytes) -> str | dict[str, str]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return {"hex": data.hex()}
    return {"hex": data.hex()} if "\0" in text else text


def _decode(part: Any) -> bytes:
    return part.encode("utf-8") if isinstance(part, str) else bytes.fromhex(part["hex"])


HEADERS_BYTES = """
    CASE WHEN headers IS NULL THEN 0 ELSE (
        SELECT ifnull(sum(iif(key = 'hex', length(atom) / 2, length(CAST(atom AS BLOB)))), 0)
        FROM json_tree(iif(json_valid(headers), headers, '[]')) WHERE type = 'text'
    ) END
"""
"""Computes the total length of a record's header names and values, as `RecordBatch.content_bytes` counts them."""
