"""The settings of groups, under Kafka's names: a part of the cluster's state."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import AlterGroupSettings
from dafka.broker.core.metadata.outcome import DONE, Outcome
from dafka.broker.core.metadata.setting_rules import SettingKind, SettingRule, flag_rule, number_rule
from dafka.broker.core.metadata.state_records import GROUP, StateRecords, decode_records
from dafka.broker.core.metadata.topics import find_name_problem
from dafka.config import Config

GROUPS_MAX = 100_000
"""How many groups have settings at most."""

BY_DURATION = "by_duration:"
"""Begins a value of `share.auto.offset.reset`. An ISO 8601 duration without years and months follows."""

DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
"""The setting with the topic for dead letters; empty if there is none."""

_DURATION = re.compile(
    r"P(?=[0-9T])(?:([0-9]{1,9})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)S)?)?",
    re.IGNORECASE,
)
_SECONDS = (86_400, 3_600, 60, 1)


def parse_duration_ms(text: str) -> int | None:
    """Return an ISO 8601 duration such as `P1DT12H` in milliseconds; None if it is none."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    return int(1000 * sum(float(each or 0) * unit for each, unit in zip(found.groups(), _SECONDS, strict=True)))


def _is_offset_reset(value: str) -> bool:
    is_duration = value.startswith(BY_DURATION) and parse_duration_ms(value.removeprefix(BY_DURATION)) is not None
    return value in {"earliest", "latest"} or is_duration


def _milliseconds(default: Callable[[Config], int], minimum: int, maximum: int, text: str) -> SettingRule:
    return number_rule(SettingKind.INT, lambda config: str(default(config)), minimum, text, maximum)


def _kept_interval(text: str) -> SettingRule:
    return _milliseconds(lambda _: 1000, 0, 15_000, text)._replace(has_effect=False)


_ASSIGNED = "The coordinator assigns logs as soon as the members or their topics change."
_SESSION_MS, _HEARTBEAT_MS = (1_000, 3_600_000), (100, 3_600_000)

GROUP_SETTINGS: Mapping[str, SettingRule] = MappingProxyType(
    {
        "consumer.assignment.interval.ms": _kept_interval(_ASSIGNED),
        "consumer.heartbeat.interval.ms": _milliseconds(
            lambda config: config.kafka.consumer_heartbeat_interval_ms,
            *_HEARTBEAT_MS,
            "How often a member of a consumer group sends a heartbeat, in ms.",
        ),
        "consumer.session.timeout.ms": _milliseconds(
            lambda config: config.kafka.consumer_session_timeout_ms,
            *_SESSION_MS,
            "How long a member of a consumer group can be silent before it is removed, in ms.",
        ),
        "errors.deadletterqueue.copy.record.enable": flag_rule(
            lambda _: "false",
            "Whether a dead letter has the key, the value and the headers of its record, besides its own headers.",
        ),
        DEAD_LETTER_TOPIC: SettingRule(
            SettingKind.STRING,
            lambda _: "",
            lambda value: not value or not find_name_problem(value),
            "the name of a topic, or nothing",
            "The topic that gets a dead letter for each record that a share group gives up; none if it is empty. It "
            "needs the setting errors.deadletterqueue.group.enable.",
        ),
        "share.assignment.interval.ms": _kept_interval(_ASSIGNED),
        "share.auto.offset.reset": SettingRule(
            SettingKind.STRING,
            lambda _: "latest",
            _is_offset_reset,
            f"earliest, latest or {BY_DURATION}PnDTnHnMn.nS",
            "Where a share group begins in a log from which it has no records. by_duration: at the first record that "
            "is not older.",
        ),
        "share.delivery.count.limit": number_rule(
            SettingKind.INT,
            lambda config: str(config.kafka.share_deliveries_max),
            1,
            "How often a share group delivers a record before it goes on without it.",
            1000,
        ),
        "share.heartbeat.interval.ms": _milliseconds(
            lambda config: config.kafka.consumer_heartbeat_interval_ms,
            *_HEARTBEAT_MS,
            "How often a member of a share group sends a heartbeat, in ms.",
        ),
        "share.isolation.level": SettingRule(
            SettingKind.STRING,
            lambda _: "read_uncommitted",
            {"read_committed", "read_uncommitted"}.__contains__,
            "read_committed or read_uncommitted",
            "Whether a share group gets records of open and aborted transactions.",
        ),
        "share.partition.max.record.locks": number_rule(
            SettingKind.INT,
            lambda config: str(config.kafka.share_locks_max),
            100,
            "How many offsets there can be, in a log, from the first record that a share group has not finished to the "
            "last one that it has got.",
            10_000,
        ),
        "share.record.lock.duration.ms": _milliseconds(
            lambda config: config.kafka.share_lock_ms,
            1_000,
            3_600_000,
            "How long a member of a share group has a record, in ms.",
        ),
        "share.renew.acknowledge.enable": flag_rule(
            lambda _: "true", "Whether members of a share group can renew the lock of a record."
        ),
        "share.session.timeout.ms": _milliseconds(
            lambda config: config.kafka.consumer_session_timeout_ms,
            *_SESSION_MS,
            "How long a member of a share group can be silent before it is removed, in ms.",
        ),
    }
)
"""The rules of all settings of groups, by name."""


def find_value_problem(settings: Mapping[str, str]) -> str:
    """Return what is wrong with settings of a group on all brokers; empty if nothing is."""
    for name, value in settings.items():
        if name not in GROUP_SETTINGS:
            return f"there is no setting {name[:100]!r} of groups: expected {', '.join(GROUP_SETTINGS)}"
        rule = GROUP_SETTINGS[name]
        if not rule.is_valid(value):
            return f"{name}: expected {rule.expected}, not {value[:100]!r}"
    return ""


def find_problem(settings: Mapping[str, str], config: Config) -> str:
    """Return what is wrong with settings of a group on a broker; empty if nothing is."""
    if problem := find_value_problem(settings):
        return problem
    topic, prefix = settings.get(DEAD_LETTER_TOPIC, ""), config.kafka.dead_letter_prefix
    if topic and not topic.startswith(prefix):
        return f"{DEAD_LETTER_TOPIC}: expected a name that begins with {prefix!r}, not {topic!r}"
    for kind in ("consumer", "share"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        timeout_ms, interval_ms = (int(read_setting(settings, each, config)) for each in (session, heartbeat))
        if timeout_ms <= interval_ms and not settings.keys().isdisjoint({session, heartbeat}):
            return f"{session}: expected more than {heartbeat}, {interval_ms}, not {timeout_ms}"
    return ""


def read_setting(own: Mapping[str, str], name: str, config: Config) -> str:
    """Return the value of a setting of a group: its own, or the broker's default if that is missing or invalid."""
    rule, value = GROUP_SETTINGS[name], own.get(name)
    return rule.default(config) if value is None or not rule.is_valid(value) else value


class GroupSettingsTable:
    """The settings of the groups of a cluster, by group. Groups without any have the defaults."""

    def __init__(self, records: StateRecords | None = None) -> None:
        self._records = records or StateRecords()
        self._settings: dict[str, Mapping[str, str]] = {}

    def groups(self) -> Iterable[str]:
        """Return the groups that have settings."""
        return self._settings.keys()

    def find(self, group_id: str) -> Mapping[str, str]:
        """Return the settings of a group, without defaults."""
        return self._settings.get(group_id, {})

    def alter(self, command: AlterGroupSettings) -> Outcome:
        """Replace all settings of a group. Clients of this version set only what `find_problem` accepts."""
        if not command.settings:
            if self._settings.pop(command.group_id, None) is not None:
                self._records.remove(GROUP + command.group_id)
            return DONE
        if command.group_id not in self._settings and len(self._settings) >= GROUPS_MAX:
            reason = f"{GROUPS_MAX} groups have settings: delete settings of other groups first"
            return Outcome(ErrorCode.POLICY_VIOLATION, reason)
        self._settings[command.group_id] = command.settings
        self._records.put(GROUP + command.group_id, command)
        return DONE

    def restore(self, records: Mapping[bytes, bytes]) -> None:
        """Replace the settings by the stored ones."""
        stored = decode_records(records.items(), GROUP, AlterGroupSettings)
        self._settings = {each.group_id: each.settings for each in stored}
