"""Topics, settings, offsets and groups, as an administrator's client sees them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.kafka.server.clients import Confluent, Message
from tests.kafka.server.fixtures import run_broker

DEADLINE_S = 60


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_broker(f"filelog:{tmp_path_factory.mktemp('broker')}/log") as running:
        yield running.bootstrap_servers


@pytest.fixture(scope="module")
def admin(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers})


def result_of(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(DEADLINE_S)


def offset_of(admin: AdminClient, partition: TopicPartition, spec: OffsetSpec) -> int:
    return int(result_of(admin.list_offsets({partition: spec})).offset)


def test_topics_are_created_and_deleted(admin: AdminClient) -> None:
    result_of(admin.create_topics([NewTopic("created", 3, 1, config={"retention.ms": "5000"})]))
    topics = admin.list_topics(timeout=DEADLINE_S).topics
    assert sorted(topics["created"].partitions) == [0, 1, 2]
    with pytest.raises(Exception, match="TOPIC_ALREADY_EXISTS"):
        result_of(admin.create_topics([NewTopic("created", 1, 1)]))
    with pytest.raises(Exception, match="TOPIC_EXCEPTION"):
        result_of(admin.create_topics([NewTopic("a/b", 1, 1)]))
    with pytest.raises(Exception, match="INVALID_REPLICATION_FACTOR"):
        result_of(admin.create_topics([NewTopic("three", 1, 3)]))
    result_of(admin.create_partitions([NewPartitions("created", 5)]))
    assert len(admin.list_topics(timeout=DEADLINE_S).topics["created"].partitions) == 5
    result_of(admin.delete_topics(["created"]))
    assert "created" not in admin.list_topics(timeout=DEADLINE_S).topics


def test_settings_are_changed(admin: AdminClient) -> None:
    result_of(admin.create_topics([NewTopic("configured", 1, 1)]))

    def setting(name: str) -> str:
        found = result_of(admin.describe_configs([ConfigResource(ResourceType.TOPIC, "configured")]))
        return str(found[name].value)

    assert setting("retention.ms") == "-1"
    entry = ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET)
    result_of(
        admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, "configured", incremental_configs=[entry])])
    )
    assert setting("retention.ms") == "60000"
    wrong = ConfigEntry("retention.ms", "soon", incremental_operation=AlterConfigOpType.SET)
    with pytest.raises(Exception, match="INVALID_CONFIG"):
        result_of(
            admin.incremental_alter_configs(
                [ConfigResource(ResourceType.TOPIC, "configured", incremental_configs=[wrong])]
            )
        )
    broker = result_of(admin.describe_configs([ConfigResource(ResourceType.BROKER, "0")]))
    assert broker["num.partitions"].value == "1"


def test_offsets_are_listed_and_records_deleted(servers: str, admin: AdminClient) -> None:
    Confluent().write(servers, "offsets", [Message(b"%d" % n, timestamp=1000 + n) for n in range(10)], "none")
    partition = TopicPartition("offsets", 0)
    assert offset_of(admin, partition, OffsetSpec.earliest()) == 0
    assert offset_of(admin, partition, OffsetSpec.latest()) == 10
    assert offset_of(admin, partition, OffsetSpec.for_timestamp(1004)) == 4
    assert offset_of(admin, partition, OffsetSpec.max_timestamp()) == 9
    result_of(admin.delete_records([TopicPartition("offsets", 0, 6)]))
    assert offset_of(admin, partition, OffsetSpec.earliest()) == 6
    assert [each.value for each in Confluent().read(servers, "offsets", 4)] == [b"6", b"7", b"8", b"9"]


def test_groups_are_listed_described_and_deleted(servers: str, admin: AdminClient) -> None:
    Confluent().write(servers, "grouped", [Message(b"%d" % n) for n in range(10)], "none")
    Confluent().read(servers, "grouped", 10, "readers")
    listed = admin.list_consumer_groups().result(DEADLINE_S).valid
    assert "readers" in {each.group_id for each in listed}
    described = result_of(admin.describe_consumer_groups(["readers"]))
    assert described.state.name == "EMPTY"
    offsets = result_of(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("readers")]))
    assert [each.offset for each in offsets.topic_partitions] == [10]
    result_of(admin.delete_consumer_groups(["readers"]))
    assert "readers" not in {each.group_id for each in admin.list_consumer_groups().result(DEADLINE_S).valid}


def test_cluster_is_described(admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result(DEADLINE_S)
    assert [node.id for node in cluster.nodes] == [0]


def test_topics_are_not_created_unless_that_is_configured(tmp_path: Path) -> None:
    from dafka import Config

    config = Config().with_kafka(auto_create_topics="off")
    with run_broker(f"filelog:{tmp_path}/log", config) as running:
        client = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        assert client.list_topics("unknown", timeout=DEADLINE_S).topics["unknown"].error is not None
        assert client.list_topics(timeout=DEADLINE_S).topics == {}
