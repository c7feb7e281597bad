"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: the offsets of logs."""

from __future__ import annotations

from dafka.errors import StorageError
from dafka.kafka.constants import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, MAX_TIMESTAMP
from dafka.kafka.errors import ErrorCode
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
from dafka.listener.handlers.fetch import READ_COMMITTED
from dafka.listener.handlers.registry import Client, handles

_NONE = -1


@handles(ListOffsetsRequest)
async def list_offsets(client: Client, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Answer with the first offset, the end offset, or the first offset from a time on."""
    topics = []
    for topic in request.topics:
        parts = [await _find_offset(client, request, topic.name, each) for each in topic.partitions]
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=parts))
    return ListOffsetsResponse(topics=topics)


async def _find_offset(
    client: Client, request: ListOffsetsRequest, topic: str, asked: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    service = client.service
    answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=ErrorCode.NONE)
    log = service.broker.order.find_log(topic, asked.partition_index)
    if log is None:
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return answer
    is_committed = request.isolation_level == READ_COMMITTED
    end = service.last_stable_offset(log) if is_committed else log.high_watermark
    answer.leader_epoch = 0
    try:
        if asked.timestamp == LATEST:
            answer.offset = end
        elif asked.timestamp in {EARLIEST, EARLIEST_LOCAL}:
            answer.offset = log.index.start_offset
        elif asked.timestamp == LATEST_TIERED:
            answer.leader_epoch = _NONE
        else:
            if asked.timestamp == MAX_TIMESTAMP:
                found = await service.broker.reader.find_latest_time(log)
            else:
                found = await service.broker.reader.find_offset_by_time(log, asked.timestamp)
            if found is not None and found[0] < end:
                answer.offset, answer.timestamp = found
    except StorageError:
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    answer.old_style_offsets = [answer.offset] if answer.offset >= 0 else []
    return answer


@handles(OffsetForLeaderEpochRequest)
async def find_epoch_end(client: Client, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """Answer with the end of the only epoch, 0."""
    topics = [
        OffsetForLeaderTopicResult(
            topic=topic.topic, partitions=[_find_epoch_end(client, topic.topic, each) for each in topic.partitions]
        )
        for topic in request.topics
    ]
    return OffsetForLeaderEpochResponse(topics=topics)


def _find_epoch_end(client: Client, topic: str, asked: OffsetForLeaderPartition) -> OffsetForLeaderPartitionResult:
    log = client.service.broker.order.find_log(topic, asked.partition)
    if log is None:
        return OffsetForLeaderPartitionResult(
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partition=asked.partition
        )
    if asked.current_leader_epoch > 0:
        return OffsetForLeaderPartitionResult(error_code=ErrorCode.UNKNOWN_LEADER_EPOCH, partition=asked.partition)
    is_known = asked.leader_epoch == 0
    return OffsetForLeaderPartitionResult(
        error_code=ErrorCode.NONE,
        partition=asked.partition,
        leader_epoch=0 if is_known else _NONE,
        end_offset=log.high_watermark if is_known else _NONE,
    )


@handles(DeleteRecordsRequest)
async def delete_records(client: Client, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Delete the records of logs before an offset; -1 is the end."""
    broker = client.service.broker
    topics = []
    for topic in request.topics:
        parts = []
        for asked in topic.partitions:
            log = broker.order.find_log(topic.name, asked.partition_index)
            error = ErrorCode.NONE
            if log is None:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                offset = log.high_watermark if asked.offset == -1 else asked.offset
                if not 0 <= offset <= log.high_watermark:
                    error = ErrorCode.OFFSET_OUT_OF_RANGE
                elif offset > log.index.start_offset:
                    await broker.delete_records(log, offset)
            low = -1 if log is None or error else log.index.start_offset
            parts.append(
                DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=low, error_code=error)
            )
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=parts))
    return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)
