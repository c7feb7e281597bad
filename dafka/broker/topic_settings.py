"""The settings that a topic can have. They have the names of Kafka's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from dafka.config import Config
from dafka.protocol.logs import Topic


class SettingKind(Enum):
    """What the value of a setting is."""

    STRING = "string"
    INT = "int"
    LONG = "long"
    LIST = "list"


class TopicSetting(NamedTuple):
    """A setting of a topic.

    Attributes:
        name: The name.
        value: The value.
        is_own: Whether the topic has it; otherwise it is the broker's default.
        kind: What the value is.
    """

    name: str
    value: str
    is_own: bool
    kind: SettingKind


class _Rule(NamedTuple):
    kind: SettingKind
    default: Callable[[Config], str]
    is_valid: Callable[[str], bool]
    expected: str


def _is_whole(minimum: int) -> Callable[[str], bool]:
    def check(value: str) -> bool:
        try:
            return minimum <= int(value) < 2**63
        except ValueError:
            return False

    return check


MAJORITY, BRANCH = "majority", "branch"
"""The values of the setting `availability`: who may write to a log while brokers do not reach each other."""

_REPLICAS_MIN = "1"

_RULES = {
    "availability": _Rule(
        SettingKind.STRING,
        lambda _: MAJORITY,
        lambda value: value in {MAJORITY, BRANCH},
        f"'{MAJORITY}' or '{BRANCH}'",
    ),
    "cleanup.policy": _Rule(SettingKind.LIST, lambda _: "delete", lambda value: value == "delete", "'delete'"),
    "max.message.bytes": _Rule(
        SettingKind.INT, lambda config: str(config.kafka.message_bytes_max), _is_whole(0), "a number from 0 on"
    ),
    "message.timestamp.type": _Rule(
        SettingKind.STRING, lambda _: "CreateTime", lambda value: value == "CreateTime", "'CreateTime'"
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
    """Return who may write to a topic's logs while brokers do not reach each other: `MAJORITY` or `BRANCH`."""
    return topic.settings.get("availability", MAJORITY)


def replicas_min_of(topic: Topic) -> int:
    """Return how many replicas must be in sync to write to a topic's logs with acknowledgements of all."""
    return int(topic.settings.get("min.insync.replicas", _REPLICAS_MIN))


def find_setting_problem(name: str, value: str) -> str:
    """Return why a topic cannot have a setting; empty if it can."""
    rule = _RULES.get(name)
    if rule is None:
        return f"a topic has the settings {', '.join(_RULES)}, and not {name!r}"
    return "" if rule.is_valid(value) else f"{name}: expected {rule.expected}, not {value!r}"


def find_settings_problem(settings: Mapping[str, str]) -> str:
    """Return why a topic cannot have settings; empty if it can."""
    return next(filter(None, (find_setting_problem(*each) for each in settings.items())), "")


def list_settings(topic: Topic, config: Config) -> list[TopicSetting]:
    """Return all settings of a topic."""
    return [
        TopicSetting(name, topic.settings.get(name, rule.default(config)), name in topic.settings, rule.kind)
        for name, rule in _RULES.items()
    ]
