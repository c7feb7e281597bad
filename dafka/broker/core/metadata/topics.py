"""The topics of a cluster: their names, numbers of logs and settings, and how they are stored."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import attrs

from dafka.errors import StorageFormatError
from dafka.protocol.format_errors import format_errors

TOPICS_TOPIC = "$topics"
"""The topic in which each broker stores the topics that it has changed: one record for each, keyed by its name."""

MESSAGES_TOPIC = "$messages"
"""The topic of messages between brokers, with a partition for each sender. Only new messages matter."""

MESSAGES_AGE_MS = 600_000
"""How long messages are stored."""

TOPIC_VERSION = 2
"""The version of these records."""

NAME_MAX = 249
"""The length of the longest name of a topic that Kafka's clients can use."""

LOGS_MAX = 10_000
"""The largest number of logs of a topic."""

_DELETED = "/"
"""The separator of a topic's name and its id in the key of a deletion. No name contains it."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")


@attrs.frozen
class Topic:
    """A topic that has logs.

    Attributes:
        name: The name.
        topic_id: 32 hexadecimal digits. No other topic ever has the same, whatever its name.
        log_count: The number of its logs.
        settings: Its own settings, with Kafka's names, such as `retention.ms`.
        replica_count: The number of replicas of its logs; 0 for `[broker] replicas`.
        placement: The replicas of each log when it was created, the first leader first; empty if the broker that stores
            this record led all of them.
        revision: How often the topic has changed.
        assignments: By number of a log, the replicas that an operator has chosen, the preferred leader first.
        created_at: When it was created, in ms since 1970; 0 if that is unknown.
        first_epoch: The leader epoch with which its logs begin, larger than those of a deleted topic of the same name.
            Clients know logs by topic name, and some ignore leaders of an earlier epoch.
    """

    name: str
    topic_id: str
    log_count: int = 1
    settings: Mapping[str, str] = attrs.field(factory=dict)
    replica_count: int = 0
    placement: tuple[tuple[str, ...], ...] = ()
    revision: int = 0
    created_at: int = 0
    assignments: Mapping[int, tuple[str, ...]] = attrs.field(factory=dict)
    first_epoch: int = 0


@attrs.frozen
class Deletion:
    """The deletion of a topic, as the deleting broker knew it.

    `producer_ends` has the sequence after the last deleted record of each producer partition, by address. A producer
    continues its partition: later records belong to the next topic of the same name.
    """

    topic: Topic
    producer_ends: Mapping[str, int] = attrs.field(factory=dict)
    last_epoch: int = 0  # the largest known leader epoch of its logs

    @property
    def key(self) -> str:
        """The key of its record. It is unique, so the deletion stays when the topic is created again."""
        return f"{self.topic.name}{_DELETED}{self.topic.topic_id}"


def find_name_problem(name: str) -> str:
    """Return why Kafka's clients cannot use a topic name; empty if they can."""
    if not name:
        return "the name of a topic is empty"
    if len(name) > NAME_MAX:
        return f"the name of a topic has {len(name)} characters, at most {NAME_MAX} are possible"
    if name in {".", ".."}:
        return f"a topic cannot have the name {name!r}"
    if not _NAME.fullmatch(name):
        return f"the name of a topic has only ASCII letters, digits, '.', '_' and '-', unlike {name!r}"
    return ""


def encode_topic(topic: Topic) -> bytes:
    """Return the value of a topic's record."""
    return _encode(_describe(topic))


def encode_deletion(deletion: Deletion) -> bytes:
    """Return the value of a deletion's record. The record stays, so that all brokers learn of it."""
    fields = _describe(deletion.topic) | {"is_deleted": True, "last_epoch": deletion.last_epoch}
    if deletion.producer_ends:
        fields["native_ends"] = dict(deletion.producer_ends)
    return _encode(fields)


def _describe(topic: Topic) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "version": TOPIC_VERSION,
        "topic_id": topic.topic_id,
        "log_count": topic.log_count,
        "settings": dict(topic.settings),
        "revision": topic.revision,
        "created_at": topic.created_at,
    }
    if topic.replica_count:
        fields["replica_count"] = topic.replica_count
    if topic.placement:
        fields["placement"] = topic.placement
    if topic.assignments:
        fields["assignments"] = topic.assignments
    if topic.first_epoch:
        fields["first_epoch"] = topic.first_epoch
    return fields


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def decode_topic(key: str, value: bytes) -> Topic | Deletion:
    """Return the topic or the deletion that a record contains.

    Raise `StorageFormatError` if it is malformed, or a newer version of dafka has written it.
    """
    name = key.partition(_DELETED)[0]
    with format_errors(f"the record of the topic {name!r}"):
        fields = json.loads(value)
        version = int(fields["version"])
        if version > TOPIC_VERSION:
            raise StorageFormatError(
                f"the topic {name!r} has version {version}, and this dafka reads versions up to {TOPIC_VERSION}: start "
                "the version of dafka that wrote it, or a later one"
            )
        settings = {str(key): str(each) for key, each in fields["settings"].items()}
        placement = tuple(tuple(map(str, each)) for each in fields.get("placement", ()))
        count, revision = int(fields["log_count"]), int(fields.get("revision", 0))
        if not 0 < count <= LOGS_MAX:
            raise ValueError(f"{count} logs")
        replica_count, created_at = int(fields.get("replica_count", 0)), int(fields.get("created_at", 0))
        assigned = {int(number): tuple(map(str, each)) for number, each in fields.get("assignments", {}).items()}
        topic = Topic(
            name,
            str(fields["topic_id"]),
            count,
            settings,
            replica_count,
            placement,
            revision,
            created_at,
            assigned,
            int(fields.get("first_epoch", 0)),
        )
        if not fields.get("is_deleted"):
            return topic
        producer_ends = {str(address): int(end) for address, end in fields.get("native_ends", {}).items()}
        return Deletion(topic, producer_ends, int(fields.get("last_epoch", 0)))
