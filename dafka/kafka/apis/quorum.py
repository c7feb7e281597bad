"""DescribeQuorum: who votes on metadata, and how much of its log each broker has."""

from __future__ import annotations

import uuid

from dafka.broker.core.acls import Operation
from dafka.broker.core.cluster_status import MetadataReplica
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis.shared.authorization import require_cluster
from dafka.kafka.apis.shared.registry import RequestContext, handles
from dafka.kafka.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumListener,
    QuorumNode,
    QuorumPartition,
    QuorumTopic,
    ReplicaState,
)
from dafka.kafka.server.cluster_view import NO_NODE, security_protocol
from dafka.storage.plugin_helpers import now_ms

METADATA_TOPIC = "__cluster_metadata"
"""Kafka's name for the topic of metadata, which has one log."""

_UNKNOWN = -1


@handles(DescribeQuorumRequest, require_cluster(Operation.DESCRIBE, DescribeQuorumResponse, topics=[]))
async def describe_quorum(context: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Answer with the voters and the other brokers, as the controller knows them."""
    replicas, cluster = await context.broker.node.replica_reports.find(), context.view_cluster()
    name = security_protocol(context.broker.config)
    return DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        topics=[
            QuorumTopic(
                topic_name=topic.topic_name,
                partitions=[
                    _describe(context, topic.topic_name, each.partition_index, replicas) for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        nodes=[
            QuorumNode(node_id=each.node_id, listeners=[QuorumListener(name=name, host=each.host, port=each.port)])
            for each in cluster.nodes
        ],
    )


def _describe(context: RequestContext, topic: str, number: int, replicas: list[MetadataReplica]) -> QuorumPartition:
    log = context.broker.node.metadata.log
    if topic != METADATA_TOPIC or number or log is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if log is not None else ErrorCode.LEADER_NOT_AVAILABLE
        return QuorumPartition(
            partition_index=number,
            error_code=error,
            error_message=f"expected log 0 of {METADATA_TOPIC}" if log is not None else "there is no cluster yet",
            leader_id=NO_NODE,
            leader_epoch=_UNKNOWN,
            high_watermark=_UNKNOWN,
            current_voters=[],
            observers=[],
        )
    leader = log.leadership.leader
    numbers = {each.address: each.number for each in replicas}
    states = [(each.is_voter, _describe_replica(each, is_leader=each.address == leader)) for each in replicas]
    return QuorumPartition(
        partition_index=number,
        error_code=ErrorCode.NONE,
        leader_id=numbers.get(leader, NO_NODE),
        leader_epoch=log.leadership.epoch,
        high_watermark=log.high_watermark,
        current_voters=[each for is_voter, each in states if is_voter],
        observers=[each for is_voter, each in states if not is_voter],
    )


def _describe_replica(replica: MetadataReplica, *, is_leader: bool) -> ReplicaState:
    return ReplicaState(
        replica_id=replica.number,
        replica_directory_id=uuid.UUID(hex=replica.address),
        log_end_offset=replica.end_offset,
        last_fetch_timestamp=_UNKNOWN if is_leader else _time_before(replica.silent_ms),
        last_caught_up_timestamp=_time_before(replica.behind_ms),
    )


def _time_before(ms: int) -> int:
    return _UNKNOWN if ms < 0 else now_ms() - ms
