"""Connections as seen byte by byte: what a client is answered, and what ends only its own connection."""

from __future__ import annotations

import logging
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import closing
from random import Random
from typing import TypeVar

import pytest

from dafka.batches import encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis import OFFERED
from dafka.kafka.protocol.apis import REQUESTS
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import decode_request, decode_response, encode_request
from dafka.kafka.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
from dafka.kafka.protocol.messages.connections import ApiVersionsResponse
from dafka.kafka.protocol.messages.logs import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from dafka.kafka.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from dafka.kafka.protocol.tables import Request, Response, Versions
from dafka.kafka.server.kafka_server import REPORT_S, REPORTED_MAX, RecentReports
from tests.kafka.protocol.samples import random_message
from tests.kafka.server.fixtures import run_broker


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_broker(f"filelog:{tmp_path_factory.mktemp('broker')}/log") as running:
        yield running.bootstrap_servers


R = TypeVar("R", bound=Response)


class RawClient:
    """A connection to a broker."""

    def __init__(self, servers: str) -> None:
        host, port = servers.split(":")
        self.socket = socket.create_connection((host, int(port)), 30)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def receive(self) -> bytes:
        """Return the next frame; nothing if the broker has disconnected."""
        try:
            size = self._receive(4)
            return self._receive(*struct.unpack(">i", size)) if size else b""
        except ConnectionError:
            return b""

    def ask(self, request: Request, version: int, response: type[R]) -> R:
        """Return the response to a request."""
        self.socket.sendall(encode_request(request, version, 7, "raw"))
        return decode_response(self.receive(), response, version)

    def _receive(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            data = self.socket.recv(size - len(found))
            if not data:
                return b""
            found += data
        return found


@pytest.fixture
def client(servers: str) -> Iterator[RawClient]:
    with closing(RawClient(servers)) as connected:
        yield connected


def create(client: RawClient, topic: str) -> None:
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    found = client.ask(asked, 4, MetadataResponse)
    assert found.topics[0].error_code == ErrorCode.NONE


def produce(topic: str, records: bytes, acks: int = -1) -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=records)]
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=data)])


def error_of(client: RawClient, request: ProduceRequest) -> int:
    found = client.ask(request, 7, ProduceResponse)
    return found.responses[0].partition_responses[0].error_code


def test_versions_that_are_too_new_are_answered_in_version_0(client: RawClient) -> None:
    client.socket.sendall(struct.pack(">ihhih", 10, 18, 99, 5, -1))
    found = decode_response(client.receive(), ApiVersionsResponse, 0)
    assert found.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert {each.api_key for each in found.api_keys} >= {0, 1, 2, 3, 18}


@pytest.mark.parametrize(
    "frame", [b"", b"\xff" * 40, struct.pack(">hhih", 999, 0, 1, -1), struct.pack(">hhi", 3, 4, 1)]
)
def test_malformed_requests_end_the_connection_alone(client: RawClient, servers: str, frame: bytes) -> None:
    client.socket.sendall(struct.pack(">i", len(frame)) + frame)
    assert client.receive() == b""
    with closing(RawClient(servers)) as other:
        create(other, "orders")


def test_frames_that_claim_too_much_end_the_connection(client: RawClient) -> None:
    client.socket.sendall(struct.pack(">i", 2**31 - 1))
    assert client.receive() == b""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells that the peer has closed its side")
def test_commits_that_come_when_their_client_has_closed_the_connection_are_discarded(
    client: RawClient, servers: str
) -> None:
    create(client, "committed")

    def commit(offset: int) -> OffsetCommitRequest:
        at = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        return OffsetCommitRequest(
            group_id="late", topics=[OffsetCommitRequestTopic(name="committed", partitions=[at])]
        )

    found = client.ask(commit(5), 5, OffsetCommitResponse)
    assert found.topics[0].partitions[0].error_code == ErrorCode.NONE
    with closing(RawClient(servers)) as other:
        other.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        other.socket.sendall(encode_request(commit(3), 5, 1))
        other.socket.shutdown(socket.SHUT_WR)
        assert other.receive() == b""
    asked = OffsetFetchRequest(
        group_id="late", topics=[OffsetFetchRequestTopic(name="committed", partition_indexes=[0])]
    )
    (topic,) = client.ask(asked, 5, OffsetFetchResponse).topics
    assert topic.partitions[0].committed_offset == 5


def test_session_of_fetches_leaves_out_logs_without_news(client: RawClient) -> None:
    for topic in ("busy", "idle"):
        create(client, topic)
    topics = [
        FetchTopic(topic=topic, partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=2**20)])
        for topic in ("busy", "idle")
    ]
    asked = FetchRequest(max_wait_ms=0, min_bytes=1, session_epoch=0, topics=topics)
    first = client.ask(asked, 11, FetchResponse)
    assert first.session_id > 0
    assert [each.topic for each in first.responses] == ["busy", "idle"]
    assert error_of(client, produce("busy", encode_batch(0, [b"x"], timestamps=1))) == ErrorCode.NONE
    asked.session_id, asked.session_epoch, asked.topics = first.session_id, 1, []
    second = client.ask(asked, 11, FetchResponse)
    assert (second.session_id, second.error_code) == (first.session_id, ErrorCode.NONE)
    assert [(each.topic, bool(each.partitions[0].records)) for each in second.responses] == [("busy", True)]
    asked.session_epoch, asked.forgotten_topics_data = 2, [ForgottenTopic(topic="busy", partitions=[0])]
    assert client.ask(asked, 11, FetchResponse).responses == []
    assert client.ask(asked, 11, FetchResponse).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    asked.session_id = first.session_id % (2**31 - 1) + 1
    assert client.ask(asked, 11, FetchResponse).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def around(key: int) -> list[int]:
    """Return versions of an API that are not offered, near those that are."""
    versions = OFFERED.get(ApiKey(key), Versions(0, -1)) if key in set(ApiKey) else Versions(0, -1)
    return [-1, *range(versions.first), *range(versions.last + 1, versions.last + 5), 2**15 - 1]


def test_requests_that_are_not_offered_end_the_connection(servers: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dafka.broker")
    others = [(key, version) for key in range(128) if key != ApiKey.API_VERSIONS for version in around(key)]
    others += [(-1, 0), (2**15 - 1, 0)]
    for key, version in others:
        with closing(RawClient(servers)) as client:
            frame = struct.pack(">hhih", key, version, 7, 4) + b"anne" + bytes(30)
            client.socket.sendall(struct.pack(">i", len(frame)) + frame)
            assert client.receive() == b"", (key, version)
    lines = [each.getMessage() for each in caplog.records]
    assert len(lines) == len(others)
    line = "disconnecting the client at 127.0.0.1 ('anne'): it asked for FETCH in version 13, and this broker "
    assert lines.count(f"{line}offers versions 0-12") == 1
    assert any("it asked for the API 71 in version 0, and this broker does not serve it" in each for each in lines)


@pytest.mark.parametrize("version", [-1, 5, 6, 2**15 - 1])
def test_versions_are_told_in_version_0_to_a_client_that_asks_in_another_one(servers: str, version: int) -> None:
    with closing(RawClient(servers)) as client:
        frame = struct.pack(">hhih", ApiKey.API_VERSIONS, version, 7, 4) + b"anne" + bytes(30)
        client.socket.sendall(struct.pack(">i", len(frame)) + frame)
        answer = decode_response(client.receive(), ApiVersionsResponse, 0)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys} == dict(OFFERED)


def test_all_versions_that_are_offered_are_decoded() -> None:
    assert OFFERED[ApiKey.FETCH].has(12)  # librdkafka 2.6.0 sends it whatever is advertised
    for key, versions in OFFERED.items():
        for version in range(versions.first, versions.last + 1):
            request = random_message(REQUESTS[key], version, Random(version), tame=True)
            header, _ = decode_request(encode_request(request, version, 7)[4:], offered=OFFERED)
            assert (header.api_key, header.api_version) == (key, version)


def test_the_same_is_logged_once_a_minute() -> None:
    reports = RecentReports()
    assert [reports.is_due("a", now) for now in (0.0, 1.0, REPORT_S, REPORT_S + 1)] == [True, False, True, False]
    for number in range(REPORTED_MAX):
        assert reports.is_due(number, REPORT_S)
    assert reports.is_due("a", REPORT_S + 2)  # only so many are remembered
