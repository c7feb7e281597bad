"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: groups whose coordinator assigns the logs (KIP-848)."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import Boolean, Int8, Int16, Int32, Request, Response, String, Struct, Uuid, field


class HeartbeatTopicPartitions(Struct):
    """The logs of a topic, which a member has or may read."""

    topic_id: Uuid
    partitions: list[Int32]


class ConsumerGroupHeartbeatRequest(Request, key=ApiKey.CONSUMER_GROUP_HEARTBEAT, versions="0-1", flexible="0+"):
    """Join or leave a group, or stay in it."""

    group_id: String
    member_id: String
    member_epoch: Int32
    instance_id: String | None = field(default=None)
    rack_id: String | None = field(default=None)
    rebalance_timeout_ms: Int32 = field(default=-1)
    subscribed_topic_names: list[String] | None = field(default=None)
    subscribed_topic_regex: String | None = field("1+", default=None)
    server_assignor: String | None = field(default=None)
    topic_partitions: list[HeartbeatTopicPartitions] | None = field(default=None)


class HeartbeatAssignment(Struct):
    """The value of `ConsumerGroupHeartbeatResponse.assignment`."""

    topic_partitions: list[HeartbeatTopicPartitions]


class ConsumerGroupHeartbeatResponse(Response, key=ApiKey.CONSUMER_GROUP_HEARTBEAT, versions="0-1", flexible="0+"):
    """The epoch of the member, and what it may read if that has changed."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16
    error_message: String | None = field(default=None)
    member_id: String | None = field(default=None)
    member_epoch: Int32
    heartbeat_interval_ms: Int32
    assignment: HeartbeatAssignment | None = field(default=None)


class ConsumerGroupDescribeRequest(Request, key=ApiKey.CONSUMER_GROUP_DESCRIBE, versions="0-1", flexible="0+"):
    """Ask for the members of groups."""

    group_ids: list[String]
    include_authorized_operations: Boolean


class DescribedTopicPartitions(Struct):
    """The logs of a topic in the description of a member."""

    topic_id: Uuid
    topic_name: String
    partitions: list[Int32]


class DescribedAssignment(Struct):
    """The logs in the description of a member."""

    topic_partitions: list[DescribedTopicPartitions]


class DescribedConsumer(Struct):
    """An item of `DescribedConsumerGroup.members`."""

    member_id: String
    instance_id: String | None = field(default=None)
    rack_id: String | None = field(default=None)
    member_epoch: Int32
    client_id: String
    client_host: String
    subscribed_topic_names: list[String]
    subscribed_topic_regex: String | None = field(default=None)
    assignment: DescribedAssignment
    target_assignment: DescribedAssignment
    member_type: Int8 = field("1+", default=-1)


class DescribedConsumerGroup(Struct):
    """An item of `ConsumerGroupDescribeResponse.groups`."""

    error_code: Int16
    error_message: String | None = field(default=None)
    group_id: String
    group_state: String
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: String
    members: list[DescribedConsumer]
    authorized_operations: Int32 = field(default=-2147483648)


class ConsumerGroupDescribeResponse(Response, key=ApiKey.CONSUMER_GROUP_DESCRIBE, versions="0-1", flexible="0+"):
    """The members of groups, and their assignments."""

    throttle_time_ms: Int32 = field(default=0)
    groups: list[DescribedConsumerGroup]
