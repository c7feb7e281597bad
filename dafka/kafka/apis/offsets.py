"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: the offsets of logs."""

from __future__ import annotations

from collections import Counter

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.acls import Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.topic_settings import drops_old_records, is_compacted
from dafka.broker.core.positions import Offset
from dafka.broker.log.reader import LogReader
from dafka.errors import NotLeaderError, StorageError, TopicDeletedError
from dafka.kafka.apis.fetch import READ_COMMITTED
from dafka.kafka.apis.shared.authorization import may, require_each
from dafka.kafka.apis.shared.leaders import find_epoch_end, find_leader_error, find_read_error
from dafka.kafka.apis.shared.registry import RequestContext, handles
from dafka.kafka.protocol.constants import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    SPECIAL_TIME_VERSIONS,
)
from dafka.kafka.protocol.messages.logs import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderPartitionResult,
    OffsetForLeaderTopicResult,
)

_NONE = -1

_NOT_AVAILABLE_VERSION = 5


@handles(ListOffsetsRequest, require_each("topics", Permissions.may_see))
async def list_offsets(context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Answer with the first offset, the end offset, or the first offset at a timestamp or later.

    A log that is named more than once is refused, as in Kafka.
    """
    counts = Counter((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
    topics = []
    for topic in request.topics:
        parts = []
        for each in topic.partitions:
            count = counts.pop((topic.name, each.partition_index), 0)
            if count == 1:
                parts.append(await _find_offset(context, request, topic.name, each))
            elif count:
                error, number = ErrorCode.INVALID_REQUEST, each.partition_index
                parts.append(ListOffsetsPartitionResponse(partition_index=number, error_code=error))
        if parts:
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=parts))
    return ListOffsetsResponse(topics=topics)


async def _find_offset(
    context: RequestContext, request: ListOffsetsRequest, topic: str, asked: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    broker = context.broker
    answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=ErrorCode.NONE)
    log = broker.node.find_log(topic, asked.partition_index)
    if log is None:
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return answer
    version = context.header.api_version
    answer.error_code = find_leader_error(log, asked.current_leader_epoch) or _find_time_error(asked.timestamp, version)
    if answer.error_code:
        return answer
    is_committed = request.isolation_level == READ_COMMITTED
    end = log.last_stable_offset if is_committed else log.high_watermark
    try:
        answer.offset, answer.timestamp = await _search(broker.node.reader, log, asked.timestamp, end)
    except StorageError:
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    is_end_known = log.is_end_known and broker.node.leases.holds_lease(log)
    if not is_end_known and (asked.timestamp == LATEST or answer.offset == _NONE):
        is_known = version >= _NOT_AVAILABLE_VERSION
        answer.error_code = ErrorCode.OFFSET_NOT_AVAILABLE if is_known else ErrorCode.LEADER_NOT_AVAILABLE
        answer.offset = _NONE
    answer.leader_epoch = log.epoch_at(Offset(answer.offset)) if answer.offset >= 0 else _NONE
    answer.old_style_offsets = [answer.offset] if answer.offset >= 0 else []
    return answer


def _find_time_error(time: int, version: int) -> ErrorCode:
    """Return the error of a time that stands for no offset in a version of ListOffsets."""
    is_unknown = time < 0 and version < SPECIAL_TIME_VERSIONS.get(time, version + 1)
    return ErrorCode.UNSUPPORTED_VERSION if is_unknown else ErrorCode.NONE


async def _search(reader: LogReader, log: Log, time: int, end: Offset) -> tuple[int, int]:
    """Return the offset at a time, before the end of what is committed, and the time of its record; -1 for none."""
    if time == LATEST:
        return end, _NONE
    if time == EARLIEST:
        return log.index.start_offset, _NONE
    if time in {EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD}:
        return _find_by_tier(log, reader.find_local_start(log), time), _NONE
    search = reader.find_latest_time(log) if time == MAX_TIMESTAMP else reader.find_offset_by_time(log, time)
    found = await search
    return (_NONE, _NONE) if found is None or found[0] >= end else found


def _find_by_tier(log: Log, local_start: Offset | None, kind: int) -> int:
    """Return what a time stands for in a log with a cold tier, or without one, if `local_start` is None."""
    start = log.index.start_offset
    if kind == EARLIEST_LOCAL:
        return start if local_start is None else local_start
    if local_start is None:
        return _NONE
    if kind == EARLIEST_PENDING_UPLOAD:
        return local_start
    return local_start - 1 if local_start > start else _NONE


@handles(OffsetForLeaderEpochRequest, require_each("topics", Permissions.may_see))
async def find_epoch_ends(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Answer with the ends of leader epochs."""
    topics = [
        OffsetForLeaderTopicResult(
            topic=topic.topic, partitions=[_find_epoch_end(context, topic.topic, each) for each in topic.partitions]
        )
        for topic in request.topics
    ]
    return OffsetForLeaderEpochResponse(topics=topics)


def _find_epoch_end(
    context: RequestContext, topic: str, asked: OffsetForLeaderPartition
) -> OffsetForLeaderPartitionResult:
    log = context.broker.node.find_log(topic, asked.partition)
    if log is None:
        return OffsetForLeaderPartitionResult(
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partition=asked.partition
        )
    error = find_leader_error(log, asked.current_leader_epoch) or find_read_error(context, log, asked.leader_epoch)
    found = None if error else find_epoch_end(log, asked.leader_epoch)
    if not (error or context.broker.node.leases.holds_lease(log)):
        error, found = ErrorCode.NOT_LEADER_OR_FOLLOWER, None  # another leader can have a longer log
    epoch, end = found or (_NONE, _NONE)
    return OffsetForLeaderPartitionResult(
        error_code=error, partition=asked.partition, leader_epoch=epoch, end_offset=end
    )


async def _delete_before(context: RequestContext, log: Log, offset: int) -> ErrorCode:
    try:
        await context.broker.node.deletion.delete_before(log, Offset(offset))
    except StorageError:
        return ErrorCode.KAFKA_STORAGE_ERROR
    except TopicDeletedError:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except NotLeaderError:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.NONE


@handles(DeleteRecordsRequest, require_each("topics", may(Operation.DELETE, ResourceType.TOPIC), low_watermark=-1))
async def delete_records(context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Delete the records of logs before an offset; -1 is the end. Topics that are only compacted refuse it."""
    node, config = context.broker.node, context.broker.config
    topics = []
    for topic in request.topics:
        parts = []
        found = node.find_topic(topic.name)
        is_kept = found is not None and is_compacted(found, config) and not drops_old_records(found, config.store)
        for asked in topic.partitions:
            log = node.find_log(topic.name, asked.partition_index)
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if log is None else find_leader_error(log)
            if is_kept and not error:
                error = ErrorCode.POLICY_VIOLATION
            if log is not None and not error:
                offset = log.high_watermark if asked.offset == -1 else asked.offset
                if not 0 <= offset <= log.high_watermark:
                    error = ErrorCode.OFFSET_OUT_OF_RANGE
                elif offset > log.index.start_offset:
                    error = await _delete_before(context, log, offset)
            low = -1 if log is None or error else log.index.start_offset
            parts.append(
                DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=low, error_code=error)
            )
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=parts))
    return DeleteRecordsResponse(topics=topics)
