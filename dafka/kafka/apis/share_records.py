"""ShareFetch and ShareAcknowledge: members of share groups acquire records of the logs that this broker leads."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import TypeVar

import attrs
import trio

from dafka.broker.access.permissions import Permissions
from dafka.broker.coordinator.led_share_partition import LedSharePartition
from dafka.broker.coordinator.share_reads import AcquiredRecords, ShareRead
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.errors import BatchError, StorageError
from dafka.kafka.apis.fetch import RESPONSE_BYTES_MAX
from dafka.kafka.apis.shared.acknowledgements import acknowledge, find_shared_log
from dafka.kafka.apis.shared.authorization import GROUP_REFUSED
from dafka.kafka.apis.shared.registry import Authorization, Decision, RequestContext, handles
from dafka.kafka.apis.shared.topic_ids import id_of
from dafka.kafka.protocol.constants import FINAL_EPOCH, INITIAL_EPOCH, RECORD_LIMIT
from dafka.kafka.protocol.messages.logs import LeaderIdAndEpoch, NodeEndpoint
from dafka.kafka.protocol.messages.share_records import (
    AcknowledgedPartition,
    AcknowledgementBatch,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
    SharePartitionData,
)
from dafka.kafka.protocol.messages.share_records import AcquiredRecords as AcquiredRange
from dafka.kafka.server.cluster_view import NO_NODE
from dafka.kafka.server.share_sessions import SharedLog, ShareMemberId, ShareSession

_T = TypeVar("_T")

_NOTHING = AcquiredRecords()
_RANGE_BYTES = 18  # of an acquired range in a response
_NO_LEADER = LeaderIdAndEpoch(leader_id=NO_NODE, leader_epoch=-1)


@attrs.define
class _Part:
    """What a member asks of one log, and gets."""

    log: Log | None
    error: ErrorCode
    served: LedSharePartition | None = None
    acquired: AcquiredRecords = _NOTHING

    @property
    def is_urgent(self) -> bool:
        """Whether the member must be answered immediately."""
        return bool(self.error or self.acquired.ranges)


def _authorize(response: type[ShareFetchResponse | ShareAcknowledgeResponse]) -> Authorization:
    """Require the permission for the group.

    That to read a topic is required when its logs are found: a topic without it stays in the session, as in Kafka, so
    that the client gets the error for what it acknowledges and in each response, and records once it may read.
    """

    def authorize(
        user: Permissions, _context: RequestContext, request: ShareFetchRequest | ShareAcknowledgeRequest
    ) -> Decision:
        return None if user.may_use_group(request.group_id or "") else response(error_code=GROUP_REFUSED)

    return authorize


@handles(ShareFetchRequest, _authorize(ShareFetchResponse))
async def share_fetch(context: RequestContext, request: ShareFetchRequest) -> ShareFetchResponse:
    """Acknowledge records, then acquire others. Wait for them up to `max_wait_ms`."""
    deadline = trio.current_time() + max(request.max_wait_ms, 0) / 1000
    member = ShareMemberId(request.group_id or "", request.member_id or "")
    epoch = request.share_session_epoch
    named = _read_named(request.topics)
    acknowledged = {log: batches for log, batches in named.items() if batches}
    problem = _find_problem(member, is_early=epoch == INITIAL_EPOCH and bool(acknowledged))
    if problem:
        return ShareFetchResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=problem)
    forgotten = [
        SharedLog(topic.topic_id, each) for topic in request.forgotten_topics_data for each in topic.partitions
    ]
    error, session = _begin(context, member, epoch, named, forgotten)
    if session is None:
        return ShareFetchResponse(error_code=error)
    errors = await acknowledge(context, member, acknowledged, is_renewal=request.is_renew_ack)
    if epoch == FINAL_EPOCH:
        _end(context, member)
    parts = dict[SharedLog, _Part]()
    if epoch != FINAL_EPOCH and not request.is_renew_ack:
        parts = await _fetch(context, request, session, member, deadline)
        if not context.may_use_group(member.group_id):
            return ShareFetchResponse(error_code=GROUP_REFUSED)
    return _respond(context, member, errors, parts)


@handles(ShareAcknowledgeRequest, _authorize(ShareAcknowledgeResponse))
async def share_acknowledge(context: RequestContext, request: ShareAcknowledgeRequest) -> ShareAcknowledgeResponse:
    """Acknowledge records."""
    member = ShareMemberId(request.group_id or "", request.member_id or "")
    epoch = request.share_session_epoch
    problem = _find_problem(member, is_early=epoch == INITIAL_EPOCH)
    if problem:
        return ShareAcknowledgeResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=problem)
    error, session = _begin(context, member, epoch)
    if session is None:
        return ShareAcknowledgeResponse(error_code=error)
    named = _read_named(request.topics)
    errors = await acknowledge(context, member, named, is_renewal=request.is_renew_ack)
    if epoch == FINAL_EPOCH:
        _end(context, member)
    leaders = {each: _find_leader(context, each, found) for each, found in errors.items()}
    partitions = {
        each: AcknowledgedPartition(partition_index=each.number, error_code=found, current_leader=leaders[each])
        for each, found in errors.items()
    }
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=context.broker.shares.settings_of(member.group_id).limits.lock_ms,
        responses=[
            ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=found)
            for topic_id, found in _by_topic(partitions).items()
        ],
        node_endpoints=_describe_endpoints(context, leaders.values()),
    )


def _read_named(
    topics: Iterable[ShareFetchTopic | AcknowledgeTopic],
) -> dict[SharedLog, list[AcknowledgementBatch]]:
    """Return the logs in a request, each with all that the member says of its records."""
    found: dict[SharedLog, list[AcknowledgementBatch]] = {}
    for topic in topics:
        for each in topic.partitions:
            found.setdefault(SharedLog(topic.topic_id, each.partition_index), []).extend(each.acknowledgement_batches)
    return found


def _find_problem(member: ShareMemberId, *, is_early: bool) -> str:
    """Return why a request is invalid; empty if it is not."""
    if not member.group_id or not member.member_id:
        return f"the {'group' if not member.group_id else 'member'} id is empty"
    return "a request that begins a share session acknowledges nothing" if is_early else ""


def _begin(
    context: RequestContext,
    member: ShareMemberId,
    epoch: int,
    added: Iterable[SharedLog] = (),
    forgotten: Iterable[SharedLog] = (),
) -> tuple[ErrorCode, ShareSession | None]:
    """Return the session of a request, or the error that it has none."""
    sessions = context.server.share_sessions
    error, session = sessions.begin(member, epoch, context.connection, added, forgotten)
    if error is ErrorCode.SHARE_SESSION_LIMIT_REACHED:
        context.broker.shares.release(*member)  # it has no session any more
    return error, session


def _end(context: RequestContext, member: ShareMemberId) -> None:
    context.server.share_sessions.end(member)
    context.broker.shares.release(*member)


async def _fetch(
    context: RequestContext,
    request: ShareFetchRequest,
    session: ShareSession,
    member: ShareMemberId,
    deadline: float,
) -> dict[SharedLog, _Part]:
    """Return the logs with acquired records or errors. Wait for one of them, while the client may use the group."""
    parts = {each: _Part(*find_shared_log(context, each)) for each in session.logs}
    shares = context.broker.shares
    if request.share_session_epoch == INITIAL_EPOCH:
        async with trio.open_nursery() as nursery:
            for each, part in parts.items():
                if part.log is not None and not part.error:
                    nursery.start_soon(shares.verify, shares.find(member.group_id, part.log, id_of(each.topic_id)))
    wanted = ShareRead(
        member_id=member.member_id,
        records_max=request.max_records,
        range_max=max(request.batch_size, 1),
        is_exact=request.share_acquire_mode == RECORD_LIMIT,
    )
    while context.may_use_group(member.group_id):
        # During the wait, logs can be deleted and added, and leaders and permissions can change.
        for each, part in parts.items():
            part.log, part.error = find_shared_log(context, each)
            if part.log is not None and not part.error:
                _find_served(context, member, each, part)
        logs = [part.log for part in parts.values() if part.log is not None]
        with context.broker.node.watchers.watching(logs) as advanced:
            missing_bytes = await _read_within_memory(context, context.limit_response(request.max_bytes), wanted, parts)
            found = {each: part for each, part in parts.items() if part.is_urgent}
            if found or trio.current_time() >= deadline:
                for each in found:
                    session.delay(each)
                return found
            with trio.move_on_at(deadline):
                if missing_bytes:
                    async with context.server.answers.take(context.source, missing_bytes):
                        continue  # then the records are read again
                await advanced.wait()
    return {}


def _find_served(context: RequestContext, member: ShareMemberId, named: SharedLog, part: _Part) -> None:
    """Find the share partition of a log. It can be loaded again once in a request."""
    served = part.served
    if served is None or served.error is ErrorCode.FENCED_STATE_EPOCH:
        assert part.log is not None
        part.served = context.broker.shares.find(member.group_id, part.log, id_of(named.topic_id))
    elif served.error is ErrorCode.GROUP_ID_NOT_FOUND:
        part.error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif not served.is_current:
        part.error = ErrorCode.NOT_LEADER_OR_FOLLOWER


async def _read_within_memory(
    context: RequestContext, bytes_max: int, wanted: ShareRead, parts: Mapping[SharedLog, _Part]
) -> int:
    """Acquire records within the memory that unread responses of other clients leave.

    Only the first log with records may exceed the size in the request. If a batch is larger than that memory, nothing
    is acquired. Return the memory that is missing then, else 0.
    """
    answers, shares = context.server.answers, context.broker.shares
    granted = left = answers.grant(min(bytes_max, RESPONSE_BYTES_MAX))
    with shares.delivering(wanted.member_id) as acquired:
        try:
            for part in parts.values():
                if part.served is None or part.error:
                    continue
                try:
                    async with context.broker.reads_of(context.source):
                        part.acquired = await context.broker.share_reader.read(part.served, wanted, left)
                except (StorageError, BatchError):
                    part.error = ErrorCode.KAFKA_STORAGE_ERROR
                    continue
                if part.acquired.ranges:
                    acquired[part.served] = part.acquired.ranges
                    left -= sum(map(len, part.acquired.batches)) + len(part.acquired.ranges) * _RANGE_BYTES
                    records_max = wanted.records_max - part.acquired.record_count
                    wanted = attrs.evolve(wanted, records_max=records_max, may_exceed=False)
        finally:
            answers.give_back(granted)
    has_room = answers.has_room(granted - left, granted)
    for each, part in parts.items():
        if part.served not in acquired:
            continue
        part.error = _find_refusal(context, each, part)
        if part.error or not has_room:
            shares.withdraw(part.served, wanted.member_id, part.acquired.ranges)
            part.acquired = _NOTHING
    return 0 if has_room else granted - left


def _find_refusal(context: RequestContext, named: SharedLog, part: _Part) -> ErrorCode:
    """Return why acquired records are not delivered; NONE if they are. Much can have changed during the read."""
    assert part.served is not None
    if not context.may_use_group(part.served.key.group_id):
        return GROUP_REFUSED
    if not context.broker.shares.holds_lease(part.served):  # another broker could have delivered them, too
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return find_shared_log(context, named).error


def _respond(
    context: RequestContext,
    member: ShareMemberId,
    errors: Mapping[SharedLog, ErrorCode],
    parts: Mapping[SharedLog, _Part],
) -> ShareFetchResponse:
    found = dict[SharedLog, SharePartitionData]()
    for each in {**errors, **parts}:
        part, error = parts.get(each, _Part(None, ErrorCode.NONE)), errors.get(each, ErrorCode.NONE)
        found[each] = SharePartitionData(
            partition_index=each.number,
            error_code=part.error,
            acknowledge_error_code=error,
            current_leader=_find_leader(context, each, part.error or error),
            records=b"".join(part.acquired.batches),
            acquired_records=[
                AcquiredRange(first_offset=first, last_offset=end - 1, delivery_count=count)
                for first, end, count in part.acquired.ranges
            ],
        )
        if part.log is not None:
            context.server.counters.consumed[part.log.topic] += part.acquired.record_count
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=context.broker.shares.settings_of(member.group_id).limits.lock_ms,
        responses=[
            ShareFetchableTopicResponse(topic_id=topic_id, partitions=each)
            for topic_id, each in _by_topic(found).items()
        ],
        node_endpoints=_describe_endpoints(context, (each.current_leader for each in found.values())),
    )


def _by_topic(partitions: Mapping[SharedLog, _T]) -> dict[uuid.UUID, list[_T]]:
    found: dict[uuid.UUID, list[_T]] = {}
    for log, each in partitions.items():
        found.setdefault(log.topic_id, []).append(each)
    return found


def _find_leader(context: RequestContext, named: SharedLog, error: ErrorCode) -> LeaderIdAndEpoch:
    """Return the leader of a log for a client that has asked another broker."""
    log = find_shared_log(context, named).log if error is ErrorCode.NOT_LEADER_OR_FOLLOWER else None
    leader = None if log is None else context.view_cluster().describe_leader(log)
    return _NO_LEADER if leader is None else leader


def _describe_endpoints(context: RequestContext, leaders: Iterable[LeaderIdAndEpoch]) -> list[NodeEndpoint]:
    named = [each for each in leaders if each.leader_id != NO_NODE]
    return context.view_cluster().describe_endpoints(named) if named else []
