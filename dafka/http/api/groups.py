"""Routes for consumer groups: members, offsets and lag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlencode

from dafka.broker.broker import Broker
from dafka.broker.coordinator.coordinator_shard import CoordinatorError
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.group import ConsumerGroupState
from dafka.broker.core.groups.group import GroupState
from dafka.broker.core.groups.results import CLASSIC, CONSUMER, SHARE, DescribedGroup, DescribedMember, FetchedOffset
from dafka.broker.core.groups.subscriptions import CONSUMER_PROTOCOL, read_assignment
from dafka.broker.core.topic_partition import TopicPartition
from dafka.http.api.registry import Answer, Parameter, RequiredPermission, Route
from dafka.http.api.topics import PAGE_MAX, find_page
from dafka.http.forwarding.broker_client import ANSWER_S
from dafka.http.logs.log_access import find_logs
from dafka.http.logs.positions import FromGroup, FromOffsets, find_offsets, parse_offsets, parse_position
from dafka.http.server.documents import Count, Document, doc, parse_document
from dafka.http.server.errors import WebError
from dafka.http.server.messages import AnyResponse, Request, Response

GroupName: TypeAlias = Annotated[str, doc("The name of the group.")]
_ALL_STATES = (*GroupState, *ConsumerGroupState)
_STATES = tuple(dict.fromkeys(each.value for each in _ALL_STATES if each is not GroupState.DEAD))
State: TypeAlias = Annotated[str, doc("Its state, under Kafka's name.", enum=_STATES)]
_TYPES = (CLASSIC, CONSUMER, SHARE)
Type: TypeAlias = Annotated[
    str, doc("Its type, under Kafka's name. The broker assigns the logs of all but `classic` groups.", enum=_TYPES)
]
ProtocolType: TypeAlias = Annotated[
    str,
    doc("What its members do: `consumer` for consumers, `share` for a share group; empty if it never had members."),
]


class ListedGroup(Document):
    """A group in a list."""

    group: GroupName
    state: State
    type: Type
    protocol_type: ProtocolType
    member_count: Annotated[Count, doc("Its members.")]


class GroupPage(Document):
    """A page of groups, by name."""

    groups: list[ListedGroup]
    group_count: Annotated[Count, doc("The number of groups with this prefix, state and type that the user may use.")]
    next: Annotated[str | None, doc("The value of `after` for the next page; null on the last page.")]


class Member(Document):
    """A member of a group."""

    member_id: Annotated[str, doc("The id that the broker gave it.")]
    instance_id: Annotated[str | None, doc("The name of a static member.")]
    client_id: Annotated[str, doc("The name that the client gives itself.")]
    host: Annotated[str, doc("The address of the client.")]
    assignment: Annotated[
        dict[str, list[Count]] | None, doc("The logs that it reads, by topic; null if that is not known.")
    ]


class GroupOffset(Document):
    """The offset that a group has committed for a log."""

    topic: Annotated[str, doc("The topic.")]
    log: Annotated[Count, doc("The number of the log.")]
    offset: Annotated[Count, doc("The offset at which the group resumes.")]
    metadata: Annotated[str, doc("What its member has added.")]
    end_offset: Annotated[
        Count | None,
        doc(
            "The offset after the last record of the log; null if there is no such log, or its leader does not answer."
        ),
    ]
    lag: Annotated[Count | None, doc("The number of offsets up to the end; null if that is not known.")]
    member_id: Annotated[str | None, doc("The member that reads the log.")]


class Group(Document):
    """A group."""

    group: GroupName
    state: State
    type: Type
    protocol_type: ProtocolType
    assignor: Annotated[str, doc("How logs are assigned, while the group is stable.")]
    generation: Annotated[int, doc("How often the members have been assigned logs.", ge=-1)]
    members: list[Member]
    offsets: Annotated[list[GroupOffset], doc("What the group has committed for topics that the user may see.")]
    lag: Annotated[Count, doc("The sum of the lags.")]


_POSITIONS = 'It is `"earliest"`, `"latest"`, `{"time": milliseconds}` or `{"group": "another group"}`.'


class NewOffsets(Document):
    """Offsets to commit: either `offsets` or `to`."""

    topic: Annotated[str, doc("The topic, which the user may read.", max_length=249, min_length=1)]
    offsets: Annotated[dict[str, Count] | None, doc('The offset for each log, by its number: `{"0": 5}`.')] = None
    to: Annotated[Any, doc(f"In place of offsets, a position for all logs. {_POSITIONS}")] = None


@Route(
    "GET /groups",
    RequiredPermission.USER,
    name="listGroups",
    tag="Groups",
    parameters=[
        Parameter("prefix", Annotated[str, doc("How the names begin.", max_length=1000)], ""),
        Parameter("after", Annotated[str, doc("The name after which the page begins: `next` of the page before.")], ""),
        Parameter("limit", Annotated[int, doc("The number of groups.", ge=1, le=PAGE_MAX)], 100),
        Parameter("state", Annotated[Literal.__getitem__(_STATES), doc("The state.")]),
        Parameter("type", Annotated[Literal.__getitem__(_TYPES), doc("The type.")]),
    ],
)
async def list_groups(request: Request) -> GroupPage:
    """List the groups that the user may use."""
    pages = [await _list_here(request)]
    if not request.is_forwarded:
        pages += await _list_elsewhere(request)
    permissions, limit = request.principal.permissions, request.query["limit"]
    known_until = min((page.next for page in pages if page.next is not None), default=None)
    groups = {each.group: each for page in pages for each in page.groups}
    shown = [
        groups[name]
        for name in sorted(groups)
        if permissions.may_use_group(name) and (known_until is None or name <= known_until)
    ]
    following = known_until if len(shown) <= limit else shown[limit - 1].group
    return GroupPage(shown[:limit], sum(page.group_count for page in pages), following)


async def _list_elsewhere(request: Request) -> list[GroupPage]:
    """Return pages of the groups that other brokers coordinate, as far as the user may use them.

    Other brokers do not know the user: they list and count all groups. If the user may not use all, all are read.
    """
    query, permissions = request.query, request.principal.permissions
    if permissions.may_use_every_group:
        return await _ask_others(request, query)
    usable: dict[str, ListedGroup] = {}
    after: str | None = ""
    while after is not None:
        pages = await _ask_others(request, {**query, "after": after, "limit": PAGE_MAX})
        usable |= {each.group: each for page in pages for each in page.groups if permissions.may_use_group(each.group)}
        after = min((page.next for page in pages if page.next is not None), default=None)
    page, following = find_page(sorted(usable), request)
    return [GroupPage([usable[name] for name in page], len(usable), following)]


async def _ask_others(request: Request, query: Mapping[str, Any]) -> list[GroupPage]:
    given = urlencode({name: value for name, value in query.items() if value not in {None, ""}})
    others = await request.web.other_brokers.get_all(f"/groups?{given}", wait_s=ANSWER_S)
    return [parse_document(each, GroupPage) for each in others.values()]


async def _list_here(request: Request) -> GroupPage:
    """Return a page of the groups that this broker coordinates."""
    groups, query, permissions = request.broker.groups, request.query, request.principal.permissions
    try:
        wanted = ([] if query[name] is None else [query[name]] for name in ("state", "type"))
        found = await groups.list_groups(*wanted)
    except CoordinatorError:
        problem = request.broker.node.storage.waits.problem or "it takes too long"
        raise WebError("storage_failed", f"the groups cannot be read: {problem}") from None
    names = sorted(
        each.group_id
        for each in found
        if each.group_id.startswith(query["prefix"]) and permissions.may_use_group(each.group_id)
    )
    page, following = find_page(names, request)
    described = (await groups.describe_groups(page)).values()
    listed = [
        ListedGroup(each.group_id, each.state, each.group_type, each.protocol_type, len(each.members))
        for each in described
    ]
    return GroupPage(listed, len(names), following)


@Route("GET /groups/{group}", RequiredPermission.GROUP, name="describeGroup", tag="Groups", errors=("group_not_found",))
async def describe_group(request: Request) -> Group:
    """Describe a group with its members, their logs, its offsets and its lag."""
    return await _describe(request, request.arguments["group"])


async def _describe(request: Request, name: str) -> Group:
    """Return the document about a group, with the offsets in topics that the user may see."""
    described = await request.groups.describe(name, lambda group: _describe_here(request, group))
    found = described if isinstance(described, Group) else parse_document(described, Group)
    found.offsets = [each for each in found.offsets if request.principal.permissions.may_see(each.topic)]
    if not request.is_forwarded:  # the forwarding broker asks the leaders of the logs
        await _add_lags(request, found)
    return found


async def _add_lags(request: Request, group: Group) -> None:
    logs = {(each.topic, each.log): request.broker.node.find_log(each.topic, each.log) for each in group.offsets}
    bounds = await request.logs.known_bounds([log for log in logs.values() if log is not None])
    for each in group.offsets:
        log = logs[each.topic, each.log]
        if log is not None and log in bounds:
            each.end_offset = bounds[log].high_watermark
            each.lag = max(each.end_offset - each.offset, 0)
    group.lag = sum(each.lag or 0 for each in group.offsets)


async def _describe_here(request: Request, group: DescribedGroup) -> Group:
    """Return the document about a group, without ends and lags."""
    broker, name = request.broker, group.group_id
    members = [_describe_member(each, group) for each in group.members]
    readers = {
        (topic, log): each.member_id
        for each in members
        for topic, logs in (each.assignment or {}).items()
        for log in logs
    }
    offsets = [
        GroupOffset(
            topic=partition.topic,
            log=partition.partition,
            offset=committed.offset,
            metadata=committed.metadata,
            end_offset=None,
            lag=None,
            member_id=readers.get(partition),
        )
        for partition, committed in sorted((await _find_offsets(broker, group)).items())
    ]
    return Group(
        group=name,
        state=group.state,
        type=group.group_type,
        protocol_type=group.protocol_type,
        assignor=group.protocol,
        generation=group.generation_id,
        members=members,
        offsets=offsets,
        lag=0,
    )


async def _find_offsets(broker: Broker, group: DescribedGroup) -> dict[TopicPartition, FetchedOffset]:
    """Return where a group continues in each log. A share group continues at the first record that it has not ended."""
    if group.group_type != SHARE:
        return await broker.groups.fetch_offsets(group.group_id)
    found, table = {}, broker.node.log_table
    for log, state in (await broker.groups.share_states(group.group_id) or {}).items():
        topic = table.find_client_topic_by_id(log.topic_id)
        if topic is not None and state.start_offset >= 0:
            found[TopicPartition(topic.name, log.number)] = FetchedOffset(state.start_offset, -1, "", ErrorCode.NONE)
    return found


def _describe_member(member: DescribedMember, group: DescribedGroup) -> Member:
    is_known = group.protocol_type == CONSUMER_PROTOCOL or group.group_type == SHARE
    assignment = read_assignment(member.assignment) if is_known else None
    return Member(member.member_id, member.group_instance_id, member.client_id, member.client_host, assignment)


@Route(
    "DELETE /groups/{group}",
    RequiredPermission.GROUP,
    name="deleteGroup",
    tag="Groups",
    answers={204: Answer("The group is deleted.")},
    errors=("group_not_found", "conflict"),
)
async def delete_group(request: Request) -> AnyResponse:
    """Delete a group with its offsets. It must not have members."""
    request.principal.check_group_deletion(request.arguments["group"])
    await request.groups.delete(request.arguments["group"])
    return Response(204)


@Route(
    "PUT /groups/{group}/offsets",
    RequiredPermission.GROUP,
    name="commitOffsets",
    tag="Groups",
    errors=("topic_not_found", "log_not_found", "offset_out_of_range", "conflict"),
)
async def commit_offsets(request: Request, document: NewOffsets) -> Group:
    """Commit offsets of a group durably, or reset them. It must not have members.

    A group that does not exist is created.
    """
    name, broker = request.arguments["group"], request.broker
    request.principal.check_read(document.topic)
    if (document.offsets is None) == (document.to is None):
        raise WebError("bad_request", "the body: expected either offsets or to")
    if document.offsets is None:
        position = parse_position(document.to)
        if isinstance(position, FromGroup):
            request.principal.check_group(position.group)
        logs = find_logs(broker, document.topic)
    else:
        numbers = parse_offsets(document.offsets)
        position = FromOffsets(numbers)
        logs = find_logs(broker, document.topic, numbers)
        if request.is_forwarded:  # the forwarding broker has asked the leaders of the logs
            await request.groups.commit(name, document.topic, numbers)
            return await _describe(request, name)
    found = await find_offsets(request.logs, request.groups, logs, position)
    await request.groups.commit(name, document.topic, {log.number: offset for log, offset in found.items()})
    return await _describe(request, name)
