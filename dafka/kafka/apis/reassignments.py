"""The replicas of logs: assignments, AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders.

Clients name brokers by number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import trio

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.acls import Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.errors import DafkaError
from dafka.internal_topics import is_internal_topic
from dafka.kafka.apis.shared.authorization import CLUSTER_REFUSED, refuse, require_each, show_only
from dafka.kafka.apis.shared.changes import make_all, make_change, requester_of
from dafka.kafka.apis.shared.outdated import refuse_when_outdated
from dafka.kafka.apis.shared.registry import Decision, RequestContext, handles
from dafka.kafka.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    PartitionElectionResult,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from dafka.kafka.server.cluster_view import ClusterView

DEFAULT_FACTOR = -1
"""The replication factor that stands for `[broker] replicas`."""

PREFERRED = 0
"""The type of an election after which the preferred replica leads."""


class AssignmentError(DafkaError):
    """An assignment names unsuitable brokers, or more replicas than there are brokers."""

    def __init__(self, message: str, error_code: ErrorCode = ErrorCode.INVALID_REPLICA_ASSIGNMENT) -> None:
        super().__init__(message)
        self.error_code = error_code


def check_factor(cluster: ClusterView, factor: int) -> None:
    """Raise `AssignmentError` if there are fewer brokers than requested replicas."""
    living = len(cluster.brokers.living())
    if factor != DEFAULT_FACTOR and not 1 <= factor <= living:
        raise AssignmentError(
            f"expected a replication factor from 1 to {living}, the number of living brokers, not {factor}",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )


def read_assignment(cluster: ClusterView, numbers: Sequence[int]) -> tuple[str, ...]:
    """Return the addresses of the requested replicas of a log, the preferred leader first.

    Raise `AssignmentError` if there are no numbers, one occurs twice, or one is not known.
    """
    if not numbers or len(set(numbers)) < len(numbers):
        raise AssignmentError(f"expected at least one broker, and each once, not {list(numbers)}")
    found = []
    for number in numbers:
        broker = cluster.brokers.find_number(number)
        if broker is None:
            known = ", ".join(str(each.number) for each in cluster.brokers.all())
            raise AssignmentError(f"there is no broker {number}, but there are {known}")
        found.append(broker.address)
    return tuple(found)


def read_assignments(cluster: ClusterView, assignments: Sequence[Sequence[int]]) -> list[tuple[str, ...]]:
    """Return the addresses for several logs; see `read_assignment`. All must have the same number of replicas."""
    found = [read_assignment(cluster, each) for each in assignments]
    if len({len(each) for each in found}) > 1:
        raise AssignmentError("expected the same number of brokers for each partition")
    return found


@handles(
    AlterPartitionReassignmentsRequest,
    require_each("topics", Permissions.may_move, answers="responses"),
    awaits_metadata=True,
)
@refuse_when_outdated("topics", answers="responses")
async def alter_reassignments(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Start or cancel reassignments of logs."""
    responses = [
        ReassignableTopicResponse(
            name=topic.name,
            partitions=await make_all(partial(_alter, context, request, topic.name), topic.partitions),
        )
        for topic in request.topics
    ]
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.NONE,
        error_message=None,
        responses=responses,
    )


async def _alter(
    context: RequestContext,
    request: AlterPartitionReassignmentsRequest,
    topic: str,
    asked: ReassignablePartition,
) -> ReassignablePartitionResponse:
    log = context.broker.node.find_log(topic, asked.partition_index)
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    if log is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif asked.replicas is None:
        if log in context.broker.node.replica_changes():
            cancellation = context.broker.node.admin.change_replicas(log, (), ordered_by=requester_of(context))
            error, message = await make_change(cancellation, request.timeout_ms)
        else:
            error = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    else:
        try:
            error, message = await _begin(context, request, log, asked.replicas)
        except AssignmentError as refused:
            error, message = ErrorCode.INVALID_REPLICA_ASSIGNMENT, str(refused)
    return ReassignablePartitionResponse(partition_index=asked.partition_index, error_code=error, error_message=message)


async def _begin(
    context: RequestContext, request: AlterPartitionReassignmentsRequest, log: Log, numbers: list[int]
) -> tuple[ErrorCode, str | None]:
    cluster = context.view_cluster()
    before, after = cluster.replicas_of(log), read_assignment(cluster, numbers)
    if not request.allow_replication_factor_change and len(before) != len(after):
        return ErrorCode.INVALID_REPLICATION_FACTOR, f"expected {len(before)} brokers, not {len(after)}"
    if before != after or log in context.broker.node.replica_changes():
        change = context.broker.node.admin.change_replicas(log, after, ordered_by=requester_of(context))
        return await make_change(change, request.timeout_ms)
    return ErrorCode.NONE, None


@handles(ListPartitionReassignmentsRequest, show_only("topics", lambda user, topic: user.may_see(topic.name)))
async def list_reassignments(
    context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Answer with the ongoing reassignments."""
    cluster = context.view_cluster()
    asked = None if request.topics is None else {each.name: set(each.partition_indexes) for each in request.topics}
    topics: dict[str, list[OngoingPartitionReassignment]] = {}
    for log, replicas in context.broker.node.replica_changes().items():
        is_asked = asked is None or log.number in asked.get(log.topic, ())
        is_cancelled = not replicas.added and not replicas.removed
        if not is_asked or is_cancelled or is_internal_topic(log.topic):
            continue
        present = cluster.replicas_of(log)
        copying = [each for each in replicas.added if each not in present]
        topics.setdefault(log.topic, []).append(
            OngoingPartitionReassignment(
                partition_index=log.number,
                replicas=cluster.numbers_of((*present, *copying)),  # as in Kafka, the others are a part of these
                adding_replicas=cluster.numbers_of(replicas.added),
                removing_replicas=cluster.numbers_of(replicas.removed),
            )
        )
    return ListPartitionReassignmentsResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        topics=[OngoingTopicReassignment(name=name, partitions=each) for name, each in topics.items()],
    )


_REQUIRE_MOVE = require_each("topic_partitions", Permissions.may_move, answers="replica_election_results")


def _authorize_elections(user: Permissions, context: RequestContext, request: ElectLeadersRequest) -> Decision:
    """Require the permission to move the topics; for all topics, the one to change the cluster."""
    if request.topic_partitions is not None:
        return _REQUIRE_MOVE(user, context, request)
    is_permitted = user.allow(Operation.ALTER, ResourceType.CLUSTER)
    return None if is_permitted else refuse(ElectLeadersResponse, request, CLUSTER_REFUSED)


@handles(ElectLeadersRequest, _authorize_elections)
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
    return ElectLeadersResponse(replica_election_results=_describe_elections(partitions, results))


async def _elect(context: RequestContext, log: Log | None, request: ElectLeadersRequest) -> ErrorCode:
    if log is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if request.election_type == PREFERRED:
        return await context.broker.elections.elect_preferred(log, max(request.timeout_ms, 0) / 1000)
    # An unclean election would lose acknowledged records.
    has_leader = log.leadership.is_led or log.leadership.leader
    return ErrorCode.ELECTION_NOT_NEEDED if has_leader else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def _describe_elections(
    partitions: Iterable[tuple[str, int]], results: dict[tuple[str, int], ErrorCode]
) -> list[ReplicaElectionResult]:
    topics: dict[str, list[PartitionElectionResult]] = {}
    for name, number in partitions:
        error = results[name, number]
        topics.setdefault(name, []).append(
            PartitionElectionResult(partition_id=number, error_code=error, error_message=None)
        )
    return [ReplicaElectionResult(topic=name, partition_result=each) for name, each in topics.items()]
