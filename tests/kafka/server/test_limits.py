"""Limits: hostile connections are bounded, and honest clients are served beside them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from dafka import Config
from dafka.broker.connections import memory as broker_room
from dafka.broker.connections.uploads import SMALL_BYTES
from dafka.kafka.protocol.frames import encode_request
from dafka.kafka.protocol.messages.cluster import MetadataRequest, MetadataResponse
from dafka.kafka.protocol.messages.connections import ApiVersionsRequest, ApiVersionsResponse
from dafka.kafka.protocol.messages.logs import FetchPartition, FetchRequest, FetchTopic
from dafka.server import ServingBroker, serve_listeners
from dafka.testing import RunningKafka
from dafka.testing.cluster import open_cluster
from tests.kafka.server.clients import Confluent, Message
from tests.kafka.server.fixtures import run_broker
from tests.kafka.server.test_security import Wire

LARGE = 10 * SMALL_BYTES


def frame_of(size: int) -> bytes:
    """Return a request of a size: the name of the client fills it."""
    request = encode_request(ApiVersionsRequest(), 0, 1, "x" * 10_000)
    return size.to_bytes(4, "big") + request[4:] + bytes(size - len(request) + 4)


@contextmanager
def run(**settings: Any) -> Iterator[RunningKafka]:
    with run_broker("memory:", Config().with_kafka(**settings)) as running:
        yield running


def is_served(wire: Wire) -> bool:
    return wire.ask(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0


def test_large_request_is_received_in_pieces() -> None:
    with run() as running, Wire(running) as wire:
        data = frame_of(LARGE)
        for position in range(0, len(data), 5000):
            wire.socket.sendall(data[position : position + 5000])
        assert wire.receive() is not None
        assert is_served(wire)


def test_requests_that_come_together_are_all_answered() -> None:
    with run() as running, Wire(running) as wire:
        small = encode_request(ApiVersionsRequest(), 0, 1)
        wire.socket.sendall(small * 3 + frame_of(LARGE) + small * 3)
        assert all(wire.receive() is not None for _ in range(7))


@pytest.mark.parametrize("data", [b"\0", b"\0\0\1\0", frame_of(LARGE)[:-1]], ids=["size", "small", "large"])
def test_request_that_is_never_complete_ends_its_connection(data: bytes) -> None:
    with run(receive_ms=100) as running, Wire(running) as wire:
        wire.socket.sendall(data)
        assert wire.is_ended()


def test_idle_client_is_disconnected() -> None:
    with run(idle_ms=100) as running, Wire(running) as wire:
        assert wire.is_ended()


def test_small_requests_are_served_while_large_ones_fill_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_room, "PATIENCE_S", 60)  # no client is too slow
    with run(receiving_bytes_max=LARGE) as running, ExitStack() as stack:
        honest = stack.enter_context(Wire(running))
        hostile = [stack.enter_context(Wire(running)) for _ in range(5)]
        assert all(is_served(each) for each in hostile)
        for each in hostile:
            each.socket.sendall(frame_of(LARGE)[: SMALL_BYTES + 1])
            for _ in range(3):  # by then, the broker has seen what came before: they ask for room in this order
                assert is_served(honest)
        hostile[0].socket.sendall(frame_of(LARGE)[SMALL_BYTES + 1 :])
        for each in hostile:  # one after the other has the room
            each.socket.sendall(frame_of(LARGE)[SMALL_BYTES + 1 :] if each is not hostile[0] else b"")
            assert each.receive() is not None


async def test_large_requests_that_are_being_received_stay_within_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_room, "PATIENCE_S", 60)  # no client is too slow
    whole = LARGE + 4
    config = Config().with_kafka(receiving_bytes_max=2 * whole, listen="0")
    async with open_cluster(config, storage=None) as cluster, trio.open_nursery() as nursery:
        running: ServingBroker = await nursery.start(serve_listeners, cluster.config.with_store(storage="memory:"))
        assert running.kafka is not None
        host, _, port = running.bootstrap_servers.rpartition(":")
        streams = [await trio.open_tcp_stream(host, int(port)) for _ in range(5)]
        data = frame_of(LARGE)
        for each in streams:
            await each.send_all(data[: LARGE // 2])
        receiving = running.kafka.receiving
        with trio.fail_after(30):
            while not receiving.waiting:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert receiving.taken_bytes <= 2 * whole
        assert running.kafka.counters.received_bytes <= receiving.taken_bytes + 5 * SMALL_BYTES
        with trio.fail_after(30):
            for each in streams:
                await each.send_all(data[LARGE // 2 :])
                assert receiving.taken_bytes <= 2 * whole
            for each in streams:
                assert await each.receive_some(4)
        assert running.kafka.receiving.taken_bytes == 0
        for each in streams:
            await each.aclose()
        nursery.cancel_scope.cancel()


def test_clients_beyond_the_limit_are_refused_unless_others_are_silent() -> None:
    with run(connections_max=3) as running, ExitStack() as stack:
        silent = stack.enter_context(Wire(running))
        others = [stack.enter_context(Wire(running)) for _ in range(2)]
        assert all(is_served(each) for each in others)
        new = stack.enter_context(Wire(running))
        assert is_served(new)
        assert silent.is_ended()
        with Wire(running) as refused:
            assert refused.is_ended()
        assert all(is_served(each) for each in (*others, new))


def test_clients_of_one_address_are_limited() -> None:
    with run(connections_per_address_max=1) as running, Wire(running) as first:
        assert is_served(first)
        with Wire(running) as second:
            assert second.is_ended()


def test_client_that_reads_no_answers_is_disconnected(tmp_path: Path) -> None:
    """Others read meanwhile, and its requests are not handled without end."""
    config = Config().with_kafka(send_ms=200, answers_bytes_max=2**20)
    value = bytes(100_000)
    with run_broker(f"filelog:{tmp_path}/log", config) as running, Wire(running) as wire:
        Confluent().write(running.bootstrap_servers, "large", [Message(value)] * 100, "none")
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10**9)
        request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic="large", partitions=[partition])])
        wire.socket.sendall(encode_request(request, 4, 1) * 200)
        assert len(Confluent().read(running.bootstrap_servers, "large", 100)) == 100
        received = 0
        wire.socket.settimeout(30)
        trio.run(trio.sleep, 1)  # longer than the broker waits for a client that reads nothing
        try:
            while data := wire.socket.recv(2**20):
                received += len(data)
        except ConnectionError:
            pass
        assert received < 100 * len(value)


def test_broken_requests_end_only_their_own_connection() -> None:
    hostile = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 100,
        b"\x7f\xff\xff\xff",
        (2**27).to_bytes(4, "big"),
        bytes(100),
        encode_request(MetadataRequest(topics=None), 1, 1)[:-2] + b"\x7f\xff\xff\xff",
    ]
    with run(receive_ms=2000) as running, ExitStack() as stack:
        honest = stack.enter_context(Wire(running))
        for each in hostile:
            wire = stack.enter_context(Wire(running))
            wire.socket.sendall(each)
            assert is_served(honest)
        assert honest.ask(MetadataRequest(topics=[]), MetadataResponse, 1).topics == []
