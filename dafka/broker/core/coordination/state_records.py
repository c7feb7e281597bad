"""The state records of coordinators: JSON text, in the logs of the topic `$coordinators`.

Each log is a shard: its leader coordinates the groups and transactional ids that hash to it. One topic has the state of
both, so that a broker that takes over a shard reads one log, and waits for one leader.

A key is an array: the kind of the record, and the object of its state, such as `["offset", "my-group", "orders", 0]`.
Its form never changes, or compaction would retain both forms. A value is an object with its own `version`. No value
means that the object no longer exists. Bytes are Base64. Later versions can add fields without a new version number if
readers can ignore them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from dafka.broker.core.log.partitioner import log_of_key
from dafka.errors import StorageFormatError
from dafka.protocol.format_errors import format_errors

COORDINATORS_TOPIC = "$coordinators"
"""The topic of all state records."""

SHARDS = 16
"""The number of its logs. It cannot change: it decides which log a name belongs to."""

GROUPS_TOPIC = "$groups"
"""The kind of state for group membership."""

OFFSETS_TOPIC = "$offsets"
"""The kind of state for committed offsets and for offsets of open transactions."""

TRANSACTIONS_TOPIC = "$transactions"
"""The kind of state for transactions, and the producer ids already assigned."""

SHARD_KIND = "slot"
"""The kind of records about the shard itself."""

_TOPICS = {
    "group": GROUPS_TOPIC,
    "consumer-group": GROUPS_TOPIC,
    "consumer-member": GROUPS_TOPIC,
    "share-group": GROUPS_TOPIC,
    "share-member": GROUPS_TOPIC,
    "share-partition": GROUPS_TOPIC,
    "offset": OFFSETS_TOPIC,
    "pending-offset": OFFSETS_TOPIC,
    "transaction": TRANSACTIONS_TOPIC,
    "producer-ids": TRANSACTIONS_TOPIC,
}


class StateRecord(NamedTuple):
    """A record of a coordinator's state: its kind, the object that it describes, and a value or a tombstone."""

    topic: str
    key: bytes
    value: bytes | None


def shard_of(name: str) -> int:
    """Return the shard of a group or transactional id."""
    return log_of_key(name.encode("utf-8", "surrogatepass"), SHARDS)


def read_state(key: bytes, value: bytes | None) -> StateRecord | None:
    """Decode a record of a shard; None if it is about the shard itself.

    Raise `StorageFormatError` if the key is not that of a coordinator's record.
    """
    record = StateRecord(COORDINATORS_TOPIC, key, value)
    kind = decode_key(record)[0]
    if kind == SHARD_KIND:
        return None
    if kind not in _TOPICS:
        raise StorageFormatError(f"{COORDINATORS_TOPIC}: the key {key!r} has an unknown kind")
    return record._replace(topic=_TOPICS[kind])


def encode_state(topic: str, key: tuple[str | int, ...], fields: Mapping[str, Any] | None, version: int) -> StateRecord:
    """Return a state record; a tombstone if the fields are None."""
    value = None if fields is None else _encode({"version": version, **fields})
    return StateRecord(topic, _encode(key), value)


def decode_key(record: StateRecord) -> list[Any]:
    """Return the key of a record, which is not empty: its kind, and the object that it describes.

    Raise `StorageFormatError` if it is not the key of a coordinator's record.
    """
    key = _decode(record, record.key, "key")
    if not isinstance(key, list) or not key or not isinstance(key[0], str):
        raise StorageFormatError(f"{record.topic}: the key {record.key!r} is not an array that begins with a kind")
    return key


def decode_fields(record: StateRecord, version_max: int) -> dict[str, Any]:
    """Return the fields of a record that is not a tombstone, and its `version`, which is at most `version_max`.

    Raise `StorageFormatError` if the value is no such object, or a newer version of dafka has written it.
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


def field_errors(record: StateRecord) -> AbstractContextManager[None]:
    """Raise `StorageFormatError` where a field of a record is missing or has the wrong type."""
    return format_errors(f"the record {record.key!r} of {record.topic}")


def encode_bytes(data: bytes) -> str:
    """Return the text for bytes in a field."""
    return base64.b64encode(data).decode("ascii")


def decode_bytes(text: str) -> bytes:
    """Return the bytes of a text in a field."""
    return base64.b64decode(text, validate=True)


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _decode(record: StateRecord, data: bytes, what: str) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StorageFormatError(f"{record.topic}: the {what} of {record.key!r} is not JSON: {error}") from error
