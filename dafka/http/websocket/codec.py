"""Decodes and validates messages of clients in JSON, and encodes messages of brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

import dafka.http.websocket.messages  # noqa: F401 (it fills the tables)
from dafka.http.server.documents import decode_document, encode_document
from dafka.http.server.errors import WebError
from dafka.http.websocket.tables import CLIENT_MESSAGES, IDENTIFIER, SERVER_NAMES, ClientMessage


class RefusedMessageError(Exception):
    """A message of a client is refused.

    Args:
        id: The id of the request; None if the message has none.
        error: What is wrong.

    Attributes:
        id: The id of the request; None if the message has none.
        error: What is wrong.
    """

    def __init__(self, id: int | None, error: WebError) -> None:  # noqa: A002 (as in messages)
        super().__init__(str(error))
        self.id = id
        self.error = error


def decode_message(text: str | bytes) -> ClientMessage:
    """Decode a message that a client has sent as text.

    Args:
        text: The text.

    Returns:
        The message.

    Raises:
        RefusedMessageError: The message is malformed.
    """
    try:
        fields = decode_document(text)
    except WebError as error:
        raise RefusedMessageError(None, error) from None
    if not isinstance(fields, dict):
        raise RefusedMessageError(None, WebError("bad_request", "expected a JSON object with `type` and `id`"))
    name = fields.pop("type", None)
    found = fields.get("id")
    identifier = found if IDENTIFIER.accepts(found) else None
    message = CLIENT_MESSAGES.get(name) if isinstance(name, str) else None
    if message is None:
        expected = ", ".join(CLIENT_MESSAGES)
        raise RefusedMessageError(identifier, WebError("bad_request", f"type: expected one of {expected}"))
    try:
        return _build(message, fields)
    except WebError as error:
        raise RefusedMessageError(identifier, WebError("bad_request", f"{name}: {error.message}")) from None


def _build(message: type[ClientMessage], fields: Mapping[str, Any]) -> ClientMessage:
    arguments = {}
    left = dict(fields)
    for each in attrs.fields(message):
        name = each.metadata["name"] or each.name
        value = left.pop(name, None)
        if value is None:
            if each.default is attrs.NOTHING:
                raise WebError("bad_request", f"expected {name}: {each.metadata['kind'].expected}")
            continue
        if not each.metadata["kind"].accepts(value):
            raise WebError("bad_request", f"{name}: expected {each.metadata['kind'].expected}")
        arguments[each.name] = value
    for name in left:
        raise WebError("bad_request", f"there is no field {name[:100]!r}")
    return message(**arguments)


def encode_message(message: attrs.AttrsInstance) -> bytes:
    """Encode a message of the broker as JSON text."""
    return encode_document({"type": SERVER_NAMES[type(message)], **attrs.asdict(message, recurse=False)})


def encode_view(identifier: int, status: int, body: bytes) -> bytes:
    """Encode a `view` whose body is already JSON text."""
    return b'{"type":"view","id":%d,"status":%d,"body":%b}' % (identifier, status, body or b"null")


def records_head(identifier: int) -> bytes:
    """Encode the beginning of `records`. `encode_records_rest` returns the rest, which subscriptions share."""
    return b'{"type":"records","id":%d' % identifier


def encode_records_rest(log: int, offset: int, next_offset: int, records: bytes) -> bytes:
    """Encode the rest of `records`. See `records_head`.

    Args:
        log: The log.
        offset: Where the message begins.
        next_offset: Where the next one begins.
        records: The records, as a JSON list.

    Returns:
        JSON text.
    """
    return b',"log":%d,"offset":%d,"next_offset":%d,"records":%b}' % (log, offset, next_offset, records)
