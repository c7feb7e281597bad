"""Limits: hostile connections are bounded, and honest clients are served beside them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from dafka import Config
from dafka.batches import encode_batch
from dafka.broker.connections.uploads import SMALL_BYTES
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import encode_request
from dafka.kafka.protocol.messages.cluster import MetadataRequest
from dafka.kafka.protocol.messages.connections import ApiVersionsRequest
from dafka.kafka.server.kafka_server import KafkaServer
from dafka.kafka.server.responses import UNANSWERED_MAX, UNSENT_BYTES_MAX
from tests.kafka.apis.door import Client, Door, Log, of_logs, open_door
from tests.waiting import poll_until

LARGE = 10 * SMALL_BYTES
REQUEST_BYTES_MAX = 2**18
SMALL = encode_request(ApiVersionsRequest(), 0, 1)
LONG_MS = 600_000


def frame_of(size: int) -> bytes:
    """Return a request of a size: the name of the client fills it."""
    request = encode_request(ApiVersionsRequest(), 0, 1, "x" * 10_000)
    return size.to_bytes(4, "big") + request[4:] + bytes(size - len(request) + 4)


@contextmanager
def run(**settings: Any) -> Iterator[Door]:
    with open_door(Config().with_kafka(**settings)) as door:
        yield door


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with run(request_bytes_max=REQUEST_BYTES_MAX, receive_ms=LONG_MS, idle_ms=LONG_MS) as found:
        yield found


def server_of(door: Door) -> KafkaServer:
    assert door.broker.kafka is not None
    return door.broker.kafka


def is_served(client: Client) -> bool:
    return bool(client.ask(ApiKey.API_VERSIONS, 0)["error_code"] == 0)


def test_request_has_a_largest_size(door: Door) -> None:
    with door.connect() as client, door.connect() as refused:
        client.socket.sendall(frame_of(REQUEST_BYTES_MAX))
        assert client.receive() is not None
        refused.socket.sendall((REQUEST_BYTES_MAX + 1).to_bytes(4, "big"))
        assert refused.receive() is None


def test_requests_arrive_in_any_pieces(door: Door) -> None:
    data = SMALL * 3 + frame_of(LARGE) + SMALL * 3
    with door.connect() as client, door.connect() as other:
        client.socket.sendall(data)
        for position in range(0, len(data), 5000):
            other.socket.sendall(data[position : position + 5000])
        for each in (client, other):
            assert all(each.receive() is not None for _ in range(7))
    poll_until(lambda: server_of(door).receiving.taken_bytes == 0)


def test_requests_are_answered_in_any_order_of_sizes(door: Door) -> None:
    """A large request is waited for as a whole, and the next one may be small."""
    with door.connect() as client:
        for data in (SMALL, frame_of(LARGE), SMALL, frame_of(LARGE), frame_of(LARGE), SMALL):
            client.socket.sendall(data[:2])
            client.socket.sendall(data[2:])
            assert client.receive() is not None


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\0\0\1\0", frame_of(LARGE)[:-1]], ids=["idle", "size", "small", "large"]
)
def test_client_that_does_not_go_on_is_disconnected(data: bytes) -> None:
    with run(receive_ms=100 if data else LONG_MS, idle_ms=LONG_MS if data else 100) as door, door.connect() as client:
        client.socket.sendall(data)
        assert client.receive() is None
        reason = "slow request" if data else "idle"
        assert door.call(lambda: dict(server_of(door).counters.disconnected)) == {reason: 1}


@pytest.mark.parametrize("limit", ["connections_max", "connections_per_address_max"])
def test_clients_beyond_a_limit_are_refused_while_others_are_served(limit: str) -> None:
    with run(**{limit: 1}) as door, door.connect() as first:
        assert is_served(first)
        with door.connect() as second:
            assert second.receive() is None
        assert is_served(first)


def fill(client: Client, topic: str, count: int, size: int) -> None:
    client.ask(ApiKey.METADATA, 4, topics=[{"name": topic}])
    for _ in range(count):
        client.append(topic, encode_batch(0, [bytes(size)], timestamps=1))


@pytest.mark.parametrize("is_patient", [True, False])
def test_client_that_reads_nothing_bounds_what_the_broker_does_for_it(is_patient: bool) -> None:
    """Others read meanwhile. It reads everything in the end, if the broker is so patient, or is disconnected."""
    count = 200
    with run(send_ms=LONG_MS if is_patient else 200) as door, door.connect() as client, door.connect() as other:
        fill(client, "large", 3, 100_000)
        parts: dict[Log, dict[str, Any]] = {("large", 0): {"partition_max_bytes": 10**9}}
        asked = of_logs(ApiKey.FETCH, parts, min_bytes=0)
        size = len(other.exchange(ApiKey.FETCH, 4, **asked))
        for _ in range(count):
            client.send(ApiKey.FETCH, 4, **asked)
        answers, counters = server_of(door).answers, server_of(door).counters
        if not is_patient:
            poll_until(lambda: counters.disconnected["slow reader"] == 1 and answers.taken_bytes == 0)
            return
        poll_until(lambda: answers.taken_bytes > UNSENT_BYTES_MAX)
        assert is_served(other)
        assert answers.taken_bytes <= UNSENT_BYTES_MAX + size + 4
        assert counters.requests[ApiKey.FETCH] < count
        assert all(len(client.receive() or b"") == size for _ in range(count))
        poll_until(lambda: answers.taken_bytes == 0)


def test_client_that_reads_no_small_answers_is_bounded_by_their_number() -> None:
    with run(send_ms=LONG_MS) as door, door.connect() as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.socket.settimeout(0.5)
        sent = 0
        with suppress(TimeoutError):
            while sent < 10**7:
                client.socket.sendall(SMALL * 1000)
                sent += 1000
        answers = server_of(door).answers
        assert answers.taken_bytes <= (UNANSWERED_MAX + 2) * 1000
        assert server_of(door).counters.requests[ApiKey.API_VERSIONS] < sent


def test_broken_requests_end_only_their_own_connection(door: Door) -> None:
    hostile = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 100,
        b"\x7f\xff\xff\xff",
        b"\0\0\0\0",
        bytes(100),
        b"\0\0\0\x28" + b"\xff" * 40,
        encode_request(MetadataRequest(topics=None), 1, 1)[:-4] + b"\x7f\xff\xff\xff",
    ]
    with ExitStack() as stack:
        honest = stack.enter_context(door.connect())
        for each in hostile:
            client = stack.enter_context(door.connect())
            client.socket.sendall(each)
            assert client.receive() is None
            assert is_served(honest)
        assert honest.ask(ApiKey.METADATA, 1, topics=[])["topics"] == []
