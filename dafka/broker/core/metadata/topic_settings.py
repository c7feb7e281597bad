"""The settings of topics, with Kafka's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from dafka.batches import Compression, TimestampType
from dafka.broker.core.metadata.setting_rules import (
    LONG_MAX,
    SettingKind,
    SettingRule,
    flag_rule,
    is_whole,
    number_rule,
)
from dafka.broker.core.metadata.topics import Topic
from dafka.config import BATCH_BYTES_MAX, ColdConfig, Config, StoreConfig


class TopicSetting(NamedTuple):
    """A setting of a topic: its own value, or the broker's default, which is `default` as well.

    `is_configured` if the broker's configuration says another default than that of dafka. `broker_name` is Kafka's name
    for the broker's default; empty if it has none.
    """

    name: str
    value: str
    default: str
    is_own: bool
    is_configured: bool
    broker_name: str
    rule: SettingRule


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


def _kept(kind: SettingKind, default: str, is_valid: Callable[[str], bool], expected: str, text: str) -> SettingRule:
    """Return the rule of a setting that is kept and shown, and that has no effect."""
    return SettingRule(kind, lambda _: default, is_valid, expected, text, has_effect=False)


def _kept_number(kind: SettingKind, default: int, minimum: int, text: str, maximum: int = LONG_MAX) -> SettingRule:
    return number_rule(kind, lambda _: str(default), minimum, text, maximum)._replace(has_effect=False)


def _kept_flag(text: str) -> SettingRule:
    return flag_rule(lambda _: "false", text)._replace(has_effect=False)


_STRING, _INT, _LONG = SettingKind.STRING, SettingKind.INT, SettingKind.LONG
_PRODUCER = "producer"
_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
_DEFAULT_LEVEL = "-1"  # of gzip
_TIMESTAMP_TYPES = {"CreateTime": TimestampType.CREATE_TIME, "LogAppendTime": TimestampType.LOG_APPEND_TIME}
_SYNCED = "Everything is on disk before it is acknowledged."
_SEGMENTS = "The storage divides logs into files by itself."
_TIERS = "[cold] of the broker says for all topics that are not compacted whether and when records move."

REMOTE_STORAGE = "remote.storage.enable"
"""The setting for the cold tier, which a topic can only have on brokers that have one."""


DEAD_LETTERS = "errors.deadletterqueue.group.enable"
"""The setting that permits share groups to write dead letters to a topic."""


def _local(choose: Callable[[ColdConfig], int]) -> SettingRule:
    rule = _kept_number(_LONG, -2, -2, _TIERS)
    return rule._replace(default=lambda config: str(choose(config.cold) or -1) if config.cold.storage else "-2")


_RULES = {
    "availability": SettingRule(
        _STRING,
        lambda _: MAJORITY,
        lambda value: value in {MAJORITY, BRANCH},
        f"'{MAJORITY}' or '{BRANCH}'",
        "Who can write to a log during a network partition.",
    ),
    "cleanup.policy": SettingRule(
        SettingKind.LIST,
        lambda _: DELETE,
        lambda value: not value or set(_split(value)) <= {DELETE, COMPACT},
        f"'{DELETE}', '{COMPACT}', '{COMPACT},{DELETE}', or nothing",
        "Whether old records are deleted, and whether only the last record of each key is kept; nothing keeps all.",
    ),
    "compression.gzip.level": SettingRule(
        _INT,
        lambda _: _DEFAULT_LEVEL,
        lambda value: value == _DEFAULT_LEVEL or is_whole(1, 9)(value),
        "-1 or a number from 1 to 9",
        "The level with which the leader compresses if compression.type is gzip; -1 for 6.",
    ),
    "compression.lz4.level": number_rule(
        _INT, lambda _: "9", 1, "The level with which the leader compresses if compression.type is lz4.", 17
    ),
    "compression.type": SettingRule(
        _STRING,
        lambda _: _PRODUCER,
        {_PRODUCER, *_CODECS}.__contains__,
        ", ".join(f"'{each}'" for each in (_PRODUCER, *_CODECS)),
        "The compression of stored batches. The leader compresses others again, and keeps all with 'producer'.",
    ),
    "compression.zstd.level": number_rule(
        _INT, lambda _: "3", -131072, "The level with which the leader compresses if compression.type is zstd.", 22
    ),
    "delete.retention.ms": number_rule(
        _LONG,
        lambda config: str(config.store.tombstone_ms),
        0,
        "How long a compacted topic keeps the tombstone of a key, in ms.",
    ),
    DEAD_LETTERS: flag_rule(
        lambda _: "false",
        "Whether share groups can use the topic for dead letters: with errors.deadletterqueue.topic.name.",
    ),
    "file.delete.delay.ms": _kept_number(_LONG, 60_000, 0, _SEGMENTS),
    "flush.messages": _kept_number(_LONG, LONG_MAX, 1, _SYNCED),
    "flush.ms": _kept_number(_LONG, LONG_MAX, 0, _SYNCED),
    "follower.replication.throttled.replicas": _kept(
        SettingKind.LIST, "", lambda _: True, "a list", "Copies between brokers are not throttled."
    ),
    "index.interval.bytes": _kept_number(_INT, 4096, 0, _SEGMENTS),
    "leader.replication.throttled.replicas": _kept(
        SettingKind.LIST, "", lambda _: True, "a list", "Copies between brokers are not throttled."
    ),
    "local.retention.bytes": _local(lambda cold: cold.local_retention_bytes),
    "local.retention.ms": _local(lambda cold: cold.local_retention_ms),
    "max.compaction.lag.ms": number_rule(
        _LONG,
        lambda _: str(LONG_MAX),
        1,
        "How long after a record of a compacted topic was stored a pass begins at the latest, in ms.",
    ),
    "max.decompressed.message.bytes": SettingRule(
        _INT,
        lambda config: str(config.kafka.batch_bytes_max),
        is_whole(1, BATCH_BYTES_MAX),
        f"a number from 1 to {BATCH_BYTES_MAX}, the size of the largest record in a batch",
        "The largest size of the records of a batch without compression, in bytes.",
    ),
    "max.message.bytes": SettingRule(
        _INT,
        lambda config: str(config.kafka.message_bytes_max),
        is_whole(0, BATCH_BYTES_MAX),
        f"a number from 0 to {BATCH_BYTES_MAX}, the size of the largest record in a batch",
        "The largest size of a batch, in bytes.",
    ),
    "message.timestamp.after.max.ms": number_rule(
        _LONG, lambda _: "3600000", 0, "How far after the broker's time the time of a client's record can be, in ms."
    ),
    "message.timestamp.before.max.ms": number_rule(
        _LONG,
        lambda _: str(LONG_MAX),
        0,
        "How far before the broker's time the time of a client's record can be, in ms.",
    ),
    "message.timestamp.type": SettingRule(
        _STRING,
        lambda _: "CreateTime",
        _TIMESTAMP_TYPES.__contains__,
        "'CreateTime' or 'LogAppendTime'",
        "Whether records of clients have the time of their producer, or that at which the leader appends them.",
    ),
    "min.cleanable.dirty.ratio": SettingRule(
        SettingKind.DOUBLE,
        lambda config: str(config.store.compaction_dirty_percent / 100),
        _is_ratio,
        "a number from 0 to 1",
        "Which part of a compacted topic can be dropped before it is compacted.",
    ),
    "min.compaction.lag.ms": number_rule(
        _LONG, lambda _: "0", 0, "How long records of a compacted topic stay uncompacted after they were stored, in ms."
    ),
    "min.insync.replicas": number_rule(
        _INT, lambda _: _REPLICAS_MIN, 1, "How many replicas must be in sync for writes with acks=all."
    ),
    "preallocate": _kept_flag(_SEGMENTS),
    "remote.log.copy.disable": _kept_flag(_TIERS),
    "remote.log.delete.on.disable": _kept_flag(_TIERS),
    REMOTE_STORAGE: _kept_flag(_TIERS)._replace(
        default=lambda config: "true" if config.cold.storage else "false",
    ),
    "retention.bytes": number_rule(
        _LONG,
        lambda config: str(config.store.retention_bytes or -1),
        -1,
        "The size above which a log drops its oldest records, in bytes; -1 for no limit.",
    ),
    "retention.ms": number_rule(
        _LONG,
        lambda config: str(config.store.retention_ms or -1),
        -1,
        "How long records are kept since they were stored, in ms, whatever their own times are; -1 for no limit.",
    ),
    "segment.bytes": _kept_number(_INT, 2**30, 2**20, _SEGMENTS, 2**31 - 1),
    "segment.index.bytes": _kept_number(_INT, 10 * 2**20, 4, _SEGMENTS, 2**31 - 1),
    "segment.jitter.ms": _kept_number(_LONG, 0, 0, _SEGMENTS),
    "segment.ms": _kept_number(_LONG, 604_800_000, 1, _SEGMENTS),
    "unclean.leader.election.enable": _kept_flag(
        "No replica without the acknowledged records is elected. For replicas that are lost: dafka topic recover."
    ),
}

_NOT_CONFIGURED = Config()
_DEFAULTS = {name: rule.default(_NOT_CONFIGURED) for name, rule in _RULES.items()}

_BROKER_NAMES = {
    **{name: name for name in _RULES if name.startswith(("compression.", "min.insync.", "unclean."))},
    **{name: f"log.{name}" for name in _RULES if name.startswith(("message.timestamp.", "retention.", "local."))},
    "cleanup.policy": "log.cleanup.policy",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "preallocate": "log.preallocate",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
}
"""Kafka's names for the defaults that a broker has."""

TOPIC_SETTING_NAMES = tuple(_RULES)
"""The names of the settings that a topic can have: Kafka's and this broker's own."""

EFFECTIVE_SETTING_NAMES = tuple(name for name, rule in _RULES.items() if rule.has_effect)
"""The settings that have an effect. The others are kept and shown, so that programs can set what they set in Kafka."""


def availability_of(topic: Topic) -> str:
    """Return who can write to a topic's logs during a network partition: `MAJORITY` or `BRANCH`."""
    return topic.settings.get("availability", MAJORITY)


def replicas_min_of(topic: Topic) -> int:
    """Return how many replicas must be in sync for writes to a topic's logs with `acks=all`."""
    return int(topic.settings.get("min.insync.replicas", _REPLICAS_MIN))


def number_of(topic: Topic, config: Config, name: str) -> int:
    """Return a setting of a topic that is a whole number."""
    own = topic.settings.get(name)
    return int(_RULES[name].default(config) if own is None else own)


def accepts_dead_letters(topic: Topic) -> bool:
    """Return whether share groups can use a topic for dead letters."""
    return topic.settings.get(DEAD_LETTERS) == "true"


def timestamp_type_of(topic: Topic) -> TimestampType:
    """Return whose time records of clients have."""
    return _TIMESTAMP_TYPES[topic.settings.get("message.timestamp.type", "CreateTime")]


def stored_compression_of(topic: Topic) -> tuple[Compression | None, int | None]:
    """Return the compression of a topic's batches, None for that of their producers, and its level if it has one."""
    kind = topic.settings.get("compression.type", _PRODUCER)
    level = topic.settings.get(f"compression.{kind}.level")
    if level is None or (kind == "gzip" and level == _DEFAULT_LEVEL):
        return _CODECS.get(kind), None
    return _CODECS.get(kind), int(level)


def is_compacted(topic: Topic, config: Config) -> bool:
    """Return whether a topic retains only the last record of each key."""
    return COMPACT in _split(_cleanup_policy(topic, config.store))


def drops_old_records(topic: Topic, config: StoreConfig) -> bool:
    """Return whether retention applies to a topic."""
    return DELETE in _split(_cleanup_policy(topic, config))


def _cleanup_policy(topic: Topic, config: StoreConfig) -> str:
    return topic.settings.get("cleanup.policy", COMPACT if config.compacts(topic.name) else DELETE)


def find_setting_problem(name: str, value: str) -> str:
    """Return why a setting of a topic is invalid; empty if it is valid."""
    rule = _RULES.get(name)
    if rule is None:
        return f"a topic has the settings {', '.join(EFFECTIVE_SETTING_NAMES)} and Kafka's others, and not {name!r}"
    return "" if rule.is_valid(value) else f"{name}: expected {rule.expected}, not {value!r}"


def find_settings_problem(settings: Mapping[str, str], config: Config) -> str:
    """Return why settings of a topic are invalid for a broker; empty if they are valid."""
    if settings.get(REMOTE_STORAGE) == "true" and not config.cold.storage:
        return f"{REMOTE_STORAGE}: expected 'false', because the broker has no [cold] storage, not 'true'"
    problem = next(filter(None, (find_setting_problem(*each) for each in settings.items())), "")
    if problem:
        return problem
    lag_min, lag_max = (int(settings.get(f"{each}.compaction.lag.ms", "0")) for each in ("min", "max"))
    if 0 < lag_max < lag_min:
        return f"min.compaction.lag.ms: expected at most max.compaction.lag.ms, {lag_max}, not {lag_min}"
    return ""


def list_settings(topic: Topic, config: Config) -> list[TopicSetting]:
    """Return all settings of a topic."""
    defaults = {name: rule.default(config) for name, rule in _RULES.items()}
    if config.store.compacts(topic.name):
        defaults["cleanup.policy"] = COMPACT
    return [
        TopicSetting(
            name,
            topic.settings.get(name, defaults[name]),
            defaults[name],
            name in topic.settings,
            defaults[name] != _DEFAULTS[name],
            _BROKER_NAMES.get(name, ""),
            rule,
        )
        for name, rule in _RULES.items()
    ]
