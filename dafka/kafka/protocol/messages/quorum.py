"""DescribeQuorum: the brokers that vote on metadata, and how far each of them has its log."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import NIL, Int16, Int32, Int64, Request, Response, String, Struct, Uint16, Uuid, field


class QuorumPartitionRequest(Struct):
    """An item of `QuorumTopicRequest.partitions`."""

    partition_index: Int32


class QuorumTopicRequest(Struct):
    """An item of `DescribeQuorumRequest.topics`."""

    topic_name: String
    partitions: list[QuorumPartitionRequest]


class DescribeQuorumRequest(Request, key=ApiKey.DESCRIBE_QUORUM, versions="0-2", flexible="0+"):
    """Ask for the quorum of the log of metadata."""

    topics: list[QuorumTopicRequest]


class ReplicaState(Struct):
    """An item of `QuorumPartition.current_voters` and of its observers. Times are in ms since 1970, -1 if unknown."""

    replica_id: Int32
    replica_directory_id: Uuid = field("2+", default=NIL)
    log_end_offset: Int64
    last_fetch_timestamp: Int64 = field("1+", default=-1)
    last_caught_up_timestamp: Int64 = field("1+", default=-1)


class QuorumPartition(Struct):
    """An item of `QuorumTopic.partitions`."""

    partition_index: Int32
    error_code: Int16
    error_message: String | None = field("2+", default=None)
    leader_id: Int32
    leader_epoch: Int32
    high_watermark: Int64
    current_voters: list[ReplicaState]
    observers: list[ReplicaState]


class QuorumTopic(Struct):
    """An item of `DescribeQuorumResponse.topics`."""

    topic_name: String
    partitions: list[QuorumPartition]


class QuorumListener(Struct):
    """An item of `QuorumNode.listeners`."""

    name: String
    host: String
    port: Uint16


class QuorumNode(Struct):
    """An item of `DescribeQuorumResponse.nodes`."""

    node_id: Int32
    listeners: list[QuorumListener]


class DescribeQuorumResponse(Response, key=ApiKey.DESCRIBE_QUORUM, versions="0-2", flexible="0+"):
    """Who votes on metadata, who only reads it, and how far each of them is."""

    error_code: Int16
    error_message: String | None = field("2+", default=None)
    topics: list[QuorumTopic]
    nodes: list[QuorumNode] = field("2+", default=[])
