"""Clients of Kafka among several brokers: they find leaders, replicas in their rack, and logs that have moved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from dafka.batches import encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from dafka.server import ServingBroker, serve_listeners
from dafka.testing.cluster import open_cluster
from tests.kafka.apis.door import Client as RawClient
from tests.kafka.server.clients import AioKafka, Client, Confluent, KafkaPython, Message, import_kafka, read_log
from tests.waiting import poll_until

DEADLINE_S = 60
RACKS = ("one", "two", "three")


@attrs.frozen
class RunningCluster:
    """Brokers in another thread. Their numbers are those of their racks."""

    brokers: list[ServingBroker]
    portal: BlockingPortal

    @property
    def servers(self) -> str:
        return ",".join(each.bootstrap_servers for each in self.brokers)

    def wait_until(self, is_reached: Callable[[], bool]) -> None:
        poll_until(lambda: self.portal.call(is_reached))

    def wait_leaders(self, topic: str, count: int) -> None:
        """Wait until all brokers agree on the leaders of a topic's logs, which are so many."""

        def is_reached() -> bool:
            found = [[log.leadership.leader for log in each.node.logs(topic)] for each in self.brokers]
            return all(len(each) == count and all(each) and each == found[0] for each in found)

        self.wait_until(is_reached)


@asynccontextmanager
async def open_brokers(folder: Path) -> AsyncIterator[list[ServingBroker]]:
    async with open_cluster(storage=None) as cluster, trio.open_nursery() as nursery:
        brokers: list[ServingBroker] = []
        for number, rack in enumerate(RACKS):
            config = cluster.config.with_store(storage=f"filelog:{folder}/{rack}").with_kafka(listen="127.0.0.1:0")
            config = config.with_broker(
                heartbeat_ms=100,
                leader_timeout_ms=20_000,
                preferred_leader_after_ms=2000,
                number=number,
                rack=rack,
                cluster=brokers[0].node.cluster_id if brokers else "",
            )
            brokers.append(await nursery.start(serve_listeners, config))
        yield brokers
        nursery.cancel_scope.cancel()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    opening = open_brokers(tmp_path_factory.mktemp("cluster"))
    with start_blocking_portal("trio") as portal, portal.wrap_async_context_manager(opening) as brokers:
        running = RunningCluster(brokers, portal)
        living = [each.node.brokers.living for each in brokers]
        running.wait_until(lambda: all([bool(each.kafka_listener) for each in of()] == [True] * 3 for of in living))
        yield running


@pytest.fixture(scope="module")
def admin(cluster: RunningCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.servers})


def create(cluster: RunningCluster, admin: AdminClient, topic: NewTopic) -> None:
    admin.create_topics([topic])[topic.topic].result(DEADLINE_S)
    cluster.wait_leaders(topic.topic, topic.num_partitions)


@pytest.mark.parametrize("client", [Confluent(), AioKafka(), KafkaPython()], ids=lambda each: type(each).__name__)
def test_clients_write_to_and_read_from_leaders(cluster: RunningCluster, admin: AdminClient, client: Client) -> None:
    topic = f"clients-{type(client).__name__}"
    create(cluster, admin, NewTopic(topic, 3, 3))
    messages = [Message(b"%d" % number, b"key-%d" % (number % 20)) for number in range(300)]
    client.write(cluster.servers, topic, messages, "none")
    found = client.read(cluster.servers, topic, len(messages))
    assert sorted(each.value or b"" for each in found) == sorted(each.value or b"" for each in messages)


def read_in(servers: str, topic: str, rack: str) -> list[bytes | None]:
    """Return the committed records of the only log of a topic, as a consumer in a rack."""
    return [value for _, value in read_log(servers, topic, client_rack=rack).values()]


def test_consumers_read_what_is_committed_in_their_rack(cluster: RunningCluster, admin: AdminClient) -> None:
    topic = "racks"
    create(cluster, admin, NewTopic(topic, 1, 3))
    producer = Producer({"bootstrap.servers": cluster.servers, "transactional.id": "t"})
    producer.init_transactions(DEADLINE_S)
    for number in range(2):
        producer.begin_transaction()
        for value in range(10):
            producer.produce(topic, b"%d-%d" % (number, value))
        assert producer.flush(DEADLINE_S) == 0
        end = producer.abort_transaction if number % 2 == 0 else producer.commit_transaction
        end(DEADLINE_S)
    expected = [b"1-%d" % value for value in range(10)]

    def is_readable() -> bool:
        logs = [each.node.logs(topic)[0] for each in cluster.brokers]
        return all(log.leadership.is_follower_readable and log.high_watermark >= 22 for log in logs)

    cluster.wait_until(is_readable)

    def consumed(number: int) -> int:
        kafka = cluster.brokers[number].kafka
        assert kafka is not None
        return kafka.counters.consumed[topic]

    def serving(rack: str) -> list[int]:
        """Return the brokers from which a consumer in a rack gets the records."""
        before = [consumed(each) for each in range(3)]
        assert read_in(cluster.servers, topic, rack) == expected
        return [each for each in range(3) if consumed(each) > before[each]]

    def is_served_by(number: int, rack: str) -> bool:
        return serving(rack) == [number]

    # While a replica does not seem alive, or in sync, the leader serves its rack.
    for number, rack in enumerate(RACKS):
        poll_until(partial(is_served_by, number, rack))


def append(servers: str, topic: str) -> tuple[dict[str, Any], dict[str, Any]]:
    topics = [{"name": topic, "partition_data": [{"index": 0, "records": encode_batch(0, [b"x"], timestamps=1)}]}]
    with RawClient(servers) as client:
        answer = client.ask(ApiKey.PRODUCE, 10, acks=-1, timeout_ms=1000, topic_data=topics)
    return answer, answer["responses"][0]["partition_responses"][0]


def test_logs_are_led_and_kept_by_the_brokers_that_are_named(cluster: RunningCluster, admin: AdminClient) -> None:
    create(cluster, admin, NewTopic("placed", 2, replica_assignment=[[2, 0], [1, 2]]))
    for number in (0, 1):
        answer, part = append(cluster.brokers[number].bootstrap_servers, "placed")
        assert (part["error_code"], part["current_leader"]["leader_id"]) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)
        (node,) = answer["node_endpoints"]
        assert f"{node['host']}:{node['port']}" == cluster.brokers[2].bootstrap_servers
    with closing(import_kafka().KafkaAdminClient(bootstrap_servers=cluster.servers)) as others:

        def elect(kind: int, *numbers: int) -> dict[int, int]:
            found = others.elect_leaders(
                kind, {"placed": list(numbers)}, timeout_ms=DEADLINE_S * 1000, raise_errors=False
            )
            (topic,) = found.replica_election_results
            return {each.partition_id: each.error_code for each in topic.partition_result}

        preferred, unclean = 0, 1
        assert elect(preferred, 0, 1) == dict.fromkeys((0, 1), ErrorCode.ELECTION_NOT_NEEDED)
        assert append(cluster.brokers[2].bootstrap_servers, "placed")[1]["error_code"] == ErrorCode.NONE
        with RawClient(cluster.brokers[0].bootstrap_servers) as client:
            moved = [{"name": "placed", "partitions": [{"partition_index": 0, "replicas": [0, 1]}]}]
            answer = client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, topics=moved)
            assert answer["responses"][0]["partitions"][0]["error_code"] == ErrorCode.NONE
            poll_until(lambda: not client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0)["topics"])
        cluster.wait_leaders("placed", 2)
        poll_until(lambda: elect(preferred, 0)[0] in {ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED})
        assert elect(unclean, 0, 1) == dict.fromkeys((0, 1), ErrorCode.ELECTION_NOT_NEEDED)
        assert elect(preferred, 7) == {7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    def place() -> tuple[int, list[int]]:
        log = admin.list_topics("placed", timeout=DEADLINE_S).topics["placed"].partitions[0]
        return log.leader, sorted(log.replicas)

    poll_until(lambda: place() == (0, [0, 1]))
    assert read_in(cluster.servers, "placed", "") == [b"x"], "records have moved with the log"


def accept(consumer: Any, delivered: set[bytes], confirmed: set[bytes]) -> None:
    """Have a member of a share group accept what it gets. Record what is delivered, and what is answered.

    It can still get what it has received before another leader has given it to another member, but not accept it.
    """
    by_log: dict[int, set[bytes]] = {}
    for message in consumer.poll(0.2):
        if message.error() is None:
            by_log.setdefault(message.partition(), set()).add(message.value())
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
    if by_log:
        delivered.update(*by_log.values())
        for place, error in consumer.commit_sync(DEADLINE_S).items():
            if error is None:
                assert confirmed.isdisjoint(by_log.get(place.partition, ()))
                confirmed.update(by_log.get(place.partition, ()))


def test_members_of_a_share_group_follow_logs_to_other_leaders(cluster: RunningCluster, admin: AdminClient) -> None:
    topic, count = "shared", 300
    create(cluster, admin, NewTopic(topic, 3, replica_assignment=[[0, 1], [1, 2], [2, 0]]))
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ConfigResource.Type.GROUP, "sharing", incremental_configs=[earliest])
    admin.incremental_alter_configs([group])[group].result(DEADLINE_S)
    settings = {"bootstrap.servers": cluster.servers, "group.id": "sharing", "share.acknowledgement.mode": "explicit"}
    producer, delivered, confirmed = Producer({"bootstrap.servers": cluster.servers}), set[bytes](), set[bytes]()
    with closing(ShareConsumer(settings)) as one, closing(ShareConsumer(settings)) as two:
        for consumer in (one, two):
            consumer.subscribe([topic])
        for first in (0, count):
            for number in range(first, first + count):
                producer.produce(topic, b"%d" % number, partition=number % 3)
            assert producer.flush(DEADLINE_S) == 0
            while len(confirmed) < first + count // 2:
                accept(one, delivered, confirmed)
                accept(two, delivered, confirmed)
            with RawClient(cluster.brokers[0].bootstrap_servers) as client:
                shift = 1 if first else 2  # the leaders keep no replica
                parts = [{"partition_index": n, "replicas": [(n + shift) % 3, (n + 2 * shift) % 3]} for n in range(3)]
                client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, topics=[{"name": topic, "partitions": parts}])
                poll_until(lambda: not client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0)["topics"])
            while len(confirmed) < first + count:
                accept(one, delivered, confirmed)
                accept(two, delivered, confirmed)
    assert delivered == confirmed == {b"%d" % number for number in range(2 * count)}
