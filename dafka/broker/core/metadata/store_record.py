"""What a store keeps about its cluster outside the log of metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import attrs

from dafka.broker.core.typed_json import convert, encode_json
from dafka.errors import StorageFormatError
from dafka.protocol.format_errors import format_errors

CLUSTER_TOPIC = "$cluster"
"""The topic of this record and of the state of the cluster, as one broker has applied it. Only this broker reads it."""

STORE_KEY = b"store"
"""The key of the record."""

COUNTERS_KEY = b"counters"
"""The key of the counters that stores have sent; see `KnownStores`."""


STORE_VERSION = 1
"""The version of the record."""


class SentCounter(NamedTuple):
    """The counter of a store's writes, and the number of the start that has sent it."""

    start: str
    counter: int


@attrs.frozen
class StoreRecord:
    """The cluster that a store belongs to. A store never joins another one.

    Attributes:
        cluster_id: The id of the cluster, which is the id of the topic `$metadata`.
        first_voters: The first voters of the log of metadata.
        applied: The offset in the log of metadata before which all commands are applied to the stored state.
        recovery: The last recovery of the cluster when they were applied; see `recovery_of`.
        starts: The numbers of the latest starts; see `StoreCheck`.
        store_id: The id of the store, if it is not that of the storage: the store has given up its first one.
        replaces: The id that the store had before.
        pending_recovery: The recovery of the cluster that an administrator has ordered from this store; 0 if none.
    """

    cluster_id: str
    first_voters: tuple[str, ...]
    applied: int = 0
    recovery: int = 0
    starts: tuple[str, ...] = ()
    store_id: str = ""
    replaces: str = ""
    pending_recovery: int = 0


def encode_store_record(record: StoreRecord) -> bytes:
    """Return the value of the record. Fields that are later than the version are not written with their default."""
    fields = attrs.asdict(record)
    if not record.pending_recovery:
        del fields["pending_recovery"]
    return encode_json({"version": STORE_VERSION, **fields})


def decode_store_record(value: bytes) -> StoreRecord:
    """Return the record of a store. Raise `StorageFormatError` if it is malformed, or of a newer version."""
    with format_errors("the record of the store's cluster"):
        fields = json.loads(value)
        if convert(int, fields.pop("version")) > STORE_VERSION:
            raise StorageFormatError("the record of the store's cluster has a newer version: update dafka")
        found: StoreRecord = convert(StoreRecord, fields)
        return found


def encode_counters(counters: Mapping[str, SentCounter]) -> bytes:
    """Return the value of the counters of stores."""
    return encode_json(counters)


def decode_counters(value: bytes) -> dict[str, SentCounter]:
    """Return the counters of stores. Raise `StorageFormatError` if they are malformed."""
    with format_errors("the counters of stores"):
        found: dict[str, SentCounter] = convert(Mapping[str, SentCounter], json.loads(value))
        return found
