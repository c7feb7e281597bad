"""The settings of groups: which values they can have, and what counts if a stored one is not possible."""

from __future__ import annotations

import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.settings import DEFAULT_SETTINGS, ShareSettings, read_settings
from dafka.broker.core.groups.share.share_partition import ShareLimits
from dafka.broker.core.metadata import group_settings
from dafka.broker.core.metadata.commands import AlterGroupSettings
from dafka.broker.core.metadata.group_settings import (
    GROUP_SETTINGS,
    GroupSettingsTable,
    find_problem,
    parse_duration_ms,
    read_setting,
)
from dafka.broker.core.metadata.outcome import DONE
from dafka.broker.core.metadata.setting_rules import SettingKind
from dafka.config import Config

CONFIG = Config()
NUMBERS = {
    "consumer.assignment.interval.ms": ("1000", (0, 15_000)),
    "consumer.heartbeat.interval.ms": ("5000", (100, 3_600_000)),
    "consumer.session.timeout.ms": ("45000", (1_000, 3_600_000)),
    "share.assignment.interval.ms": ("1000", (0, 15_000)),
    "share.delivery.count.limit": ("5", (1, 1_000)),
    "share.heartbeat.interval.ms": ("5000", (100, 3_600_000)),
    "share.partition.max.record.locks": ("2000", (100, 10_000)),
    "share.record.lock.duration.ms": ("30000", (1_000, 3_600_000)),
    "share.session.timeout.ms": ("45000", (1_000, 3_600_000)),
}
TEXTS = {
    "errors.deadletterqueue.copy.record.enable": ("false", ("true", "false")),
    "errors.deadletterqueue.topic.name": ("", ("dlq.", "dlq.orders", "")),
    "share.auto.offset.reset": ("latest", ("earliest", "latest", "by_duration:P1D", "by_duration:PT0.5s")),
    "share.isolation.level": ("read_uncommitted", ("read_committed", "read_uncommitted")),
    "share.renew.acknowledge.enable": ("true", ("true", "false")),
}
SET = {
    "errors.deadletterqueue.copy.record.enable": "true",
    "errors.deadletterqueue.topic.name": "dlq.orders",
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": "7",
    "share.isolation.level": "read_committed",
    "share.partition.max.record.locks": "300",
    "share.record.lock.duration.ms": "60000",
    "share.renew.acknowledge.enable": "false",
}


def read(table: GroupSettingsTable, group_id: str, config: Config = CONFIG) -> ShareSettings:
    return read_settings(lambda name: read_setting(table.find(group_id), name, config))


def test_a_group_has_its_own_settings_or_the_defaults() -> None:
    table = GroupSettingsTable()
    assert read(table, "g") == DEFAULT_SETTINGS
    assert find_problem(SET, CONFIG) == ""
    assert table.alter(AlterGroupSettings("g", SET)) == DONE
    assert read(table, "g") == ShareSettings(
        limits=ShareLimits(lock_ms=60_000, delivery_count_max=7, in_flight_max=300, has_dead_letters=True),
        is_earliest=True,
        is_committed=True,
        may_renew=False,
        dead_letter_topic="dlq.orders",
        copies_record=True,
    )
    without = read_settings(lambda name: read_setting(SET, name, CONFIG), has_dead_letters=False)
    assert (without.dead_letter_topic, without.limits.has_dead_letters) == ("", False), "the level is too low"
    assert read(table, "h") == DEFAULT_SETTINGS
    config = CONFIG.with_kafka(share_lock_ms=2000, share_deliveries_max=3, share_locks_max=100)
    assert read(table, "h", config).limits == ShareLimits(lock_ms=2000, delivery_count_max=3, in_flight_max=100)
    assert table.alter(AlterGroupSettings("g", dict.fromkeys(SET, "not/possible"))) == DONE
    assert read(table, "g") == DEFAULT_SETTINGS
    assert [*table.groups()] == ["g"]
    assert table.alter(AlterGroupSettings("g", {})) == table.alter(AlterGroupSettings("h", {})) == DONE
    assert [*table.groups()] == []


def test_there_are_the_settings_of_kafka() -> None:
    assert {name: rule.default(CONFIG) for name, rule in GROUP_SETTINGS.items()} == {
        name: default for name, (default, _) in {**NUMBERS, **TEXTS}.items()
    }
    assert {name for name, rule in GROUP_SETTINGS.items() if rule.kind is SettingKind.INT} == NUMBERS.keys()


@pytest.mark.parametrize("name", GROUP_SETTINGS)
def test_what_a_setting_cannot_be_is_explained(name: str) -> None:
    bad = (
        ["not/possible", "-1", "1.5", " 5", "1_0", "9" * 50]
        if name in NUMBERS
        else ["not/possible", "TRUE/", "a" * 250]
    )
    if name in NUMBERS:
        _, (lowest, highest) = NUMBERS[name]
        bad += ["", "-1", "1.5", " 5", "1_0", "9" * 50, str(lowest - 1), str(highest + 1)]
        assert all(GROUP_SETTINGS[name].is_valid(str(each)) for each in (lowest, highest))
    else:
        assert not any(find_problem({name: each}, CONFIG) for each in TEXTS[name][1])
    for value in bad:
        assert find_problem({name: value}, CONFIG).startswith(f"{name}: expected ")
    own = {name: GROUP_SETTINGS[name].default(CONFIG), "x": "1"}
    assert find_problem(own, CONFIG).startswith("there is no setting 'x' of groups: expected ")


def test_settings_must_fit_together() -> None:
    for kind in ("consumer", "share"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        for own in ({session: "5000"}, {heartbeat: "45000"}, {session: "9000", heartbeat: "9000"}):
            assert find_problem(own, CONFIG).startswith(f"{session}: expected more than {heartbeat}, ")
        assert find_problem({session: "9000", heartbeat: "8999"}, CONFIG) == ""
    config = CONFIG.with_kafka(dead_letter_prefix="dead-")
    name = "errors.deadletterqueue.topic.name"
    assert find_problem({name: "dlq.x"}, config) == f"{name}: expected a name that begins with 'dead-', not 'dlq.x'"
    assert find_problem({name: "dead-x"}, config) == ""


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT0S", 0),
        ("PT1.5S", 1_500),
        ("pt20m", 1_200_000),
        ("P2DT3H4M", 183_840_000),
        *[(each, None) for each in ("", "P", "PT", "P1DT", "P1M", "P1Y", "-PT1S", "PT-1S", "1H", "PT1H ", "PT1,5S")],
    ],
)
def test_durations_are_those_of_iso_8601(text: str, milliseconds: int | None) -> None:
    assert parse_duration_ms(text) == milliseconds


def test_there_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_settings, "GROUPS_MAX", 1)
    table = GroupSettingsTable()
    for settings in (SET, {"x": "1"}):
        assert table.alter(AlterGroupSettings("g", settings)) == DONE
    assert table.alter(AlterGroupSettings("h", SET)).error is ErrorCode.POLICY_VIOLATION
