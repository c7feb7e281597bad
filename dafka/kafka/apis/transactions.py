"""InitProducerId, DescribeProducers, and the APIs of transactions."""

from __future__ import annotations

from dafka.broker.access.permissions import Permissions
from dafka.broker.coordinator.coordinator_shard import CoordinatorError
from dafka.broker.core.acls import Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.patterns import PatternError, compile_pattern
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.core.transactions.transaction import TransactionPhase
from dafka.kafka.apis.shared.authorization import (
    CLUSTER_REFUSED,
    TOPIC_REFUSED,
    TRANSACTION_REFUSED,
    may,
    refuse,
    require_all,
    require_each,
    require_group,
    require_transaction,
    show_only,
)
from dafka.kafka.apis.shared.leaders import find_leader_error
from dafka.kafka.apis.shared.registry import Decision, RequestContext, handles
from dafka.kafka.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListedTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    PartitionResponse,
    ProducerState,
    TopicData,
    TopicResponse,
    TransactionState,
)
from dafka.steady_clock import steady_now_ms

_OWN_EPOCH_VERSION = 5

_UNKNOWN_EPOCH = -1
"""The epoch of the coordinator of a producer. Logs do not keep it, and idempotent producers have no coordinator."""


def _authorize_producer(user: Permissions, _context: RequestContext, request: InitProducerIdRequest) -> Decision:
    """Require the permission for the transactional id; without an id, the one to write to any topic."""
    name = request.transactional_id
    if user.may_write_anywhere() if name is None else user.may_use_transaction(name):
        return None
    error = CLUSTER_REFUSED if name is None else TRANSACTION_REFUSED
    return refuse(InitProducerIdResponse, request, error, producer_epoch=-1)


@handles(InitProducerIdRequest, _authorize_producer)
async def init_producer_id(context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Give a producer its id and epoch."""
    broker = context.broker
    expected = Producer(request.producer_id, request.producer_epoch)
    result = await broker.transactions.init_producer_id(
        request.transactional_id, request.transaction_timeout_ms, expected
    )
    return InitProducerIdResponse(
        error_code=_error_for(context, result.error_code, 4),
        producer_id=result.producer.producer_id,
        producer_epoch=result.producer.producer_epoch,
    )


def _authorize_partitions(user: Permissions, _context: RequestContext, request: AddPartitionsToTxnRequest) -> Decision:
    """Require the permission for the transactional id, and `write` on all of the topics."""
    topics = request.v3_and_below_topics
    is_permitted = user.may_use_transaction(request.v3_and_below_transactional_id)
    if is_permitted and all(user.may_write(each.name) for each in topics):
        return None

    def error_of(topic: str) -> ErrorCode:
        if not is_permitted:
            return TRANSACTION_REFUSED
        return ErrorCode.OPERATION_NOT_ATTEMPTED if user.may_write(topic) else TOPIC_REFUSED

    results = [refuse(AddPartitionsToTxnTopicResult, each, error_of(each.name)) for each in topics]
    return AddPartitionsToTxnResponse(error_code=CLUSTER_REFUSED, results_by_topic_v3_and_below=results)


@handles(AddPartitionsToTxnRequest, _authorize_partitions)
async def add_partitions(context: RequestContext, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    """Add logs to a transaction: all of them, or none if one does not exist."""
    broker = context.broker
    logs = [TopicPartition(topic.name, each) for topic in request.v3_and_below_topics for each in topic.partitions]
    unknown = {log for log in logs if broker.node.find_log(log.topic, log.partition) is None}
    if unknown:
        errors = {
            log: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if log in unknown else ErrorCode.OPERATION_NOT_ATTEMPTED
            for log in logs
        }
    else:
        producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        name = request.v3_and_below_transactional_id
        answer = await broker.transactions.add_partitions(name, producer, logs)
        errors = dict.fromkeys(logs, _error_for(context, answer, 2))
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=each, partition_error_code=errors[TopicPartition(topic.name, each)]
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )


@handles(
    AddOffsetsToTxnRequest,
    require_all(require_transaction(AddOffsetsToTxnResponse), require_group(AddOffsetsToTxnResponse)),
)
async def add_offsets(context: RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    """Add the offsets of a group to a transaction."""
    producer = Producer(request.producer_id, request.producer_epoch)
    answer = await context.broker.transactions.add_offsets(request.transactional_id, producer, request.group_id)
    return AddOffsetsToTxnResponse(error_code=_error_for(context, answer, 2))


@handles(EndTxnRequest, require_transaction(EndTxnResponse))
async def end_transaction(context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """Commit or abort a transaction. From version 5 on, the next one has an epoch of its own (KIP-890)."""
    producer = Producer(request.producer_id, request.producer_epoch)
    result = await context.broker.transactions.end_transaction(
        request.transactional_id,
        producer,
        is_commit=request.committed,
        raises_epoch=context.header.api_version >= _OWN_EPOCH_VERSION,
    )
    return EndTxnResponse(
        error_code=_error_for(context, result.error_code, 2),
        producer_id=result.producer.producer_id,
        producer_epoch=result.producer.producer_epoch,
    )


@handles(
    DescribeTransactionsRequest,
    require_each(
        "transactional_ids",
        may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
        answers="transaction_states",
        error=TRANSACTION_REFUSED,
        transaction_start_time_ms=-1,
        producer_id=-1,
        producer_epoch=-1,
    ),
)
async def describe_transactions(
    context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Answer with the states of transactional ids."""
    states = [await _describe(context, name) for name in request.transactional_ids]
    return DescribeTransactionsResponse(transaction_states=states)


async def _describe(context: RequestContext, name: str) -> TransactionState:
    state = TransactionState(
        error_code=ErrorCode.NONE,
        transactional_id=name,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=-1,
        producer_id=-1,
        producer_epoch=-1,
        topics=[],
    )
    try:
        transaction = await context.broker.transactions.describe_transaction(name)
    except CoordinatorError as error:
        state.error_code = error.error_code
        return state
    if transaction is None:
        state.error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return state
    state.transaction_state = transaction.phase.value
    state.transaction_timeout_ms = transaction.transaction_timeout_ms
    state.transaction_start_time_ms = transaction.started_at_ms
    state.producer_id, state.producer_epoch = transaction.producer_id, transaction.producer_epoch
    logs: dict[str, list[int]] = {}
    for log in sorted(transaction.partitions):
        logs.setdefault(log.topic, []).append(log.partition)
    state.topics = [TopicData(topic=topic, partitions=numbers) for topic, numbers in logs.items()]
    return state


@handles(
    ListTransactionsRequest,
    show_only(
        "transaction_states",
        lambda user, each: user.allow(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, each.transactional_id),
    ),
)
async def list_transactions(context: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
    """Answer with the transactional ids that match the filters."""
    try:
        pattern = compile_pattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
        found = await context.broker.transactions.list_transactions()
    except (PatternError, CoordinatorError) as error:
        refused = ErrorCode.INVALID_REGULAR_EXPRESSION
        code = refused if isinstance(error, PatternError) else error.error_code
        return ListTransactionsResponse(error_code=code, unknown_state_filters=[], transaction_states=[])
    time_ms = steady_now_ms()
    known = {phase.value for phase in TransactionPhase}
    states = [
        ListedTransactionState(
            transactional_id=each.transactional_id, producer_id=each.producer_id, transaction_state=each.phase.value
        )
        for each in found
        if (not request.state_filters or each.phase.value in request.state_filters)
        and (not request.producer_id_filters or each.producer_id in request.producer_id_filters)
        and (request.duration_filter < 0 or 0 <= each.started_at_ms <= time_ms - request.duration_filter)
        and (pattern is None or pattern.fullmatch(each.transactional_id) is not None)
    ]
    return ListTransactionsResponse(
        error_code=ErrorCode.NONE,
        unknown_state_filters=[each for each in request.state_filters if each not in known],
        transaction_states=states,
    )


def _error_for(context: RequestContext, error: ErrorCode, fenced_version: int) -> ErrorCode:
    """Return the error code for a client's version: older versions do not know PRODUCER_FENCED."""
    if error is ErrorCode.PRODUCER_FENCED and context.header.api_version < fenced_version:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


@handles(DescribeProducersRequest, require_each("topics", Permissions.may_read))
async def describe_producers(context: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """Answer with the idempotent producers of logs."""
    topics = [
        TopicResponse(
            name=topic.name, partitions=[_describe_log(context, topic.name, each) for each in topic.partition_indexes]
        )
        for topic in request.topics
    ]
    return DescribeProducersResponse(topics=topics)


def _describe_log(context: RequestContext, topic: str, number: int) -> PartitionResponse:
    log = context.broker.node.find_log(topic, number)
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if log is None else find_leader_error(log)
    if log is None or error:
        return PartitionResponse(partition_index=number, error_code=error, active_producers=[])
    known = log.producers
    begun = known.open_transactions
    states = []
    for producer_id, each in known.producers.items():
        state = ProducerState(
            producer_id=producer_id,
            producer_epoch=each.producer_epoch,
            last_sequence=-1 if each.last_sequence is None else each.last_sequence,
            last_timestamp=each.last_timestamp_ms,
            coordinator_epoch=_UNKNOWN_EPOCH,
        )
        if producer_id in begun:
            state.current_txn_start_offset = log.find_offset(begun[producer_id])
        states.append(state)
    return PartitionResponse(partition_index=number, error_code=ErrorCode.NONE, active_producers=states)
