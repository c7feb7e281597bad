"""Topics, settings, offsets and groups, as an administrator's client sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import (
    AdminClient,
    NewPartitions,
    NewTopic,
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
