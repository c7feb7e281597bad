"""What consoles ask: logs page by page, their sizes, their producers, and what has settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer

from dafka import Config
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.messages.cluster import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from dafka.kafka.protocol.messages.configs import ListConfigResourcesRequest, ListConfigResourcesResponse
from dafka.kafka.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from dafka.kafka.protocol.messages.transactions import DescribeProducersRequest, DescribeProducersResponse
from dafka.kafka.protocol.messages.transactions import TopicRequest as ProducersTopic
from tests.kafka.server.fixtures import RunningBroker, run_broker
from tests.kafka.server.test_connections import RawClient

DEADLINE_S = 60


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with run_broker(f"filelog:{tmp_path_factory.mktemp('broker')}/log", Config()) as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[RawClient]:
    with closing(RawClient(broker.bootstrap_servers)) as connected:
        topics = [
            CreatableTopic(name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[])
            for name, count in (("a", 3), ("b", 2))
        ]
        created = connected.ask(CreateTopicsRequest(topics=topics), 4, CreateTopicsResponse)
        assert [each.error_code for each in created.topics] == [ErrorCode.NONE, ErrorCode.NONE]
        yield connected


def test_logs_are_described_page_by_page(client: RawClient) -> None:
    found: list[tuple[str | None, int]] = []
    pages, cursor = 0, None
    while True:
        asked = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=2, cursor=cursor)
        page = client.ask(asked, 0, DescribeTopicPartitionsResponse)
        found += [(topic.name, part.partition_index) for topic in page.topics for part in topic.partitions]
        pages, cursor = pages + 1, page.next_cursor
        if cursor is None:
            break
    assert found == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
    assert pages == 3
    named = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name) for name in ("b", "unknown")])
    known, unknown = client.ask(named, 0, DescribeTopicPartitionsResponse).topics
    assert (known.name, len(known.partitions), unknown.error_code) == ("b", 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    named.cursor = Cursor(topic_name="b", partition_index=1)
    known, _ = client.ask(named, 0, DescribeTopicPartitionsResponse).topics
    assert [each.partition_index for each in known.partitions] == [1]


def test_sizes_of_logs(broker: RunningBroker, client: RawClient) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("a", b"x" * 10_000, partition=1)
    assert producer.flush(DEADLINE_S) == 0
    (result,) = client.ask(DescribeLogDirsRequest(topics=None), 4, DescribeLogDirsResponse).results
    sizes = {each.name: [part.partition_size for part in each.partitions] for each in result.topics}
    assert sizes["b"] == [0, 0]
    assert sizes["a"][0] == sizes["a"][2] == 0
    assert sizes["a"][1] >= 10_000
    asked = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="a", partitions=[1])])
    (result,) = client.ask(asked, 1, DescribeLogDirsResponse).results
    assert [(each.name, [part.partition_index for part in each.partitions]) for each in result.topics] == [("a", [1])]


def test_producers_of_a_log(broker: RunningBroker, client: RawClient) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions(DEADLINE_S)
    for number in range(2):
        producer.begin_transaction()
        producer.produce("a", b"x", partition=0)
        producer.flush(DEADLINE_S)
        asked = DescribeProducersRequest(topics=[ProducersTopic(name="a", partition_indexes=[0, 9])])
        (topic,) = client.ask(asked, 0, DescribeProducersResponse).topics
        log, missing = topic.partitions
        (state,) = log.active_producers
        # A transaction ends with a record of its own.
        assert (state.last_sequence, state.current_txn_start_offset) == (number, 2 * number)
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        producer.commit_transaction(DEADLINE_S)
    (topic,) = client.ask(asked, 0, DescribeProducersResponse).topics
    assert topic.partitions[0].active_producers[0].current_txn_start_offset == -1


def test_what_has_settings(client: RawClient) -> None:
    found = client.ask(ListConfigResourcesRequest(resource_types=[]), 1, ListConfigResourcesResponse)
    names = {(each.resource_type, each.resource_name) for each in found.config_resources}
    assert names == {(2, "a"), (2, "b"), (4, "0")}
    found = client.ask(ListConfigResourcesRequest(resource_types=[4]), 1, ListConfigResourcesResponse)
    assert [each.resource_name for each in found.config_resources] == ["0"]
