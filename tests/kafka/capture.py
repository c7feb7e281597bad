"""Record the requests of real clients: `python -m tests.kafka.capture tests/vectors/kafka-requests.json`.

A small broker with one topic, one log and one group in memory answers the clients, so that they go on to their next
requests. It keeps the first frame of each API and version of each client. The extra `test` has aiokafka and
kafka-python; confluent-kafka and kafka-python before 3.0 are recorded if they are installed.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dafka.batches import check_crc, with_base_offset
from dafka.batches.message_sets import convert_message_set, encode_message_set, is_message_set
from dafka.errors import UnsupportedRequestError
from dafka.kafka.protocol import (
    ADVERTISED,
    ApiKey,
    FrameSplitter,
    RequestHeader,
    Response,
    advertise,
    decode_request,
    encode_response,
    encode_unsupported,
)
from dafka.kafka.protocol.messages import cluster, configs, groups, logs, membership, offsets, topics, transactions

HOST, TOPIC, MEMBER = "127.0.0.1", "orders", "member-1"
BYTES_MAX = 2**20


class RecordingBroker:
    """Answers requests of clients, each in a thread of its own, and keeps their frames.

    Attributes:
        client: The name of the client that is recorded.
        frames: The first frame of each API and version of each client.
    """

    def __init__(self) -> None:
        self.client = ""
        self.frames: dict[tuple[str, int, int], bytes] = {}
        self._log: list[bytes] = []
        self._end_offset = 0
        self._assignment = b""
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"{HOST}:{self.port}"

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        splitter = FrameSplitter()
        while data := connection.recv(2**16):
            for frame in splitter.receive(data):
                answer = self._answer(frame)
                if answer:
                    connection.sendall(answer)

    def _answer(self, frame: bytes) -> bytes | None:
        try:
            header, request = decode_request(frame)
        except UnsupportedRequestError as error:
            return encode_unsupported(error, ADVERTISED)
        self.frames.setdefault((self.client, header.api_key, header.api_version), frame)
        response = getattr(self, f"_{header.api_key.name.lower()}")(header, request)
        return None if response is None else encode_response(header, response)

    def _api_versions(self, header: RequestHeader, request: Any) -> Response:
        return advertise(ADVERTISED)

    def _metadata(self, header: RequestHeader, request: Any) -> Response:
        part = cluster.MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=0, replica_nodes=[0], isr_nodes=[0]
        )
        topic = cluster.MetadataResponseTopic(error_code=0, name=TOPIC, partitions=[part])
        broker = cluster.MetadataResponseBroker(node_id=0, host=HOST, port=self.port)
        return cluster.MetadataResponse(brokers=[broker], controller_id=0, cluster_id="c", topics=[topic])

    def _describe_cluster(self, header: RequestHeader, request: Any) -> Response:
        broker = cluster.DescribeClusterBroker(broker_id=0, host=HOST, port=self.port, rack=None)
        return cluster.DescribeClusterResponse(
            throttle_time_ms=0, error_code=0, error_message=None, cluster_id="c", controller_id=0, brokers=[broker]
        )

    def _init_producer_id(self, header: RequestHeader, request: Any) -> Response:
        return transactions.InitProducerIdResponse(throttle_time_ms=0, error_code=0, producer_id=7, producer_epoch=0)

    def _produce(self, header: RequestHeader, request: logs.ProduceRequest) -> Response | None:
        (topic,) = request.topic_data
        (part,) = topic.partition_data
        assert part.records is not None
        batch = part.records
        if is_message_set(batch):
            batch = convert_message_set(batch, bytes_max=BYTES_MAX)
        first = self._end_offset
        self._end_offset += check_crc(batch).count
        self._log.append(with_base_offset(batch, first))
        answer = logs.PartitionProduceResponse(index=0, error_code=0, base_offset=first, log_start_offset=0)
        result = logs.TopicProduceResponse(name=topic.name, partition_responses=[answer])
        return logs.ProduceResponse(responses=[result]) if request.acks else None

    def _fetch(self, header: RequestHeader, request: logs.FetchRequest) -> Response:
        found = []
        for topic in request.topics:
            stored = self._log if topic.partitions[0].fetch_offset < self._end_offset else []
            if header.api_version < 4:
                magic = 1 if header.api_version >= 2 else 0
                stored = [encode_message_set(each, magic, bytes_max=BYTES_MAX) for each in stored]
            part = logs.PartitionData(
                partition_index=0,
                error_code=0,
                high_watermark=self._end_offset,
                last_stable_offset=self._end_offset,
                log_start_offset=0,
                records=b"".join(stored),
            )
            found.append(logs.FetchableTopicResponse(topic=topic.topic, partitions=[part]))
        return logs.FetchResponse(responses=found)

    def _list_offsets(self, header: RequestHeader, request: logs.ListOffsetsRequest) -> Response:
        part = logs.ListOffsetsPartitionResponse(partition_index=0, error_code=0, old_style_offsets=[0], offset=0)
        return logs.ListOffsetsResponse(topics=[logs.ListOffsetsTopicResponse(name=TOPIC, partitions=[part])])

    def _find_coordinator(self, header: RequestHeader, request: membership.FindCoordinatorRequest) -> Response:
        place: dict[str, Any] = {"node_id": 0, "host": HOST, "port": self.port}
        found = [
            membership.Coordinator(key=key, error_code=0, error_message=None, **place)
            for key in request.coordinator_keys
        ]
        return membership.FindCoordinatorResponse(coordinators=found, **place)

    def _join_group(self, header: RequestHeader, request: membership.JoinGroupRequest) -> Response:
        protocol = request.protocols[0]
        member = membership.JoinGroupResponseMember(member_id=MEMBER, metadata=protocol.metadata)
        return membership.JoinGroupResponse(
            error_code=0,
            generation_id=1,
            protocol_type=request.protocol_type,
            protocol_name=protocol.name,
            leader=MEMBER,
            member_id=MEMBER,
            members=[member],
        )

    def _sync_group(self, header: RequestHeader, request: membership.SyncGroupRequest) -> Response:
        for each in request.assignments:
            self._assignment = each.assignment
        return membership.SyncGroupResponse(
            error_code=0,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=self._assignment,
        )

    def _heartbeat(self, header: RequestHeader, request: Any) -> Response:
        return membership.HeartbeatResponse(error_code=0)

    def _leave_group(self, header: RequestHeader, request: Any) -> Response:
        return membership.LeaveGroupResponse(error_code=0)

    def _offset_fetch(self, header: RequestHeader, request: offsets.OffsetFetchRequest) -> Response:
        place: dict[str, Any] = {"partition_index": 0, "committed_offset": -1, "metadata": "", "error_code": 0}
        old = offsets.OffsetFetchResponseTopic(name=TOPIC, partitions=[offsets.OffsetFetchResponsePartition(**place)])
        new = offsets.OffsetFetchResponseTopics(name=TOPIC, partitions=[offsets.OffsetFetchResponsePartitions(**place)])
        found = [offsets.OffsetFetchResponseGroup(group_id=each.group_id, topics=[new]) for each in request.groups]
        return offsets.OffsetFetchResponse(topics=[old], groups=found)

    def _offset_commit(self, header: RequestHeader, request: Any) -> Response:
        part = offsets.OffsetCommitResponsePartition(partition_index=0, error_code=0)
        return offsets.OffsetCommitResponse(topics=[offsets.OffsetCommitResponseTopic(name=TOPIC, partitions=[part])])

    def _create_topics(self, header: RequestHeader, request: topics.CreateTopicsRequest) -> Response:
        found = [
            topics.CreatableTopicResult(name=each.name, error_code=0, configs=[], num_partitions=1)
            for each in request.topics
        ]
        return topics.CreateTopicsResponse(topics=found)

    def _delete_topics(self, header: RequestHeader, request: topics.DeleteTopicsRequest) -> Response:
        names = [*request.topic_names, *(each.name for each in request.topics)]
        found = [topics.DeletableTopicResult(name=name, error_code=0) for name in names]
        return topics.DeleteTopicsResponse(responses=found)

    def _describe_configs(self, header: RequestHeader, request: configs.DescribeConfigsRequest) -> Response:
        found = [
            configs.DescribeConfigsResult(
                error_code=0, error_message=None, resource_type=2, resource_name=each.resource_name, configs=[]
            )
            for each in request.resources
        ]
        return configs.DescribeConfigsResponse(throttle_time_ms=0, results=found)

    def _list_groups(self, header: RequestHeader, request: Any) -> Response:
        group = groups.ListedGroup(group_id="g", protocol_type="consumer")
        return groups.ListGroupsResponse(error_code=0, groups=[group])

    def _describe_groups(self, header: RequestHeader, request: groups.DescribeGroupsRequest) -> Response:
        found = [
            groups.DescribedGroup(
                error_code=0, group_id=each, group_state="Empty", protocol_type="consumer", protocol_data="", members=[]
            )
            for each in request.groups
        ]
        return groups.DescribeGroupsResponse(groups=found)


def run_confluent(broker: RecordingBroker) -> None:
    confluent = importlib.import_module("confluent_kafka")
    administration = importlib.import_module("confluent_kafka.admin")
    servers = {"bootstrap.servers": broker.endpoint}
    producer = confluent.Producer({**servers, "enable.idempotence": True, "compression.type": "lz4"})
    producer.produce(TOPIC, b"value", key=b"key", headers=[("name", b"value")])
    assert producer.flush(20) == 0
    admin = administration.AdminClient(servers)
    requests: list[dict[Any, Any]] = [
        admin.create_topics([administration.NewTopic("made", num_partitions=1, replication_factor=1)]),
        admin.describe_configs([administration.ConfigResource("topic", TOPIC)]),
        admin.delete_topics(["made"]),
    ]
    for futures in requests:
        for each in futures.values():
            each.result(20)
    admin.list_consumer_groups().result(20)
    admin.describe_consumer_groups(["g"])["g"].result(20)
    consumer = confluent.Consumer({**servers, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    message = consumer.poll(20)
    assert message is not None
    assert (message.value(), message.key()) == (b"value", b"key")
    consumer.commit(message, asynchronous=False)
    consumer.close()


def run_aiokafka(broker: RecordingBroker) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    async def run() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=broker.endpoint, enable_idempotence=True, compression_type="gzip"
        ) as producer:
            await producer.send_and_wait(TOPIC, b"value", key=b"key")
        consumer = AIOKafkaConsumer(
            TOPIC, bootstrap_servers=broker.endpoint, group_id="g", auto_offset_reset="earliest"
        )
        async with consumer:
            assert (await consumer.getone()).value == b"value"
            await consumer.commit()
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.endpoint)
        await admin.start()
        await admin.create_topics([NewTopic("made", 1, 1)])
        await admin.list_consumer_groups()
        await admin.close()

    asyncio.run(run())


def run_old_kafka_python(broker: RecordingBroker) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    client = broker.client
    for version in ((0, 8, 2), (0, 9), (0, 10, 1), (0, 11)):
        broker.client = f"{client} for {'.'.join(map(str, version))}"
        options = {"bootstrap_servers": broker.endpoint, "api_version": version}
        producer = KafkaProducer(**options, compression_type="gzip")
        producer.send(TOPIC, b"value", key=b"key").get(20)
        producer.close()
        consumer = KafkaConsumer(TOPIC, **options, group_id="g", auto_offset_reset="earliest")
        assert next(consumer).value == b"value"
        consumer.commit()
        consumer.close()


def run_kafka_python(broker: RecordingBroker) -> None:
    if broker.client.startswith("kafka 2."):
        run_old_kafka_python(broker)
        return
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
    from kafka.admin import NewTopic

    producer = KafkaProducer(bootstrap_servers=broker.endpoint, compression_type="snappy")
    producer.send(TOPIC, b"value", key=b"key").get(20)
    producer.close()
    consumer = KafkaConsumer(TOPIC, bootstrap_servers=broker.endpoint, group_id="g", auto_offset_reset="earliest")
    assert next(consumer).value == b"value"
    consumer.commit()
    consumer.close()
    admin = KafkaAdminClient(bootstrap_servers=broker.endpoint)
    admin.create_topics([NewTopic("made", 1, 1)])
    admin.describe_groups(["g"])
    admin.close()


CLIENTS: dict[str, Callable[[RecordingBroker], None]] = {
    "confluent_kafka": run_confluent,
    "aiokafka": run_aiokafka,
    "kafka": run_kafka_python,
}


def main(path: Path) -> None:
    """Run the clients that are installed, and write what they sent. What other clients sent stays in the file."""
    recorded = json.loads(path.read_text()) if path.exists() else []
    for package, run in CLIENTS.items():
        try:
            version = importlib.import_module(package).__version__
        except ImportError as error:
            print(f"{package}: {error}")
            continue
        broker = RecordingBroker()
        broker.client = name = f"{package} {version}"
        run(broker)
        recorded = [each for each in recorded if not each["client"].startswith(name)]
        for (client, key, api_version), frame in broker.frames.items():
            recorded.append({"client": client, "api": ApiKey(key).name, "version": api_version, "frame": frame.hex()})
        print(f"{name}: {len(broker.frames)} frames")
    recorded.sort(key=lambda each: (each["client"], ApiKey[each["api"]], each["version"]))
    path.write_text("[\n" + ",\n".join(map(json.dumps, recorded)) + "\n]\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
