"""Routes that list, create, describe, change and delete topics."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from dafka.broker.access.permissions import Permission
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.topic_settings import TOPIC_SETTING_NAMES, find_settings_problem, list_settings
from dafka.broker.core.metadata.topics import LOGS_MAX, Topic, find_name_problem
from dafka.broker.inventory import StoredPartition, StoredTopic
from dafka.broker.node import BrokerNode
from dafka.http.api.brokers import REPLICAS
from dafka.http.api.registry import Answer, Parameter, RequiredPermission, route
from dafka.http.api.replicas import describe_leadership
from dafka.http.api.schemas import Array, Boolean, Choice, Integer, MapOf, Nullable, Object, Text
from dafka.http.server.access import Principal
from dafka.http.server.errors import WebError, topic_not_found
from dafka.http.server.messages import AnyResponse, Request, Response, respond
from dafka.protocol.observer.cluster_survey import HolderView

PAGE_MAX = 1000
"""The maximum number of topics or groups in a page."""

PERMISSIONS = Array(Choice(("read", "write", "admin")), "What the user may do with the topic.")
NAME = Text("The name of the topic.", 249, 1)
BYTES = Integer("The size of the values, keys and headers of its records.")

LISTED_TOPIC = Object(
    "ListedTopic",
    {
        "name": NAME,
        "log_count": Integer("The number of its logs. A topic without logs has a name that only nodes can use."),
        "record_count": Integer("The number of its offsets from the start of each log to its end."),
        "end_offset": Integer("The sum of the end offsets of its logs, which only grows."),
        "bytes": BYTES,
        "last_stored_at": Nullable(Integer("When its last record was stored, in milliseconds since 1970.")),
        "permissions": PERMISSIONS,
    },
    optional=("bytes", "last_stored_at"),
)

TOPIC_PAGE = Object(
    "TopicPage",
    {
        "topics": Array(LISTED_TOPIC),
        "topic_count": Integer("The number of topics with this prefix that the user may see."),
        "next": Nullable(Text("The value of `after` for the next page; null on the last page.")),
    },
)

LOG = Object(
    "Log",
    {
        "log": Integer("The number of the log."),
        "start_offset": Integer("The offset of its first record."),
        "end_offset": Integer("The offset behind its last record."),
        "bytes": BYTES,
        "last_timestamp": Nullable(Integer("The timestamp of its last record in milliseconds since 1970.", -(2**63))),
        **REPLICAS.fields,
    },
    optional=("last_timestamp",),
)

TOPIC_SETTING = Object(
    "TopicSetting",
    {
        "name": Choice(TOPIC_SETTING_NAMES),
        "value": Text(),
        "is_own": Boolean("Whether the topic has it; otherwise it is the broker's default."),
    },
)

TOPIC = Object(
    "Topic",
    {
        "name": NAME,
        "topic_id": Text("An id that no other topic ever has, whatever its name; empty if it has no logs."),
        "log_count": Integer("The number of its logs."),
        "record_count": Integer("The number of its offsets from the start of each log to its end."),
        "logs": Array(LOG),
        "settings": Array(TOPIC_SETTING),
        "permissions": PERMISSIONS,
    },
)

SETTING_CHANGES = MapOf(
    Nullable(Text(length_max=100)),
    f"Values of {', '.join(f'`{each}`' for each in TOPIC_SETTING_NAMES)}. Null resets one.",
)

NEW_TOPIC = Object(
    "NewTopic",
    {
        "name": NAME,
        "log_count": Integer("The number of its logs; `[kafka] log_count` if it is missing.", 1, LOGS_MAX),
        "replica_count": Integer("On how many brokers they are kept; `[broker] replicas` if it is missing.", 1, 1024),
        "settings": MapOf(Text(length_max=100), "Its own settings."),
    },
    optional=("log_count", "replica_count", "settings"),
)

TOPIC_CHANGES = Object(
    "TopicChanges",
    {
        "log_count": Integer("The number of its logs, which cannot decrease.", 1, LOGS_MAX),
        "settings": SETTING_CHANGES,
    },
    optional=("log_count", "settings"),
)

HOLDER = Object(
    "Holder",
    {
        "store": Text("The address of the store."),
        "lag": Nullable(Integer("How many records it is behind the producer; null if that is not known.")),
    },
)

PARTITION = Object(
    "Partition",
    {
        "address": Text("The address of its producer."),
        "is_own": Boolean("Whether it has the records that the broker's clients have published to a log."),
        "earliest_sequence": Integer("The sequence of its first record here."),
        "end_sequence": Integer("The sequence behind its last record here."),
        "head_sequence": Integer("The sequence behind the last record that its producer is known to have."),
        "lag": Integer("How many records this broker is behind its producer."),
        "bytes": BYTES,
        "last_stored_at": Nullable(Integer("When its last record was stored, in milliseconds since 1970.")),
        "stores": Array(HOLDER, "The other stores that have some of it, as far as they were looked for."),
    },
)

PARTITIONS = Object("Partitions", {"partitions": Array(PARTITION)})


def find_topic(request: Request) -> Topic:
    """Return the topic in a request's path. Raises `WebError` if it does not exist."""
    name = request.arguments["topic"]
    topic = request.broker.node.find_topic(name)
    if topic is None:
        raise topic_not_found(name)
    return topic


def list_permissions(principal: Principal, topic: str) -> list[str]:
    """Return the user's permissions for a topic."""
    permissions = principal.permissions
    return [
        each.value for each in (Permission.READ, Permission.WRITE, Permission.ADMIN) if permissions.allow(each, topic)
    ]


@route(
    "GET",
    "/topics",
    needs=RequiredPermission.USER,
    tag="Topics",
    parameters=[
        Parameter("prefix", Text("How the names begin.", 249), "", example="orders"),
        Parameter("after", Text("The name behind which the page begins: `next` of the page before.", 300), ""),
        Parameter("limit", Integer("The number of topics.", 1, PAGE_MAX), 100),
        Parameter("sizes", Boolean("Whether to say how large and how old each topic is, which takes longer."), False),
    ],
    answers={200: Answer("A page of topics, by name.", TOPIC_PAGE)},
)
async def list_topics(request: Request) -> AnyResponse:
    """List the topics that the user may see."""
    node, permissions = request.broker.node, request.principal.permissions
    prefix, after = request.query["prefix"], request.query["after"]
    names = sorted(
        name
        for name in (*node.topics, *node.inventory.topics_without_logs())
        if name.startswith(prefix) and permissions.may_see(name)
    )
    first = bisect_right(names, after) if after else 0
    page = names[first : first + request.query["limit"]]
    is_last = first + len(page) >= len(names)
    stored = {each.name: each for each in await node.inventory.stored_topics()} if request.query["sizes"] else None
    topics = [_list_topic(request, each, stored) for each in page]
    if page and not request.is_forwarded:
        others = await request.web.other_brokers.get_all(f"/topics?{urlencode(request.head.parameters)}")
        _add_counts(topics, others.values())
    return respond({"topics": topics, "topic_count": len(names), "next": None if is_last else page[-1]})


def _add_counts(topics: Iterable[dict[str, Any]], others: Iterable[Any]) -> None:
    """Add the counts of other brokers. Each broker counts the logs that it leads."""
    by_name = {each["name"]: each for each in topics if each["log_count"]}
    for document in others:
        for each in document["topics"]:
            known = by_name.get(each["name"])
            if known is not None:
                known["record_count"] += each["record_count"]
                known["end_offset"] += each["end_offset"]


def _list_topic(request: Request, name: str, stored: Mapping[str, StoredTopic] | None) -> dict[str, Any]:
    node = request.broker.node
    logs = node.logs(name)
    led = [log for log in logs if log.leadership.is_led]
    end = sum(log.high_watermark for log in led)
    count = end - sum(log.index.start_offset for log in led)
    if not logs:
        count = end = node.inventory.record_count(name)
    found = {"name": name, "log_count": len(logs), "record_count": count, "end_offset": end}
    if stored is not None:
        topic = stored.get(name, StoredTopic(name))
        found |= {"bytes": topic.content_bytes, "last_stored_at": topic.last_stored_at}
    return {**found, "permissions": list_permissions(request.principal, name)}


@route(
    "POST",
    "/topics",
    needs=RequiredPermission.USER,
    tag="Topics",
    document=NEW_TOPIC,
    answers={201: Answer("The topic, which is durable.", TOPIC)},
    errors=("topic_exists", "forbidden"),
    changes_topics=True,
)
async def create_topic(request: Request) -> AnyResponse:
    """Create a topic.

    The user needs the permission `admin` for the topic.
    """
    node, wanted = request.broker.node, request.document
    name, settings = wanted["name"], wanted.get("settings", {})
    request.principal.check_admin(name)
    problem = find_name_problem(name) or find_settings_problem(settings)
    if problem:
        raise WebError("bad_request", problem)
    if node.find_topic(name) is not None:
        raise WebError("topic_exists", f"there is a topic {name!r} already")
    await node.create_topic(
        name, wanted.get("log_count", 0), settings, replica_count=wanted.get("replica_count", 0)
    ).wait()
    topic = node.find_topic(name)
    if topic is None:
        raise topic_not_found(name)
    return respond(await _describe(request, topic), 201, (("Location", f"/topics/{name}"),))


@route(
    "GET",
    "/topics/{topic}",
    needs=RequiredPermission.SEE,
    tag="Topics",
    parameters=[
        Parameter(
            "times", Boolean("Whether to say when the last record of each log was made: each log is read."), False
        )
    ],
    answers={200: Answer("The topic.", TOPIC)},
    errors=("topic_not_found",),
)
async def describe_topic(request: Request) -> AnyResponse:
    """Describe a topic with its logs and its settings.

    A topic whose name only nodes can use has neither.
    """
    name, inventory = request.arguments["topic"], request.broker.node.inventory
    if request.broker.node.find_topic(name) is None and inventory.record_count(name):
        return respond(_describe_without_logs(request, name))
    return respond(await _describe(request, find_topic(request), has_times=request.query["times"]))


def _describe_without_logs(request: Request, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": "",
        "log_count": 0,
        "record_count": request.broker.node.inventory.record_count(name),
        "logs": [],
        "settings": [],
        "permissions": list_permissions(request.principal, name),
    }


async def _describe(request: Request, topic: Topic, *, has_times: bool = False) -> dict[str, Any]:
    broker = request.broker
    logs = broker.node.logs(topic.name)
    sizes = await broker.node.inventory.log_bytes(topic.name)
    described = [_describe_log(broker.node, log, size) for log, size in zip(logs, sizes, strict=False)]
    if has_times:
        for log, each in zip(logs, described, strict=False):
            each["last_timestamp"] = await broker.node.reader.find_last_timestamp(log)
    if not request.is_forwarded and any(not log.leadership.is_led for log in logs):
        described = await _ask_leaders(request, topic.name, described, has_times=has_times)
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "log_count": topic.log_count,
        "record_count": sum(each["end_offset"] - each["start_offset"] for each in described),
        "logs": described,
        "settings": [
            {"name": each.name, "value": each.value, "is_own": each.is_own}
            for each in list_settings(topic, broker.config)
        ],
        "permissions": list_permissions(request.principal, topic.name),
    }


def _describe_log(node: BrokerNode, log: Log, size: int) -> dict[str, Any]:
    return {
        "log": log.number,
        "start_offset": log.index.start_offset,
        "end_offset": log.high_watermark,
        "bytes": size,
        **describe_leadership(node, log),
    }


async def _ask_leaders(
    request: Request, name: str, described: Iterable[dict[str, Any]], *, has_times: bool
) -> list[dict[str, Any]]:
    """Return the descriptions of a topic's logs from the leaders that answer."""
    target = f"/topics/{quote(name, safe='')}?times={'true' if has_times else 'false'}"
    others = await request.web.other_brokers.get_all(target)
    known = {each["log"]: each for found in others.values() for each in found["logs"] if each["in_sync"] is not None}
    return [each if each["in_sync"] is not None else known.get(each["log"], each) for each in described]


@route(
    "PATCH",
    "/topics/{topic}",
    needs=RequiredPermission.ADMIN,
    tag="Topics",
    document=TOPIC_CHANGES,
    answers={200: Answer("The topic, whose changes are durable.", TOPIC)},
    errors=("topic_not_found",),
    changes_topics=True,
)
async def change_topic(request: Request) -> AnyResponse:
    """Add logs to a topic, or change its settings.

    After logs are added, records with the same key can go to another log than before.
    """
    topic, wanted = find_topic(request), request.document
    settings = dict(topic.settings)
    for name, value in wanted.get("settings", {}).items():
        if value is not None:
            settings[name] = value
        elif settings.pop(name, None) is None and name not in TOPIC_SETTING_NAMES:
            raise WebError(
                "bad_request", f"a topic has the settings {', '.join(TOPIC_SETTING_NAMES)}, and not {name!r}"
            )
    problem = find_settings_problem(settings)
    if problem:
        raise WebError("bad_request", problem)
    await request.broker.node.change_topic(topic.name, log_count=wanted.get("log_count"), settings=settings).wait()
    return respond(await _describe(request, find_topic(request)))


@route(
    "DELETE",
    "/topics/{topic}",
    needs=RequiredPermission.ADMIN,
    tag="Topics",
    answers={204: Answer("The topic is deleted.")},
    errors=("topic_not_found",),
    changes_topics=True,
)
async def delete_topic(request: Request) -> AnyResponse:
    """Delete a topic with its records and its committed offsets.

    A producer that is not a client of the broker creates the topic again when it publishes to it.
    """
    await request.broker.delete_topic(find_topic(request).name)
    return Response(204)


@route(
    "GET",
    "/topics/{topic}/partitions",
    needs=RequiredPermission.SEE,
    tag="Topics",
    answers={200: Answer("The partitions.", PARTITIONS)},
    errors=("topic_not_found",),
)
async def list_partitions(request: Request) -> AnyResponse:
    """List the partitions of a topic: the records of each of its producers.

    Nodes publish records in producer partitions. The broker orders the records of all these partitions in the topic's
    logs.
    """
    name, node = request.arguments["topic"], request.broker.node
    partitions = await node.inventory.partitions(name)
    if not partitions and node.find_topic(name) is None:
        raise topic_not_found(name)
    holders = request.web.survey_cache.holders(name, node.address)
    return respond({"partitions": [_describe_partition(each, holders.get(each.address, ())) for each in partitions]})


def _describe_partition(partition: StoredPartition, holders: Iterable[HolderView]) -> dict[str, Any]:
    return {
        "address": partition.address,
        "is_own": partition.is_own,
        "earliest_sequence": partition.info.earliest_sequence,
        "end_sequence": partition.info.end_sequence,
        "head_sequence": partition.known_end,
        "lag": partition.lag,
        "bytes": partition.info.content_bytes,
        "last_stored_at": partition.info.latest_stored_at,
        "stores": [{"store": each.store, "lag": each.lag} for each in holders],
    }
