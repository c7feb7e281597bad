"""ElectLeaders: makes preferred replicas the leaders of their logs."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.kafka.apis.shared.authorization import CLUSTER_REFUSED, refuse, require_each
from dafka.kafka.apis.shared.registry import Decision, RequestContext, handles
from dafka.kafka.protocol.messages.reassignments import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionElectionResult,
    ReplicaElectionResult,
)

PREFERRED = 0
"""The type of an election after which the preferred replica leads."""


_REQUIRE_TOPICS = require_each("topic_partitions", Permissions.may_administer, answers="replica_election_results")


def _authorize(user: Permissions, context: RequestContext, request: ElectLeadersRequest) -> Decision:
    """Require `admin` on the topics; for all topics, an administrator."""
    if request.topic_partitions is not None:
        return _REQUIRE_TOPICS(user, context, request)
    return None if user.is_administrator else refuse(ElectLeadersResponse, request, CLUSTER_REFUSED)


@handles(ElectLeadersRequest, _authorize)
async def elect_leaders(context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Make the preferred replicas of logs their leaders."""
    node, asked = context.broker.node, request.topic_partitions
    if asked is None:
        partitions = [(topic.name, number) for topic in node.topics.values() for number in range(topic.log_count)]
    else:
        partitions = list(dict.fromkeys((topic.topic, number) for topic in asked for number in topic.partitions))
    results: dict[tuple[str, int], ErrorCode] = {}

    async def elect(partition: tuple[str, int]) -> None:
        results[partition] = await _elect(context, node.find_log(*partition), request)

    async with trio.open_nursery() as nursery:
        for each in partitions:
            nursery.start_soon(elect, each)
    if asked is None:
        partitions = [each for each in partitions if results[each] is not ErrorCode.ELECTION_NOT_NEEDED]
    return ElectLeadersResponse(throttle_time_ms=0, replica_election_results=_describe(partitions, results))


async def _elect(context: RequestContext, log: Log | None, request: ElectLeadersRequest) -> ErrorCode:
    if log is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if request.election_type == PREFERRED:
        return await context.broker.elections.elect_preferred(log, max(request.timeout_ms, 0) / 1000)
    # An unclean election would lose acknowledged records.
    has_leader = log.leadership.is_led or log.leadership.leader
    return ErrorCode.ELECTION_NOT_NEEDED if has_leader else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def _describe(
    partitions: Iterable[tuple[str, int]], results: dict[tuple[str, int], ErrorCode]
) -> list[ReplicaElectionResult]:
    topics: dict[str, list[PartitionElectionResult]] = {}
    for name, number in partitions:
        error = results[name, number]
        topics.setdefault(name, []).append(
            PartitionElectionResult(partition_id=number, error_code=error, error_message=None)
        )
    return [ReplicaElectionResult(topic=name, partition_result=each) for name, each in topics.items()]
