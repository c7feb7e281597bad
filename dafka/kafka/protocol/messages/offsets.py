"""OffsetCommit, OffsetFetch, OffsetDelete and TxnOffsetCommit: the committed offsets of groups."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import (
    NIL,
    Boolean,
    Int16,
    Int32,
    Int64,
    Request,
    Response,
    String,
    Struct,
    Uuid,
    field,
)


class OffsetCommitRequestPartition(Struct):
    """An item of `OffsetCommitRequestTopic.partitions`."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = field("6+", default=-1)
    commit_timestamp: Int64 = field("1", default=-1)
    committed_metadata: String | None


class OffsetCommitRequestTopic(Struct):
    """An item of `OffsetCommitRequest.topics`."""

    name: String = field("0-9", default="")
    topic_id: Uuid = field("10+", default=NIL)
    partitions: list[OffsetCommitRequestPartition]


class OffsetCommitRequest(Request, key=ApiKey.OFFSET_COMMIT, versions="0-10", flexible="8+"):
    """Commit offsets for a group."""

    group_id: String
    generation_id_or_member_epoch: Int32 = field("1+", default=-1)
    member_id: String = field("1+", default="")
    group_instance_id: String | None = field("7+", default=None)
    retention_time_ms: Int64 = field("2-4", default=-1)
    topics: list[OffsetCommitRequestTopic]


class OffsetCommitResponsePartition(Struct):
    """An item of `OffsetCommitResponseTopic.partitions`."""

    partition_index: Int32
    error_code: Int16


class OffsetCommitResponseTopic(Struct):
    """An item of `OffsetCommitResponse.topics`."""

    name: String = field("0-9", default="")
    topic_id: Uuid = field("10+", default=NIL)
    partitions: list[OffsetCommitResponsePartition]


class OffsetCommitResponse(Response, key=ApiKey.OFFSET_COMMIT, versions="0-10", flexible="8+"):
    """Whether offsets were committed."""

    throttle_time_ms: Int32 = field("3+", default=0)
    topics: list[OffsetCommitResponseTopic]


class OffsetFetchRequestTopic(Struct):
    """An item of `OffsetFetchRequest.topics`."""

    name: String
    partition_indexes: list[Int32]


class OffsetFetchRequestTopics(Struct):
    """An item of `OffsetFetchRequestGroup.topics`."""

    name: String = field("8-9", default="")
    topic_id: Uuid = field("10+", default=NIL)
    partition_indexes: list[Int32]


class OffsetFetchRequestGroup(Struct):
    """An item of `OffsetFetchRequest.groups`."""

    group_id: String
    member_id: String | None = field("9+", default=None)
    member_epoch: Int32 = field("9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None


class OffsetFetchRequest(Request, key=ApiKey.OFFSET_FETCH, versions="0-10", flexible="6+"):
    """Ask for the committed offsets of groups."""

    group_id: String = field("0-7", default="")
    topics: list[OffsetFetchRequestTopic] | None = field("0-7", nullable="2-7", default=None)
    groups: list[OffsetFetchRequestGroup] = field("8+", default=[])
    require_stable: Boolean = field("7+", default=False)


class OffsetFetchResponsePartition(Struct):
    """An item of `OffsetFetchResponseTopic.partitions`."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = field("5-7", default=-1)
    metadata: String | None
    error_code: Int16


class OffsetFetchResponseTopic(Struct):
    """An item of `OffsetFetchResponse.topics`."""

    name: String
    partitions: list[OffsetFetchResponsePartition]


class OffsetFetchResponsePartitions(Struct):
    """An item of `OffsetFetchResponseTopics.partitions`."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = field(default=-1)
    metadata: String | None
    error_code: Int16


class OffsetFetchResponseTopics(Struct):
    """An item of `OffsetFetchResponseGroup.topics`."""

    name: String = field("8-9", default="")
    topic_id: Uuid = field("10+", default=NIL)
    partitions: list[OffsetFetchResponsePartitions]


class OffsetFetchResponseGroup(Struct):
    """An item of `OffsetFetchResponse.groups`."""

    group_id: String
    topics: list[OffsetFetchResponseTopics]
    error_code: Int16 = field(default=0)


class OffsetFetchResponse(Response, key=ApiKey.OFFSET_FETCH, versions="0-10", flexible="6+"):
    """The committed offsets of groups."""

    throttle_time_ms: Int32 = field("3+", default=0)
    topics: list[OffsetFetchResponseTopic] = field("0-7", default=[])
    error_code: Int16 = field("2-7", default=0)
    groups: list[OffsetFetchResponseGroup] = field("8+", default=[])


class OffsetDeleteRequestPartition(Struct):
    """An item of `OffsetDeleteRequestTopic.partitions`."""

    partition_index: Int32


class OffsetDeleteRequestTopic(Struct):
    """An item of `OffsetDeleteRequest.topics`."""

    name: String
    partitions: list[OffsetDeleteRequestPartition]


class OffsetDeleteRequest(Request, key=ApiKey.OFFSET_DELETE, versions="0"):
    """Delete committed offsets of a group."""

    group_id: String
    topics: list[OffsetDeleteRequestTopic]


class OffsetDeleteResponsePartition(Struct):
    """An item of `OffsetDeleteResponseTopic.partitions`."""

    partition_index: Int32
    error_code: Int16


class OffsetDeleteResponseTopic(Struct):
    """An item of `OffsetDeleteResponse.topics`."""

    name: String
    partitions: list[OffsetDeleteResponsePartition]


class OffsetDeleteResponse(Response, key=ApiKey.OFFSET_DELETE, versions="0"):
    """Whether offsets were deleted."""

    error_code: Int16
    throttle_time_ms: Int32 = field(default=0)
    topics: list[OffsetDeleteResponseTopic]


class TxnOffsetCommitRequestPartition(Struct):
    """An item of `TxnOffsetCommitRequestTopic.partitions`."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = field("2+", default=-1)
    committed_metadata: String | None


class TxnOffsetCommitRequestTopic(Struct):
    """An item of `TxnOffsetCommitRequest.topics`."""

    name: String
    partitions: list[TxnOffsetCommitRequestPartition]


class TxnOffsetCommitRequest(Request, key=ApiKey.TXN_OFFSET_COMMIT, versions="0-5", flexible="3+"):
    """Commit offsets for a group as a part of a transaction."""

    transactional_id: String
    group_id: String
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Int32 = field("3+", default=-1)
    member_id: String = field("3+", default="")
    group_instance_id: String | None = field("3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic]


class TxnOffsetCommitResponsePartition(Struct):
    """An item of `TxnOffsetCommitResponseTopic.partitions`."""

    partition_index: Int32
    error_code: Int16


class TxnOffsetCommitResponseTopic(Struct):
    """An item of `TxnOffsetCommitResponse.topics`."""

    name: String
    partitions: list[TxnOffsetCommitResponsePartition]


class TxnOffsetCommitResponse(Response, key=ApiKey.TXN_OFFSET_COMMIT, versions="0-5", flexible="3+"):
    """Whether the offsets belong to the transaction."""

    throttle_time_ms: Int32 = field(default=0)
    topics: list[TxnOffsetCommitResponseTopic]
