"""The settings of groups, under Kafka's names: a part of the cluster's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import AlterGroupSettings
from dafka.broker.core.metadata.outcome import DONE, Outcome
from dafka.broker.core.metadata.state_records import GROUP, StateRecords, decode_records

GROUPS_MAX = 100_000
"""How many groups have settings at most."""


class GroupSetting(NamedTuple):
    """A setting of groups: its default, its possible values or their range, and what it does."""

    default: str
    values: Sequence[str]
    range: tuple[int, int] | None
    text: str

    def find_problem(self, value: str) -> str:
        """Return what is wrong with a value; empty if nothing is."""
        if self.range is None:
            return "" if value in self.values else f"expected {' or '.join(self.values)}, not {value[:100]!r}"
        lowest, highest = self.range
        is_possible = value.isdecimal() and len(value) < 20 and lowest <= int(value) <= highest
        return "" if is_possible else f"expected a number from {lowest} to {highest}, not {value[:100]!r}"


GROUP_SETTINGS: Mapping[str, GroupSetting] = MappingProxyType(
    {
        "share.auto.offset.reset": GroupSetting(
            "latest", ("earliest", "latest"), None, "Where a share group begins in a log from which it has no records."
        ),
        "share.delivery.count.limit": GroupSetting(
            "5", (), (1, 1000), "How often a share group delivers a record before it goes on without it."
        ),
        "share.isolation.level": GroupSetting(
            "read_uncommitted",
            ("read_committed", "read_uncommitted"),
            None,
            "Whether a share group gets records of open and aborted transactions.",
        ),
        "share.partition.max.record.locks": GroupSetting(
            "2000",
            (),
            (100, 10_000),
            "How many offsets there can be, in a log, from the first record that a share group has not finished to the "
            "last one that it has got.",
        ),
        "share.record.lock.duration.ms": GroupSetting(
            "30000", (), (1_000, 3_600_000), "How long a member of a share group has a record, in ms."
        ),
    }
)
"""All settings of groups, by name."""


def find_problem(settings: Mapping[str, str]) -> str:
    """Return what is wrong with settings of a group; empty if nothing is."""
    for name, value in settings.items():
        if name not in GROUP_SETTINGS:
            return f"there is no setting {name[:100]!r} of groups: expected {', '.join(GROUP_SETTINGS)}"
        if problem := GROUP_SETTINGS[name].find_problem(value):
            return f"{name}: {problem}"
    return ""


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

    def read(self, group_id: str, name: str) -> str:
        """Return the value of a setting of a group: its own, or the default if that is missing or invalid."""
        setting, own = GROUP_SETTINGS[name], self.find(group_id).get(name)
        return setting.default if own is None or setting.find_problem(own) else own

    def restore(self, records: Mapping[bytes, bytes]) -> None:
        """Replace the settings by the stored ones."""
        stored = decode_records(records.items(), GROUP, AlterGroupSettings)
        self._settings = {each.group_id: each.settings for each in stored}
