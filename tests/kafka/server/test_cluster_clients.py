"""Clients of Kafka among several brokers: they find leaders, and follow them when a broker dies and returns."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from dafka.batches import encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.door import Client as RawClient
from tests.kafka.server.clients import AioKafka, Client, Confluent, KafkaPython, Message, import_kafka
from tests.kafka.server.running_cluster import RunningCluster, run_cluster

DEADLINE_S = 60

CLIENTS = [Confluent(), AioKafka(), KafkaPython()]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with run_cluster(tmp_path_factory.mktemp("cluster"), "one", "two", "three") as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: RunningCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.servers})


def create(cluster: RunningCluster, admin: AdminClient, topic: NewTopic) -> None:
    """Create a topic, and wait until all brokers agree on the leaders of its logs."""
    admin.create_topics([topic])[topic.topic].result(DEADLINE_S)
    wait_leaders(cluster, topic.topic, topic.num_partitions)


def wait_leaders(cluster: RunningCluster, topic: str, count: int) -> None:
    def leaders(node: Any) -> list[str]:
        return [log.leadership.leader for log in node.logs(topic)]

    def is_reached() -> bool:
        found = [leaders(each.node) for each in cluster.running()]
        return all(len(each) == count and all(each) and each == found[0] for each in found)

    cluster.wait_until(is_reached)


def test_admin_sees_all_brokers(cluster: RunningCluster, admin: AdminClient) -> None:
    found = admin.describe_cluster().result(DEADLINE_S)
    assert found.controller.id == 0
    assert [(node.id, node.rack) for node in found.nodes] == [(0, "one"), (1, "two"), (2, "three")]
    ids = {
        AdminClient({"bootstrap.servers": each}).list_topics(timeout=DEADLINE_S).cluster_id
        for each in cluster.servers.split(",")
    }
    assert ids == {found.cluster_id}


def test_kafka_python_sees_all_brokers(cluster: RunningCluster) -> None:
    import_kafka()
    from kafka.admin import KafkaAdminClient

    client = KafkaAdminClient(bootstrap_servers=cluster.servers)
    try:
        brokers = client.describe_cluster()["brokers"]
        assert sorted(each["node_id" if "node_id" in each else "broker_id"] for each in brokers) == [0, 1, 2]
    finally:
        client.close()


def test_topics_have_replicas(cluster: RunningCluster, admin: AdminClient) -> None:
    create(cluster, admin, NewTopic("two-replicas", 4, 2))
    create(cluster, admin, NewTopic("placed", 2, replica_assignment=[[2, 0], [1, 2]]))
    for address in cluster.servers.split(","):
        topics = AdminClient({"bootstrap.servers": address}).list_topics(timeout=DEADLINE_S).topics
        # Balancing may give a log a further replica at once, before it takes one away from a broker that has more.
        assert all(len(each.replicas) in {2, 3} for each in topics["two-replicas"].partitions.values())
        placed = topics["placed"].partitions
        assert {0, 2} <= set(placed[0].replicas)
        assert {1, 2} <= set(placed[1].replicas)
        assert all(each.leader in each.replicas for each in placed.values())


@pytest.mark.parametrize("client", CLIENTS, ids=lambda each: type(each).__name__)
def test_clients_write_to_and_read_from_leaders(cluster: RunningCluster, admin: AdminClient, client: Client) -> None:
    topic = f"clients-{type(client).__name__}"
    create(cluster, admin, NewTopic(topic, 3, 3))
    messages = [Message(b"%d" % number, b"key-%d" % (number % 20)) for number in range(300)]
    client.write(cluster.servers, topic, messages, "none")
    found = client.read(cluster.servers, topic, len(messages))
    assert sorted(each.value or b"" for each in found) == sorted(each.value or b"" for each in messages)


def reassign(client: RawClient, topic: str, brokers: list[int]) -> None:
    """Have other brokers keep the only log of a topic."""
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "replicas": brokers}]}]
    answer = client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, topics=topics)
    assert answer["responses"][0]["partitions"][0]["error_code"] == ErrorCode.NONE


def append(servers: str, topic: str, timeout_ms: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Append a record on all replicas. Return the response, and that for the log."""
    data = [{"index": 0, "records": encode_batch(0, [b"x"], timestamps=1)}]
    topics = [{"name": topic, "partition_data": data}]
    with RawClient(servers) as client:
        answer = client.ask(ApiKey.PRODUCE, 10, acks=-1, timeout_ms=timeout_ms, topic_data=topics)
    return answer, answer["responses"][0]["partition_responses"][0]


def test_preferred_brokers_are_elected(cluster: RunningCluster, admin: AdminClient) -> None:
    create(cluster, admin, NewTopic("elected", 2, replica_assignment=[[2, 0], [1, 2]]))
    preferred, unclean = 0, 1
    with closing(import_kafka().KafkaAdminClient(bootstrap_servers=cluster.servers)) as others:

        def elect(kind: int, *numbers: int) -> dict[int, int]:
            asked = {"elected": list(numbers)}
            found = others.elect_leaders(kind, asked, timeout_ms=DEADLINE_S * 1000, raise_errors=False)
            (topic,) = found.replica_election_results
            return {each.partition_id: each.error_code for each in topic.partition_result}

        assert elect(preferred, 0, 1) == dict.fromkeys((0, 1), ErrorCode.ELECTION_NOT_NEEDED)
        with RawClient(cluster.broker(0).bootstrap_servers) as client:
            reassign(client, "elected", [0, 2])
        wait_for(lambda: elect(preferred, 0)[0] == ErrorCode.NONE)
        assert admin.list_topics("elected").topics["elected"].partitions[0].leader == 0
        assert elect(unclean, 0, 1) == dict.fromkeys((0, 1), ErrorCode.ELECTION_NOT_NEEDED)
        assert elect(preferred, 7) == {7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_other_brokers_name_the_leader(cluster: RunningCluster, admin: AdminClient) -> None:
    create(cluster, admin, NewTopic("led", 1, replica_assignment=[[2, 0]]))
    for number in (0, 1):
        answer, part = append(cluster.broker(number).bootstrap_servers, "led", 1000)
        assert part["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert part["current_leader"]["leader_id"] == 2
        (node,) = answer["node_endpoints"]
        assert f"{node['host']}:{node['port']}" == cluster.broker(2).bootstrap_servers


def read_in_rack(servers: str, topic: str, rack: str, count: int, isolation: str) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "unused",
            "client.rack": rack,
            "isolation.level": isolation,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
        for message in consumer.consume(count, timeout=0.2):
            assert message.error() is None, message.error()
            found.append(message.value())
    consumer.close()
    return found


def test_consumers_read_in_their_rack(cluster: RunningCluster, admin: AdminClient) -> None:
    topic, isolation = "racks", "read_uncommitted"
    create(cluster, admin, NewTopic(topic, 1, 3))
    values = [b"%d" % number for number in range(200)]
    Confluent().write(cluster.servers, topic, [Message(each) for each in values], "none")

    wait_readable(cluster, topic, len(values))

    def consumed(number: int) -> int:
        kafka = cluster.broker(number).kafka
        assert kafka is not None
        return kafka.counters.consumed[topic]

    def serving(rack: str) -> list[int]:
        """Return the brokers from which a consumer in a rack gets the records."""
        before = [consumed(each) for each in range(3)]
        assert read_in_rack(cluster.servers, topic, rack, len(values), isolation) == values
        return [each for each in range(3) if consumed(each) > before[each]]

    # While a replica does not seem alive, or in sync, the leader serves its rack.
    for number, rack in enumerate(["one", "two", "three"]):
        wait_for(lambda number=number, rack=rack: serving(rack) == [number])  # type: ignore[misc]


def wait_readable(cluster: RunningCluster, topic: str, end: int) -> None:
    """Wait until all brokers serve readers of a log up to an offset at least."""

    def is_readable() -> bool:
        logs = [each.node.logs(topic)[0] for each in cluster.running()]
        return all(log.leadership.is_follower_readable and log.high_watermark >= end for log in logs)

    cluster.wait_until(is_readable)


def test_consumers_in_a_rack_see_no_aborted_records(cluster: RunningCluster, admin: AdminClient) -> None:
    create(cluster, admin, NewTopic("aborted", 1, 3))
    producer = Producer({"bootstrap.servers": cluster.servers, "transactional.id": "t"})
    producer.init_transactions(DEADLINE_S)
    for number in range(2):
        producer.begin_transaction()
        for value in range(10):
            producer.produce("aborted", b"%d-%d" % (number, value))
        assert producer.flush(DEADLINE_S) == 0
        end = producer.abort_transaction if number % 2 == 0 else producer.commit_transaction
        end(DEADLINE_S)
    wait_readable(cluster, "aborted", 22)
    expected = [b"1-%d" % value for value in range(10)]
    for rack in ("one", "two"):
        assert read_in_rack(cluster.servers, "aborted", rack, len(expected), "read_committed") == expected


def test_logs_are_reassigned_to_other_brokers(cluster: RunningCluster, admin: AdminClient) -> None:
    create(cluster, admin, NewTopic("moved", 1, replica_assignment=[[0, 1]]))
    values = [b"%d" % number for number in range(100)]
    Confluent().write(cluster.servers, "moved", [Message(each) for each in values], "none")
    with RawClient(cluster.broker(0).bootstrap_servers) as client:
        reassign(client, "moved", [2, 1])

        def is_done() -> bool:
            return not client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0)["topics"]

        wait_for(is_done)

    def replicas() -> list[int]:
        return sorted(admin.list_topics("moved", timeout=DEADLINE_S).topics["moved"].partitions[0].replicas)

    wait_for(lambda: replicas() == [1, 2])
    wait_leaders(cluster, "moved", 1)
    assert read_in_rack(cluster.servers, "moved", "", len(values), "read_committed") == values


class Traffic:
    """An idempotent producer that writes to the logs of a topic, and a consumer that reads them, until told to stop.

    Attributes:
        acknowledged: The values that were acknowledged.
        refused: The names of the errors of others.
        read: How often each value was read.
    """

    def __init__(self, servers: str, topic: str, log_count: int) -> None:
        self.acknowledged: list[bytes] = []
        self.refused: list[str] = []
        self.read: Counter[bytes] = Counter()
        self._topic = topic
        self._log_count = log_count
        self._stopping = threading.Event()
        self._finishing = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 1, "retry.backoff.ms": 20}
        )
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "unused",
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(log_count)])
        self._threads = [threading.Thread(target=each) for each in (self._write, self._read)]
        for each in self._threads:
            each.start()

    def _write(self) -> None:
        sent = 0
        while not self._stopping.is_set():
            value = b"%d" % sent
            self._producer.produce(self._topic, value, partition=sent % self._log_count, on_delivery=self._delivered)
            self._producer.poll(0.01)
            sent += 1
        assert self._producer.flush(DEADLINE_S) == 0
        self._finishing.set()

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append(message.value())
        else:
            self.refused.append(error.name())

    def _read(self) -> None:
        deadline = None
        while deadline is None or (len(self.read) < len(self.acknowledged) and time.monotonic() < deadline):
            for message in self._consumer.consume(1000, timeout=0.1):
                assert message.error() is None or message.error().retriable(), message.error()
                if message.error() is None:
                    self.read[message.value()] += 1
            if deadline is None and self._finishing.is_set():
                deadline = time.monotonic() + DEADLINE_S
        self._consumer.close()

    def wait_further(self, count: int = 30) -> None:
        """Wait until further records are acknowledged and read."""
        acknowledged, read = len(self.acknowledged) + count, len(self.read) + count
        wait_for(lambda: len(self.acknowledged) >= acknowledged)
        wait_for(lambda: len(self.read) >= read)

    def finish(self) -> None:
        """Stop, and wait until all is read."""
        self._stopping.set()
        for each in self._threads:
            each.join(2 * DEADLINE_S)


def wait_for(is_reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.long
def test_clients_follow_logs_when_brokers_die_and_return(tmp_path: Path) -> None:
    with run_cluster(tmp_path, "one", "two", "three") as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.servers})
        create(cluster, admin, NewTopic("t", 3, replica_assignment=[[0, 1, 2], [1, 2, 0], [2, 0, 1]]))
        traffic = Traffic(cluster.servers, "t", 3)
        try:
            traffic.wait_further()
            cluster.stop(1)
            wait_leaders(cluster, "t", 3)
            traffic.wait_further()
            cluster.start(1)
            cluster.wait_members()
            wait_leaders(cluster, "t", 3)
            traffic.wait_further()
        finally:
            traffic.finish()
        assert not traffic.refused
        assert traffic.read == Counter(traffic.acknowledged)


@pytest.mark.long
def test_acknowledgements_of_all_need_a_majority_that_lives(tmp_path: Path) -> None:
    with run_cluster(tmp_path, "one", "two", "three") as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.servers})
        create(cluster, admin, NewTopic("t", 1, replica_assignment=[[0, 1, 2]]))
        servers = cluster.broker(0).bootstrap_servers
        cluster.stop(1)
        cluster.stop(2)
        refused = {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER}

        def ask() -> int:
            return int(append(servers, "t", 100)[1]["error_code"])

        assert ask() in refused
        wait_for(lambda: ask() != ErrorCode.REQUEST_TIMED_OUT)
        assert ask() in refused
        cluster.start(2)
        cluster.wait_members()
        wait_for(lambda: ask_leader(cluster) == ErrorCode.NONE)


def ask_leader(cluster: RunningCluster) -> int:
    """Ask all running brokers to append. Return the first answer of one that leads."""
    codes = [append(each.bootstrap_servers, "t", 100)[1]["error_code"] for each in cluster.running()]
    return next((each for each in codes if each != ErrorCode.NOT_LEADER_OR_FOLLOWER), ErrorCode.LEADER_NOT_AVAILABLE)
