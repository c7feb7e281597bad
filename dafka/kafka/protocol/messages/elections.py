"""ElectLeaders: logs whose preferred replicas should lead them again."""

from __future__ import annotations

from dafka.kafka.protocol.keys import ApiKey
from dafka.kafka.protocol.tables import Int8, Int16, Int32, Request, Response, String, Struct, field


class ElectableTopic(Struct):
    """An item of `ElectLeadersRequest.topic_partitions`."""

    topic: String
    partitions: list[Int32]


class ElectLeadersRequest(Request, key=ApiKey.ELECT_LEADERS, versions="0-2", flexible="2+"):
    """Have other brokers lead logs."""

    election_type: Int8 = field("1+", default=0)
    topic_partitions: list[ElectableTopic] | None
    timeout_ms: Int32 = field(default=60000)


class PartitionElectionResult(Struct):
    """An item of `ReplicaElectionResult.partition_result`."""

    partition_id: Int32
    error_code: Int16
    error_message: String | None


class ReplicaElectionResult(Struct):
    """An item of `ElectLeadersResponse.replica_election_results`."""

    topic: String
    partition_result: list[PartitionElectionResult]


class ElectLeadersResponse(Response, key=ApiKey.ELECT_LEADERS, versions="0-2", flexible="2+"):
    """Whether the logs have the leaders that were asked for."""

    throttle_time_ms: Int32
    error_code: Int16 = field("1+", default=0)
    replica_election_results: list[ReplicaElectionResult]
