"""Clients name the brokers that keep logs by number, when they create topics and later."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis.reassignments import alter_reassignments, list_reassignments
from dafka.kafka.apis.topics import create_partitions, create_topics
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    OngoingPartitionReassignment,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopic,
)
from dafka.kafka.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
)
from tests.kafka.apis.fake_cluster import OWN, SECOND, THIRD, FakeCluster


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


async def create(
    cluster: FakeCluster, factor: int = -1, assigned: Sequence[tuple[int, list[int]]] = (), *, is_trial: bool = False
) -> CreatableTopicResult:
    topic = CreatableTopic(
        name="new",
        num_partitions=-1 if assigned else 2,
        replication_factor=factor,
        assignments=[CreatableReplicaAssignment(partition_index=n, broker_ids=each) for n, each in assigned],
        configs=[],
    )
    request = CreateTopicsRequest(topics=[topic], validate_only=is_trial)
    return (await create_topics(cluster.client(ApiKey.CREATE_TOPICS, 7), request)).topics[0]


@pytest.mark.parametrize(("factor", "replicas"), [(-1, 0), (1, 1), (3, 3)])
async def test_topics_get_a_replication_factor(cluster: FakeCluster, factor: int, replicas: int) -> None:
    assert (await create(cluster, factor)).error_code == ErrorCode.NONE
    assert cluster.broker.created == [("new", 2, replicas, [])]


@pytest.mark.parametrize("factor", [0, -2, 4])
async def test_impossible_replication_factors_are_refused(cluster: FakeCluster, factor: int) -> None:
    assert (await create(cluster, factor)).error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert not cluster.broker.created


async def test_dead_brokers_do_not_count(cluster: FakeCluster) -> None:
    cluster.live(SECOND)
    found = await create(cluster, 3)
    assert found.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert found.error_message == "expected a replication factor from 1 to 2, the number of living brokers, not 3"


async def test_trials_name_the_replicas_that_there_would_be(cluster: FakeCluster) -> None:
    assert (await create(cluster, -1, is_trial=True)).replication_factor == 2
    assert (await create(cluster, 3, is_trial=True)).replication_factor == 3
    assert not cluster.broker.created


async def test_topics_are_placed_on_brokers(cluster: FakeCluster) -> None:
    found = await create(cluster, assigned=[(1, [1, 0]), (0, [2, 1])])
    assert (found.error_code, found.num_partitions, found.replication_factor) == (ErrorCode.NONE, 2, 2)
    assert cluster.broker.created == [("new", 2, 0, [(THIRD, SECOND), (SECOND, OWN)])]


@pytest.mark.parametrize(
    "assigned",
    [
        [(0, [])],
        [(0, [1, 1])],
        [(0, [1, 7])],
        [(0, [0]), (1, [0, 1])],
        [(0, [0]), (2, [1])],
        [(0, [0]), (0, [1])],
    ],
    ids=["none", "twice", "unknown", "different", "gap", "repeated"],
)
async def test_impossible_assignments_are_refused(cluster: FakeCluster, assigned: list[tuple[int, list[int]]]) -> None:
    found = await create(cluster, assigned=assigned)
    assert found.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert not cluster.broker.created


async def add_logs(cluster: FakeCluster, count: int, assigned: list[list[int]]) -> CreatePartitionsTopicResult:
    topic = CreatePartitionsTopic(
        name="t", count=count, assignments=[CreatePartitionsAssignment(broker_ids=each) for each in assigned]
    )
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
    return (await create_partitions(cluster.client(ApiKey.CREATE_PARTITIONS, 3), request)).results[0]


async def test_further_logs_are_placed_on_brokers(cluster: FakeCluster) -> None:
    assert (await add_logs(cluster, 3, [[1, 2], [0]])).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert (await add_logs(cluster, 3, [[1, 2]])).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert cluster.broker.topics["t"].log_count == 1
    assert (await add_logs(cluster, 3, [[1, 2], [0, 1]])).error_code == ErrorCode.NONE
    logs = cluster.broker.logs("t")
    assert cluster.broker.moved == [(logs[1], (SECOND, THIRD)), (logs[2], (OWN, SECOND))]


async def reassign(
    cluster: FakeCluster, replicas: list[int] | None, *, number: int = 0, may_change_count: bool = True
) -> ReassignablePartitionResponse:
    partition = ReassignablePartition(partition_index=number, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=may_change_count, topics=[ReassignableTopic(name="t", partitions=[partition])]
    )
    client = cluster.client(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1)
    return (await alter_reassignments(client, request)).responses[0].partitions[0]


async def ongoing(
    cluster: FakeCluster, asked: list[ListPartitionReassignmentsTopics] | None = None
) -> list[OngoingPartitionReassignment]:
    client = cluster.client(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0)
    found = await list_reassignments(client, ListPartitionReassignmentsRequest(topics=asked))
    return [part for topic in found.topics for part in topic.partitions]


async def test_logs_are_moved_to_other_brokers(cluster: FakeCluster) -> None:
    assert (await reassign(cluster, [2, 0])).error_code == ErrorCode.NONE
    assert cluster.broker.moved == [(cluster.log, (THIRD, OWN))]
    (found,) = await ongoing(cluster)
    assert (found.replicas, found.adding_replicas, found.removing_replicas) == ([0, 1], [2], [1])
    assert not await ongoing(cluster, [ListPartitionReassignmentsTopics(name="t", partition_indexes=[1])])
    assert await ongoing(cluster, [ListPartitionReassignmentsTopics(name="t", partition_indexes=[0])])
    cluster.lead(replicas=(OWN, SECOND, THIRD))
    (found,) = await ongoing(cluster)
    assert (found.replicas, found.adding_replicas, found.removing_replicas) == ([0, 1, 2], [], [1])
    cluster.lead(replicas=(THIRD, OWN))
    assert not await ongoing(cluster)


async def test_moves_are_cancelled(cluster: FakeCluster) -> None:
    assert (await reassign(cluster, None)).error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    await reassign(cluster, [2, 0])
    assert (await reassign(cluster, None)).error_code == ErrorCode.NONE
    assert cluster.broker.moved[-1] == (cluster.log, ()), "the cluster chooses"
    assert not await ongoing(cluster)


async def test_moves_of_deleted_topics_are_forgotten(cluster: FakeCluster) -> None:
    await reassign(cluster, [2, 0])
    cluster.broker.log_table.remove_topic("t")
    assert not await ongoing(cluster)


async def test_impossible_moves_are_refused(cluster: FakeCluster) -> None:
    assert (await reassign(cluster, [0, 7])).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert (await reassign(cluster, [])).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert (await reassign(cluster, [0], number=5)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    refused = await reassign(cluster, [0], may_change_count=False)
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert not cluster.broker.moved
    assert (await reassign(cluster, [0])).error_code == ErrorCode.NONE
