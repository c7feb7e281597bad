"""The settings of topics, with Kafka's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from dafka.broker.core.metadata.topics import Topic
from dafka.config import BATCH_BYTES_MAX, Config


class SettingKind(Enum):
    """The type of a setting's value."""

    STRING = "string"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    LIST = "list"


class TopicSetting(NamedTuple):
    """A setting of a topic: its own value, or the broker's default."""

    name: str
    value: str
    is_own: bool
    kind: SettingKind


class _Rule(NamedTuple):
    kind: SettingKind
    default: Callable[[Config], str]
    is_valid: Callable[[str], bool]
    expected: str


def _is_whole(minimum: int, maximum: int = 2**63 - 1) -> Callable[[str], bool]:
    def check(value: str) -> bool:
        try:
            return minimum <= int(value) <= maximum
        except ValueError:
            return False

    return check


def _is_ratio(value: str) -> bool:
    try:
        return 0 <= float(value) <= 1
    except ValueError:
        return False


DELETE, COMPACT = "delete", "compact"
"""The parts of the setting `cleanup.policy`: whether retention applies, and whether the topic is compacted."""

MAJORITY, BRANCH = "majority", "branch"
"""The values of the setting `availability`: who can write to a log during a network partition."""

_REPLICAS_MIN = "1"


def _split(value: str) -> list[str]:
    return [each.strip() for each in value.split(",")]


_RULES = {
    "availability": _Rule(
        SettingKind.STRING,
        lambda _: MAJORITY,
        lambda value: value in {MAJORITY, BRANCH},
        f"'{MAJORITY}' or '{BRANCH}'",
    ),
    "cleanup.policy": _Rule(
        SettingKind.LIST,
        lambda _: DELETE,
        lambda value: set(_split(value)) in ({DELETE}, {COMPACT}, {DELETE, COMPACT}),
        f"'{DELETE}', '{COMPACT}' or '{COMPACT},{DELETE}'",
    ),
    "delete.retention.ms": _Rule(
        SettingKind.LONG, lambda config: str(config.store.tombstone_ms), _is_whole(0), "a number from 0 on"
    ),
    "max.decompressed.message.bytes": _Rule(
        SettingKind.INT,
        lambda config: str(config.kafka.batch_bytes_max),
        _is_whole(1, BATCH_BYTES_MAX),
        f"a number from 1 to {BATCH_BYTES_MAX}, the size of the largest record in a batch",
    ),
    "max.message.bytes": _Rule(
        SettingKind.INT,
        lambda config: str(config.kafka.message_bytes_max),
        _is_whole(0, BATCH_BYTES_MAX),
        f"a number from 0 to {BATCH_BYTES_MAX}, the size of the largest record in a batch",
    ),
    "message.timestamp.type": _Rule(
        SettingKind.STRING, lambda _: "CreateTime", lambda value: value == "CreateTime", "'CreateTime'"
    ),
    "min.cleanable.dirty.ratio": _Rule(
        SettingKind.DOUBLE,
        lambda config: str(config.store.compaction_dirty_percent / 100),
        _is_ratio,
        "a number from 0 to 1",
    ),
    "min.insync.replicas": _Rule(SettingKind.INT, lambda _: _REPLICAS_MIN, _is_whole(1), "a number from 1 on"),
    "retention.bytes": _Rule(
        SettingKind.LONG, lambda config: str(config.store.retention_bytes or -1), _is_whole(-1), "a number from -1 on"
    ),
    "retention.ms": _Rule(
        SettingKind.LONG, lambda config: str(config.store.retention_ms or -1), _is_whole(-1), "a number from -1 on"
    ),
}

TOPIC_SETTING_NAMES = tuple(_RULES)
"""The names of the settings that a topic can have."""


def availability_of(topic: Topic) -> str:
    """Return who can write to a topic's logs during a network partition: `MAJORITY` or `BRANCH`."""
    return topic.settings.get("availability", MAJORITY)


def replicas_min_of(topic: Topic) -> int:
    """Return how many replicas must be in sync for writes to a topic's logs with `acks=all`."""
    return int(topic.settings.get("min.insync.replicas", _REPLICAS_MIN))


def is_compacted(topic: Topic, config: Config) -> bool:
    """Return whether a topic retains only the last record of each key."""
    return COMPACT in _split(_cleanup_policy(topic, config))


def _cleanup_policy(topic: Topic, config: Config) -> str:
    return topic.settings.get("cleanup.policy", COMPACT if config.store.compacts(topic.name) else DELETE)


def find_setting_problem(name: str, value: str) -> str:
    """Return why a setting of a topic is invalid; empty if it is valid."""
    rule = _RULES.get(name)
    if rule is None:
        return f"a topic has the settings {', '.join(_RULES)}, and not {name!r}"
    return "" if rule.is_valid(value) else f"{name}: expected {rule.expected}, not {value!r}"


def find_settings_problem(settings: Mapping[str, str]) -> str:
    """Return why settings of a topic are invalid; empty if they are valid."""
    return next(filter(None, (find_setting_problem(*each) for each in settings.items())), "")


def list_settings(topic: Topic, config: Config) -> list[TopicSetting]:
    """Return all settings of a topic."""
    defaults = {name: rule.default(config) for name, rule in _RULES.items()}
    if config.store.compacts(topic.name):
        defaults["cleanup.policy"] = COMPACT
    return [
        TopicSetting(name, topic.settings.get(name, defaults[name]), name in topic.settings, rule.kind)
        for name, rule in _RULES.items()
    ]
