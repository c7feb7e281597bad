"""What clients learn of brokers, leaders and replicas."""

from __future__ import annotations

from typing import Any

import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.topics import Topic
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.messages.logs import LeaderIdAndEpoch
from dafka.kafka.server.cluster_view import NO_NODE, split_listener
from tests.kafka.apis.fake_cluster import ENDPOINT, OWN, SECOND, THIRD, FakeCluster

NONE, UNAVAILABLE = ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE
NODES = [(0, *ENDPOINT, "one"), (1, "fd00::1", 9093, "two")]


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


async def ask(cluster: FakeCluster, *topics: str) -> dict[str, Any]:
    """Ask for metadata of topics; of all of them if none is named."""
    asked = [{"name": each} for each in topics] if topics else None
    found = await cluster.ask(ApiKey.METADATA, 9, topics=asked)
    assert isinstance(found, dict)
    return found


def nodes_in(found: dict[str, Any], number: str = "node_id") -> list[tuple[object, ...]]:
    return [(each[number], each["host"], each["port"], each["rack"]) for each in found["brokers"]]


async def partition_of(cluster: FakeCluster) -> dict[str, Any]:
    (topic,) = (await ask(cluster, "t"))["topics"]
    (partition,) = topic["partitions"]
    assert isinstance(partition, dict)
    return partition


def leader_in(partition: dict[str, Any]) -> tuple[int, int, int]:
    return partition["error_code"], partition["leader_id"], partition["leader_epoch"]


async def test_clients_learn_of_the_brokers_that_they_reach(cluster: FakeCluster) -> None:
    found = await ask(cluster)
    assert nodes_in(found) == NODES
    described = await cluster.ask(ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False)
    assert nodes_in(described, "broker_id") == NODES
    for each in (found, described):
        assert (each["cluster_id"], each["controller_id"]) == ("C" * 32, 0)
    listed = await cluster.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[4])
    assert [each["resource_name"] for each in listed["config_resources"]] == ["0", "1"]
    cluster.live(THIRD)
    assert nodes_in(await ask(cluster)) == NODES[:1]


async def test_dead_brokers_are_shown_to_clients_that_ask_for_fenced_ones(cluster: FakeCluster) -> None:
    for living, expected in (((SECOND, THIRD), [(0, False), (1, False)]), ((THIRD,), [(0, False), (1, True)])):
        cluster.live(*living)
        for is_asked in (False, True):
            asked = {"include_cluster_authorized_operations": False, "include_fenced_brokers": is_asked}
            found = await cluster.ask(ApiKey.DESCRIBE_CLUSTER, 2, **asked)
            shown = expected if is_asked else [each for each in expected if not each[1]]
            assert [(each["broker_id"], each["is_fenced"]) for each in found["brokers"]] == shown
            assert nodes_in(found, "broker_id") == NODES[: len(shown)]


async def test_clients_get_the_controller_or_another_broker_that_they_reach(cluster: FakeCluster) -> None:
    """The controller can be dead, not known, or have no listener for clients of Kafka."""
    cluster.broker.brokers.own = BrokerRegistration(address=OWN, number=3)
    for controller, number in ((SECOND, 1), (OWN, 3), (THIRD, 1), ("", 1)):
        cluster.broker.controller_address = controller
        assert (await ask(cluster))["controller_id"] == number
    cluster.live(THIRD)
    cluster.broker.controller_address = SECOND
    assert (await ask(cluster))["controller_id"] == 3


async def test_leader_describes_its_replicas(cluster: FakeCluster) -> None:
    cluster.lead(replicas=(OWN, SECOND, THIRD), in_sync=(OWN, SECOND, THIRD))
    cluster.live(THIRD)
    found = await partition_of(cluster)
    assert leader_in(found) == (NONE, 0, 5)
    assert (found["replica_nodes"], found["isr_nodes"], found["offline_replicas"]) == ([0, 1, 2], [0, 2], [1])
    for is_led, expected in ((True, [0]), (False, [])):
        cluster.log.leadership = LeaderAndIsr(OWN if is_led else "", 5, is_led=is_led)
        found = await partition_of(cluster)
        assert found["replica_nodes"] == found["isr_nodes"] == expected, "before its replicas are known"


async def test_other_brokers_take_living_replicas_for_those_in_sync(cluster: FakeCluster) -> None:
    cluster.follow(SECOND, epoch=7, in_sync=(SECOND,))
    found = await partition_of(cluster)
    assert leader_in(found) == (NONE, 1, 7)
    assert (found["replica_nodes"], found["isr_nodes"]) == ([0, 1], [0, 1])


@pytest.mark.parametrize("leader", ["", SECOND, THIRD])
async def test_leader_that_clients_cannot_reach_is_not_available(cluster: FakeCluster, leader: str) -> None:
    cluster.live(THIRD)  # it lives, but has no listener
    cluster.follow(leader)
    assert leader_in(await partition_of(cluster))[:2] == (UNAVAILABLE, NO_NODE)
    described = await cluster.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[])
    (part,) = described["topics"][0]["partitions"]
    assert (*leader_in(part)[:2], part["offline_replicas"]) == (UNAVAILABLE, NO_NODE, [1])


async def test_a_broker_that_is_cut_off_names_the_last_leader_that_it_knew(cluster: FakeCluster) -> None:
    """Clients that ask it would otherwise take all logs for leaderless, and stop publishing."""
    cluster.live()
    cluster.follow("", epoch=7, presumed_leader=SECOND)
    part = await partition_of(cluster)
    assert (leader_in(part), part["offline_replicas"]) == ((NONE, 1, 7), [1])
    assert nodes_in(await ask(cluster, "t")) == NODES


async def test_a_new_epoch_is_told_together_with_its_leader(cluster: FakeCluster) -> None:
    """librdkafka looks for a fork when an epoch is new to it, and not when a leader is known later.

    Without a leader, other responses say nothing of it: librdkafka crashes if they say that there is none.
    """
    cluster.follow(SECOND, epoch=7)
    found, named = [], []
    for living in ((), (SECOND,)):
        cluster.live(*living)
        found.append(leader_in(await partition_of(cluster))[1:])
        named.append(cluster.client(ApiKey.FETCH, 16).view_cluster().describe_leader(cluster.log))
    assert found == [(NO_NODE, 6), (1, 7)]
    assert named == [None, LeaderIdAndEpoch(leader_id=1, leader_epoch=7)]


async def test_topics_that_are_created_by_asking_are_described(cluster: FakeCluster) -> None:
    (topic,) = (await ask(cluster, "new"))["topics"]
    assert (topic["error_code"], topic["partitions"][0]["leader_id"]) == (NONE, 0)


async def test_readers_are_sent_to_a_replica_in_their_rack(cluster: FakeCluster) -> None:
    def chosen(rack: str) -> int:
        return cluster.client(ApiKey.FETCH, 11).view_cluster().find_read_replica(cluster.log, rack)

    cluster.lead(is_follower_readable=True)
    assert [chosen(rack) for rack in ("", "one", "two", "three")] == [NO_NODE, NO_NODE, 1, NO_NODE]
    in_sync, alive = (OWN, SECOND), (SECOND,)
    cases: list[tuple[dict[str, Any], tuple[str, ...], int]] = [
        ({"in_sync": in_sync, "is_follower_readable": True}, alive, 1),
        ({"in_sync": (OWN,), "is_follower_readable": True}, alive, NO_NODE),
        ({"in_sync": in_sync, "is_follower_readable": True}, (), NO_NODE),
        ({"in_sync": in_sync, "is_follower_readable": False}, alive, NO_NODE),
    ]
    for leadership, living, expected in cases:
        cluster.lead(**leadership)
        cluster.live(*living)
        assert chosen("two") == expected


async def test_readers_of_several_logs_are_sent_to_several_replicas(cluster: FakeCluster) -> None:
    registration = BrokerRegistration(address=THIRD, number=2, rack="two", kafka_listener="third.example:1")
    cluster.broker.brokers.record_registration(registration)
    cluster.broker.log_table.add_topic(Topic("u", "1" * 32, 3))
    cluster.lead(replicas=(OWN, SECOND, THIRD), is_follower_readable=True)
    chosen = []
    for log in cluster.broker.logs("u"):
        log.leadership = cluster.log.leadership
        chosen.append(cluster.client(ApiKey.FETCH, 11).view_cluster().find_read_replica(log, "two"))
    assert chosen == [1, 2, 1]


async def test_broker_with_a_number_of_its_own_is_not_hidden_by_another(cluster: FakeCluster) -> None:
    cluster.broker.brokers.record_registration(BrokerRegistration(address=THIRD, number=0, kafka_listener="other:1"))
    view = cluster.client(ApiKey.METADATA, 9).view_cluster()
    assert [(each.node_id, each.host) for each in view.nodes] == [(0, "own.example"), (1, "fd00::1")]


def test_listeners_are_split() -> None:
    expected = {"a:1": ("a", 1), "[::1]:2": ("::1", 2), **dict.fromkeys(("", "a", "a:b", "a:1/x"))}
    assert {each: split_listener(each) for each in expected} == expected
