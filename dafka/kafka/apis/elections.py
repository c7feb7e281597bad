"""ElectLeaders: has the preferred replicas of logs lead them."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.kafka.apis.shared.registry import RequestContext, handles
from dafka.kafka.protocol.messages.elections import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionElectionResult,
    ReplicaElectionResult,
)

PREFERRED = 0
"""The type of an election after which the preferred replica leads."""


@handles(ElectLeadersRequest)
async def elect_leaders(client: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Have logs led by their preferred replicas."""
    node, asked = client.broker.node, request.topic_partitions
    if asked is None:
        places = [(topic.name, number) for topic in node.topics.values() for number in range(topic.log_count)]
    else:
        places = list(dict.fromkeys((topic.topic, number) for topic in asked for number in topic.partitions))
    results: dict[tuple[str, int], ErrorCode] = {}

    async def elect(place: tuple[str, int]) -> None:
        results[place] = await _elect(client, node.find_log(*place), request)

    async with trio.open_nursery() as nursery:
        for each in places:
            nursery.start_soon(elect, each)
    if asked is None:
        places = [each for each in places if results[each] is not ErrorCode.ELECTION_NOT_NEEDED]
    return ElectLeadersResponse(throttle_time_ms=0, replica_election_results=_describe(places, results))


async def _elect(client: RequestContext, log: Log | None, request: ElectLeadersRequest) -> ErrorCode:
    if log is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if request.election_type == PREFERRED:
        return await client.broker.elections.elect_preferred(log, max(request.timeout_ms, 0) / 1000)
    # An unclean election would lose records that were acknowledged.
    has_leader = log.leadership.is_led or log.leadership.leader
    return ErrorCode.ELECTION_NOT_NEEDED if has_leader else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def _describe(
    places: Iterable[tuple[str, int]], results: dict[tuple[str, int], ErrorCode]
) -> list[ReplicaElectionResult]:
    topics: dict[str, list[PartitionElectionResult]] = {}
    for name, number in places:
        error = results[name, number]
        topics.setdefault(name, []).append(
            PartitionElectionResult(partition_id=number, error_code=error, error_message=None)
        )
    return [ReplicaElectionResult(topic=name, partition_result=each) for name, each in topics.items()]
