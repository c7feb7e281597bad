"""The records in which coordinators keep their state: JSON text, in compacted topics.

A key is an array: the kind of the record, and what it describes, such as `["offset", "my-group", "orders", 0]`. It
never has another form, or compaction would keep both. A value is an object with its own `version`; no value means that
the thing is gone. Bytes are Base64. Later versions may add fields without a new version number if readers may ignore
them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from dafka.errors import StorageFormatError

GROUPS_TOPIC = "$groups"
"""Group membership."""

OFFSETS_TOPIC = "$offsets"
"""Committed offsets, and those of open transactions."""

TRANSACTIONS_TOPIC = "$transactions"
"""Transactions, and which producer ids were given away."""


class StateRecord(NamedTuple):
    """One record of a coordinator's state.

    Attributes:
        topic: The compacted topic in which it belongs.
        key: What it describes.
        value: The state; None if there is none any more, a tombstone.
    """

    topic: str
    key: bytes
    value: bytes | None


def encode_state(topic: str, key: tuple[str | int, ...], fields: Mapping[str, Any] | None, version: int) -> StateRecord:
    """Return a record of a state, or its tombstone if the fields are None."""
    value = None if fields is None else _encode({"version": version, **fields})
    return StateRecord(topic, _encode(key), value)


def decode_key(record: StateRecord) -> list[Any]:
    """Return the key of a record: its kind, and what the record describes.

    Args:
        record: A record that `encode_state` or an earlier version of it has made.

    Returns:
        The key. It has at least one element.

    Raises:
        StorageFormatError: The key is not that of a coordinator's record.
    """
    key = _decode(record, record.key, "key")
    if not isinstance(key, list) or not key or not isinstance(key[0], str):
        raise StorageFormatError(f"{record.topic}: the key {record.key!r} is not an array that begins with a kind")
    return key


def decode_fields(record: StateRecord, version_max: int) -> dict[str, Any]:
    """Return the fields of a record that is no tombstone.

    Args:
        record: The record.
        version_max: The newest version that the caller can read.

    Returns:
        The fields, and `version`.

    Raises:
        StorageFormatError: The value is no such object, or a newer version of dafka has written it.
    """
    assert record.value is not None
    fields = _decode(record, record.value, "value")
    version = fields.get("version") if isinstance(fields, dict) else None
    if not isinstance(version, int) or version < 1:
        raise StorageFormatError(f"{record.topic}: the value of {record.key!r} is not an object with a version")
    if version > version_max:
        raise StorageFormatError(
            f"{record.topic}: {record.key!r} has version {version}, and this dafka reads versions up to {version_max}: "
            "start the version of dafka that wrote it, or a later one"
        )
    assert isinstance(fields, dict)
    return fields


@contextmanager
def field_errors(record: StateRecord) -> Iterator[None]:
    """Raise `StorageFormatError` where a field of a record is missing or has the wrong type."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise StorageFormatError(f"{record.topic}: {record.key!r} has a wrong or missing field: {error!r}") from error


def encode_bytes(data: bytes) -> str:
    """Return bytes as the text that stands for them in a field."""
    return base64.b64encode(data).decode("ascii")


def decode_bytes(text: str) -> bytes:
    """Return the bytes that a field stands for."""
    return base64.b64decode(text, validate=True)


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _decode(record: StateRecord, data: bytes, what: str) -> object:
    try:
        return json.loads(data)
    except ValueError as error:
        raise StorageFormatError(f"{record.topic}: the {what} of {record.key!r} is not JSON: {error}") from error
