"""Clients name the brokers that keep logs by number, when they create topics and later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.fake_cluster import OWN, SECOND, THIRD, FakeCluster

NONE = ErrorCode.NONE
BAD_FACTOR, BAD_ASSIGNMENT = ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICA_ASSIGNMENT

Assigned = Sequence[tuple[int, list[int]]]


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


async def create(
    cluster: FakeCluster, factor: int = -1, assigned: Assigned = (), *, is_trial: bool = False
) -> dict[str, Any]:
    topic = {
        "name": "new",
        "num_partitions": -1 if assigned else 2,
        "replication_factor": factor,
        "assignments": [{"partition_index": number, "broker_ids": each} for number, each in assigned],
        "configs": [],
    }
    found = await cluster.ask(ApiKey.CREATE_TOPICS, 7, topics=[topic], validate_only=is_trial)
    (result,) = found["topics"]
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize(
    ("factor", "assigned", "created"),
    [
        (-1, [], ("new", 2, 0, [])),
        (1, [], ("new", 2, 1, [])),
        (3, [], ("new", 2, 3, [])),
        (-1, [(1, [1, 0]), (0, [2, 1])], ("new", 2, 0, [(THIRD, SECOND), (SECOND, OWN)])),
        *((factor, [], BAD_FACTOR) for factor in (0, -2, 4)),
        (-1, [(0, [])], BAD_ASSIGNMENT),
        (-1, [(0, [1, 1])], BAD_ASSIGNMENT),
        (-1, [(0, [1, 7])], BAD_ASSIGNMENT),
        (-1, [(0, [0]), (1, [0, 1])], BAD_ASSIGNMENT),
        (-1, [(0, [0]), (2, [1])], BAD_ASSIGNMENT),
        (-1, [(0, [0]), (0, [1])], BAD_ASSIGNMENT),
    ],
)
async def test_topics_get_the_replicas_that_are_asked_for_or_an_error(
    cluster: FakeCluster, factor: int, assigned: Assigned, created: tuple[object, ...] | ErrorCode
) -> None:
    found = await create(cluster, factor, assigned)
    error = created if isinstance(created, ErrorCode) else NONE
    assert (found["error_code"], cluster.broker.created) == (error, [] if error else [created])


async def test_dead_brokers_do_not_count(cluster: FakeCluster) -> None:
    cluster.live(SECOND)
    found = await create(cluster, 3)
    assert found["error_code"] == BAD_FACTOR
    assert found["error_message"] == "expected a replication factor from 1 to 2, the number of living brokers, not 3"


async def test_trials_name_the_replicas_that_there_would_be(cluster: FakeCluster) -> None:
    assert (await create(cluster, -1, is_trial=True))["replication_factor"] == 2
    assert (await create(cluster, 3, is_trial=True))["replication_factor"] == 3
    assert not cluster.broker.created


async def test_further_logs_are_placed_on_brokers(cluster: FakeCluster) -> None:
    for assigned, error, log_count in (
        ([[1, 2], [0]], BAD_ASSIGNMENT, 1),
        ([[1, 2]], BAD_ASSIGNMENT, 1),
        ([[1, 2], [0, 1]], NONE, 3),
    ):
        topic = {"name": "t", "count": 3, "assignments": [{"broker_ids": each} for each in assigned]}
        found = await cluster.ask(ApiKey.CREATE_PARTITIONS, 3, topics=[topic], timeout_ms=1000, validate_only=False)
        assert (found["results"][0]["error_code"], cluster.broker.topics["t"].log_count) == (error, log_count)
    logs = cluster.broker.logs("t")
    assert cluster.broker.moved == [(logs[1], (SECOND, THIRD)), (logs[2], (OWN, SECOND))]


async def reassign(
    cluster: FakeCluster, replicas: list[int] | None, *, number: int = 0, may_change_count: bool = True
) -> int:
    """Have other brokers keep the log, or cancel that. Return the error."""
    topics = [{"name": "t", "partitions": [{"partition_index": number, "replicas": replicas}]}]
    found = await cluster.ask(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, allow_replication_factor_change=may_change_count, topics=topics
    )
    return int(found["responses"][0]["partitions"][0]["error_code"])


async def ongoing(cluster: FakeCluster, *numbers: int) -> list[tuple[list[int], list[int], list[int]]]:
    """Return the replicas of each log that is moving, those that are added, and those that are removed."""
    asked = [{"name": "t", "partition_indexes": list(numbers)}] if numbers else None
    found = await cluster.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=asked)
    return [
        (part["replicas"], part["adding_replicas"], part["removing_replicas"])
        for topic in found["topics"]
        for part in topic["partitions"]
    ]


async def test_logs_are_moved_to_other_brokers(cluster: FakeCluster) -> None:
    assert await reassign(cluster, [2, 0]) == NONE
    assert cluster.broker.moved == [(cluster.log, (THIRD, OWN))]
    assert await ongoing(cluster) == await ongoing(cluster, 0) == [([0, 1], [2], [1])]
    assert await ongoing(cluster, 1) == []
    cluster.lead(replicas=(OWN, SECOND, THIRD))
    assert await ongoing(cluster) == [([0, 1, 2], [], [1])]
    cluster.lead(replicas=(THIRD, OWN))
    assert await ongoing(cluster) == []


async def test_moves_are_cancelled_and_forgotten_with_their_topic(cluster: FakeCluster) -> None:
    assert await reassign(cluster, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert [await reassign(cluster, each) for each in ([2, 0], None)] == [NONE, NONE]
    assert cluster.broker.moved[-1] == (cluster.log, ()), "the cluster chooses"
    assert await ongoing(cluster) == []
    await reassign(cluster, [2, 0])
    cluster.broker.log_table.remove_topic("t")
    assert await ongoing(cluster) == []


async def test_impossible_moves_are_refused(cluster: FakeCluster) -> None:
    assert await reassign(cluster, [0, 7]) == BAD_ASSIGNMENT
    assert await reassign(cluster, []) == BAD_ASSIGNMENT
    assert await reassign(cluster, [0], number=5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await reassign(cluster, [0], may_change_count=False) == BAD_FACTOR
    assert not cluster.broker.moved
    assert await reassign(cluster, [0]) == NONE
