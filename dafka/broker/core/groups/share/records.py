"""The state records of share groups.

| topic | key | value |
| --- | --- | --- |
| `$groups` | `["share-group", group_id]` | the epoch and the topics |
| `$groups` | `["share-member", group_id, member_id]` | a member, with the logs that it reads |
| `$groups` | `["share-partition", group_id, topic_id, number]` | what the group has done with the records of a log |
"""

from __future__ import annotations

from dafka.broker.core.coordination.state_records import (
    GROUPS_TOPIC,
    StateRecord,
    decode_fields,
    decode_key,
    encode_state,
    field_errors,
)
from dafka.broker.core.groups.consumer.members import by_topic
from dafka.broker.core.groups.consumer.records import decode_logs, decode_topics, encode_topics
from dafka.broker.core.groups.share.members import ShareGroup, ShareMember
from dafka.broker.core.groups.share.runs import RecordState
from dafka.broker.core.groups.share.state import SharePartitionKey, ShareState, StoredRun
from dafka.errors import StorageFormatError

SHARE_GROUP, SHARE_MEMBER, SHARE_PARTITION = "share-group", "share-member", "share-partition"
"""The kinds of the records."""

VERSION = 1
"""The version of the values."""


def encode_group(group: ShareGroup) -> StateRecord:
    """Return the record of a group."""
    fields = {
        "epoch": group.epoch,
        "state_since_ms": group.state_since_ms,
        "topics": encode_topics(group.topics),
    }
    return encode_state(GROUPS_TOPIC, (SHARE_GROUP, group.group_id), fields, VERSION)


def encode_member(group: ShareGroup, member_id: str) -> StateRecord:
    """Return the record of a member of a group."""
    member = group.members[member_id]
    fields = {
        "rack": member.rack,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "topics": sorted(member.topics),
        "epoch": member.epoch,
        "previous_epoch": member.previous_epoch,
        "assigned": by_topic(member.assigned),
    }
    return encode_state(GROUPS_TOPIC, (SHARE_MEMBER, group.group_id, member_id), fields, VERSION)


def encode_partition(key: SharePartitionKey, state: ShareState) -> StateRecord:
    """Return the record of a share partition."""
    fields = {
        "state_id": state.state_id,
        "loaded_epoch": state.loaded_epoch,
        "written_epoch": state.written_epoch,
        "start_offset": state.start_offset,
        "runs": state.runs,
    }
    return encode_state(GROUPS_TOPIC, (SHARE_PARTITION, *key), fields, VERSION)


def encode_tombstone(kind: str, *key: str | int) -> StateRecord:
    """Return the tombstone of a record of a kind."""
    return encode_state(GROUPS_TOPIC, (kind, *key), None, VERSION)


def decode_group(record: StateRecord) -> tuple[str, ShareGroup | None]:
    """Return the name of a group, and the group without its members, from its record; None for a tombstone.

    Raise `StorageFormatError` if it is malformed, or a newer version of dafka has written it.
    """
    match decode_key(record):
        case [_, str(group_id)]:
            pass
        case _:
            raise _malformed(record)
    if record.value is None:
        return group_id, None
    fields = decode_fields(record, VERSION)
    with field_errors(record):
        group = ShareGroup(group_id, int(fields["state_since_ms"]))
        group.epoch = int(fields["epoch"])
        group.topics = decode_topics(fields["topics"])
        return group_id, group


def decode_member(record: StateRecord) -> tuple[str, str, ShareMember | None]:
    """Return the names of a group and a member, and the member, from its record; None for a tombstone.

    Raise `StorageFormatError` if it is malformed, or a newer version of dafka has written it.
    """
    match decode_key(record):
        case [_, str(group_id), str(member_id)]:
            pass
        case _:
            raise _malformed(record)
    if record.value is None:
        return group_id, member_id, None
    fields = decode_fields(record, VERSION)
    with field_errors(record):
        member = ShareMember(
            member_id=member_id,
            rack=str(fields["rack"]),
            client_id=str(fields["client_id"]),
            client_host=str(fields["client_host"]),
            topics=frozenset(map(str, fields["topics"])),
            epoch=int(fields["epoch"]),
            previous_epoch=int(fields["previous_epoch"]),
            assigned=decode_logs(fields["assigned"]),
        )
        return group_id, member_id, member


def decode_partition(record: StateRecord) -> tuple[SharePartitionKey, ShareState | None]:
    """Return a share partition and its state, from its record; None for a tombstone.

    Raise `StorageFormatError` if it is malformed, or a newer version of dafka has written it.
    """
    match decode_key(record):
        case [_, str(group_id), str(topic_id), int(number)]:
            key = SharePartitionKey(group_id, topic_id, number)
        case _:
            raise _malformed(record)
    if record.value is None:
        return key, None
    fields = decode_fields(record, VERSION)
    with field_errors(record):
        runs = tuple(
            StoredRun(int(size), RecordState(state), int(deliveries)) for size, state, deliveries in fields["runs"]
        )
        return key, ShareState(
            str(fields["state_id"]),
            int(fields["loaded_epoch"]),
            int(fields["written_epoch"]),
            int(fields["start_offset"]),
            runs,
        )


def _malformed(record: StateRecord) -> StorageFormatError:
    return StorageFormatError(f"{record.topic}: {record.key!r} is not the key of a share group")
