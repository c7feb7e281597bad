"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources: settings of topics and brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.acls import Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import AlterGroupSettings
from dafka.broker.core.metadata.features import DEAD_LETTERS, SHARE_GROUPS
from dafka.broker.core.metadata.group_settings import DEAD_LETTER_TOPIC, find_problem
from dafka.broker.core.metadata.topic_settings import find_settings_problem
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
from dafka.kafka.apis.shared.settings import (
    LIST,
    Setting,
    list_broker_settings,
    list_group_settings,
    list_topic_settings,
    read_value,
)
from dafka.kafka.protocol.constants import (
    APPEND,
    BROKER,
    DELETE,
    FROM_DEFAULT,
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
            settings, is_read_only = list_topic_settings(topic, context.broker.config), False
    elif resource.resource_type == GROUP:
        settings, is_read_only = list_group_settings(context, resource.resource_name), False
    elif resource.resource_type == BROKER and _is_own(context, resource.resource_name):
        settings = list_broker_settings(context)
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
            listed = list_topic_settings(topic, context.broker.config)
            lists = {setting.name: setting.value for setting in listed if setting.kind == LIST}
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
