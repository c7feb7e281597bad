"""The records of a group's topic. Each member publishes its state in its own partition.

A full record contains the whole state of the member; other records contain the changes since the previous one. Both are
heartbeats. A reader that begins at most `READ_BACK_RECORDS` before the end of a partition finds a full one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import attrs

from dafka.errors import StorageFormatError
from dafka.internal_topics import GROUP_PREFIX
from dafka.protocol.format_errors import format_errors
from dafka.records import Partition

GROUP_RECORD_VERSION = 1
"""The version of the records."""

FULL_EVERY_RECORDS = 100
"""One of this many records of a member is a full one."""

LEASE_MS_MAX = 600_000
"""The longest lease, and so the longest wait of a group for a member that does not come back."""

READ_BACK_RECORDS = 128
"""The number of records before the end of a member's partition at which a reader begins."""


class Position(NamedTuple):
    """A group's position in a partition."""

    epoch: int
    """The number of times that the partition had been taken over when this was saved. The position of the later epoch
    is valid, regardless of which was written later."""
    sequence: int
    """The sequence of the next record to handle."""


@attrs.frozen(kw_only=True)
class MemberRecord:
    """One record of a member."""

    lease_ms: int
    """How long the others wait for the next heartbeat before they take over its partitions, in milliseconds."""
    topics: tuple[str, ...] = ()
    stores: int = 0
    """The largest number of stores that it has been connected to."""
    is_full: bool = False
    """Whether the record replaces all earlier ones."""
    is_leaving: bool = False
    """Whether this is its last record."""
    claimed: frozenset[Partition] = frozenset()
    """Partitions that it wants to handle, or handles."""
    released: frozenset[Partition] = frozenset()
    positions: Mapping[Partition, Position] = attrs.field(factory=dict)
    over: frozenset[str] = frozenset()
    """Members that are over: they have left, or their lease has ended. They never come back."""


def topic_of_group(group: str) -> str:
    """Return the topic for the records of a group's members."""
    return GROUP_PREFIX + group


def encode_member_record(record: MemberRecord) -> bytes:
    """Return the value of a member's record."""
    positions: dict[str, dict[str, Position]] = {}
    for partition, position in record.positions.items():
        positions.setdefault(partition.topic, {})[partition.address] = position
    fields = {
        "version": GROUP_RECORD_VERSION,
        "lease_ms": record.lease_ms,
        "topics": record.topics,
        "stores": record.stores,
        "full": record.is_full,
        "leaving": record.is_leaving,
        "claimed": _by_topic(record.claimed),
        "released": _by_topic(record.released),
        "positions": positions,
        "over": sorted(record.over),
    }
    known = {name: value for name, value in fields.items() if value}
    return json.dumps(known, separators=(",", ":")).encode()


def decode_member_record(value: bytes) -> MemberRecord:
    """Return the member's record of a value that `encode_member_record`, of this or an earlier version, has returned.

    Raise `StorageFormatError` if the value is malformed, or was written by a newer version of dafka.
    """
    with format_errors("a record of a group"):
        fields = json.loads(value)
        if fields["version"] > GROUP_RECORD_VERSION:
            raise StorageFormatError("a record of a group has a newer version: update dafka on this machine")
        lease_ms, stores = int(fields["lease_ms"]), int(fields.get("stores", 0))
        if not 0 < lease_ms <= LEASE_MS_MAX or stores < 0:
            raise StorageFormatError("a record of a group has a lease or a number of stores that is not possible")
        return MemberRecord(
            lease_ms=lease_ms,
            topics=tuple(map(str, fields.get("topics", ()))),
            stores=stores,
            is_full=bool(fields.get("full")),
            is_leaving=bool(fields.get("leaving")),
            claimed=_partitions(fields.get("claimed", {})),
            released=_partitions(fields.get("released", {})),
            positions=_positions(fields.get("positions", {})),
            over=frozenset(map(str, fields.get("over", ()))),
        )


def _by_topic(partitions: Iterable[Partition]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for partition in sorted(partitions, key=str):
        found.setdefault(partition.topic, []).append(partition.address)
    return found


def _partitions(found: Mapping[str, Any]) -> frozenset[Partition]:
    return frozenset(Partition(topic, str(address)) for topic, addresses in found.items() for address in addresses)


def _positions(found: Mapping[str, Mapping[str, Any]]) -> dict[Partition, Position]:
    positions = {}
    for topic, addresses in found.items():
        for address, (epoch, sequence) in addresses.items():
            if not (type(epoch) is int and type(sequence) is int and epoch >= 0 and sequence >= 0):
                raise ValueError(f"expected two whole numbers from 0 on, not {epoch!r} and {sequence!r}")
            positions[Partition(topic, address)] = Position(epoch, sequence)
    return positions
