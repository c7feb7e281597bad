"""Produce, Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords: the records of logs, and their offsets."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import (
    NIL,
    Int8,
    Int16,
    Int32,
    Int64,
    Records,
    Request,
    Response,
    String,
    Struct,
    Uuid,
    field,
)


class PartitionProduceData(Struct):
    """An item of `TopicProduceData.partition_data`."""

    index: Int32
    records: Records | None


class TopicProduceData(Struct):
    """An item of `ProduceRequest.topic_data`."""

    name: String = field("0-12", default="")
    topic_id: Uuid = field("13+", default=NIL)
    partition_data: list[PartitionProduceData]


class ProduceRequest(Request, key=ApiKey.PRODUCE, versions="0-13", flexible="9+"):
    """Append batches of records to logs."""

    transactional_id: String | None = field("3+", default=None)
    acks: Int16
    timeout_ms: Int32
    topic_data: list[TopicProduceData]


class BatchIndexAndErrorMessage(Struct):
    """An item of `PartitionProduceResponse.record_errors`."""

    batch_index: Int32
    batch_index_error_message: String | None = field(default=None)


class LeaderIdAndEpoch(Struct):
    """The leader of a log, for a client that asked another broker."""

    leader_id: Int32 = field(default=-1)
    leader_epoch: Int32 = field(default=-1)


class PartitionProduceResponse(Struct):
    """An item of `TopicProduceResponse.partition_responses`."""

    index: Int32
    error_code: Int16
    base_offset: Int64
    log_append_time_ms: Int64 = field("2+", default=-1)
    log_start_offset: Int64 = field("5+", default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = field("8+", default=[])
    error_message: String | None = field("8+", default=None)
    current_leader: LeaderIdAndEpoch | None = field("10+", tag=0, default=None)


class TopicProduceResponse(Struct):
    """An item of `ProduceResponse.responses`."""

    name: String = field("0-12", default="")
    topic_id: Uuid = field("13+", default=NIL)
    partition_responses: list[PartitionProduceResponse]


class NodeEndpoint(Struct):
    """Where the leader of a log listens."""

    node_id: Int32
    host: String
    port: Int32
    rack: String | None = field(default=None)


class ProduceResponse(Response, key=ApiKey.PRODUCE, versions="0-13", flexible="9+"):
    """The offsets that batches were given, or why they were refused."""

    responses: list[TopicProduceResponse]
    throttle_time_ms: Int32 = field("1+", default=0)
    node_endpoints: list[NodeEndpoint] = field("10+", tag=0, default=[])


class ReplicaState(Struct):
    """The value of `FetchRequest.replica_state`."""

    replica_id: Int32 = field(default=-1)
    replica_epoch: Int64 = field(default=-1)


class FetchPartition(Struct):
    """An item of `FetchTopic.partitions`."""

    partition: Int32
    current_leader_epoch: Int32 = field("9+", default=-1)
    fetch_offset: Int64
    last_fetched_epoch: Int32 = field("12+", default=-1)
    log_start_offset: Int64 = field("5+", default=-1)
    partition_max_bytes: Int32
    replica_directory_id: Uuid = field("17+", tag=0, default=NIL)
    high_watermark: Int64 = field("18+", tag=1, default=2**63 - 1)


class FetchTopic(Struct):
    """An item of `FetchRequest.topics`."""

    topic: String = field("0-12", default="")
    topic_id: Uuid = field("13+", default=NIL)
    partitions: list[FetchPartition]


class ForgottenTopic(Struct):
    """An item of `FetchRequest.forgotten_topics_data`."""

    topic: String = field("7-12", default="")
    topic_id: Uuid = field("13+", default=NIL)
    partitions: list[Int32]


class FetchRequest(Request, key=ApiKey.FETCH, versions="0-18", flexible="12+"):
    """Read batches of records from logs, or wait for them."""

    cluster_id: String | None = field("12+", tag=0, default=None)
    replica_id: Int32 = field("0-14", default=-1)
    replica_state: ReplicaState | None = field("15+", tag=1, default=None)
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = field("3+", default=2**31 - 1)
    isolation_level: Int8 = field("4+", default=0)
    session_id: Int32 = field("7+", default=0)
    session_epoch: Int32 = field("7+", default=-1)
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic] = field("7+", default=[])
    rack_id: String = field("11+", default="")


class EpochEndOffset(Struct):
    """The value of `PartitionData.diverging_epoch`."""

    epoch: Int32 = field(default=-1)
    end_offset: Int64 = field(default=-1)


class SnapshotId(Struct):
    """The value of `PartitionData.snapshot_id`."""

    end_offset: Int64 = field(default=-1)
    epoch: Int32 = field(default=-1)


class AbortedTransaction(Struct):
    """An item of `PartitionData.aborted_transactions`."""

    producer_id: Int64
    first_offset: Int64


class PartitionData(Struct):
    """An item of `FetchableTopicResponse.partitions`."""

    partition_index: Int32
    error_code: Int16
    high_watermark: Int64
    last_stable_offset: Int64 = field("4+", default=-1)
    log_start_offset: Int64 = field("5+", default=-1)
    diverging_epoch: EpochEndOffset | None = field("12+", tag=0, default=None)
    current_leader: LeaderIdAndEpoch | None = field("12+", tag=1, default=None)
    snapshot_id: SnapshotId | None = field("12+", tag=2, default=None)
    aborted_transactions: list[AbortedTransaction] | None = field("4+", default=None)
    preferred_read_replica: Int32 = field("11+", default=-1)
    records: Records | None


class FetchableTopicResponse(Struct):
    """An item of `FetchResponse.responses`."""

    topic: String = field("0-12", default="")
    topic_id: Uuid = field("13+", default=NIL)
    partitions: list[PartitionData]


class FetchResponse(Response, key=ApiKey.FETCH, versions="0-18", flexible="12+"):
    """Batches of records, and how far each log reaches."""

    throttle_time_ms: Int32 = field("1+", default=0)
    error_code: Int16 = field("7+", default=0)
    session_id: Int32 = field("7+", default=0)
    responses: list[FetchableTopicResponse]
    node_endpoints: list[NodeEndpoint] = field("16+", tag=0, default=[])


class ListOffsetsPartition(Struct):
    """An item of `ListOffsetsTopic.partitions`."""

    partition_index: Int32
    current_leader_epoch: Int32 = field("4+", default=-1)
    timestamp: Int64
    max_num_offsets: Int32 = field("0", default=1)


class ListOffsetsTopic(Struct):
    """An item of `ListOffsetsRequest.topics`."""

    name: String
    partitions: list[ListOffsetsPartition]


class ListOffsetsRequest(Request, key=ApiKey.LIST_OFFSETS, versions="0-11", flexible="6+"):
    """Ask for the first offset, the end offset, or the first offset from a time on."""

    replica_id: Int32
    isolation_level: Int8 = field("2+", default=0)
    topics: list[ListOffsetsTopic]
    timeout_ms: Int32 = field("10+", default=0)


class ListOffsetsPartitionResponse(Struct):
    """An item of `ListOffsetsTopicResponse.partitions`."""

    partition_index: Int32
    error_code: Int16
    old_style_offsets: list[Int64] = field("0", default=[])
    timestamp: Int64 = field("1+", default=-1)
    offset: Int64 = field("1+", default=-1)
    leader_epoch: Int32 = field("4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    """An item of `ListOffsetsResponse.topics`."""

    name: String
    partitions: list[ListOffsetsPartitionResponse]


class ListOffsetsResponse(Response, key=ApiKey.LIST_OFFSETS, versions="0-11", flexible="6+"):
    """The offsets that were asked for."""

    throttle_time_ms: Int32 = field("2+", default=0)
    topics: list[ListOffsetsTopicResponse]


class OffsetForLeaderPartition(Struct):
    """An item of `OffsetForLeaderTopic.partitions`."""

    partition: Int32
    current_leader_epoch: Int32 = field("2+", default=-1)
    leader_epoch: Int32


class OffsetForLeaderTopic(Struct):
    """An item of `OffsetForLeaderEpochRequest.topics`."""

    topic: String
    partitions: list[OffsetForLeaderPartition]


class OffsetForLeaderEpochRequest(Request, key=ApiKey.OFFSET_FOR_LEADER_EPOCH, versions="0-4", flexible="4+"):
    """Ask where the records of a leader epoch end."""

    replica_id: Int32 = field("3+", default=-2)
    topics: list[OffsetForLeaderTopic]


class OffsetForLeaderPartitionResult(Struct):
    """An item of `OffsetForLeaderTopicResult.partitions`."""

    error_code: Int16
    partition: Int32
    leader_epoch: Int32 = field("1+", default=-1)
    end_offset: Int64 = field(default=-1)


class OffsetForLeaderTopicResult(Struct):
    """An item of `OffsetForLeaderEpochResponse.topics`."""

    topic: String
    partitions: list[OffsetForLeaderPartitionResult]


class OffsetForLeaderEpochResponse(Response, key=ApiKey.OFFSET_FOR_LEADER_EPOCH, versions="0-4", flexible="4+"):
    """The end offsets of leader epochs."""

    throttle_time_ms: Int32 = field("2+", default=0)
    topics: list[OffsetForLeaderTopicResult]


class DeleteRecordsPartition(Struct):
    """An item of `DeleteRecordsTopic.partitions`."""

    partition_index: Int32
    offset: Int64


class DeleteRecordsTopic(Struct):
    """An item of `DeleteRecordsRequest.topics`."""

    name: String
    partitions: list[DeleteRecordsPartition]


class DeleteRecordsRequest(Request, key=ApiKey.DELETE_RECORDS, versions="0-2", flexible="2+"):
    """Delete the records of logs that precede an offset."""

    topics: list[DeleteRecordsTopic]
    timeout_ms: Int32


class DeleteRecordsPartitionResult(Struct):
    """An item of `DeleteRecordsTopicResult.partitions`."""

    partition_index: Int32
    low_watermark: Int64
    error_code: Int16


class DeleteRecordsTopicResult(Struct):
    """An item of `DeleteRecordsResponse.topics`."""

    name: String
    partitions: list[DeleteRecordsPartitionResult]


class DeleteRecordsResponse(Response, key=ApiKey.DELETE_RECORDS, versions="0-2", flexible="2+"):
    """The first offsets that are left."""

    throttle_time_ms: Int32 = field(default=0)
    topics: list[DeleteRecordsTopicResult]
