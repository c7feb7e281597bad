"""The settings of groups: which values they can have, and what counts if a stored one is not possible."""

from __future__ import annotations

import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.settings import DEFAULT_SETTINGS, read_settings
from dafka.broker.core.groups.share.share_partition import ShareLimits
from dafka.broker.core.metadata import group_settings
from dafka.broker.core.metadata.commands import AlterGroupSettings
from dafka.broker.core.metadata.group_settings import GROUP_SETTINGS, GroupSettingsTable, find_problem
from dafka.broker.core.metadata.outcome import DONE

SET = {
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": "7",
    "share.isolation.level": "read_committed",
    "share.partition.max.record.locks": "300",
    "share.record.lock.duration.ms": "60000",
}


def test_a_group_has_its_own_settings_or_the_defaults() -> None:
    table = GroupSettingsTable()
    assert read_settings(lambda name: table.read("g", name)) == DEFAULT_SETTINGS
    assert SET.keys() == GROUP_SETTINGS.keys()
    assert find_problem(SET) == ""
    assert table.alter(AlterGroupSettings("g", SET)) == DONE
    found = read_settings(lambda name: table.read("g", name))
    assert found.limits == ShareLimits(lock_ms=60_000, delivery_count_max=7, in_flight_max=300)
    assert (found.is_earliest, found.is_committed) == (True, True)
    assert read_settings(lambda name: table.read("h", name)) == DEFAULT_SETTINGS
    assert table.alter(AlterGroupSettings("g", dict.fromkeys(SET, "later"))) == DONE
    assert read_settings(lambda name: table.read("g", name)) == DEFAULT_SETTINGS
    assert [*table.groups()] == ["g"]
    assert table.alter(AlterGroupSettings("g", {})) == table.alter(AlterGroupSettings("h", {})) == DONE
    assert [*table.groups()] == []


@pytest.mark.parametrize("name", GROUP_SETTINGS)
def test_what_a_setting_cannot_be_is_explained(name: str) -> None:
    setting = GROUP_SETTINGS[name]
    bad = ["", "nonsense", "-1", "1.5", " 5", "9" * 50]
    if setting.range is not None:
        bad += [str(setting.range[0] - 1), str(setting.range[1] + 1)]
        assert not any(find_problem({name: str(each)}) for each in setting.range)
    for value in bad:
        assert find_problem({name: value}).startswith(f"{name}: expected ")
    assert find_problem({name: setting.default, "x": "1"}).startswith("there is no setting 'x' of groups: expected ")


def test_there_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_settings, "GROUPS_MAX", 1)
    table = GroupSettingsTable()
    for settings in (SET, {"x": "1"}):
        assert table.alter(AlterGroupSettings("g", settings)) == DONE
    assert table.alter(AlterGroupSettings("h", SET)).error is ErrorCode.POLICY_VIOLATION
