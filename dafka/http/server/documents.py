"""Encodes and decodes JSON documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from dafka.http.server.errors import WebError


def decode_document(data: bytes | bytearray | memoryview | str) -> Any:
    """Decode a JSON text (RFC 8259). NaN, lone surrogates and deep nesting are refused.

    Args:
        data: The text, in UTF-8.

    Returns:
        The value.

    Raises:
        WebError: It is not JSON.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise WebError("bad_request", f"expected JSON: {error}") from None


def encode_document(value: Any) -> bytes:
    """Encode a value as JSON text in UTF-8. Lone surrogates become replacement characters."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_readable(value))


PIECE_CHARACTERS = 2**14
"""How many characters of a long text are encoded at a time; each takes six bytes at most."""


def iter_document(value: Any) -> Iterator[bytes]:
    """Encode a value as `encode_document` does, in pieces of limited size.

    Args:
        value: The value. It can contain large texts, but not many members or items.

    Yields:
        A piece.
    """
    if isinstance(value, str) and len(value) > PIECE_CHARACTERS:
        yield b'"'
        for start in range(0, len(value), PIECE_CHARACTERS):
            yield encode_document(value[start : start + PIECE_CHARACTERS])[1:-1]
        yield b'"'
    elif isinstance(value, dict):
        separator = b"{"
        for key, each in value.items():
            yield separator
            yield from iter_document(key)
            yield b":"
            yield from iter_document(each)
            separator = b","
        yield b"}" if value else b"{}"
    elif isinstance(value, (list, tuple)):
        separator = b"["
        for each in value:
            yield separator
            yield from iter_document(each)
            separator = b","
        yield b"]" if value else b"[]"
    else:
        yield encode_document(value)


def _readable(value: Any) -> Any:
    """Return a value without lone surrogates and without numbers that JSON cannot represent."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_readable(str(key)): _readable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_readable(each) for each in value]
    return value
