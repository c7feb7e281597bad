"""Fetch: reads record batches from logs, immediately or when there are enough bytes.

Clients read from the leader of a log. A client that sends its rack is redirected to an in-sync replica there, if one
exists (KIP-392).
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

import attrs
import trio

from dafka.batches import read_header
from dafka.batches.message_sets import encode_message_set
from dafka.broker.access.permissions import Permissions
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.positions import Offset
from dafka.errors import BatchError, StorageError
from dafka.kafka.apis.shared.authorization import TOPIC_REFUSED, may_use, refuse, split_unauthorized
from dafka.kafka.apis.shared.leaders import LEADER_ERRORS, find_epoch_end, find_read_error, find_reader_error
from dafka.kafka.apis.shared.registry import Decision, RequestContext, handles
from dafka.kafka.protocol.apis import uses_topic_ids
from dafka.kafka.protocol.constants import FINAL_EPOCH, INITIAL_EPOCH, ApiKey
from dafka.kafka.protocol.messages.logs import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from dafka.kafka.protocol.tables import NIL
from dafka.kafka.server.cluster_view import NO_NODE
from dafka.kafka.server.counters import count_records
from dafka.kafka.server.fetch_sessions import FetchedLog, LogProgress, SessionFetch
from dafka.steady_clock import steady_now_ms

RESPONSE_BYTES_MAX = 50 * 2**20
"""The maximum size of a response in bytes, unless a single batch is larger."""

READ_COMMITTED = 1
"""The isolation level of clients that want committed records only."""

_CONVERTING = trio.CapacityLimiter(2)

_BATCHES_VERSION = 4
_TIMES_VERSION = 2


@attrs.define
class _Wanted:
    """A client's request for one log. The name of its topic is empty if there is no topic with the client's id.

    A batch that is larger than the sizes in the request is returned only if the log `may_exceed` them.
    `available_bytes` is how much the log has for the client, up to these sizes.
    """

    key: FetchedLog
    topic: str
    partition: FetchPartition
    log: Log | None
    read_replica: int = NO_NODE
    may_exceed: bool = True
    available_bytes: int = 0


def _authorize(user: Permissions, context: RequestContext, request: FetchRequest) -> Decision:
    """Require `read` on the topics. If a part is refused, the response does not wait for records.

    A client that requests a topic without permission gets no session, so that each response repeats the error. The
    response is checked, too: a session has topics that the request does not name, and permissions change while the
    request waits for records.
    """
    refused = split_unauthorized(request, "topics", lambda each: may_use(context, each, user.may_read))
    if refused and request.session_epoch > INITIAL_EPOCH:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=[])
    if refused:
        request.max_wait_ms = 0
        request.session_epoch = FINAL_EPOCH

    def refuse_topic(each: Any) -> FetchableTopicResponse:
        return refuse(FetchableTopicResponse, each, TOPIC_REFUSED, high_watermark=-1, records=b"")

    def patch(response: FetchResponse) -> None:
        response.responses = [
            each if may_use(context, each, context.may_read) else refuse_topic(each) for each in response.responses
        ]
        response.responses += [refuse_topic(each) for each in refused]

    return patch


@handles(FetchRequest, _authorize)
async def fetch(context: RequestContext, request: FetchRequest) -> FetchResponse:
    """Answer with records. Wait for them up to `max_wait_ms`."""
    deadline = trio.current_time() + max(request.max_wait_ms, 0) / 1000
    session = _begin_session(context, request)
    if session.error_code:
        return FetchResponse(error_code=session.error_code, responses=[])
    request.max_bytes = context.limit_response(request.max_bytes)
    request.min_bytes = min(request.min_bytes, request.max_bytes)
    while True:
        # During the wait, logs can be deleted and leaders can change.
        wanted = [_find(context, log, asked) for log, asked in session.wanted.items()]
        if request.rack_id:
            cluster = context.view_cluster()
            for each in wanted:
                if each.log is not None:
                    each.read_replica = cluster.find_read_replica(each.log, request.rack_id)
        logs = [each.log for each in wanted if each.log is not None]
        with context.broker.node.watchers.watching(logs, deadline) as advanced:
            parts = await _read_within_memory(context, request, wanted)
            size = sum(each.available_bytes for each in wanted)
            if size < request.min_bytes and not any(map(_is_urgent, parts)) and trio.current_time() < deadline:
                await advanced.wait()
                if trio.current_time() < deadline or any(map(_has_changed, wanted, parts)):
                    continue
        for each, part in zip(wanted, parts, strict=True):
            if part.records:
                context.server.counters.consumed[each.topic] += count_records(part.records)
        _withhold_ends(context, wanted, parts)
        return _respond(context, session, wanted, parts)


def _find(context: RequestContext, key: FetchedLog, asked: FetchPartition) -> _Wanted:
    name = key.topic
    if key.topic_id != NIL:
        topic = context.find_topic(None, key.topic_id)
        name = "" if topic is None else topic.name
    return _Wanted(key, name, asked, context.find_log(name, key.topic_id, key.partition))


def _withhold_ends(context: RequestContext, wanted: list[_Wanted], parts: list[PartitionData]) -> None:
    """Replace results that tell where a log ends with an error if another broker could lead the log by now.

    Those are empty results, offsets beyond the end and diverging epochs: a newer leader can have a longer log, and
    clients would discard what they have read of it. Records that were read are always valid. This is the last step
    before the response, because the process can have been paused at any moment before.
    """
    for number, (each, part) in enumerate(zip(wanted, parts, strict=True)):
        log = each.log
        is_out_of_range = part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        is_end = bool(is_out_of_range or part.diverging_epoch) or not (part.records or _is_urgent(part))
        if is_end and log is not None and log.leadership.is_led and not context.broker.node.leases.holds_lease(log):
            parts[number] = _part(each, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _begin_session(context: RequestContext, request: FetchRequest) -> SessionFetch[FetchPartition]:
    uses_ids = uses_topic_ids(ApiKey.FETCH, context.header.api_version)

    def key_of(topic: FetchTopic | ForgottenTopic, number: int) -> FetchedLog:
        return FetchedLog("" if uses_ids else topic.topic, number, topic.topic_id)

    changed = {key_of(topic, each.partition): each for topic in request.topics for each in topic.partitions}
    forgotten = [key_of(topic, each) for topic in request.forgotten_topics_data for each in topic.partitions]
    return context.server.fetch_sessions.begin(
        request.session_id, request.session_epoch, changed, forgotten, steady_now_ms(), uses_ids=uses_ids
    )


def _is_urgent(part: PartitionData) -> bool:
    """Return whether the client must be answered immediately, apart from records."""
    return bool(part.error_code or part.diverging_epoch) or part.preferred_read_replica != NO_NODE


def _has_changed(wanted: _Wanted, part: PartitionData) -> bool:
    """Return whether another read can give another result than the last one."""
    log, offset = wanted.log, wanted.partition.fetch_offset
    if log is None or log.is_gone or not log.leadership.is_led:
        return True
    return bool(part.records) or offset < log.high_watermark


async def _read_within_memory(
    context: RequestContext, request: FetchRequest, wanted: list[_Wanted]
) -> list[PartitionData]:
    """Read within the memory that unread responses of other clients leave.

    Only the first log with records may exceed the sizes in the request. A batch that is larger than the granted memory
    is returned only if it still fits; otherwise the client asks again.
    """
    answers = context.server.answers
    granted = left = answers.grant(min(request.max_bytes, RESPONSE_BYTES_MAX))
    parts = []
    try:
        for each in wanted:
            each.may_exceed = left == granted
            part = await _read(context, request, each, left)
            left -= len(part.records or b"")
            parts.append(part)
    finally:
        answers.give_back(granted)
    if not answers.has_room(granted - left, granted):
        for each, part in zip(wanted, parts, strict=True):
            part.records, part.aborted_transactions, each.available_bytes = b"", None, 0
    return parts


async def _read(context: RequestContext, request: FetchRequest, wanted: _Wanted, bytes_max: int) -> PartitionData:
    log, known = wanted.log, wanted.partition.current_leader_epoch
    if log is None:
        return _part(wanted, context.find_missing_error(wanted.topic))
    error = find_reader_error(log, known) or find_read_error(context, log, wanted.partition.last_fetched_epoch)
    if not error:
        epoch = log.leadership.epoch
        part = await _read_log(context, request, wanted, log, bytes_max)
        if log.leadership.epoch == epoch:
            return part
        error = find_reader_error(log, known)  # the records read can be of either epoch
    part = _part(wanted, error)
    if error in LEADER_ERRORS:
        part.current_leader = context.view_cluster().describe_leader(log)
    return part


async def _read_log(
    context: RequestContext, request: FetchRequest, wanted: _Wanted, log: Log, bytes_max: int
) -> PartitionData:
    offset = Offset(wanted.partition.fetch_offset)
    is_committed = request.isolation_level == READ_COMMITTED
    stable = log.last_stable_offset
    part = _part(wanted, ErrorCode.NONE)
    part.high_watermark, part.last_stable_offset = log.high_watermark, stable
    part.log_start_offset = log.index.start_offset
    epoch_error, part.diverging_epoch = _check_epoch(log, wanted.partition)
    part.error_code = _find_offset_error(log, offset) or epoch_error
    part.preferred_read_replica = wanted.read_replica
    if _is_urgent(part):
        return part
    end = stable if is_committed else log.high_watermark
    limit = min(max(wanted.partition.partition_max_bytes, 1), bytes_max)  # 0 is for one batch at a time
    if limit <= 0 or offset >= end:
        return part
    offset_after = offset
    try:
        async with context.broker.reads_of(context.source):
            if context.header.api_version < _BATCHES_VERSION:
                part.records = b"".join(await _read_messages(context, log, offset, end, limit))
            else:
                part.records, offset_after = await context.broker.node.reader.read_joined(
                    log, offset, end, limit, at_least_one=wanted.may_exceed
                )
    except (StorageError, BatchError):
        part.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return part
    wanted.available_bytes = len(part.records)
    if offset < offset_after < end or not (part.records or wanted.may_exceed):  # the next batch does not fit
        wanted.available_bytes = max(limit, wanted.available_bytes)
    if is_committed:
        aborted = log.aborted_between(offset, offset_after)
        part.aborted_transactions = [AbortedTransaction(producer_id=pid, first_offset=first) for pid, first in aborted]
    return part


async def _read_messages(context: RequestContext, log: Log, offset: Offset, end: Offset, limit: int) -> list[bytes]:
    """Return records for old clients: an uncompressed message set, within the size that the client accepts.

    A message set cannot say that there are no records at some offsets, because they were compacted or are the ends of
    transactions: they are skipped, or the client would ask for the same offset again and again.
    """
    magic = int(context.header.api_version >= _TIMES_VERSION)
    while batches := await context.broker.node.reader.read(log, offset, end, limit, limit):
        convert = partial(_encode_message_sets, batches, magic, offset)
        messages = await trio.to_thread.run_sync(convert, limiter=_CONVERTING)
        if any(messages):
            return messages
        offset = Offset(read_header(batches[-1]).end_offset)
    return []


def _encode_message_sets(batches: list[bytes], magic: int, offset: Offset) -> list[bytes]:
    return [encode_message_set(each, magic, first_offset=offset) for each in batches]


def _find_offset_error(log: Log, offset: Offset) -> ErrorCode:
    """Return an offset's error. Offsets between the high watermark and the log end are valid: the read waits."""
    if log.index.start_offset <= offset <= max(log.high_watermark, log.index.end_offset):
        return ErrorCode.NONE
    is_ahead = offset >= log.index.start_offset and not log.leadership.is_led
    return ErrorCode.OFFSET_NOT_AVAILABLE if is_ahead else ErrorCode.OFFSET_OUT_OF_RANGE


def _check_epoch(log: Log, partition: FetchPartition) -> tuple[ErrorCode, EpochEndOffset | None]:
    """Return an error if the end of the epoch that a client has read is undefined; a follower may learn of it.

    If the records that it has read diverge from the log, return where.
    """
    read = partition.last_fetched_epoch
    if read < 0:
        return ErrorCode.NONE, None
    found = find_epoch_end(log, read)
    if found is None:
        return ErrorCode.OFFSET_OUT_OF_RANGE if log.leadership.is_led else ErrorCode.OFFSET_NOT_AVAILABLE, None
    epoch, end = found
    if epoch == read and end >= partition.fetch_offset:
        return ErrorCode.NONE, None
    return ErrorCode.NONE, EpochEndOffset(epoch=epoch, end_offset=end)


def _part(wanted: _Wanted, error: ErrorCode) -> PartitionData:
    return PartitionData(partition_index=wanted.partition.partition, error_code=error, high_watermark=-1, records=b"")


def _respond(
    context: RequestContext, session: SessionFetch[FetchPartition], wanted: list[_Wanted], parts: list[PartitionData]
) -> FetchResponse:
    results = [
        (
            each.key,
            LogProgress(part.high_watermark, part.last_stable_offset, part.log_start_offset),
            bool(part.records) or _is_urgent(part),
        )
        for each, part in zip(wanted, parts, strict=True)
    ]
    found = {each.key: (each.topic, part) for each, part in zip(wanted, parts, strict=True)}
    topics: dict[tuple[str, uuid.UUID], list[PartitionData]] = {}
    for key in session.select_news(results):
        topic, part = found[key]
        topics.setdefault((topic, key.topic_id), []).append(part)
    responses = [
        FetchableTopicResponse(topic=topic, topic_id=topic_id, partitions=each)
        for (topic, topic_id), each in topics.items()
    ]
    leaders = [part.current_leader for part in parts]
    endpoints = context.view_cluster().describe_endpoints(leaders) if any(leaders) else []
    return FetchResponse(session_id=session.session_id, responses=responses, node_endpoints=endpoints)
