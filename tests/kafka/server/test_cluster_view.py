"""What clients learn of brokers, leaders and replicas."""

from __future__ import annotations

import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.kafka.apis.configs import list_config_resources
from dafka.kafka.apis.metadata import describe_cluster, describe_metadata, describe_topic_partitions
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.messages.cluster import (
    DescribeClusterRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponsePartition,
)
from dafka.kafka.protocol.messages.configs import ConfigResource, ListConfigResourcesRequest
from dafka.kafka.protocol.messages.topics import DescribeTopicPartitionsRequest
from dafka.kafka.server.cluster_view import NO_NODE, split_listener
from tests.kafka.apis.fake_cluster import ENDPOINT, OWN, SECOND, THIRD, FakeCluster


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


async def partition_of(cluster: FakeCluster) -> MetadataResponsePartition:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    (topic,) = (await describe_metadata(cluster.client(ApiKey.METADATA, 9), request)).topics
    (partition,) = topic.partitions
    return partition


async def test_metadata_names_the_brokers_that_clients_reach(cluster: FakeCluster) -> None:
    found = await describe_metadata(cluster.client(ApiKey.METADATA, 9), MetadataRequest(topics=None))
    nodes = [(each.node_id, each.host, each.port, each.rack) for each in found.brokers]
    assert nodes == [(0, *ENDPOINT, "one"), (1, "fd00::1", 9093, "two")]
    cluster.live(THIRD)
    found = await describe_metadata(cluster.client(ApiKey.METADATA, 9), MetadataRequest(topics=None))
    assert [each.node_id for each in found.brokers] == [0]


async def test_cluster_has_one_id_and_one_controller(cluster: FakeCluster) -> None:
    found = await describe_cluster(
        cluster.client(ApiKey.DESCRIBE_CLUSTER, 0),
        DescribeClusterRequest(include_cluster_authorized_operations=False),
    )
    assert (found.cluster_id, found.controller_id) == (OWN, 0)
    assert [(each.broker_id, each.host, each.rack) for each in found.brokers] == [
        (0, "own.example", "one"),
        (1, "fd00::1", "two"),
    ]
    metadata = await describe_metadata(cluster.client(ApiKey.METADATA, 9), MetadataRequest(topics=[]))
    assert (metadata.cluster_id, metadata.controller_id) == (OWN, 0)


async def test_cluster_id_stays_when_its_broker_dies() -> None:
    cluster = FakeCluster()
    brokers = cluster.broker.brokers
    brokers.own = BrokerRegistration(address=OWN, number=3)
    found = await describe_metadata(cluster.client(ApiKey.METADATA, 9), MetadataRequest(topics=[]))
    assert (found.cluster_id, found.controller_id) == (SECOND, 1)
    cluster.live(THIRD)
    found = await describe_metadata(cluster.client(ApiKey.METADATA, 9), MetadataRequest(topics=[]))
    assert (found.cluster_id, found.controller_id) == (SECOND, 3)


async def test_leader_describes_its_replicas(cluster: FakeCluster) -> None:
    cluster.lead(replicas=(OWN, SECOND, THIRD), in_sync=(OWN, SECOND, THIRD))
    cluster.live(THIRD)
    found = await partition_of(cluster)
    assert (found.error_code, found.leader_id, found.leader_epoch) == (ErrorCode.NONE, 0, 5)
    assert (found.replica_nodes, found.isr_nodes, found.offline_replicas) == ([0, 1, 2], [0, 2], [1])


async def test_other_brokers_take_living_replicas_for_those_in_sync(cluster: FakeCluster) -> None:
    cluster.follow(SECOND, epoch=7)
    found = await partition_of(cluster)
    assert (found.error_code, found.leader_id, found.leader_epoch) == (ErrorCode.NONE, 1, 7)
    assert (found.replica_nodes, found.isr_nodes) == ([0, 1], [0, 1])


@pytest.mark.parametrize("leader", ["", SECOND, THIRD])
async def test_leader_that_clients_cannot_reach_is_not_available(cluster: FakeCluster, leader: str) -> None:
    cluster.live(THIRD)  # it lives, but has no listener
    cluster.follow(leader)
    found = await partition_of(cluster)
    assert (found.error_code, found.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, NO_NODE)
    described = await describe_topic_partitions(
        cluster.client(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0), DescribeTopicPartitionsRequest(topics=[])
    )
    (part,) = described.topics[0].partitions
    assert (part.error_code, part.leader_id, part.offline_replicas) == (ErrorCode.LEADER_NOT_AVAILABLE, NO_NODE, [1])


async def test_a_broker_that_is_cut_off_names_the_last_leader_that_it_knew(cluster: FakeCluster) -> None:
    """Clients that ask it would otherwise take all logs for leaderless, and stop publishing."""
    cluster.live()
    cluster.follow("", epoch=7, presumed_leader=SECOND)
    found = await describe_metadata(
        cluster.client(ApiKey.METADATA, 9), MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    )
    [part] = found.topics[0].partitions
    assert (part.error_code, part.leader_id, part.leader_epoch) == (ErrorCode.NONE, 1, 7)
    assert [each.node_id for each in found.brokers] == [0, 1]
    assert part.offline_replicas == [1]


async def test_a_new_epoch_is_told_together_with_its_leader(cluster: FakeCluster) -> None:
    """librdkafka looks for a fork when an epoch is new to it, and not when a leader is known later."""
    cluster.live()
    cluster.follow(SECOND, epoch=7)
    before = await partition_of(cluster)
    cluster.live(SECOND)
    after = await partition_of(cluster)
    assert [(each.leader_id, each.leader_epoch) for each in (before, after)] == [(NO_NODE, 6), (1, 7)]
    asked = cluster.client(ApiKey.FETCH, 16).view_cluster().describe_leader(cluster.log)
    assert (asked.leader_id, asked.leader_epoch) == (1, 7)


async def test_topics_that_are_created_by_asking_are_described(cluster: FakeCluster) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="new")])
    (topic,) = (await describe_metadata(cluster.client(ApiKey.METADATA, 9), request)).topics
    assert (topic.error_code, topic.partitions[0].leader_id) == (ErrorCode.NONE, 0)


async def test_brokers_with_settings_are_listed(cluster: FakeCluster) -> None:
    found = await list_config_resources(
        cluster.client(ApiKey.LIST_CONFIG_RESOURCES, 1), ListConfigResourcesRequest(resource_types=[4])
    )
    assert found.config_resources == [ConfigResource(resource_name=name, resource_type=4) for name in ("0", "1")]


async def test_readers_are_sent_to_a_replica_in_their_rack(cluster: FakeCluster) -> None:
    def chosen(rack: str) -> int:
        return cluster.client(ApiKey.FETCH, 11).view_cluster().find_read_replica(cluster.log, rack)

    cluster.lead(is_follower_readable=True)
    assert [chosen(rack) for rack in ("", "one", "two", "three")] == [NO_NODE, NO_NODE, 1, NO_NODE]
    cluster.lead(is_follower_readable=True, in_sync=(OWN,))
    assert chosen("two") == NO_NODE
    cluster.lead(is_follower_readable=True)
    cluster.live()
    assert chosen("two") == NO_NODE
    cluster.live(SECOND)
    cluster.lead(is_follower_readable=False)
    assert chosen("two") == NO_NODE


async def test_broker_with_a_number_of_its_own_is_not_hidden_by_another(cluster: FakeCluster) -> None:
    cluster.broker.brokers.record_registration(BrokerRegistration(address=THIRD, number=0, kafka_listener="other:1"))
    view = cluster.client(ApiKey.METADATA, 9).view_cluster()
    assert [(each.node_id, each.host) for each in view.nodes] == [(0, "own.example"), (1, "fd00::1")]


@pytest.mark.parametrize(
    ("listener", "expected"),
    [("a:1", ("a", 1)), ("[::1]:2", ("::1", 2)), ("", None), ("a", None), ("a:b", None), ("a:1/x", None)],
)
def test_listeners_are_split(listener: str, expected: tuple[str, int] | None) -> None:
    assert split_listener(listener) == expected
