"""The state records of groups and committed offsets.

| topic | key | value |
| --- | --- | --- |
| `$groups` | `["group", group_id]` | the state, the generation, the members and their assignments |
| `$offsets` | `["offset", group_id, topic, partition]` | a committed offset |
| `$offsets` | `["pending-offset", group_id, topic, partition, producer_id]` | an offset of an open transaction |

A group is written when a generation begins, when its leader has assigned, and when a static member has restarted. A
rebalance that waits for members is not written: after a restart the group is in its previous state.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs

from dafka.broker.core.coordination.state_records import (
    GROUPS_TOPIC,
    OFFSETS_TOPIC,
    StateRecord,
    decode_bytes,
    decode_fields,
    decode_key,
    encode_bytes,
    encode_state,
    field_errors,
)
from dafka.broker.core.groups.group import Group, GroupState, Member
from dafka.broker.core.topic_partition import TopicPartition
from dafka.errors import StorageFormatError

GROUP_VERSION = 1
"""The version of a group's value."""

OFFSET_VERSION = 1
"""The version of an offset's value."""

STORED_STATES = {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
"""The states in which groups are written."""


@attrs.frozen(kw_only=True)
class CommittedOffset:
    """The offset of the next record that a group reads from a log."""

    offset: int
    leader_epoch: int = -1  # of the last record that was read; -1 if the client does not provide it
    metadata: str = ""  # data that the client stores with the offset
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None  # if the client has set that (OffsetCommit up to version 4)
    order: int = 0  # the position of the commit among all commits: a later one has a larger number
    topic_id: str = ""  # the offset does not apply to another topic of that name


class OffsetKey(NamedTuple):
    """The key of an offset's record. With a producer id it is an offset of that producer's open transaction."""

    group_id: str
    log: TopicPartition
    producer_id: int | None = None


def encode_group(group: Group) -> StateRecord:
    """Return the record of a group in its current state, which must be one of `STORED_STATES`."""
    assert group.state in STORED_STATES
    fields = {
        "state": group.state.value,
        "state_since_ms": group.state_since_ms,
        "generation_id": group.generation_id,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol_name,
        "leader": group.leader,
        "members": [_encode_member(member) for member in group.members.values()],
    }
    return encode_state(GROUPS_TOPIC, ("group", group.group_id), fields, GROUP_VERSION)


def encode_group_tombstone(group_id: str) -> StateRecord:
    """Return the tombstone of a group."""
    return encode_state(GROUPS_TOPIC, ("group", group_id), None, GROUP_VERSION)


def decode_group(record: StateRecord) -> tuple[str, Group | None]:
    """Return the name of a group and the group, from a record of `$groups`; None for a tombstone.

    Raise `StorageFormatError` if it is malformed, or a newer version of dafka has written it.
    """
    key = decode_key(record)
    if len(key) != 2 or key[0] != "group" or not isinstance(key[1], str):
        raise StorageFormatError(f"{record.topic}: {record.key!r} is not the key of a group")
    if record.value is None:
        return key[1], None
    fields = decode_fields(record, GROUP_VERSION)
    with field_errors(record):
        group = Group(key[1], int(fields["state_since_ms"]))
        for each in fields["members"]:
            group.add(_decode_member(each), fields["protocol_type"])
        group.protocol_type = fields["protocol_type"]
        group.protocol_name = fields["protocol_name"]
        group.generation_id = int(fields["generation_id"])
        group.leader = fields["leader"]
        group.newcomers.clear()
        state = GroupState(fields["state"])
        if state not in STORED_STATES or bool(group.members) != (state is not GroupState.EMPTY):
            raise ValueError(f"state {state.value} with {len(group.members)} members")
        if group.members and group.leader not in group.members:
            raise ValueError(f"leader {group.leader!r} is no member")
        group.enter(state, group.state_since_ms)
        if state is GroupState.COMPLETING_REBALANCE:
            group.unsynced = set(group.members)
    return key[1], group


def encode_offset(key: OffsetKey, committed: CommittedOffset | None) -> StateRecord:
    """Return the record of an offset; a tombstone if it is None."""
    parts: tuple[str | int, ...] = ("offset", key.group_id, *key.log)
    if key.producer_id is not None:
        parts = ("pending-offset", key.group_id, *key.log, key.producer_id)
    fields = None if committed is None else attrs.asdict(committed, recurse=False)
    return encode_state(OFFSETS_TOPIC, parts, fields, OFFSET_VERSION)


def decode_offset(record: StateRecord) -> tuple[OffsetKey, CommittedOffset | None]:
    """Return the key and the value of a record of `$offsets`; None for a tombstone.

    Raise `StorageFormatError` if it is malformed, or a newer version of dafka has written it.
    """
    match decode_key(record):
        case ["offset", str(group_id), str(topic), int(partition)]:
            key = OffsetKey(group_id, TopicPartition(topic, partition))
        case ["pending-offset", str(group_id), str(topic), int(partition), int(producer_id)]:
            key = OffsetKey(group_id, TopicPartition(topic, partition), producer_id)
        case _:
            raise StorageFormatError(f"{record.topic}: {record.key!r} is not the key of an offset")
    if record.value is None:
        return key, None
    fields = decode_fields(record, OFFSET_VERSION)
    with field_errors(record):
        expire_timestamp_ms = fields["expire_timestamp_ms"]
        return key, CommittedOffset(
            offset=int(fields["offset"]),
            leader_epoch=int(fields["leader_epoch"]),
            metadata=str(fields["metadata"]),
            commit_timestamp_ms=int(fields["commit_timestamp_ms"]),
            expire_timestamp_ms=None if expire_timestamp_ms is None else int(expire_timestamp_ms),
            order=int(fields["order"]),
            topic_id=str(fields.get("topic_id", "")),
        )


def _encode_member(member: Member) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "session_timeout_ms": member.session_timeout_ms,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "protocols": [[name, encode_bytes(metadata)] for name, metadata in member.protocols],
        "assignment": encode_bytes(member.assignment),
    }


def _decode_member(fields: dict[str, Any]) -> Member:
    return Member(
        fields["member_id"],
        fields["group_instance_id"],
        fields["client_id"],
        fields["client_host"],
        int(fields["session_timeout_ms"]),
        int(fields["rebalance_timeout_ms"]),
        tuple((name, decode_bytes(metadata)) for name, metadata in fields["protocols"]),
        decode_bytes(fields["assignment"]),
    )
