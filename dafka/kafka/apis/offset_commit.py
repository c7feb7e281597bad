"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete: the offsets that groups commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from dafka.broker.access.permissions import Permissions
from dafka.broker.coordinator.coordinator_shard import CoordinatorError
from dafka.broker.core.acls import Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.results import CommitRequest, FetchedOffset, OffsetToCommit
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.topic_partition import TopicPartition
from dafka.kafka.apis.shared.authorization import (
    GROUP_REFUSED,
    TOPIC_REFUSED,
    may_use,
    refuse,
    require,
    require_all,
    require_each,
    require_group,
    require_transaction,
    show_only,
    split_unauthorized,
)
from dafka.kafka.apis.shared.registry import Decision, RequestContext, ResponsePatch, handles
from dafka.kafka.apis.shared.topic_ids import uuid_of
from dafka.kafka.protocol.apis import uses_topic_ids
from dafka.kafka.protocol.constants import OFFSET_FETCH_GROUPS_VERSION, ApiKey
from dafka.kafka.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from dafka.kafka.protocol.tables import NIL

_Part = TypeVar("_Part")

_RETENTION_VERSIONS = range(2, 5)

_ABORTABLE_VERSION = 4
"""The first version of TxnOffsetCommit in which a client knows TRANSACTION_ABORTABLE."""

_JOINS_VERSION = 5
"""The first version of TxnOffsetCommit that adds the group to the transaction (KIP-890)."""

_REQUIRE_READ = require_each("topics", Permissions.may_read)
_REQUIRE_VISIBLE = require_each("topics", Permissions.may_see, committed_offset=-1, metadata="")
_SHOW_VISIBLE = show_only("topics", lambda user, topic: user.may_see(topic.name))


@handles(OffsetCommitRequest, require_all(require_group(OffsetCommitResponse), _REQUIRE_READ))
async def commit_offsets(context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Commit the offsets of a group."""
    commit = CommitRequest(
        group_id=request.group_id,
        generation_id=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        retention_ms=request.retention_time_ms if context.header.api_version in _RETENTION_VERSIONS else None,
        offsets=_offsets_of_known_logs(context, request),
    )
    errors = await context.broker.groups.commit_offsets(commit)
    topics = [
        OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=_answer_each(context, topic, errors, OffsetCommitResponsePartition),
        )
        for topic in request.topics
    ]
    return OffsetCommitResponse(topics=topics)


@handles(
    TxnOffsetCommitRequest,
    require_all(require_transaction(TxnOffsetCommitResponse), require_group(TxnOffsetCommitResponse), _REQUIRE_READ),
)
async def commit_transaction_offsets(
    context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Add offsets to a transaction."""
    commit = CommitRequest(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        offsets=_offsets_of_known_logs(context, request),
    )
    producer, version = Producer(request.producer_id, request.producer_epoch), context.header.api_version
    errors = await context.broker.groups.commit_transaction_offsets(
        commit, request.transactional_id, producer, adds_group=version >= _JOINS_VERSION
    )
    if version >= _ABORTABLE_VERSION:
        missing, abortable = ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE
        errors = {log: abortable if error is missing else error for log, error in errors.items()}
    topics = [
        TxnOffsetCommitResponseTopic(
            name=topic.name, partitions=_answer_each(context, topic, errors, TxnOffsetCommitResponsePartition)
        )
        for topic in request.topics
    ]
    return TxnOffsetCommitResponse(topics=topics)


def _authorize_fetch(user: Permissions, context: RequestContext, request: OffsetFetchRequest) -> Decision:
    """Require the permission for the groups, and the permission to see the topics."""
    if context.header.api_version >= OFFSET_FETCH_GROUPS_VERSION:
        return _authorize_groups_fetch(user, context, request)
    if not _may_describe_group(user, request):
        topics = [
            refuse(OffsetFetchResponseTopic, each, GROUP_REFUSED, committed_offset=-1, metadata="")
            for each in request.topics or ()
        ]
        return OffsetFetchResponse(error_code=GROUP_REFUSED, topics=topics)
    return (_SHOW_VISIBLE if request.topics is None else _REQUIRE_VISIBLE)(user, context, request)


def _may_describe_group(user: Permissions, part: Any) -> bool:
    return user.allow(Operation.DESCRIBE, ResourceType.GROUP, part.group_id)


def _authorize_groups_fetch(user: Permissions, context: RequestContext, request: OffsetFetchRequest) -> ResponsePatch:
    def may_see(topic: Any) -> bool:
        return may_use(context, topic, user.may_see)

    refused = split_unauthorized(request, "groups", lambda each: _may_describe_group(user, each))
    hidden = {
        each.group_id: split_unauthorized(each, "topics", may_see) for each in request.groups if each.topics is not None
    }

    def patch(response: OffsetFetchResponse) -> None:
        for group in response.groups:
            group.topics = [each for each in group.topics if may_see(each)]
            group.topics += [
                refuse(OffsetFetchResponseTopics, each, TOPIC_REFUSED, committed_offset=-1, metadata="")
                for each in hidden.get(group.group_id, ())
            ]
        response.groups += [refuse(OffsetFetchResponseGroup, each, GROUP_REFUSED) for each in refused]

    return patch


@handles(OffsetFetchRequest, _authorize_fetch)
async def fetch_offsets(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Answer with the committed offsets of groups."""
    if context.header.api_version < OFFSET_FETCH_GROUPS_VERSION:
        asked = None if request.topics is None else _logs_in(request.topics)
        found, error = await _fetch(context, request.group_id, asked, is_stable=request.require_stable)
        topics = [
            OffsetFetchResponseTopic(name=name, partitions=_answer_fetch(offsets, OffsetFetchResponsePartition))
            for name, offsets in found.items()
        ]
        return OffsetFetchResponse(topics=topics, error_code=error)
    groups = []
    for group in request.groups:
        asked = None if group.topics is None else _logs_in(group.topics)
        found, error = await _fetch(
            context,
            group.group_id,
            asked,
            is_stable=request.require_stable,
            member_id=group.member_id or "",
            member_epoch=group.member_epoch,
        )
        topics_of_group = _answer_group(context, group, found)
        groups.append(OffsetFetchResponseGroup(group_id=group.group_id, topics=topics_of_group, error_code=error))
    return OffsetFetchResponse(groups=groups)


async def _fetch(
    context: RequestContext,
    group_id: str,
    logs: list[TopicPartition] | None,
    *,
    is_stable: bool,
    member_id: str = "",
    member_epoch: int = -1,
) -> tuple[dict[str, dict[int, FetchedOffset]], ErrorCode]:
    """Return the offsets of a group. In versions without a group error, each log has the error."""
    by_topic: dict[str, dict[int, FetchedOffset]] = {}
    groups, found = context.broker.groups, dict[TopicPartition, FetchedOffset]()
    error = ErrorCode.NONE
    try:
        if member_epoch >= 0:
            error = groups.check_reader(group_id, member_id, member_epoch)
        if not error:
            found = await groups.fetch_offsets(group_id, logs, require_stable=is_stable)
    except CoordinatorError as elsewhere:
        error = elsewhere.error_code
    if error:
        found = dict.fromkeys(logs or (), FetchedOffset(-1, -1, "", error))
    for log, offset in found.items():
        by_topic.setdefault(log.topic, {})[log.partition] = offset
    return by_topic, error


_REQUIRE_GROUP_DELETE = require(
    lambda user, request: user.allow(Operation.DELETE, ResourceType.GROUP, request.group_id),
    OffsetDeleteResponse,
    GROUP_REFUSED,
)


@handles(OffsetDeleteRequest, require_all(_REQUIRE_GROUP_DELETE, _REQUIRE_READ))
async def delete_offsets(context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete committed offsets."""
    logs = [TopicPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]
    result = await context.broker.groups.delete_offsets(request.group_id, logs)
    if result.error_code:
        return OffsetDeleteResponse(error_code=result.error_code, topics=[])
    errors = {**dict.fromkeys(logs, ErrorCode.NONE), **result.partitions}
    topics = [
        OffsetDeleteResponseTopic(
            name=topic.name, partitions=_answer_each(context, topic, errors, OffsetDeleteResponsePartition)
        )
        for topic in request.topics
    ]
    return OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=topics)


def _answer_each(
    context: RequestContext,
    topic: OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic | OffsetDeleteRequestTopic,
    errors: Mapping[TopicPartition, ErrorCode],
    make_partition: Callable[..., _Part],
) -> list[_Part]:
    """Return the error code of each log of a topic in a request. Logs without an entry do not exist."""
    missing = context.find_missing_error(topic.name)
    return [
        make_partition(
            partition_index=each.partition_index,
            error_code=errors.get(TopicPartition(topic.name, each.partition_index), missing),
        )
        for each in topic.partitions
    ]


def _answer_fetch(offsets: Mapping[int, FetchedOffset], make_partition: Callable[..., _Part]) -> list[_Part]:
    return [
        make_partition(
            partition_index=number,
            committed_offset=each.offset,
            committed_leader_epoch=each.leader_epoch,
            metadata=each.metadata,
            error_code=each.error_code,
        )
        for number, each in offsets.items()
    ]


def _answer_group(
    context: RequestContext, group: OffsetFetchRequestGroup, found: Mapping[str, Mapping[int, FetchedOffset]]
) -> list[OffsetFetchResponseTopics]:
    """Return the offsets of a group, by topic. Topics without an id are left out where clients name topics by id."""
    uses_ids = uses_topic_ids(ApiKey.OFFSET_FETCH, context.header.api_version)
    answered = []
    for name, offsets in found.items():
        topic = context.broker.node.find_topic(name)
        if topic is not None or not uses_ids:
            topic_id = NIL if topic is None else uuid_of(topic)
            parts = _answer_fetch(offsets, OffsetFetchResponsePartitions)
            answered.append(OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=parts))
    if uses_ids:
        unknown = [each for each in group.topics or () if not each.name]
        answered += [
            refuse(OffsetFetchResponseTopics, each, ErrorCode.UNKNOWN_TOPIC_ID, committed_offset=-1, metadata="")
            for each in unknown
        ]
    return answered


def _logs_in(topics: Iterable[Any]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in topics if topic.name for number in topic.partition_indexes]


def _offsets_of_known_logs(
    context: RequestContext, request: OffsetCommitRequest | TxnOffsetCommitRequest
) -> dict[TopicPartition, OffsetToCommit]:
    """Return the offsets in a request, without those of logs that do not exist."""
    return {
        TopicPartition(topic.name, each.partition_index): OffsetToCommit(
            each.committed_offset, each.committed_leader_epoch, each.committed_metadata
        )
        for topic in request.topics
        for each in topic.partitions
        if context.broker.node.find_log(topic.name, each.partition_index) is not None
    }
