"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources: settings of topics and brokers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.acls import Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.groups.share.members import ASSIGNOR
from dafka.broker.core.metadata import topic_settings
from dafka.broker.core.metadata.commands import AlterGroupSettings
from dafka.broker.core.metadata.features import DEAD_LETTERS, SHARE_GROUPS
from dafka.broker.core.metadata.group_settings import DEAD_LETTER_TOPIC, GROUP_SETTINGS, find_problem
from dafka.broker.core.metadata.setting_rules import SettingKind
from dafka.broker.core.metadata.topic_settings import TopicSetting, find_settings_problem
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.transactions.coordinator import TransactionSettings
from dafka.config import Config
from dafka.kafka.apis.shared.authorization import (
    CLUSTER_REFUSED,
    GROUP_REFUSED,
    TOPIC_REFUSED,
    add_refused,
    show_only,
    split_unauthorized,
)
from dafka.kafka.apis.shared.changes import make_change, requester_of
from dafka.kafka.apis.shared.outdated import refuse_when_outdated
from dafka.kafka.apis.shared.registry import Authorization, Decision, RequestContext, handles
from dafka.kafka.apis.shared.repeats import refuse_repeated
from dafka.kafka.protocol.constants import (
    APPEND,
    BROKER,
    DELETE,
    FROM_BROKER,
    FROM_DEFAULT,
    FROM_GROUP,
    FROM_TOPIC,
    GROUP,
    SET,
    SUBTRACT,
    TOPIC,
)
from dafka.kafka.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from dafka.kafka.server.cluster_view import security_protocol

_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = 1, 2, 3, 5, 6, 7


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
    SettingKind.LIST: _LIST,
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


def list_settings(topic: Topic, config: Config) -> list[Setting]:
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


def _broker_settings(context: RequestContext) -> list[Setting]:
    config = context.broker.config
    kafka = config.kafka
    own = context.broker.node.brokers.own
    host, port = context.endpoint
    groups, transactions, store = GroupSettings(), TransactionSettings(), config.store
    flags = {True: "true", False: "false"}
    rows: list[tuple[str, object, int, str]] = [
        ("advertised.listeners", f"{security_protocol(config)}://{host}:{port}", _LIST, "[kafka] advertised_listener"),
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
        ("group.consumer.assignors", ",".join(kafka.consumer_assignors), _LIST, "[kafka] consumer_assignors"),
        ("group.share.assignors", ASSIGNOR, _LIST, ""),
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
        ("process.roles", "broker,controller", _LIST, ""),
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
    """Yield the settings of a broker for those of groups that are numbers: the defaults, and what groups can set."""
    for name, rule in GROUP_SETTINGS.items():
        if rule.limits is None or not rule.has_effect:
            continue
        kind, _, rest = name.partition(".")
        yield Setting(f"group.{name}", rule.default(config), FROM_BROKER, _KINDS[rule.kind], rule.text)
        for word, value in zip(("min", "max"), rule.limits, strict=True):
            text = f"A limit of {name}, which cannot be changed here."
            yield Setting(f"group.{kind}.{word}.{rest}", str(value), FROM_BROKER, _KINDS[rule.kind], text)


def _group_settings(context: RequestContext, group_id: str) -> list[Setting]:
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


def _may(user: Permissions, operation: Operation, resource_type: int, name: str) -> bool:
    named = _NAMED_RESOURCES.get(resource_type)
    return user.allow(operation, ResourceType.CLUSTER) if named is None else user.allow(operation, named[0], name)


_NAMED_RESOURCES = {
    TOPIC: (ResourceType.TOPIC, TOPIC_REFUSED),
    GROUP: (ResourceType.GROUP, GROUP_REFUSED),
}
"""The resources with names: their types for ACLs, and the errors for users without permission."""


def _require_resources(operation: Operation, answers: str) -> Authorization:
    """Require a permission for topics and groups; for the broker, the one for the cluster."""

    def authorize(user: Permissions, _context: RequestContext, request: Any) -> Decision:
        def may_use(each: Any) -> bool:
            return _may(user, operation, each.resource_type, each.resource_name)

        def error_of(each: Any) -> ErrorCode:
            return _NAMED_RESOURCES.get(each.resource_type, (None, CLUSTER_REFUSED))[1]

        return add_refused(split_unauthorized(request, "resources", may_use), answers, error_of)

    return authorize


@handles(DescribeConfigsRequest, _require_resources(Operation.DESCRIBE_CONFIGS, "results"))
async def describe_configs(context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Answer with the settings of topics and of the broker."""
    return DescribeConfigsResponse(results=[_describe(context, request, each) for each in request.resources])


def _describe(
    context: RequestContext, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    settings, error, message, is_read_only = list[Setting](), ErrorCode.NONE, None, True
    if resource.resource_type == TOPIC:
        topic = context.broker.node.find_topic(resource.resource_name)
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            settings, is_read_only = list_settings(topic, context.broker.config), False
    elif resource.resource_type == GROUP:
        settings, is_read_only = _group_settings(context, resource.resource_name), False
    elif resource.resource_type == BROKER and _is_own(context, resource.resource_name):
        settings = _broker_settings(context)
    else:
        error, message = ErrorCode.INVALID_REQUEST, _explain_broker(context)
    names = resource.configuration_keys
    configs = [
        DescribeConfigsResourceResult(
            name=each.name,
            value=each.value,
            read_only=is_read_only,
            config_source=each.source,
            is_default=each.source == FROM_DEFAULT,
            is_sensitive=False,
            config_type=each.kind,
            synonyms=_synonyms(each) if request.include_synonyms else [],
            documentation=each.text if request.include_documentation else None,
        )
        for each in settings
        if not names or each.name in names  # like Kafka, an empty list asks for all
    ]
    return DescribeConfigsResult(
        error_code=error,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


def _is_own(context: RequestContext, broker: str) -> bool:
    """Return whether a broker is this one, or all of them are meant."""
    return broker in {"", str(context.broker.node.brokers.own.number)}


def _explain_broker(context: RequestContext) -> str:
    number = context.broker.node.brokers.own.number
    return f"this broker, {number}, knows the settings of topics and groups and its own"


def _synonyms(setting: Setting) -> list[DescribeConfigsSynonym]:
    found = setting.synonyms or [(setting.name, setting.value, setting.source)]
    return [DescribeConfigsSynonym(name=name, value=value, source=source) for name, value, source in found]


@handles(AlterConfigsRequest, _require_resources(Operation.ALTER_CONFIGS, "responses"), awaits_metadata=True)
@refuse_when_outdated("resources", answers="responses")
@refuse_repeated("resources", answers="responses")
async def alter_configs(context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Replace all settings of topics and groups."""
    responses = []
    for each in request.resources:
        settings = {
            config.name: read_value(each.resource_type, config.name, config.value)
            for config in each.configs
            if config.value is not None
        }
        responses.append(await _change(context, each, settings, is_trial=request.validate_only))
    return AlterConfigsResponse(responses=responses)


@handles(IncrementalAlterConfigsRequest, _require_resources(Operation.ALTER_CONFIGS, "responses"), awaits_metadata=True)
@refuse_when_outdated("resources", answers="responses")
@refuse_repeated("resources", answers="responses")
async def alter_configs_incrementally(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change some settings of topics and groups."""
    responses = []
    for each in request.resources:
        settings: dict[str, str] | None = None
        if each.resource_type == GROUP:
            own = context.broker.node.tables.state.group_settings.find(each.resource_name)
            settings = _changed(each, own, {})
        elif each.resource_type == BROKER:
            settings = _changed(each, {}, {})
        elif (topic := context.broker.node.find_topic(each.resource_name)) is not None:
            listed = list_settings(topic, context.broker.config)
            lists = {setting.name: setting.value for setting in listed if setting.kind == _LIST}
            settings = _changed(each, topic.settings, lists)
        responses.append(await _change(context, each, settings, is_trial=request.validate_only))
    return IncrementalAlterConfigsResponse(responses=responses)


def _changed(
    resource: IncrementalAlterConfigsResource, own: Mapping[str, str], lists: Mapping[str, str]
) -> dict[str, str] | None:
    """Return a resource's own settings after changes; None if an operation is not possible for its setting.

    `lists` has the values of the settings that are lists.
    """
    settings = dict(own)
    for change in resource.configs:
        operation, name = change.config_operation, change.name
        if operation == DELETE:
            settings.pop(name, None)
        elif change.value is None:
            return None
        elif operation == SET:
            settings[name] = read_value(resource.resource_type, name, change.value)
        elif operation in {APPEND, SUBTRACT} and name in lists:
            edit = _append if operation == APPEND else _subtract
            settings[name] = ",".join(edit(_split(settings.get(name, lists[name])), _split(change.value)))
        else:
            return None
    return settings


def _append(present: list[str], named: list[str]) -> list[str]:
    known = set(present)
    return present + [each for each in named if each not in known]


def _subtract(present: list[str], named: list[str]) -> list[str]:
    dropped = set(named)
    return [each for each in present if each not in dropped]


def _split(value: str) -> list[str]:
    return [each.strip() for each in value.split(",") if each.strip()]


async def _change(
    context: RequestContext,
    resource: AlterConfigsResource | IncrementalAlterConfigsResource,
    settings: dict[str, str] | None,
    *,
    is_trial: bool,
) -> AlterConfigsResourceResponse:
    node, name = context.broker.node, resource.resource_name
    error: ErrorCode = ErrorCode.NONE
    message: str | None = ""
    if len({each.name for each in resource.configs}) < len(resource.configs):
        error, message = ErrorCode.INVALID_REQUEST, "a setting is named more than once"
    elif resource.resource_type == GROUP:
        error, message = await _change_group(context, name, settings, is_trial=is_trial)
    elif resource.resource_type == BROKER:
        error, message = _change_broker(context, name, settings)
    elif resource.resource_type != TOPIC:
        error, message = ErrorCode.INVALID_REQUEST, _UNCHANGEABLE
    elif node.find_topic(name) is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif settings is None:
        error, message = ErrorCode.INVALID_CONFIG, _IMPOSSIBLE
    elif message := find_settings_problem(settings, context.broker.config):
        error = ErrorCode.INVALID_CONFIG
    elif not is_trial:
        error, message = await make_change(
            node.admin.change_topic(name, settings=settings, ordered_by=requester_of(context))
        )
    return AlterConfigsResourceResponse(
        error_code=error, error_message=message or None, resource_type=resource.resource_type, resource_name=name
    )


_IMPOSSIBLE = "settings are set and deleted; lists can be appended to, too"


_UNCHANGEABLE = "only the settings of topics and groups can be changed"


def _change_broker(context: RequestContext, name: str, settings: dict[str, str] | None) -> tuple[ErrorCode, str | None]:
    """Refuse to set what a broker is configured with. Requests that only delete settings succeed, as in Kafka.

    When a reassignment has ended, Kafka's tools delete the limits of its rate on all brokers, even if it had none.
    """
    if not _is_own(context, name):
        return ErrorCode.INVALID_REQUEST, _explain_broker(context)
    return (ErrorCode.NONE, None) if settings == {} else (ErrorCode.INVALID_REQUEST, _UNCHANGEABLE)


async def _change_group(
    context: RequestContext, group_id: str, settings: dict[str, str] | None, *, is_trial: bool
) -> tuple[ErrorCode, str | None]:
    """Replace the settings of a group. Return the error and its message."""
    needed = DEAD_LETTERS if settings and settings.get(DEAD_LETTER_TOPIC) else SHARE_GROUPS
    if problem := context.explain_level(needed):
        return ErrorCode.UNSUPPORTED_VERSION, problem
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID, "the group id is empty"
    if settings is None:
        return ErrorCode.INVALID_CONFIG, _IMPOSSIBLE
    if problem := find_problem(settings, context.broker.config):
        return ErrorCode.INVALID_CONFIG, problem
    if is_trial:
        return ErrorCode.NONE, None
    change = context.broker.node.admin.change(AlterGroupSettings(group_id, settings), requester_of(context))
    return await make_change(change)


def _may_see(user: Permissions, resource: ConfigResource) -> bool:
    return _may(user, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)


@handles(ListConfigResourcesRequest, show_only("config_resources", _may_see))
async def list_config_resources(
    context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Answer with the topics, brokers and groups that have settings."""
    if context.header.api_version == 0:  # it asks for the settings of client metrics, which do not exist here
        return ListConfigResourcesResponse(error_code=ErrorCode.NONE, config_resources=[])
    types = set(request.resource_types) or {TOPIC, BROKER, GROUP}
    found: list[ConfigResource] = []
    if TOPIC in types:
        names = context.broker.node.topics
        found += [ConfigResource(resource_name=name, resource_type=TOPIC) for name in names]
    if BROKER in types:
        nodes = context.view_cluster().nodes
        found += [ConfigResource(resource_name=str(each.node_id), resource_type=BROKER) for each in nodes]
    if GROUP in types:
        groups = context.broker.node.tables.state.group_settings.groups()
        found += [ConfigResource(resource_name=each, resource_type=GROUP) for each in groups]
    return ListConfigResourcesResponse(error_code=ErrorCode.NONE, config_resources=found)
