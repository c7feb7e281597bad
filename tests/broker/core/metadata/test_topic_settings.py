"""The names and settings of topics: which are valid, and what a topic without settings has."""

from __future__ import annotations

import pytest

from dafka.broker.core.metadata.setting_rules import SettingKind
from dafka.broker.core.metadata.topic_settings import (
    EFFECTIVE_SETTING_NAMES,
    REMOTE_STORAGE,
    TOPIC_SETTING_NAMES,
    availability_of,
    find_setting_problem,
    find_settings_problem,
    is_compacted,
    list_settings,
    replicas_min_of,
)
from dafka.broker.core.metadata.topics import NAME_MAX, Topic, find_name_problem
from dafka.config import BATCH_BYTES_MAX, Config

LONG_MAX = str(2**63 - 1)
BYTES_MAX, TOO_MANY_BYTES = str(BATCH_BYTES_MAX), str(BATCH_BYTES_MAX + 1)

VALUES: dict[str, tuple[SettingKind, list[str], list[str]]] = {
    "availability": (SettingKind.STRING, ["majority", "branch"], ["", "Majority", "both"]),
    "cleanup.policy": (
        SettingKind.LIST,
        ["delete", "compact", "compact,delete", "delete, compact", ""],
        [" ", "compact,", "compact,other", "none"],
    ),
    "compression.gzip.level": (SettingKind.INT, ["-1", "1", "9"], ["0", "10", "-2"]),
    "compression.lz4.level": (SettingKind.INT, ["1", "9", "17"], ["0", "18", "-1"]),
    "compression.type": (
        SettingKind.STRING,
        ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"],
        ["", "none", "GZIP"],
    ),
    "compression.zstd.level": (SettingKind.INT, ["-131072", "-1", "22"], ["-131073", "23"]),
    "errors.deadletterqueue.group.enable": (SettingKind.BOOLEAN, ["true", "false"], ["True", "yes", ""]),
    "delete.retention.ms": (SettingKind.LONG, ["0", LONG_MAX], ["-1", str(2**63), "1.5", ""]),
    "max.compaction.lag.ms": (SettingKind.LONG, ["1", LONG_MAX], ["0", "-1"]),
    "max.decompressed.message.bytes": (SettingKind.INT, ["1", BYTES_MAX], ["0", TOO_MANY_BYTES, "x"]),
    "max.message.bytes": (SettingKind.INT, ["0", BYTES_MAX], ["-1", TOO_MANY_BYTES, ""]),
    "message.timestamp.after.max.ms": (SettingKind.LONG, ["0", LONG_MAX], ["-1"]),
    "message.timestamp.before.max.ms": (SettingKind.LONG, ["0", LONG_MAX], ["-1"]),
    "message.timestamp.type": (SettingKind.STRING, ["CreateTime", "LogAppendTime"], ["", "createtime"]),
    "min.cleanable.dirty.ratio": (SettingKind.DOUBLE, ["0", "0.5", "1"], ["-0.1", "1.1", "x", "nan"]),
    "min.compaction.lag.ms": (SettingKind.LONG, ["0", LONG_MAX], ["-1", "x"]),
    "min.insync.replicas": (SettingKind.INT, ["1", "3"], ["0", "-1", "", "1.0"]),
    "retention.bytes": (SettingKind.LONG, ["-1", "0", LONG_MAX], ["-2", "x"]),
    "retention.ms": (SettingKind.LONG, ["-1", "0", LONG_MAX], ["-2", str(2**63)]),
}
"""For each setting with an effect, its kind, values that are valid, and values that are not."""

BOOLEAN, INT, LONG = SettingKind.BOOLEAN, SettingKind.INT, SettingKind.LONG
INT_MAX, INT_OVER = str(2**31 - 1), str(2**31)
KEPT: dict[str, tuple[SettingKind, str, list[str], list[str]]] = {
    "file.delete.delay.ms": (LONG, "60000", ["0"], ["-1"]),
    "flush.messages": (LONG, LONG_MAX, ["1"], ["0"]),
    "flush.ms": (LONG, LONG_MAX, ["0"], ["-1"]),
    "follower.replication.throttled.replicas": (SettingKind.LIST, "", ["*", "0:1,1:2"], []),
    "index.interval.bytes": (INT, "4096", ["0"], ["-1"]),
    "leader.replication.throttled.replicas": (SettingKind.LIST, "", ["*"], []),
    "local.retention.bytes": (LONG, "-2", ["-1", "5"], ["-3"]),
    "local.retention.ms": (LONG, "-2", ["-1", "5"], ["-3"]),
    "preallocate": (BOOLEAN, "false", ["true"], ["True", "1"]),
    "remote.log.copy.disable": (BOOLEAN, "false", ["true"], [""]),
    "remote.log.delete.on.disable": (BOOLEAN, "false", ["true"], [""]),
    "remote.storage.enable": (BOOLEAN, "false", ["true"], ["yes"]),
    "segment.bytes": (INT, "1073741824", ["1048576", INT_MAX], ["1048575", INT_OVER]),
    "segment.index.bytes": (INT, "10485760", ["4", INT_MAX], ["3", INT_OVER]),
    "segment.jitter.ms": (LONG, "0", ["1"], ["-1"]),
    "segment.ms": (LONG, "604800000", ["1"], ["0"]),
    "unclean.leader.election.enable": (BOOLEAN, "false", ["true"], ["yes"]),
}
"""For each setting without an effect, its kind, its default in Kafka, other values that are valid, and invalid ones."""


def test_each_setting_is_in_the_table() -> None:
    assert set(TOPIC_SETTING_NAMES) == VALUES.keys() | KEPT.keys()
    assert set(EFFECTIVE_SETTING_NAMES) == VALUES.keys()


@pytest.mark.parametrize("name", [*VALUES, *KEPT])
def test_values_are_valid_within_their_limits(name: str) -> None:
    if name in VALUES:
        kind, valid, invalid = VALUES[name]
    else:
        kind, default, others, invalid = KEPT[name]
        valid = [default, *others]
    assert [each for each in valid if find_setting_problem(name, each)] == []
    for each in invalid:
        problem = find_setting_problem(name, each)
        assert problem.startswith(f"{name}: expected ")
        assert repr(each) in problem
        assert find_settings_problem({"retention.ms": "1", name: each}, Config()) == problem
    topic = Topic("orders", "1D", settings={name: valid[0]})
    (own,) = [each for each in list_settings(topic, Config()) if each.name == name]
    (bare,) = [each for each in list_settings(Topic("orders", "1D"), Config()) if each.name == name]
    assert (own.value, own.is_own, own.rule.kind, own.rule.has_effect) == (valid[0], True, kind, name in VALUES)
    assert (bare.value, bare.default, bare.is_own) == (own.default, own.default, False)
    assert name in VALUES or bare.value == valid[0]
    assert own.rule.text.endswith(".")


def test_an_unknown_setting_is_refused_with_those_that_there_are() -> None:
    problem = find_setting_problem("segment.size", "1")
    assert "'segment.size'" in problem
    assert all(each in problem for each in VALUES)
    assert find_settings_problem({}, Config()) == ""


def test_settings_are_valid_together() -> None:
    lags = {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"}
    assert (
        find_settings_problem(lags, Config()) == find_settings_problem({"min.compaction.lag.ms": "5"}, Config()) == ""
    )
    problem = find_settings_problem({**lags, "min.compaction.lag.ms": "6"}, Config())
    assert problem == "min.compaction.lag.ms: expected at most max.compaction.lag.ms, 5, not 6"


def test_only_brokers_with_a_cold_tier_have_topics_with_one() -> None:
    enabled, cold = {REMOTE_STORAGE: "true"}, Config().with_cold(storage="file:///bucket", local_retention_ms=7)
    assert find_settings_problem(enabled, cold) == find_settings_problem({REMOTE_STORAGE: "false"}, Config()) == ""
    assert "no [cold] storage" in find_settings_problem(enabled, Config())
    names = [REMOTE_STORAGE, "local.retention.ms", "local.retention.bytes"]
    for config, expected in ((Config(), ["false", "-2", "-2"]), (cold, ["true", "7", "-1"])):
        found = {each.name: each.value for each in list_settings(Topic("orders", "1D"), config)}
        assert [found[name] for name in names] == expected


def test_defaults_have_kafka_s_names_of_brokers_and_are_told_from_configured_ones() -> None:
    config = Config().with_store(retention_ms=5, tombstone_ms=9).with_kafka(message_bytes_max=7)
    found = {each.name: each for each in list_settings(Topic("orders", "1D"), config)}
    configured = {name for name, each in found.items() if each.is_configured}
    assert configured == {"retention.ms", "delete.retention.ms", "max.message.bytes"}
    names = ["retention.ms", "max.message.bytes", "segment.ms", "min.insync.replicas", "availability"]
    assert [found[name].broker_name for name in names] == [
        "log.retention.ms",
        "message.max.bytes",
        "log.roll.ms",
        "min.insync.replicas",
        "",
    ]
    broker_names = [each.broker_name for each in found.values() if each.broker_name]
    assert len({*broker_names}) == len(broker_names)


def test_a_topic_has_the_settings_of_the_broker_unless_it_has_its_own() -> None:
    config = Config().with_store(retention_ms=5, retention_bytes=7, tombstone_ms=9, compaction_dirty_percent=25)
    found = {each.name: each.value for each in list_settings(Topic("orders", "1D"), config) if each.rule.has_effect}
    assert found == {
        "availability": "majority",
        "cleanup.policy": "delete",
        "compression.gzip.level": "-1",
        "compression.lz4.level": "9",
        "compression.type": "producer",
        "compression.zstd.level": "3",
        "delete.retention.ms": "9",
        "errors.deadletterqueue.group.enable": "false",
        "max.compaction.lag.ms": LONG_MAX,
        "max.decompressed.message.bytes": str(config.kafka.batch_bytes_max),
        "max.message.bytes": str(config.kafka.message_bytes_max),
        "message.timestamp.after.max.ms": "3600000",
        "message.timestamp.before.max.ms": LONG_MAX,
        "message.timestamp.type": "CreateTime",
        "min.cleanable.dirty.ratio": "0.25",
        "min.compaction.lag.ms": "0",
        "min.insync.replicas": "1",
        "retention.bytes": "7",
        "retention.ms": "5",
    }
    assert not any(each.is_own for each in list_settings(Topic("orders", "1D"), config))
    unlimited = {each.name: each.value for each in list_settings(Topic("orders", "1D"), Config())}
    assert (unlimited["retention.ms"], unlimited["retention.bytes"]) == ("-1", "-1")


@pytest.mark.parametrize(
    ("policy", "configured", "expected"),
    [
        (None, False, False),
        (None, True, True),
        ("delete", True, False),
        ("compact", False, True),
        ("compact,delete", False, True),
        ("delete, compact", False, True),
        ("", True, False),
    ],
)
def test_a_topic_is_compacted_if_it_or_the_broker_says_so(policy: str | None, configured: bool, expected: bool) -> None:
    config = Config().with_store(compact_topics=("orders",) if configured else ())
    topic = Topic("orders", "1D", settings={} if policy is None else {"cleanup.policy": policy})
    assert is_compacted(topic, config) == expected
    shown = {each.name: each.value for each in list_settings(topic, config)}["cleanup.policy"]
    assert shown == (("compact" if configured else "delete") if policy is None else policy)


def test_who_may_write_and_how_many_replicas_must_be_in_sync() -> None:
    topic = Topic("orders", "1D", settings={"availability": "branch", "min.insync.replicas": "2"})
    assert (availability_of(topic), replicas_min_of(topic)) == ("branch", 2)
    assert (availability_of(Topic("orders", "1D")), replicas_min_of(Topic("orders", "1D"))) == ("majority", 1)


def test_names_are_those_that_clients_of_kafka_can_use() -> None:
    assert NAME_MAX == 249
    for name in ("...", "a", "Az09._-", "a" * NAME_MAX):
        assert find_name_problem(name) == ""
    for name in ("", ".", "..", "a" * (NAME_MAX + 1), "$logs", *(f"a{each}" for each in " /$:,ü\n\0")):
        assert find_name_problem(name)
