"""JSON documents: types for msgspec, which validates requests and describes the API; decoding and encoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Self, TypeAlias, TypeVar

import msgspec
import orjson
from msgspec import Meta, Struct

from dafka.http.server.errors import WebError

_D = TypeVar("_D", bound="Document")


class Document(Struct, forbid_unknown_fields=True):
    """A JSON object with fixed fields. OpenAPI shows its docstring."""

    @classmethod
    def of(cls, source: object, **values: Any) -> Self:
        """Return the document with these values of fields, and the source's attributes for all others."""
        names = [each for each in cls.__struct_fields__ if each not in values]
        return cls(**{each: getattr(source, each) for each in names}, **values)


Count: TypeAlias = Annotated[int, Meta(ge=0, extra_json_schema={"format": "int64"})]
"""A whole number of at least 0."""


def doc(description: str, *, enum: Iterable[str] | None = None, **constraints: Any) -> Meta:
    """Return the description of a value for `Annotated`, with its constraints or the texts that it can be."""
    schema = None if enum is None else {"enum": list(enum)}
    return Meta(description=description, extra_json_schema=schema, **constraints)


def parse_document(value: Any, kind: type[_D]) -> _D:
    """Validate the JSON document of a request. Raises `WebError`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        hint = "" if " - at " in str(error) else f"; expected {', '.join(kind.__struct_fields__)}"
        raise WebError("bad_request", f"{describe_problem('the body', error)}{hint}") from None


def describe_problem(where: str, error: msgspec.ValidationError) -> str:
    """Return a sentence for a client, such as "the body.log_count: expected `int` >= 1"."""
    reason, _, path = str(error).partition(" - at `$")
    return f"{where}{path.rstrip('`')}: {reason[0].lower()}{reason[1:]}"


def decode_document(data: bytes | bytearray | memoryview | str) -> Any:
    """Decode a JSON text (RFC 8259). NaN, lone surrogates and deep nesting are refused. Raises `WebError`."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise WebError("bad_request", f"expected JSON: {error}") from None


def encode_document(value: Any) -> bytes:
    """Encode a value as JSON text in UTF-8. Lone surrogates become replacement characters."""
    try:
        return orjson.dumps(value, default=msgspec.to_builtins)
    except TypeError:
        return orjson.dumps(_readable(msgspec.to_builtins(value)))


PIECE_CHARACTERS = 2**14
"""How many characters of a long text are encoded at a time; each takes six bytes at most."""


def iter_document(value: Any) -> Iterator[bytes]:
    """Encode a value as `encode_document` does, in pieces of limited size.

    The value can contain large texts, but not many members or items.
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
