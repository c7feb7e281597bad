"""A small broker that answers clients, so that they go on to their next requests, and records what they send."""

from __future__ import annotations

import socket
import threading
from typing import Any

from dafka.batches import check_crc, with_base_offset
from dafka.batches.message_sets import convert_message_set, encode_message_set, is_message_set
from dafka.errors import UnsupportedRequestError
from dafka.kafka.protocol.apis import ADVERTISED, advertise
from dafka.kafka.protocol.frames import (
    FrameSplitter,
    RequestHeader,
    decode_request,
    encode_response,
    encode_token,
    encode_unsupported,
)
from dafka.kafka.protocol.messages import (
    cluster,
    configs,
    connections,
    groups,
    logs,
    membership,
    offsets,
    topics,
    transactions,
)
from dafka.kafka.protocol.tables import Response

HOST, TOPIC, MEMBER = "127.0.0.1", "orders", "member-1"
BYTES_MAX = 2**20
SASL_HANDSHAKE_0 = b"\0\x11\0\0"


class RecordingBroker:
    """Answers requests of clients, each in a thread of its own, and keeps their frames.

    Args:
        name: The client that is recorded.

    Attributes:
        name: The client that is recorded.
        client: The same, or what `frames` has instead.
        frames: The first frame of each API and version of each client.
    """

    def __init__(self, name: str) -> None:
        self.name = self.client = name
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
        splitter, token_follows = FrameSplitter(), False
        while data := connection.recv(2**16):
            for frame in splitter.receive(data):
                answer = encode_token(b"") if token_follows else self._answer(frame)
                token_follows = not token_follows and frame.startswith(SASL_HANDSHAKE_0)
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

    def _create_partitions(self, header: RequestHeader, request: topics.CreatePartitionsRequest) -> Response:
        found = [topics.CreatePartitionsTopicResult(name=each.name, error_code=0) for each in request.topics]
        return topics.CreatePartitionsResponse(throttle_time_ms=0, results=found)

    def _delete_records(self, header: RequestHeader, request: Any) -> Response:
        part = logs.DeleteRecordsPartitionResult(partition_index=0, low_watermark=0, error_code=0)
        topic = logs.DeleteRecordsTopicResult(name=TOPIC, partitions=[part])
        return logs.DeleteRecordsResponse(throttle_time_ms=0, topics=[topic])

    def _alter_configs(self, header: RequestHeader, request: configs.AlterConfigsRequest) -> Response:
        return configs.AlterConfigsResponse(throttle_time_ms=0, responses=altered(request.resources))

    def _incremental_alter_configs(self, header: RequestHeader, request: Any) -> Response:
        return configs.IncrementalAlterConfigsResponse(throttle_time_ms=0, responses=altered(request.resources))

    def _delete_groups(self, header: RequestHeader, request: groups.DeleteGroupsRequest) -> Response:
        found = [groups.DeletableGroupResult(group_id=name, error_code=0) for name in request.groups_names]
        return groups.DeleteGroupsResponse(throttle_time_ms=0, results=found)

    def _offset_delete(self, header: RequestHeader, request: Any) -> Response:
        part = offsets.OffsetDeleteResponsePartition(partition_index=0, error_code=0)
        topic = offsets.OffsetDeleteResponseTopic(name=TOPIC, partitions=[part])
        return offsets.OffsetDeleteResponse(error_code=0, throttle_time_ms=0, topics=[topic])

    def _offset_for_leader_epoch(self, header: RequestHeader, request: Any) -> Response:
        part = logs.OffsetForLeaderPartitionResult(
            error_code=0, partition=0, leader_epoch=0, end_offset=self._end_offset
        )
        topic = logs.OffsetForLeaderTopicResult(topic=TOPIC, partitions=[part])
        return logs.OffsetForLeaderEpochResponse(topics=[topic])

    def _describe_log_dirs(self, header: RequestHeader, request: Any) -> Response:
        part = cluster.DescribeLogDirsPartition(partition_index=0, partition_size=9, offset_lag=0, is_future_key=False)
        topic = cluster.DescribeLogDirsTopic(name=TOPIC, partitions=[part])
        found = cluster.DescribeLogDirsResult(error_code=0, log_dir="/data", topics=[topic])
        return cluster.DescribeLogDirsResponse(throttle_time_ms=0, results=[found])

    def _add_partitions_to_txn(self, header: RequestHeader, request: Any) -> Response:
        part = transactions.AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=0)
        topic = transactions.AddPartitionsToTxnTopicResult(name=TOPIC, results_by_partition=[part])
        return transactions.AddPartitionsToTxnResponse(throttle_time_ms=0, results_by_topic_v3_and_below=[topic])

    def _add_offsets_to_txn(self, header: RequestHeader, request: Any) -> Response:
        return transactions.AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=0)

    def _txn_offset_commit(self, header: RequestHeader, request: Any) -> Response:
        part = offsets.TxnOffsetCommitResponsePartition(partition_index=0, error_code=0)
        topic = offsets.TxnOffsetCommitResponseTopic(name=TOPIC, partitions=[part])
        return offsets.TxnOffsetCommitResponse(throttle_time_ms=0, topics=[topic])

    def _end_txn(self, header: RequestHeader, request: Any) -> Response:
        return transactions.EndTxnResponse(throttle_time_ms=0, error_code=0)

    def _sasl_handshake(self, header: RequestHeader, request: Any) -> Response:
        return connections.SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"])

    def _sasl_authenticate(self, header: RequestHeader, request: Any) -> Response:
        return connections.SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b"")


def altered(resources: list[Any]) -> list[configs.AlterConfigsResourceResponse]:
    return [
        configs.AlterConfigsResourceResponse(
            error_code=0, error_message=None, resource_type=each.resource_type, resource_name=each.resource_name
        )
        for each in resources
    ]
