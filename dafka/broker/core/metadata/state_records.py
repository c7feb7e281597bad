"""The state of a cluster as keys and values: what a broker stores, and what a snapshot has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from dafka.broker.core.typed_json import convert, encode_json

_SINGLE = HEADER, SNAPSHOTS, FEATURE_LEVEL = "cluster", "snapshots", "feature-level"
"""The keys of values of which there is one."""

_KINDS = BROKER, FORGOTTEN, TOPIC, REPLICAS, DELETING, DELETED, ACL, SCRAM, QUOTA, GROUP = (
    "broker/",
    "forgotten/",
    "topic/",
    "replicas/",
    "deleting/",
    "deleted/",
    "acl/",
    "scram/",
    "quota/",
    "group/",
)
"""What the keys of the others begin with. An id follows."""

PREFIXES = tuple(each.encode() for each in (*_SINGLE, *_KINDS))
"""What the keys of a state begin with."""

_T = TypeVar("_T")


class StateRecords:
    """The keys and values of a state, and which of them have changed. Values are JSON."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self._changed: dict[bytes, bytes | None] = {}

    def put(self, key: str, value: object) -> None:
        """Set a value."""
        self.values[key.encode()] = self._changed[key.encode()] = encode_json(value)

    def remove(self, key: str) -> None:
        """Remove a key."""
        self.values.pop(key.encode(), None)
        self._changed[key.encode()] = None

    def take_changed(self) -> list[tuple[bytes, bytes | None]]:
        """Return the keys and values that have changed since the last call; None for a key that was removed."""
        changed, self._changed = self._changed, {}
        return list(changed.items())

    def replace(self, records: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Replace all values, and return the new ones. Keys of other things are ignored.

        The first values of a broker that starts come from its storage, so they have not changed.
        """
        former = self.values
        self.values = {key: value for key, value in records.items() if key.startswith(PREFIXES)}
        new = {key: value for key, value in self.values.items() if former.get(key) != value}
        if former:
            self._changed.update(dict.fromkeys(former.keys() - self.values.keys()))
            self._changed.update(new)
        return new


def decode_records(records: Iterable[tuple[bytes, bytes]], prefix: str, kind: type[_T]) -> Iterator[_T]:
    """Yield the values whose keys have a prefix; see `decode_keys`."""
    for _, value in decode_keys(records, prefix, kind):
        yield value


def decode_keys(records: Iterable[tuple[bytes, bytes]], prefix: str, kind: type[_T]) -> Iterator[tuple[str, _T]]:
    """Yield the rest of each key with a prefix, and its value.

    Raise `TypeError`, `ValueError` or `KeyError` if one is malformed.
    """
    for key, value in records:
        if key.startswith(prefix.encode()):
            found: Any = convert(kind, json.loads(value))
            yield key.decode().removeprefix(prefix), found
