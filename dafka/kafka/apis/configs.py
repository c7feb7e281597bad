"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources: settings of topics and brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.acls import Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata import topic_settings
from dafka.broker.core.metadata.commands import AlterGroupSettings
from dafka.broker.core.metadata.features import SHARE_GROUPS
from dafka.broker.core.metadata.group_settings import GROUP_SETTINGS, find_problem
from dafka.broker.core.metadata.topic_settings import SettingKind, find_settings_problem
from dafka.broker.core.metadata.topics import Topic
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
from dafka.kafka.apis.shared.levels import explain_level
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
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = 1, 2, 3, 5, 6, 7


class Setting(NamedTuple):
    """A setting as clients see it: name and value, source and type in Kafka's numbers, the default and a text."""

    name: str
    value: str
    source: int
    kind: int
    default: str | None = None
    text: str | None = None


_KINDS = {
    SettingKind.STRING: _STRING,
    SettingKind.INT: _INT,
    SettingKind.LONG: _LONG,
    SettingKind.DOUBLE: _DOUBLE,
    SettingKind.LIST: _LIST,
    SettingKind.BOOLEAN: _BOOLEAN,
}


def list_settings(topic: Topic, config: Config) -> list[Setting]:
    """Return all settings of a topic."""
    return [
        Setting(
            each.name,
            each.value,
            FROM_TOPIC if each.is_own else FROM_DEFAULT,
            _KINDS[each.kind],
            each.default,
            each.text if each.has_effect else f"No effect. {each.text}",
        )
        for each in topic_settings.list_settings(topic, config)
    ]


def _broker_settings(context: RequestContext) -> list[Setting]:
    config = context.broker.config
    kafka = config.kafka
    own = context.broker.node.brokers.own
    host, port = context.endpoint
    scheme = "SASL_" * bool(config.clients.users) + ("SSL" if config.clients.tls_certificate else "PLAINTEXT")
    is_created = "true" if kafka.auto_create_topics == "on" else "false"
    return [
        Setting("advertised.listeners", f"{scheme}://{host}:{port}", FROM_BROKER, _LIST),
        Setting("auto.create.topics.enable", is_created, FROM_BROKER, _BOOLEAN),
        Setting("broker.id", str(own.number), FROM_BROKER, _INT),
        Setting("broker.rack", own.rack, FROM_BROKER, _STRING),
        Setting("default.replication.factor", str(config.broker.replicas), FROM_BROKER, _INT),
        Setting("group.consumer.heartbeat.interval.ms", str(kafka.consumer_heartbeat_interval_ms), FROM_BROKER, _INT),
        Setting("group.consumer.session.timeout.ms", str(kafka.consumer_session_timeout_ms), FROM_BROKER, _INT),
        Setting("group.initial.rebalance.delay.ms", str(kafka.rebalance_delay_ms), FROM_BROKER, _INT),
        Setting("group.min.session.timeout.ms", str(kafka.session_timeout_min_ms), FROM_BROKER, _INT),
        Setting("message.max.bytes", str(kafka.message_bytes_max), FROM_BROKER, _INT),
        Setting("num.partitions", str(kafka.log_count), FROM_BROKER, _INT),
        Setting("socket.request.max.bytes", str(kafka.request_bytes_max), FROM_BROKER, _INT),
    ]


def _group_settings(context: RequestContext, group_id: str) -> list[Setting]:
    own = context.broker.node.tables.state.group_settings.find(group_id)
    return [
        Setting(
            name,
            own.get(name, each.default),
            FROM_GROUP if name in own else FROM_DEFAULT,
            _STRING if each.range is None else _INT,
            each.default,
            each.text,
        )
        for name, each in GROUP_SETTINGS.items()
    ]


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
    own = context.broker.node.brokers.own
    if resource.resource_type == TOPIC:
        topic = context.broker.node.find_topic(resource.resource_name)
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            settings, is_read_only = list_settings(topic, context.broker.config), False
    elif resource.resource_type == GROUP:
        settings, is_read_only = _group_settings(context, resource.resource_name), False
    elif resource.resource_type == BROKER and resource.resource_name in {"", str(own.number)}:
        settings = _broker_settings(context)
    else:
        error = ErrorCode.INVALID_REQUEST
        message = f"this broker, {own.number}, knows the settings of topics and groups and its own"
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
        if names is None or each.name in names
    ]
    return DescribeConfigsResult(
        error_code=error,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


def _synonyms(setting: Setting) -> list[DescribeConfigsSynonym]:
    """Return the values that a setting has and would have without its own, the one that counts first."""
    found = [DescribeConfigsSynonym(name=setting.name, value=setting.value, source=setting.source)]
    if setting.default is not None and setting.source != FROM_DEFAULT:
        found.append(DescribeConfigsSynonym(name=setting.name, value=setting.default, source=FROM_DEFAULT))
    return found


@handles(AlterConfigsRequest, _require_resources(Operation.ALTER_CONFIGS, "responses"), changes_topics=True)
@refuse_repeated("resources", answers="responses")
async def alter_configs(context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Replace all settings of topics and groups."""
    responses = []
    for each in request.resources:
        settings = {config.name: config.value for config in each.configs if config.value is not None}
        responses.append(await _change(context, each, settings, is_trial=request.validate_only))
    return AlterConfigsResponse(responses=responses)


@handles(IncrementalAlterConfigsRequest, _require_resources(Operation.ALTER_CONFIGS, "responses"), changes_topics=True)
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
            settings = _changed(own, {}, each.configs)
        elif (topic := context.broker.node.find_topic(each.resource_name)) is not None:
            listed = list_settings(topic, context.broker.config)
            lists = {setting.name: setting.value for setting in listed if setting.kind == _LIST}
            settings = _changed(topic.settings, lists, each.configs)
        responses.append(await _change(context, each, settings, is_trial=request.validate_only))
    return IncrementalAlterConfigsResponse(responses=responses)


def _changed(
    own: Mapping[str, str], lists: Mapping[str, str], changes: list[IncrementalAlterableConfig]
) -> dict[str, str] | None:
    """Return own settings after changes; None if an operation is not possible for its setting.

    `lists` has the values of the settings that are lists.
    """
    settings = dict(own)
    for change in changes:
        operation, name = change.config_operation, change.name
        if operation == DELETE:
            settings.pop(name, None)
        elif change.value is None:
            return None
        elif operation == SET:
            settings[name] = change.value
        elif operation in {APPEND, SUBTRACT} and name in lists:
            present, named = (_split(each) for each in (settings.get(name, lists[name]), change.value))
            kept = [each for each in present if operation == APPEND or each not in named]
            added = [each for each in named if operation == APPEND and each not in present]
            settings[name] = ",".join(kept + added)
        else:
            return None
    return settings


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
    if resource.resource_type == GROUP:
        error, message = await _change_group(context, name, settings, is_trial=is_trial)
    elif resource.resource_type != TOPIC:
        error, message = ErrorCode.INVALID_REQUEST, "only the settings of topics and groups can be changed"
    elif node.find_topic(name) is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif settings is None:
        error, message = ErrorCode.INVALID_CONFIG, _IMPOSSIBLE
    elif message := find_settings_problem(settings):
        error = ErrorCode.INVALID_CONFIG
    elif not is_trial:
        error, message = await make_change(
            node.admin.change_topic(name, settings=settings, ordered_by=requester_of(context))
        )
    return AlterConfigsResourceResponse(
        error_code=error, error_message=message or None, resource_type=resource.resource_type, resource_name=name
    )


_IMPOSSIBLE = "settings are set and deleted; lists can be appended to, too"


async def _change_group(
    context: RequestContext, group_id: str, settings: dict[str, str] | None, *, is_trial: bool
) -> tuple[ErrorCode, str | None]:
    """Replace the settings of a group. Return the error and its message."""
    if problem := explain_level(context, SHARE_GROUPS):
        return ErrorCode.UNSUPPORTED_VERSION, problem
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID, "the group id is empty"
    if settings is None:
        return ErrorCode.INVALID_CONFIG, _IMPOSSIBLE
    if problem := find_problem(settings):
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
