"""Routes that list, create, describe, change and delete topics."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import quote, urlencode

from msgspec import UNSET, Meta, UnsetType, field

from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.topic_settings import (
    EFFECTIVE_SETTING_NAMES,
    TOPIC_SETTING_NAMES,
    find_setting_problem,
    find_settings_problem,
    list_settings,
)
from dafka.broker.core.metadata.topics import LOGS_MAX, Topic, find_name_problem
from dafka.broker.inventory import StoredPartition, StoredTopic
from dafka.broker.node import BrokerNode
from dafka.http.api.brokers import Replicas, describe_leadership
from dafka.http.api.registry import Answer, Parameter, RequiredPermission, Route
from dafka.http.server.documents import Count, Document, doc, parse_document
from dafka.http.server.errors import WebError, topic_not_found
from dafka.http.server.messages import AnyResponse, Request, Response, respond
from dafka.http.server.principal import Principal
from dafka.protocol.observer.cluster_survey import HolderView

PAGE_MAX = 1000
"""The maximum number of topics or groups in a page."""

PermissionName: TypeAlias = Literal["read", "write", "admin"]
TopicPermissions: TypeAlias = Annotated[list[PermissionName], doc("What the user may do with the topic.")]
TopicName: TypeAlias = Annotated[str, doc("The name of the topic.", max_length=249, min_length=1)]
Bytes: TypeAlias = Annotated[Count, doc("The size of the values, keys and headers of its records.")]


class ListedTopic(Document):
    """A topic in a list."""

    name: TopicName
    log_count: Annotated[Count, doc("The number of its logs. A topic without logs has a name that only nodes can use.")]
    record_count: Annotated[
        Count | None,
        doc("The number of its offsets from the start of each log to its end; null if a leader does not answer."),
    ]
    end_offset: Annotated[
        Count | None,
        doc("The sum of the end offsets of its logs, which only grows; null if a leader does not answer."),
    ]
    permissions: TopicPermissions
    bytes: Bytes | UnsetType = UNSET
    last_stored_at: Annotated[
        Count | UnsetType | None, doc("When its last record was stored, in milliseconds since 1970.")
    ] = UNSET


class TopicPage(Document):
    """A page of topics, by name."""

    topics: list[ListedTopic]
    topic_count: Annotated[Count, doc("The number of topics with this prefix that the user may see.")]
    next: Annotated[str | None, doc("The value of `after` for the next page; null on the last page.")]


class LogDetails(Replicas):
    """A log of a topic."""

    log: Annotated[Count, doc("The number of the log.")]
    start_offset: Annotated[Count, doc("The offset of its first record.")]
    end_offset: Annotated[Count, doc("The offset after its last record.")]
    bytes: Bytes
    last_timestamp: Annotated[
        int | UnsetType | None, doc("The timestamp of its last record in milliseconds since 1970.")
    ] = UNSET


class TopicSetting(Document):
    """A setting of a topic."""

    name: Annotated[str, doc("Its name.", enum=TOPIC_SETTING_NAMES)]
    value: str
    is_own: Annotated[bool, doc("Whether the topic has it; otherwise it is the broker's default.")]


class TopicDetails(Document):
    """A topic."""

    name: TopicName
    topic_id: Annotated[str, doc("An id that no other topic ever has, whatever its name; empty if it has no logs.")]
    log_count: Annotated[Count, doc("The number of its logs.")]
    record_count: Annotated[Count, doc("The number of its offsets from the start of each log to its end.")]
    logs: list[LogDetails]
    settings: list[TopicSetting]
    permissions: TopicPermissions


SettingText: TypeAlias = Annotated[str, Meta(max_length=100)]
SettingChanges: TypeAlias = Annotated[
    dict[str, SettingText | None],
    doc(
        f"Values of {', '.join(f'`{each}`' for each in EFFECTIVE_SETTING_NAMES)}, or of Kafka's other settings, which "
        "have no effect. Null resets one."
    ),
]


class NewTopic(Document):
    """A topic to create. What is missing is as in `[kafka] log_count` and `[broker] replicas`."""

    name: TopicName
    log_count: Annotated[int, doc("The number of its logs.", ge=1, le=LOGS_MAX)] | None = None
    replica_count: Annotated[int, doc("On how many brokers they are kept.", ge=1, le=1024)] | None = None
    settings: Annotated[dict[str, SettingText], doc("Its own settings.")] = field(default_factory=dict)


class TopicChanges(Document):
    """Changes of a topic."""

    log_count: Annotated[int, doc("The number of its logs, which cannot decrease.", ge=1, le=LOGS_MAX)] | None = None
    settings: SettingChanges = field(default_factory=dict)


class Holder(Document):
    """A store that has records of a partition."""

    store: Annotated[str, doc("The address of the store.")]
    lag: Annotated[Count | None, doc("How many records it is behind the producer; null if that is not known.")]


class Partition(Document):
    """The records of one producer in a topic."""

    address: Annotated[str, doc("The address of its producer.")]
    is_own: Annotated[bool, doc("Whether it has the records that the broker's clients have published to a log.")]
    earliest_sequence: Annotated[Count, doc("The sequence of its first record here.")]
    end_sequence: Annotated[Count, doc("The sequence after its last record here.")]
    head_sequence: Annotated[Count, doc("The sequence after the last record that its producer is known to have.")]
    lag: Annotated[Count, doc("How many records this broker is behind its producer.")]
    bytes: Bytes
    last_stored_at: Annotated[Count | None, doc("When its last record was stored, in milliseconds since 1970.")]
    stores: Annotated[list[Holder], doc("The other stores that have some of it, as far as they were looked for.")]


class Partitions(Document):
    """The partitions of a topic."""

    partitions: list[Partition]


def find_topic(request: Request) -> Topic:
    """Return the topic in a request's path. Raises `WebError` if it does not exist."""
    name = request.arguments["topic"]
    topic = request.broker.node.find_topic(name)
    if topic is None:
        raise topic_not_found(name)
    return topic


def list_permissions(principal: Principal, topic: str) -> list[PermissionName]:
    """Return the user's permissions for a topic."""
    permissions = principal.permissions
    found: dict[PermissionName, bool] = {
        "read": permissions.may_read(topic),
        "write": permissions.may_write(topic),
        "admin": permissions.may_administer(topic),
    }
    return [each for each, is_permitted in found.items() if is_permitted]


@Route(
    "GET /topics",
    RequiredPermission.USER,
    name="listTopics",
    tag="Topics",
    parameters=[
        Parameter("prefix", Annotated[str, doc("How the names begin.", max_length=249)], "", example="orders"),
        Parameter(
            "after",
            Annotated[str, doc("The name after which the page begins: `next` of the page before.", max_length=300)],
            "",
        ),
        Parameter("limit", Annotated[int, doc("The number of topics.", ge=1, le=PAGE_MAX)], 100),
        Parameter(
            "sizes",
            Annotated[bool, doc("Whether to add the size and the age of each topic, which takes longer.")],
            False,
        ),
    ],
)
async def list_topics(request: Request) -> TopicPage:
    """List the topics that the user may see."""
    node, permissions = request.broker.node, request.principal.permissions
    prefix = request.query["prefix"]
    names = sorted(
        name
        for name in (*node.topics, *node.inventory.topics_without_logs())
        if name.startswith(prefix) and permissions.may_see(name)
    )
    page, following = find_page(names, request)
    stored = {each.name: each for each in await node.inventory.stored_topics()} if request.query["sizes"] else None
    topics = [_list_topic(request, each, stored) for each in page]
    if page and not request.is_forwarded:
        others = await request.web.other_brokers.get_all(f"/topics?{urlencode(request.head.parameters)}")
        _add_counts(node, topics, others)
    return TopicPage(topics, len(names), following)


def find_page(names: Sequence[str], request: Request) -> tuple[Sequence[str], str | None]:
    """Return the sorted names that a request asks for, and the last of them if others follow.

    The request has the query parameters `after` and `limit`.
    """
    after = request.query["after"]
    first = bisect_right(names, after) if after else 0
    page = names[first : first + request.query["limit"]]
    is_last = first + len(page) >= len(names)
    return page, None if is_last else page[-1]


def _add_counts(node: BrokerNode, topics: Iterable[ListedTopic], others: Mapping[str, Any]) -> None:
    """Add the counts of other brokers, by address: each broker counts the logs that it leads.

    A topic has no counts if the leader of one of its logs has not answered.
    """
    counted = {(address, each["name"]): each for address, found in others.items() for each in found["topics"]}
    for topic in topics:
        leaders = {log.leadership.leader for log in node.logs(topic.name)} - {node.address}
        for leader in leaders:
            found = counted.get((leader, topic.name))
            if found is None or topic.record_count is None or topic.end_offset is None:
                topic.record_count = topic.end_offset = None
            else:
                topic.record_count += found["record_count"]
                topic.end_offset += found["end_offset"]


def _list_topic(request: Request, name: str, stored: Mapping[str, StoredTopic] | None) -> ListedTopic:
    node = request.broker.node
    logs = node.logs(name)
    led = [log for log in logs if log.leadership.is_led]
    end: int = sum(log.high_watermark for log in led)
    count = end - sum(log.index.start_offset for log in led)
    if not logs:
        count = end = node.inventory.record_count(name)
    found = ListedTopic(name, len(logs), count, end, list_permissions(request.principal, name))
    if stored is not None:
        topic = stored.get(name, StoredTopic(name))
        found.bytes, found.last_stored_at = topic.content_bytes, topic.last_stored_at
    return found


@Route(
    "POST /topics",
    RequiredPermission.USER,
    name="createTopic",
    tag="Topics",
    answers={201: Answer("The topic, which is durable.", TopicDetails)},
    errors=("topic_exists", "forbidden"),
    awaits_metadata=True,
)
async def create_topic(request: Request, document: NewTopic) -> AnyResponse:
    """Create a topic.

    The user needs the permission `admin` for the topic.
    """
    node, name, settings = request.broker.node, document.name, document.settings
    request.principal.check_admin(name)
    problem = find_name_problem(name) or find_settings_problem(settings, request.broker.config)
    if problem:
        raise WebError("bad_request", problem)
    if node.find_topic(name) is not None:
        raise WebError("topic_exists", f"there is a topic {name!r} already")
    await node.admin.create_topic(
        name,
        document.log_count or 0,
        settings,
        replica_count=document.replica_count or 0,
        ordered_by=request.requester,
    )
    topic = node.find_topic(name)
    if topic is None:
        raise topic_not_found(name)
    return respond(await _describe(request, topic), 201, (("Location", f"/topics/{name}"),))


@Route(
    "GET /topics/{topic}",
    RequiredPermission.SEE,
    name="describeTopic",
    tag="Topics",
    parameters=[
        Parameter(
            "times",
            Annotated[bool, doc("Whether to add when the last record of each log was made: each log is read.")],
            False,
        )
    ],
)
async def describe_topic(request: Request) -> TopicDetails:
    """Describe a topic with its logs and its settings.

    A topic whose name only nodes can use has neither.
    """
    name, node = request.arguments["topic"], request.broker.node
    record_count = node.inventory.record_count(name)
    if node.find_topic(name) is None and record_count:
        return TopicDetails(name, "", 0, record_count, [], [], list_permissions(request.principal, name))
    return await _describe(request, find_topic(request), has_times=request.query["times"])


async def _describe(request: Request, topic: Topic, *, has_times: bool = False) -> TopicDetails:
    node = request.broker.node
    sizes = await node.inventory.log_bytes(topic.name)
    found = node.find_topic(topic.name)
    if found is None or found.topic_id != topic.topic_id:  # it was deleted meanwhile
        raise topic_not_found(topic.name)
    topic, logs = found, node.logs(topic.name)
    described = [_describe_log(node, log, size) for log, size in zip(logs, sizes, strict=True)]
    if has_times:
        for log, each in zip(logs, described, strict=True):
            each.last_timestamp = await node.reader.find_last_timestamp(log)
    if not request.is_forwarded and any(not log.leadership.is_led for log in logs):
        described = await _ask_leaders(request, topic.name, described, has_times=has_times)
    return TopicDetails(
        name=topic.name,
        topic_id=topic.topic_id,
        log_count=topic.log_count,
        record_count=sum(each.end_offset - each.start_offset for each in described),
        logs=described,
        settings=[
            TopicSetting.of(each)
            for each in list_settings(topic, request.broker.config)
            if each.rule.has_effect or each.is_own
        ],
        permissions=list_permissions(request.principal, topic.name),
    )


def _describe_log(node: BrokerNode, log: Log, size: int) -> LogDetails:
    return LogDetails(
        log=log.number,
        start_offset=log.index.start_offset,
        end_offset=log.high_watermark,
        bytes=size,
        **describe_leadership(node, log),
    )


async def _ask_leaders(
    request: Request, name: str, described: Iterable[LogDetails], *, has_times: bool
) -> list[LogDetails]:
    """Return the descriptions of a topic's logs from the leaders that answer."""
    target = f"/topics/{quote(name, safe='')}?times={'true' if has_times else 'false'}"
    others = await request.web.other_brokers.get_all(target)
    answers = [each for found in others.values() for each in parse_document(found, TopicDetails).logs]
    known = {each.log: each for each in answers if each.in_sync is not None}
    return [each if each.in_sync is not None else known.get(each.log, each) for each in described]


@Route(
    "PATCH /topics/{topic}",
    RequiredPermission.ADMIN,
    name="changeTopic",
    tag="Topics",
    awaits_metadata=True,
)
async def change_topic(request: Request, document: TopicChanges) -> TopicDetails:
    """Add logs to a topic, or change its settings durably.

    After logs are added, records with the same key can go to another log than before.
    """
    topic = find_topic(request)
    settings = dict(topic.settings)
    for name, value in document.settings.items():
        if value is not None:
            settings[name] = value
        elif settings.pop(name, None) is None and name not in TOPIC_SETTING_NAMES:
            raise WebError("bad_request", find_setting_problem(name, ""))
    problem = find_settings_problem(settings, request.broker.config)
    if problem:
        raise WebError("bad_request", problem)
    await request.broker.node.admin.change_topic(
        topic.name,
        log_count=document.log_count,
        settings=settings,
        ordered_by=request.requester,
    )
    return await _describe(request, find_topic(request))


@Route(
    "DELETE /topics/{topic}",
    RequiredPermission.ADMIN,
    name="deleteTopic",
    tag="Topics",
    answers={204: Answer("The topic is deleted.")},
    awaits_metadata=True,
)
async def delete_topic(request: Request) -> AnyResponse:
    """Delete a topic with its records and its committed offsets.

    A producer that is not a client of the broker creates the topic again when it publishes to it.
    """
    name = find_topic(request).name
    await request.broker.delete_topic(name, ordered_by=request.requester)
    return Response(204)


@Route(
    "GET /topics/{topic}/partitions",
    RequiredPermission.SEE,
    name="listPartitions",
    tag="Topics",
)
async def list_partitions(request: Request) -> Partitions:
    """List the partitions of a topic: the records of each of its producers.

    Nodes publish records in producer partitions. The broker orders the records of all these partitions in the topic's
    logs.
    """
    name, node = request.arguments["topic"], request.broker.node
    partitions = await node.inventory.partitions(name)
    if not partitions and node.find_topic(name) is None:
        raise topic_not_found(name)
    holders = request.web.survey_cache.holders(name, node.address)
    return Partitions([_describe_partition(each, holders.get(each.address, ())) for each in partitions])


def _describe_partition(partition: StoredPartition, holders: Iterable[HolderView]) -> Partition:
    info = partition.info
    return Partition(
        address=partition.address,
        is_own=partition.is_own,
        earliest_sequence=info.earliest_sequence,
        end_sequence=info.end_sequence,
        head_sequence=partition.known_end,
        lag=partition.lag,
        bytes=info.content_bytes,
        last_stored_at=info.latest_stored_at,
        stores=[Holder.of(each) for each in holders],
    )
