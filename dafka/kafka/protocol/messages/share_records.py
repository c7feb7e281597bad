"""ShareFetch and ShareAcknowledge: the records that members of share groups get and acknowledge (KIP-932, KIP-1222)."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.messages.logs import LeaderIdAndEpoch, NodeEndpoint
from dafka.kafka.protocol.tables import (
    Boolean,
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


class AcknowledgementBatch(Struct):
    """What a member says of a range of records: one type for all of them, or one for each."""

    first_offset: Int64
    last_offset: Int64
    acknowledge_types: list[Int8]


class ShareFetchPartition(Struct):
    """An item of `ShareFetchTopic.partitions`."""

    partition_index: Int32
    acknowledgement_batches: list[AcknowledgementBatch] = field(default=[])


class ShareFetchTopic(Struct):
    """An item of `ShareFetchRequest.topics`."""

    topic_id: Uuid
    partitions: list[ShareFetchPartition]


class ShareForgottenTopic(Struct):
    """An item of `ShareFetchRequest.forgotten_topics_data`."""

    topic_id: Uuid
    partitions: list[Int32]


class ShareFetchRequest(Request, key=ApiKey.SHARE_FETCH, versions="1-2", flexible="0+"):
    """Acknowledge records, and acquire others or wait for them."""

    group_id: String | None = field(default=None)
    member_id: String | None
    share_session_epoch: Int32
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = field(default=2**31 - 1)
    max_records: Int32
    batch_size: Int32
    share_acquire_mode: Int8 = field("2+", default=0)
    is_renew_ack: Boolean = field("2+", default=False)
    topics: list[ShareFetchTopic]
    forgotten_topics_data: list[ShareForgottenTopic]


class AcquiredRecords(Struct):
    """A range of records that the member has acquired."""

    first_offset: Int64
    last_offset: Int64
    delivery_count: Int16


class SharePartitionData(Struct):
    """An item of `ShareFetchableTopicResponse.partitions`."""

    partition_index: Int32
    error_code: Int16 = field(default=0)
    error_message: String | None = field(default=None)
    acknowledge_error_code: Int16 = field(default=0)
    acknowledge_error_message: String | None = field(default=None)
    current_leader: LeaderIdAndEpoch
    records: Records = field(default=b"")
    acquired_records: list[AcquiredRecords] = field(default=[])


class ShareFetchableTopicResponse(Struct):
    """An item of `ShareFetchResponse.responses`."""

    topic_id: Uuid
    partitions: list[SharePartitionData]


class ShareFetchResponse(Response, key=ApiKey.SHARE_FETCH, versions="1-2", flexible="0+"):
    """The records that were acquired, and whether the acknowledgements are accepted."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16 = field(default=0)
    error_message: String | None = field(default=None)
    acquisition_lock_timeout_ms: Int32 = field(default=0)
    responses: list[ShareFetchableTopicResponse] = field(default=[])
    node_endpoints: list[NodeEndpoint] = field(default=[])


class AcknowledgePartition(Struct):
    """An item of `AcknowledgeTopic.partitions`."""

    partition_index: Int32
    acknowledgement_batches: list[AcknowledgementBatch]


class AcknowledgeTopic(Struct):
    """An item of `ShareAcknowledgeRequest.topics`."""

    topic_id: Uuid
    partitions: list[AcknowledgePartition]


class ShareAcknowledgeRequest(Request, key=ApiKey.SHARE_ACKNOWLEDGE, versions="1-2", flexible="0+"):
    """Acknowledge records."""

    group_id: String | None = field(default=None)
    member_id: String | None
    share_session_epoch: Int32
    is_renew_ack: Boolean = field("2+", default=False)
    topics: list[AcknowledgeTopic]


class AcknowledgedPartition(Struct):
    """An item of `ShareAcknowledgeTopicResponse.partitions`."""

    partition_index: Int32
    error_code: Int16 = field(default=0)
    error_message: String | None = field(default=None)
    current_leader: LeaderIdAndEpoch


class ShareAcknowledgeTopicResponse(Struct):
    """An item of `ShareAcknowledgeResponse.responses`."""

    topic_id: Uuid
    partitions: list[AcknowledgedPartition]


class ShareAcknowledgeResponse(Response, key=ApiKey.SHARE_ACKNOWLEDGE, versions="1-2", flexible="0+"):
    """Whether the acknowledgements are accepted."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16 = field(default=0)
    error_message: String | None = field(default=None)
    acquisition_lock_timeout_ms: Int32 = field("2+", default=0)
    responses: list[ShareAcknowledgeTopicResponse] = field(default=[])
    node_endpoints: list[NodeEndpoint] = field(default=[])
