"""The settings of topics, groups and brokers as Kafka's clients see them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.groups.share.members import ASSIGNOR
from dafka.broker.core.metadata import topic_settings
from dafka.broker.core.metadata.group_settings import GROUP_SETTINGS
from dafka.broker.core.metadata.setting_rules import SettingKind
from dafka.broker.core.metadata.topic_settings import TopicSetting
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.transactions.coordinator import TransactionSettings
from dafka.config import Config
from dafka.kafka.apis.shared.registry import RequestContext
from dafka.kafka.protocol.constants import FROM_BROKER, FROM_DEFAULT, FROM_GROUP, FROM_TOPIC, GROUP, TOPIC
from dafka.kafka.server.cluster_view import security_protocol

_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, LIST = 1, 2, 3, 5, 6, 7


class Setting(NamedTuple):
    """A setting as clients see it: name and value, source and type in Kafka's numbers, its text, and its synonyms."""

    name: str
    value: str
    source: int
    kind: int
    text: str
    synonyms: Sequence[tuple[str, str, int]] = ()


_KINDS = {
    SettingKind.STRING: _STRING,
    SettingKind.INT: _INT,
    SettingKind.LONG: _LONG,
    SettingKind.DOUBLE: _DOUBLE,
    SettingKind.LIST: LIST,
    SettingKind.BOOLEAN: _BOOLEAN,
}


_NOT_CONFIGURED = Config()

_FLAGS = {
    TOPIC: {
        each.name
        for each in topic_settings.list_settings(Topic("", ""), _NOT_CONFIGURED)
        if each.rule.kind is SettingKind.BOOLEAN
    },
    GROUP: {name for name, rule in GROUP_SETTINGS.items() if rule.kind is SettingKind.BOOLEAN},
}
"""The settings of topics and groups that are true or false."""


def read_value(resource_type: int, name: str, value: str) -> str:
    """Return the value of a setting in a request, as brokers keep it.

    Kafka ignores spaces around it, and the case of a flag: many clients write `True`.
    """
    found = value.strip()
    return found.lower() if name in _FLAGS.get(resource_type, ()) else found


def list_topic_settings(topic: Topic, config: Config) -> list[Setting]:
    """Return all settings of a topic."""
    return [_describe_setting(each) for each in topic_settings.list_settings(topic, config)]


def _describe_setting(setting: TopicSetting) -> Setting:
    """Return a setting of a topic, and the values that it has and would have without its own, the valid one first."""
    default_source = FROM_BROKER if setting.is_configured else FROM_DEFAULT
    own = [(setting.name, setting.value, FROM_TOPIC)] if setting.is_own else []
    return Setting(
        setting.name,
        setting.value,
        FROM_TOPIC if setting.is_own else default_source,
        _KINDS[setting.rule.kind],
        setting.rule.description,
        [*own, (setting.broker_name or setting.name, setting.default, default_source)],
    )


def list_broker_settings(context: RequestContext) -> list[Setting]:
    """Return all settings of the broker that is asked."""
    config = context.broker.config
    kafka = config.kafka
    own = context.broker.node.brokers.own
    host, port = context.endpoint
    groups, transactions, store = GroupSettings(), TransactionSettings(), config.store
    flags = {True: "true", False: "false"}
    rows: list[tuple[str, object, int, str]] = [
        ("advertised.listeners", f"{security_protocol(config)}://{host}:{port}", LIST, "[kafka] advertised_listener"),
        ("auto.create.topics.enable", flags[kafka.auto_create_topics == "on"], _BOOLEAN, "[kafka] auto_create_topics"),
        ("auto.leader.rebalance.enable", "true", _BOOLEAN, ""),
        ("broker.heartbeat.interval.ms", config.broker.heartbeat_ms, _INT, "[broker] heartbeat_ms"),
        ("broker.id", own.number, _INT, "[broker] number"),
        ("broker.rack", own.rack, _STRING, "[broker] rack"),
        ("broker.session.timeout.ms", config.broker.leader_timeout_ms, _INT, "[broker] leader_timeout_ms"),
        ("connections.max.idle.ms", kafka.idle_ms, _LONG, "[kafka] idle_ms"),
        ("connections.max.reauth.ms", config.clients.reauthenticate_ms, _LONG, "[clients] reauthenticate_ms"),
        ("default.replication.factor", config.broker.replicas, _INT, "[broker] replicas"),
        ("delete.topic.enable", "true", _BOOLEAN, ""),
        ("group.consumer.assignors", ",".join(kafka.consumer_assignors), LIST, "[kafka] consumer_assignors"),
        ("group.share.assignors", ASSIGNOR, LIST, ""),
        ("group.share.max.share.sessions", kafka.share_sessions_max, _INT, "[kafka] share_sessions_max"),
        ("group.share.max.size", kafka.share_members_max, _INT, "[kafka] share_members_max"),
        (
            "errors.deadletterqueue.auto.create.topics.enable",
            flags[kafka.auto_create_dead_letters == "on"],
            _BOOLEAN,
            "[kafka] auto_create_dead_letters",
        ),
        (
            "errors.deadletterqueue.topic.name.prefix",
            kafka.dead_letter_prefix,
            _STRING,
            "[kafka] dead_letter_prefix",
        ),
        ("group.initial.rebalance.delay.ms", kafka.rebalance_delay_ms, _INT, "[kafka] rebalance_delay_ms"),
        ("group.max.session.timeout.ms", groups.group_max_session_timeout_ms, _INT, ""),
        ("group.min.session.timeout.ms", kafka.session_timeout_min_ms, _INT, "[kafka] session_timeout_min_ms"),
        ("log.cleaner.backoff.ms", store.compaction_interval_ms, _LONG, "[store] compaction_interval_ms"),
        ("log.cleaner.enable", "true", _BOOLEAN, ""),
        ("log.retention.check.interval.ms", store.retention_interval_ms, _LONG, "[store] retention_interval_ms"),
        ("max.connections", kafka.connections_max, _INT, "[kafka] connections_max"),
        (
            "max.connections.per.ip",
            kafka.connections_per_address_max or kafka.connections_max,
            _INT,
            "[kafka] connections_per_address_max",
        ),
        ("node.id", own.number, _INT, "[broker] number"),
        ("num.partitions", kafka.log_count, _INT, "[kafka] log_count"),
        ("offset.metadata.max.bytes", groups.offset_metadata_max_bytes, _INT, ""),
        ("offsets.retention.minutes", groups.offsets_retention_ms // 60_000, _INT, ""),
        ("process.roles", "broker,controller", LIST, ""),
        ("remote.log.storage.system.enable", flags[bool(config.cold.storage)], _BOOLEAN, "[cold] storage"),
        ("socket.request.max.bytes", kafka.request_bytes_max, _INT, "[kafka] request_bytes_max"),
        ("transaction.max.timeout.ms", transactions.transaction_max_timeout_ms, _INT, ""),
        ("transactional.id.expiration.ms", transactions.transactional_id_expiration_ms, _INT, ""),
    ]
    settings = [
        Setting(name, str(value), FROM_BROKER, kind, f"Here: {origin}." if origin else "It cannot be changed here.")
        for name, value, kind, origin in rows
    ]
    defaults = [each for each in topic_settings.list_settings(Topic("", ""), config) if each.rule.has_effect]
    settings += [_describe_setting(each)._replace(name=each.broker_name) for each in defaults if each.broker_name]
    return sorted([*settings, *_group_defaults(config)])


def _group_defaults(config: Config) -> Iterator[Setting]:
    """Yield a broker's settings for each number that groups can set: the default, the minimum and the maximum."""
    for name, rule in GROUP_SETTINGS.items():
        if rule.limits is None or not rule.has_effect:
            continue
        kind, _, rest = name.partition(".")
        yield Setting(f"group.{name}", rule.default(config), FROM_BROKER, _KINDS[rule.kind], rule.text)
        for word, value in zip(("min", "max"), rule.limits, strict=True):
            text = f"A limit of {name}, which cannot be changed here."
            yield Setting(f"group.{kind}.{word}.{rest}", str(value), FROM_BROKER, _KINDS[rule.kind], text)


def list_group_settings(context: RequestContext, group_id: str) -> list[Setting]:
    """Return all settings of a group, which need not exist."""
    own, config = context.broker.node.tables.state.group_settings.find(group_id), context.broker.config
    found = []
    for name, rule in GROUP_SETTINGS.items():
        default = rule.default(config)
        default_source = FROM_DEFAULT if default == rule.default(_NOT_CONFIGURED) else FROM_BROKER
        synonyms = [(f"group.{name}" if rule.limits else name, default, default_source)]
        if name in own:
            synonyms.insert(0, (name, own[name], FROM_GROUP))
        _, value, source = synonyms[0]
        found.append(Setting(name, value, source, _KINDS[rule.kind], rule.description, synonyms))
    return found
