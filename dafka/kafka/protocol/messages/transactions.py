"""InitProducerId and the requests of transactions."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import Boolean, Int16, Int32, Int64, Request, Response, String, Struct, field


class InitProducerIdRequest(Request, key=ApiKey.INIT_PRODUCER_ID, versions="0-6", flexible="2+"):
    """Ask for a producer id and its epoch."""

    transactional_id: String | None
    transaction_timeout_ms: Int32
    producer_id: Int64 = field("3+", default=-1)
    producer_epoch: Int16 = field("3+", default=-1)
    enable2_pc: Boolean = field("6+", default=False)
    keep_prepared_txn: Boolean = field("6+", default=False)


class InitProducerIdResponse(Response, key=ApiKey.INIT_PRODUCER_ID, versions="0-6", flexible="2+"):
    """A producer id and its epoch."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16
    producer_id: Int64 = field(default=-1)
    producer_epoch: Int16
    ongoing_txn_producer_id: Int64 = field("6+", default=-1)
    ongoing_txn_producer_epoch: Int16 = field("6+", default=-1)


class AddPartitionsToTxnTopic(Struct):
    """An item of `AddPartitionsToTxnTransaction.topics`."""

    name: String
    partitions: list[Int32]


class AddPartitionsToTxnTransaction(Struct):
    """An item of `AddPartitionsToTxnRequest.transactions`."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    verify_only: Boolean = field(default=False)
    topics: list[AddPartitionsToTxnTopic]


class AddPartitionsToTxnRequest(Request, key=ApiKey.ADD_PARTITIONS_TO_TXN, versions="0-5", flexible="3+"):
    """Add logs to transactions."""

    transactions: list[AddPartitionsToTxnTransaction] = field("4+", default=[])
    v3_and_below_transactional_id: String = field("0-3", default="")
    v3_and_below_producer_id: Int64 = field("0-3", default=0)
    v3_and_below_producer_epoch: Int16 = field("0-3", default=0)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field("0-3", default=[])


class AddPartitionsToTxnPartitionResult(Struct):
    """An item of `AddPartitionsToTxnTopicResult.results_by_partition`."""

    partition_index: Int32
    partition_error_code: Int16


class AddPartitionsToTxnTopicResult(Struct):
    """An item of `AddPartitionsToTxnResult.topic_results`."""

    name: String
    results_by_partition: list[AddPartitionsToTxnPartitionResult]


class AddPartitionsToTxnResult(Struct):
    """An item of `AddPartitionsToTxnResponse.results_by_transaction`."""

    transactional_id: String
    topic_results: list[AddPartitionsToTxnTopicResult]


class AddPartitionsToTxnResponse(Response, key=ApiKey.ADD_PARTITIONS_TO_TXN, versions="0-5", flexible="3+"):
    """Whether the logs belong to the transactions."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16 = field("4+", default=0)
    results_by_transaction: list[AddPartitionsToTxnResult] = field("4+", default=[])
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field("0-3", default=[])


class AddOffsetsToTxnRequest(Request, key=ApiKey.ADD_OFFSETS_TO_TXN, versions="0-4", flexible="3+"):
    """Add the offsets of a group to a transaction."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String


class AddOffsetsToTxnResponse(Response, key=ApiKey.ADD_OFFSETS_TO_TXN, versions="0-4", flexible="3+"):
    """Whether the offsets of the group belong to the transaction."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16


class EndTxnRequest(Request, key=ApiKey.END_TXN, versions="0-5", flexible="3+"):
    """Commit or abort a transaction."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Boolean


class EndTxnResponse(Response, key=ApiKey.END_TXN, versions="0-5", flexible="3+"):
    """Whether the transaction has ended."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16
    producer_id: Int64 = field("5+", default=-1)
    producer_epoch: Int16 = field("5+", default=-1)


class TopicRequest(Struct):
    """An item of `DescribeProducersRequest.topics`."""

    name: String
    partition_indexes: list[Int32]


class DescribeProducersRequest(Request, key=ApiKey.DESCRIBE_PRODUCERS, versions="0", flexible="0+"):
    """Ask for the idempotent producers of logs."""

    topics: list[TopicRequest]


class ProducerState(Struct):
    """An item of `PartitionResponse.active_producers`."""

    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = field(default=-1)
    last_timestamp: Int64 = field(default=-1)
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = field(default=-1)


class PartitionResponse(Struct):
    """An item of `TopicResponse.partitions`."""

    partition_index: Int32
    error_code: Int16
    error_message: String | None = field(default=None)
    active_producers: list[ProducerState]


class TopicResponse(Struct):
    """An item of `DescribeProducersResponse.topics`."""

    name: String
    partitions: list[PartitionResponse]


class DescribeProducersResponse(Response, key=ApiKey.DESCRIBE_PRODUCERS, versions="0", flexible="0+"):
    """The idempotent producers of logs."""

    throttle_time_ms: Int32 = field(default=0)
    topics: list[TopicResponse]


class DescribeTransactionsRequest(Request, key=ApiKey.DESCRIBE_TRANSACTIONS, versions="0", flexible="0+"):
    """Ask for the states of transactions."""

    transactional_ids: list[String]


class TopicData(Struct):
    """An item of `TransactionState.topics`."""

    topic: String
    partitions: list[Int32]


class TransactionState(Struct):
    """An item of `DescribeTransactionsResponse.transaction_states`."""

    error_code: Int16
    transactional_id: String
    transaction_state: String
    transaction_timeout_ms: Int32
    transaction_start_time_ms: Int64
    producer_id: Int64
    producer_epoch: Int16
    topics: list[TopicData]


class DescribeTransactionsResponse(Response, key=ApiKey.DESCRIBE_TRANSACTIONS, versions="0", flexible="0+"):
    """The states of transactions."""

    throttle_time_ms: Int32 = field(default=0)
    transaction_states: list[TransactionState]


class ListTransactionsRequest(Request, key=ApiKey.LIST_TRANSACTIONS, versions="0-2", flexible="0+"):
    """Ask for transactions."""

    state_filters: list[String]
    producer_id_filters: list[Int64]
    duration_filter: Int64 = field("1+", default=-1)
    transactional_id_pattern: String | None = field("2+", default=None)


class ListedTransactionState(Struct):
    """An item of `ListTransactionsResponse.transaction_states`."""

    transactional_id: String
    producer_id: Int64
    transaction_state: String


class ListTransactionsResponse(Response, key=ApiKey.LIST_TRANSACTIONS, versions="0-2", flexible="0+"):
    """Transactions and their states."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16
    unknown_state_filters: list[String]
    transaction_states: list[ListedTransactionState]
