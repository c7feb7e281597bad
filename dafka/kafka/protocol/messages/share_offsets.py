"""Describe-, Alter- and DeleteShareGroupOffsets: where share groups are in logs (KIP-932, KIP-1226)."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import Int16, Int32, Int64, Request, Response, String, Struct, Uuid, field


class ShareOffsetsTopic(Struct):
    """An item of `ShareOffsetsGroup.topics`."""

    topic_name: String
    partitions: list[Int32]


class ShareOffsetsGroup(Struct):
    """An item of `DescribeShareGroupOffsetsRequest.groups`. It asks for all topics if none are given."""

    group_id: String
    topics: list[ShareOffsetsTopic] | None


class DescribeShareGroupOffsetsRequest(Request, key=ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, versions="0-1", flexible="0+"):
    """Ask where share groups are."""

    groups: list[ShareOffsetsGroup]


class DescribedSharePartition(Struct):
    """An item of `DescribedShareTopic.partitions`."""

    partition_index: Int32
    start_offset: Int64 = field(default=-1)
    leader_epoch: Int32 = field(default=-1)
    lag: Int64 = field("1+", default=-1)
    error_code: Int16 = field(default=0)
    error_message: String | None = field(default=None)


class DescribedShareTopic(Struct):
    """An item of `DescribedShareOffsets.topics`."""

    topic_name: String
    topic_id: Uuid
    partitions: list[DescribedSharePartition]


class DescribedShareOffsets(Struct):
    """An item of `DescribeShareGroupOffsetsResponse.groups`."""

    group_id: String
    topics: list[DescribedShareTopic] = field(default=[])
    error_code: Int16 = field(default=0)
    error_message: String | None = field(default=None)


class DescribeShareGroupOffsetsResponse(
    Response, key=ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, versions="0-1", flexible="0+"
):
    """The first record of each log that a group still has to acknowledge."""

    throttle_time_ms: Int32 = field(default=0)
    groups: list[DescribedShareOffsets]


class AlterSharePartition(Struct):
    """An item of `AlterShareTopic.partitions`."""

    partition_index: Int32
    start_offset: Int64


class AlterShareTopic(Struct):
    """An item of `AlterShareGroupOffsetsRequest.topics`."""

    topic_name: String
    partitions: list[AlterSharePartition]


class AlterShareGroupOffsetsRequest(Request, key=ApiKey.ALTER_SHARE_GROUP_OFFSETS, versions="0", flexible="0+"):
    """Set where a share group without members continues."""

    group_id: String
    topics: list[AlterShareTopic]


class AlteredSharePartition(Struct):
    """An item of `AlteredShareTopic.partitions`."""

    partition_index: Int32
    error_code: Int16 = field(default=0)
    error_message: String | None = field(default=None)


class AlteredShareTopic(Struct):
    """An item of `AlterShareGroupOffsetsResponse.responses`."""

    topic_name: String
    topic_id: Uuid
    partitions: list[AlteredSharePartition]


class AlterShareGroupOffsetsResponse(Response, key=ApiKey.ALTER_SHARE_GROUP_OFFSETS, versions="0", flexible="0+"):
    """Whether the offsets were set."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16 = field(default=0)
    error_message: String | None = field(default=None)
    responses: list[AlteredShareTopic] = field(default=[])


class DeleteShareTopic(Struct):
    """An item of `DeleteShareGroupOffsetsRequest.topics`."""

    topic_name: String


class DeleteShareGroupOffsetsRequest(Request, key=ApiKey.DELETE_SHARE_GROUP_OFFSETS, versions="0", flexible="0+"):
    """Forget where a share group without members was in topics."""

    group_id: String
    topics: list[DeleteShareTopic]


class DeletedShareTopic(Struct):
    """An item of `DeleteShareGroupOffsetsResponse.responses`."""

    topic_name: String
    topic_id: Uuid
    error_code: Int16 = field(default=0)
    error_message: String | None = field(default=None)


class DeleteShareGroupOffsetsResponse(Response, key=ApiKey.DELETE_SHARE_GROUP_OFFSETS, versions="0", flexible="0+"):
    """Whether the offsets were deleted."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16 = field(default=0)
    error_message: String | None = field(default=None)
    responses: list[DeletedShareTopic] = field(default=[])
