"""Connections as seen byte by byte: which requests are answered how, and which end their connection."""

from __future__ import annotations

import logging
import socket
import struct
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from dafka import Config
from dafka.batches import encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis import OFFERED
from dafka.kafka.protocol.apis import REQUESTS
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import decode_request, decode_response, encode_request
from dafka.kafka.protocol.messages.connections import ApiVersionsResponse
from dafka.kafka.protocol.tables import Versions
from dafka.kafka.server.kafka_server import REPORT_S, REPORTED_MAX, RecentReports
from tests.kafka.apis.door import Client, Door, build, of_logs, open_door
from tests.kafka.protocol.samples import random_message


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with open_door() as found:
        yield found


@pytest.fixture
def client(door: Door) -> Iterator[Client]:
    with door.connect() as found:
        yield found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells that the peer has closed its side")
def test_commits_that_come_when_their_client_has_closed_the_connection_are_discarded(
    door: Door, client: Client
) -> None:
    client.ask(ApiKey.METADATA, 4, topics=[{"name": "committed"}])

    def commit(offset: int) -> dict[str, Any]:
        asked = {"committed_offset": offset, "committed_metadata": ""}
        return of_logs(ApiKey.OFFSET_COMMIT, {("committed", 0): asked}, group_id="late")

    found = client.ask(ApiKey.OFFSET_COMMIT, 5, **commit(5))
    assert found["topics"][0]["partitions"][0]["error_code"] == ErrorCode.NONE
    producer = {"transactional_id": "late", "producer_id": 0, "producer_epoch": 0}

    def send_last(other: Client, api: ApiKey, others: dict[str, Any]) -> None:
        other.send(api, 2, **commit(3), **others)
        other.socket.shutdown(socket.SHUT_WR)

    for api, others in ((ApiKey.OFFSET_COMMIT, {}), (ApiKey.TXN_OFFSET_COMMIT, producer)):
        with door.connect() as other:
            door.call(send_last, other, api, others)  # in the broker's thread, which reads when the end is there
            assert other.receive() is None
    (topic,) = client.ask(ApiKey.OFFSET_FETCH, 5, group_id="late", topics=None)["topics"]
    assert topic["partitions"][0]["committed_offset"] == 5


def test_responses_come_in_the_order_of_the_requests(client: Client) -> None:
    """A response that waits for the disk holds back those behind it."""
    client.ask(ApiKey.METADATA, 4, topics=[{"name": "ordered"}])
    produce = of_logs(ApiKey.PRODUCE, {("ordered", 0): {"records": encode_batch(0, [b"x"], timestamps=1)}})
    asked: list[tuple[ApiKey, int, dict[str, Any]]]
    asked = [(ApiKey.PRODUCE, 7, produce), (ApiKey.API_VERSIONS, 0, {}), (ApiKey.METADATA, 4, {"topics": []})] * 20
    client.socket.sendall(
        b"".join(
            encode_request(build(REQUESTS[api], values), version, number)
            for number, (api, version, values) in enumerate(asked)
        )
    )
    received = [client.receive() or b"" for _ in asked]
    assert [struct.unpack_from(">i", each)[0] for each in received] == list(range(len(asked)))


def around(key: int) -> list[int]:
    """Return versions of an API that are not offered, near those that are."""
    versions = OFFERED.get(ApiKey(key), Versions(0, -1)) if key in set(ApiKey) else Versions(0, -1)
    return [-1, *range(versions.first), *range(versions.last + 1, versions.last + 3), 2**15 - 1]


def send_request(client: Client, key: int, version: int) -> bytes | None:
    """Send a request of any API in any version, and return what the broker answers."""
    frame = struct.pack(">hhih", key, version, 7, 4) + b"anne" + bytes(30)
    client.socket.sendall(struct.pack(">i", len(frame)) + frame)
    return client.receive()


def test_requests_that_are_not_offered_end_the_connection(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dafka.broker")
    others = [(key, version) for key in range(80) if key != ApiKey.API_VERSIONS for version in around(key)]
    others += [(-1, 0), (2**15 - 1, 0)]
    for key, version in others:
        with door.connect() as client:
            assert send_request(client, key, version) is None, (key, version)
    said = [each.getMessage() for each in caplog.records]
    lines = [each for each in said if each.startswith("disconnecting the client")]
    assert len(lines) == len(others)
    line = "disconnecting the client at 127.0.0.1 ('anne'): it asked for FETCH in version 19, and this broker "
    assert lines.count(f"{line}offers versions 0-18") == 1
    assert any("it asked for the API 38 in version 0, and this broker does not serve it" in each for each in lines)


@pytest.mark.parametrize("version", [-1, 5, 6, 2**15 - 1])
def test_versions_are_told_in_version_0_to_a_client_that_asks_in_another_one(client: Client, version: int) -> None:
    answer = decode_response(send_request(client, ApiKey.API_VERSIONS, version) or b"", ApiVersionsResponse, 0)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys} == dict(OFFERED)
    assert client.ask(ApiKey.API_VERSIONS, 0)["error_code"] == ErrorCode.NONE


def test_all_versions_that_are_offered_are_decoded() -> None:
    assert OFFERED[ApiKey.FETCH].has(12)  # librdkafka 2.6.0 sends it whatever is advertised
    for key, versions in OFFERED.items():
        for version in range(versions.first, versions.last + 1):
            request = random_message(REQUESTS[key], version, Random(version), tame=True)
            header, _ = decode_request(encode_request(request, version, 7)[4:], offered=OFFERED)
            assert (header.api_key, header.api_version) == (key, version)


def test_the_same_is_logged_once_a_minute_and_what_was_logged_last_is_remembered_longest() -> None:
    reports = RecentReports()
    assert [reports.is_due("a", now) for now in (0.0, 1.0, REPORT_S, REPORT_S + 1)] == [True, False, True, False]
    for number in range(REPORTED_MAX):
        assert reports.is_due(number, REPORT_S)
    assert reports.is_due("a", REPORT_S + 2)  # only so many are remembered
    assert not reports.is_due(REPORTED_MAX - 1, REPORT_S + 2)
    reports = RecentReports()
    assert all(reports.is_due(subject, now) for subject, now in (("a", 0.0), ("b", 1.0), ("a", REPORT_S)))
    assert all(reports.is_due(number, REPORT_S) for number in range(REPORTED_MAX - 1))
    assert not reports.is_due("a", REPORT_S + 1)
    assert reports.is_due("b", REPORT_S)


@pytest.mark.parametrize(
    ("listen", "advertised", "expected", "registered"),
    [
        ("127.0.0.1:0", "", "127.0.0.1:{port}", "127.0.0.1:{port}"),
        ("127.0.0.1:0", "broker.example:1234", "broker.example:1234", "broker.example:1234"),
        ("0.0.0.0:0", "", "127.0.0.1:{port}", "127.0.0.1:{port}"),
        ("0.0.0.0:0", "[fd00::1]:1234", "fd00::1:1234", "[fd00::1]:1234"),
    ],
)
def test_clients_are_told_where_they_reach_the_broker(
    listen: str, advertised: str, expected: str, registered: str
) -> None:
    """Its own clients use the address to which they have connected, and those of other brokers the registered one."""
    config = Config().with_kafka(advertised_listener=advertised).with_clients(allow_unauthenticated="on")
    with open_door(config, listen=listen) as door:
        host, _, port = door.servers.rpartition(":")
        assert f"{host}:0" == listen
        with Client(f"127.0.0.1:{port}") as client:
            (broker,) = client.ask(ApiKey.METADATA, 1, topics=[])["brokers"]
        assert f"{broker['host']}:{broker['port']}" == expected.format(port=port)
        assert door.broker.node.brokers.own.kafka_listener == registered.format(port=port)
