"""The topics of a broker: their names, their number of logs and their settings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import attrs

from dafka.errors import StorageFormatError

TOPICS_TOPIC = "$topics"
"""Where topics are kept: a record for each, whose key is its name; no value means that it is deleted."""

TOPIC_VERSION = 1
"""The version of these records."""

NAME_MAX = 249
"""The length of the longest name of a topic that Kafka's clients can use."""

LOGS_MAX = 10_000
"""The largest number of logs of a topic."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")


@attrs.frozen
class Topic:
    """A topic that has logs.

    Attributes:
        name: The name.
        topic_id: 32 hexadecimal digits, which no other topic ever has, whatever its name.
        log_count: The number of its logs.
        settings: Its own settings, under the names that Kafka's clients use, such as `retention.ms`.
    """

    name: str
    topic_id: str
    log_count: int = 1
    settings: Mapping[str, str] = attrs.field(factory=dict)


def find_name_problem(name: str) -> str:
    """Return why Kafka's clients cannot use a topic with a name; empty if they can."""
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
    fields = {
        "version": TOPIC_VERSION,
        "topic_id": topic.topic_id,
        "log_count": topic.log_count,
        "settings": dict(topic.settings),
    }
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def decode_topic(name: str, value: bytes) -> Topic:
    """Return a topic.

    Args:
        name: The key of its record.
        value: The value.

    Returns:
        The topic.

    Raises:
        StorageFormatError: The value is malformed, or a newer version of dafka has written it.
    """
    try:
        fields = json.loads(value)
        version = int(fields["version"])
        if version > TOPIC_VERSION:
            raise StorageFormatError(
                f"the topic {name!r} has version {version}, and this dafka reads versions up to {TOPIC_VERSION}: start "
                "the version of dafka that wrote it, or a later one"
            )
        settings = {str(key): str(each) for key, each in fields["settings"].items()}
        return Topic(name, str(fields["topic_id"]), int(fields["log_count"]), settings)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageFormatError(f"the record of the topic {name!r} is malformed: {error!r}") from None
