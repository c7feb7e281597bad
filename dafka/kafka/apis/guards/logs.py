"""Authorizes the APIs that read, write and describe logs."""

from __future__ import annotations

from typing import Any

from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis.guards.registry import (
    TOPIC_REFUSED,
    TRANSACTION_REFUSED,
    Decision,
    Permits,
    ResponsePatch,
    add_refused,
    guards,
    split_unauthorized,
)
from dafka.kafka.protocol.constants import FINAL_EPOCH, INITIAL_EPOCH
from dafka.kafka.protocol.messages.cluster import MetadataRequest, MetadataResponse, MetadataResponseTopic
from dafka.kafka.protocol.messages.logs import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartitionResult,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
    PartitionData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
    TopicProduceResponse,
)
from dafka.kafka.protocol.messages.transactions import (
    DescribeProducersRequest,
    PartitionResponse,
    TopicRequest,
    TopicResponse,
)


@guards(ProduceRequest)
def guard_produce(access: Permits, request: ProduceRequest) -> Decision:
    """Require `write` on the topics."""
    name = request.transactional_id
    error = TOPIC_REFUSED if name is None or access.user.may_use_transaction(name) else TRANSACTION_REFUSED
    is_known = error is TOPIC_REFUSED
    refused = split_unauthorized(
        request,
        "topic_data",
        lambda each: is_known and access.user.may_write(access.name_of(each.name, each.topic_id)),
    )

    def answer(each: TopicProduceData) -> TopicProduceResponse:
        parts = [
            PartitionProduceResponse(index=part.index, error_code=error, base_offset=-1) for part in each.partition_data
        ]
        return TopicProduceResponse(name=each.name, topic_id=each.topic_id, partition_responses=parts)

    return add_refused(refused, "responses", answer)


@guards(FetchRequest)
def guard_fetch(access: Permits, request: FetchRequest) -> Decision:
    """Require `read` on the topics. If a part is refused, the response does not wait for records.

    A client that requests a topic without permission gets no session, so that each response repeats the error. The
    response is checked, too: a session has topics that the request does not name, and permissions change.
    """

    def is_permitted(each: Any) -> bool:
        return access.user.may_read(access.name_of(each.topic, each.topic_id))

    refused = split_unauthorized(request, "topics", is_permitted)
    if refused and request.session_epoch > INITIAL_EPOCH:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=[])
    if refused:
        request.max_wait_ms = 0
        request.session_epoch = FINAL_EPOCH

    def answer(each: FetchTopic) -> FetchableTopicResponse:
        parts = [_refuse_part(part.partition) for part in each.partitions]
        return FetchableTopicResponse(topic=each.topic, topic_id=each.topic_id, partitions=parts)

    def amend(response: FetchResponse) -> None:
        for topic in response.responses:
            if not is_permitted(topic):
                topic.partitions = [_refuse_part(part.partition_index) for part in topic.partitions]
        response.responses.extend(answer(each) for each in refused)

    return amend


def _refuse_part(number: int) -> PartitionData:
    return PartitionData(partition_index=number, error_code=TOPIC_REFUSED, high_watermark=-1, records=b"")


@guards(ListOffsetsRequest)
def guard_list_offsets(access: Permits, request: ListOffsetsRequest) -> Decision:
    """Require the permission to see the topics."""

    def answer(each: ListOffsetsTopic) -> ListOffsetsTopicResponse:
        parts = [
            ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=TOPIC_REFUSED)
            for part in each.partitions
        ]
        return ListOffsetsTopicResponse(name=each.name, partitions=parts)

    return add_refused(
        split_unauthorized(request, "topics", lambda each: access.user.may_see(each.name)), "topics", answer
    )


@guards(OffsetForLeaderEpochRequest)
def guard_epochs(access: Permits, request: OffsetForLeaderEpochRequest) -> Decision:
    """Require the permission to see the topics."""

    def answer(each: OffsetForLeaderTopic) -> OffsetForLeaderTopicResult:
        parts = [
            OffsetForLeaderPartitionResult(error_code=TOPIC_REFUSED, partition=part.partition)
            for part in each.partitions
        ]
        return OffsetForLeaderTopicResult(topic=each.topic, partitions=parts)

    return add_refused(
        split_unauthorized(request, "topics", lambda each: access.user.may_see(each.topic)), "topics", answer
    )


@guards(DeleteRecordsRequest)
def guard_delete_records(access: Permits, request: DeleteRecordsRequest) -> Decision:
    """Require `admin` on the topics."""

    def answer(each: DeleteRecordsTopic) -> DeleteRecordsTopicResult:
        parts = [
            DeleteRecordsPartitionResult(
                partition_index=part.partition_index, low_watermark=-1, error_code=TOPIC_REFUSED
            )
            for part in each.partitions
        ]
        return DeleteRecordsTopicResult(name=each.name, partitions=parts)

    refused = split_unauthorized(request, "topics", lambda each: access.user.may_administer(each.name))
    return add_refused(refused, "topics", answer)


@guards(DescribeProducersRequest)
def guard_producers(access: Permits, request: DescribeProducersRequest) -> Decision:
    """Require `read` on the topics."""

    def answer(each: TopicRequest) -> TopicResponse:
        parts = [
            PartitionResponse(partition_index=part, error_code=TOPIC_REFUSED, active_producers=[])
            for part in each.partition_indexes
        ]
        return TopicResponse(name=each.name, partitions=parts)

    return add_refused(
        split_unauthorized(request, "topics", lambda each: access.user.may_read(each.name)), "topics", answer
    )


@guards(MetadataRequest)
def guard_metadata(access: Permits, request: MetadataRequest) -> Decision:
    """Require the permission to see the topics. A topic is created only for a user with `write` or `admin` on it.

    An invisible topic that is requested by its id is answered like a topic that does not exist.
    """
    version = access.context.header.api_version
    if request.topics is None or (version == 0 and not request.topics):
        return _hide_topics(access)
    refused = split_unauthorized(
        request, "topics", lambda each: access.user.may_see(access.name_of(each.name, each.topic_id))
    )
    if version == 0 and not request.topics:  # an empty list would be all of them
        request.topics = None
    may_create = all(
        access.user.may_write(each.name) or access.user.may_administer(each.name)
        for each in request.topics or ()
        if each.name
    )
    request.allow_auto_topic_creation = request.allow_auto_topic_creation and may_create
    is_none_left = request.topics is None

    def answer(each: Any) -> MetadataResponseTopic:
        error = ErrorCode.UNKNOWN_TOPIC_ID if each.name is None else TOPIC_REFUSED
        return MetadataResponseTopic(error_code=error, name=each.name, topic_id=each.topic_id, partitions=[])

    def amend(response: MetadataResponse) -> None:
        if is_none_left:
            response.topics = []
        response.topics.extend(answer(each) for each in refused)

    return amend if refused else None


def _hide_topics(access: Permits) -> ResponsePatch:
    def amend(response: MetadataResponse) -> None:
        response.topics = [each for each in response.topics if access.user.may_see(each.name or "")]

    return amend
