"""The state records of consumer groups.

| topic | key | value |
| --- | --- | --- |
| `$groups` | `["consumer-group", group_id]` | the epochs, the assignor and the topics |
| `$groups` | `["consumer-member", group_id, member_id]` | a member, with what it has and what the assignment gives it |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dafka.broker.core.coordination.state_records import (
    GROUPS_TOPIC,
    StateRecord,
    decode_bytes,
    decode_fields,
    decode_key,
    encode_bytes,
    encode_state,
    field_errors,
)
from dafka.broker.core.groups.consumer.group import ConsumerGroup, KnownTopic, StoredGroup
from dafka.broker.core.groups.consumer.members import (
    NOTHING,
    Assignment,
    ClassicProtocol,
    Member,
    MemberState,
    Subscription,
    by_topic,
)
from dafka.broker.core.metadata.log_replicas import LogKey
from dafka.errors import StorageFormatError

CONSUMER_GROUP = "consumer-group"
"""The kind of the record of a group."""

CONSUMER_MEMBER = "consumer-member"
"""The kind of the record of a member."""

VERSION = 1
"""The version of the values."""


class StoredMember(NamedTuple):
    """A member in a record, with what the assignment gives it."""

    member: Member
    target: Assignment


def encode_group(group: ConsumerGroup) -> StateRecord:
    """Return the record of a group."""
    fields = {
        "epoch": group.epoch,
        "target_epoch": group.target_epoch,
        "state_since_ms": group.state_since_ms,
        "assignor": group.assignor,
        "topics": encode_topics(group.topics),
    }
    return encode_state(GROUPS_TOPIC, (CONSUMER_GROUP, group.group_id), fields, VERSION)


def encode_member(group: ConsumerGroup, member_id: str) -> StateRecord:
    """Return the record of a member of a group."""
    member = group.members[member_id]
    fields = {
        "instance_id": member.instance_id,
        "rack": member.rack,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "names": sorted(member.subscription.names),
        "pattern": member.subscription.pattern,
        "matching": sorted(member.subscription.matching),
        "assignor": member.assignor,
        "epoch": member.epoch,
        "previous_epoch": member.previous_epoch,
        "state": member.state.value,
        "assigned": by_topic(member.assigned),
        "revoking": by_topic(member.revoking),
        "classic": None if member.classic is None else _encode_classic(member.classic),
        "target": by_topic(group.targets.get(member_id, NOTHING)),
    }
    return encode_state(GROUPS_TOPIC, (CONSUMER_MEMBER, group.group_id, member_id), fields, VERSION)


def encode_group_tombstone(group_id: str) -> StateRecord:
    """Return the tombstone of a group."""
    return encode_state(GROUPS_TOPIC, (CONSUMER_GROUP, group_id), None, VERSION)


def encode_member_tombstone(group_id: str, member_id: str) -> StateRecord:
    """Return the tombstone of a member."""
    return encode_state(GROUPS_TOPIC, (CONSUMER_MEMBER, group_id, member_id), None, VERSION)


def decode_consumer_group(record: StateRecord) -> tuple[str, StoredGroup | None]:
    """Return the name of a group and its state, from its record; None for a tombstone.

    Raise `StorageFormatError` if it is malformed, or a newer version of dafka has written it.
    """
    match decode_key(record):
        case [_, str(group_id)]:
            pass
        case _:
            raise StorageFormatError(f"{record.topic}: {record.key!r} is not the key of a consumer group")
    if record.value is None:
        return group_id, None
    fields = decode_fields(record, VERSION)
    with field_errors(record):
        return group_id, StoredGroup(
            int(fields["epoch"]),
            int(fields["target_epoch"]),
            int(fields["state_since_ms"]),
            str(fields["assignor"]),
            decode_topics(fields["topics"]),
        )


def decode_member(record: StateRecord) -> tuple[str, str, StoredMember | None]:
    """Return the names of a group and a member, and the member, from its record; None for a tombstone.

    Raise `StorageFormatError` if it is malformed, or a newer version of dafka has written it.
    """
    match decode_key(record):
        case [_, str(group_id), str(member_id)]:
            pass
        case _:
            raise StorageFormatError(f"{record.topic}: {record.key!r} is not the key of a member")
    if record.value is None:
        return group_id, member_id, None
    fields = decode_fields(record, VERSION)
    with field_errors(record):
        member = Member(
            member_id=member_id,
            instance_id=str(fields["instance_id"]),
            rack=str(fields["rack"]),
            client_id=str(fields["client_id"]),
            client_host=str(fields["client_host"]),
            rebalance_timeout_ms=int(fields["rebalance_timeout_ms"]),
            subscription=Subscription(
                frozenset(map(str, fields["names"])),
                str(fields["pattern"]),
                frozenset(map(str, fields["matching"])),
            ),
            assignor=str(fields["assignor"]),
            epoch=int(fields["epoch"]),
            previous_epoch=int(fields["previous_epoch"]),
            state=MemberState(fields["state"]),
            assigned=decode_logs(fields["assigned"]),
            revoking=decode_logs(fields["revoking"]),
            classic=None if fields["classic"] is None else _decode_classic(fields["classic"]),
        )
        return group_id, member_id, StoredMember(member, decode_logs(fields["target"]))


def _encode_classic(classic: ClassicProtocol) -> dict[str, Any]:
    protocols = [[name, encode_bytes(metadata)] for name, metadata in classic.protocols]
    return {"session_timeout_ms": classic.session_timeout_ms, "protocols": protocols}


def _decode_classic(fields: dict[str, Any]) -> ClassicProtocol:
    protocols = tuple((str(name), decode_bytes(metadata)) for name, metadata in fields["protocols"])
    return ClassicProtocol(int(fields["session_timeout_ms"]), protocols)


def encode_topics(topics: Mapping[str, KnownTopic]) -> list[list[str | int]]:
    """Return topics as they are stored."""
    return [[name, *topic] for name, topic in topics.items()]


def decode_topics(stored: Iterable[Any]) -> dict[str, KnownTopic]:
    """Return topics that were stored."""
    return {str(name): KnownTopic(str(topic_id), int(count)) for name, topic_id, count in stored}


def decode_logs(logs: dict[str, Any]) -> Assignment:
    """Return logs that were stored as `by_topic` returns them."""
    return frozenset(LogKey(str(topic_id), int(number)) for topic_id, numbers in logs.items() for number in numbers)
