"""Authorizes InitProducerId and the APIs of transactions."""

from __future__ import annotations

from dafka.broker.access.permissions import Permission
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis.guards.registry import (
    CLUSTER_REFUSED,
    GROUP_REFUSED,
    TOPIC_REFUSED,
    TRANSACTION_REFUSED,
    Decision,
    Permits,
    ResponsePatch,
    add_refused,
    guards,
    split_unauthorized,
)
from dafka.kafka.apis.transactions import describe_nothing
from dafka.kafka.protocol.messages.offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from dafka.kafka.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    DescribeTransactionsRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)


@guards(InitProducerIdRequest)
def guard_producer_id(access: Permits, request: InitProducerIdRequest) -> Decision:
    """Require the permission for the transactional id; without an id, `write` on any topic."""
    name = request.transactional_id
    if name is None:
        error = ErrorCode.NONE if access.user.allow_anywhere(Permission.WRITE) else CLUSTER_REFUSED
    else:
        error = ErrorCode.NONE if access.user.may_use_transaction(name) else TRANSACTION_REFUSED
    if not error:
        return None
    return InitProducerIdResponse(throttle_time_ms=0, error_code=error, producer_id=-1, producer_epoch=-1)


@guards(AddPartitionsToTxnRequest)
def guard_partitions(access: Permits, request: AddPartitionsToTxnRequest) -> Decision:
    """Require the permission for the transactional id, and `write` on all of the topics."""
    topics = request.v3_and_below_topics
    is_known = access.user.may_use_transaction(request.v3_and_below_transactional_id)
    if is_known and all(access.user.may_write(each.name) for each in topics):
        return None

    def error_of(topic: str) -> ErrorCode:
        if not is_known:
            return TRANSACTION_REFUSED
        return ErrorCode.OPERATION_NOT_ATTEMPTED if access.user.may_write(topic) else TOPIC_REFUSED

    return AddPartitionsToTxnResponse(
        throttle_time_ms=0,
        error_code=CLUSTER_REFUSED,
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(partition_index=each, partition_error_code=error_of(topic.name))
                    for each in topic.partitions
                ],
            )
            for topic in topics
        ],
    )


@guards(AddOffsetsToTxnRequest)
def guard_offsets(access: Permits, request: AddOffsetsToTxnRequest) -> Decision:
    """Require the permissions for the transactional id and the group."""
    if not access.user.may_use_transaction(request.transactional_id):
        return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=TRANSACTION_REFUSED)
    if not access.user.may_use_group(request.group_id):
        return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=GROUP_REFUSED)
    return None


@guards(EndTxnRequest)
def guard_end(access: Permits, request: EndTxnRequest) -> Decision:
    """Require the permission for the transactional id."""
    is_permitted = access.user.may_use_transaction(request.transactional_id)
    return None if is_permitted else EndTxnResponse(throttle_time_ms=0, error_code=TRANSACTION_REFUSED)


@guards(TxnOffsetCommitRequest)
def guard_offset_commit(access: Permits, request: TxnOffsetCommitRequest) -> Decision:
    """Require the permissions for the transactional id and the group, and `read` on the topics."""
    error = TOPIC_REFUSED
    if not access.user.may_use_transaction(request.transactional_id):
        error = TRANSACTION_REFUSED
    elif not access.user.may_use_group(request.group_id):
        error = GROUP_REFUSED

    def answer(each: TxnOffsetCommitRequestTopic) -> TxnOffsetCommitResponseTopic:
        parts = [
            TxnOffsetCommitResponsePartition(partition_index=part.partition_index, error_code=error)
            for part in each.partitions
        ]
        return TxnOffsetCommitResponseTopic(name=each.name, partitions=parts)

    if error is not TOPIC_REFUSED:
        return TxnOffsetCommitResponse(throttle_time_ms=0, topics=[answer(each) for each in request.topics])
    return add_refused(
        split_unauthorized(request, "topics", lambda each: access.user.may_read(each.name)), "topics", answer
    )


@guards(DescribeTransactionsRequest)
def guard_describe(access: Permits, request: DescribeTransactionsRequest) -> Decision:
    """Require the permission for the transactional ids."""
    refused = split_unauthorized(request, "transactional_ids", access.user.may_use_transaction)
    return add_refused(refused, "transaction_states", lambda name: describe_nothing(name, TRANSACTION_REFUSED))


@guards(ListTransactionsRequest)
def guard_list(access: Permits, _request: ListTransactionsRequest) -> ResponsePatch:
    """Show the transactional ids that the user may use."""

    def amend(response: ListTransactionsResponse) -> None:
        states = response.transaction_states
        response.transaction_states = [
            each for each in states if access.user.may_use_transaction(each.transactional_id)
        ]

    return amend
