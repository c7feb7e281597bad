"""Hostile requests get a clear error, let nobody in, and leave the broker alive, whatever bytes they are."""

from __future__ import annotations

import gc
import json
import os
import re
import socket
import struct
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from dafka import Config
from dafka.kafka.protocol.frames import encode_request
from dafka.kafka.protocol.messages.connections import ApiVersionsRequest
from tests.http.running import DEADLINE_S, SharedWeb, open_web, read_all
from tests.http.websocket.clients import KEY, PING, TEXT, frame
from tests.waiting import wait_until

SHORT = Config().with_http(receive_ms=2000, send_ms=2000, idle_ms=2000)
JSON_TYPE = "Content-Type: application/json"


def head(*lines: str, target: str = "/topics", method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode("latin-1")


def status_of(answer: bytes) -> int:
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert found is not None, answer[:100]
    return int(found[1])


def error_of(answer: bytes) -> str:
    """Return the code of the error in the only response, after which the broker has ended the connection."""
    assert len(re.findall(rb"HTTP/1\.1 \d{3} ", answer)) == 1, answer
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"])


SMUGGLED = b"GET /groups HTTP/1.1\r\nHost: localhost\r\n\r\n"
PUBLISH: Any = {"target": "/topics/a/records", "method": "POST"}
MALFORMED = [
    (head("Content-Length: 4", "Transfer-Encoding: chunked", method="POST"), 400, "bad_request"),
    (b"PRI * HTTP/2.0\r\n\r\n", 505, "bad_request"),
    (b"GET /" + b"x" * 100_000, 431, "too_large"),
    (head(*(f"X-{number}: {'y' * 50}" for number in range(1000))), 431, "too_large"),
    (head("Content-Length: 99999999", **PUBLISH), 413, "too_large"),
    (head(f"Content-Length: {2**20 + 1}", JSON_TYPE, method="POST", target="/session"), 413, "too_large"),
    (head("Transfer-Encoding: chunked", **PUBLISH) + b"-1\r\na\r\n0\r\n\r\n", 400, "bad_request"),
]
"""The table of the package `tests.http1` has more of them."""


async def test_a_malformed_request_is_answered_once_and_ends_the_connection(web: SharedWeb) -> None:
    for data, status, code in MALFORMED:
        answer = await web.exchange(data + SMUGGLED)
        assert (status_of(answer), error_of(answer)) == (status, code), data[:100]
        assert b"onnection: close" in answer
        assert b"X-Content-Type-Options: nosniff" in answer
    assert web.ask("GET", "/topics/a").status == 404


PARTS = [
    *(b"GET ", b"POST ", b"/topics ", b"/topics/any/records ", b"HTTP/1.1", b"\r\n", b"\n", b"Host: localhost"),
    *(b"Content-Length: 3", b"Content-Length: ", b"Transfer-Encoding: chunked", b"Expect: 100-continue"),
    *(b"Connection: close", b"Upgrade: websocket", b"3\r\nabc\r\n", b"0\r\n\r\n", b"abc", b" ", b":"),
]


async def test_the_broker_lives_whatever_is_sent(web: SharedWeb) -> None:
    random = Random(5)
    tried = [b"".join(random.choices(PARTS, k=random.randrange(25))) for _ in range(80)]
    tried += [random.randbytes(random.randrange(200)) for _ in range(20)]
    counters = web.server.counters
    before = counters.disconnected["unexpected error"], counters.responses[500]
    for sent in tried:
        answer = await web.exchange(sent, eof=True)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 "), (sent, answer)
    assert (counters.disconnected["unexpected error"], counters.responses[500]) == before


async def test_a_body_has_a_size_limit() -> None:
    async with open_web(config=Config().with_http(body_bytes_max=10_000)) as web:
        for size, status in ((10_000, 200), (10_001, 413)):
            assert (await web.request("POST", PUBLISH["target"], b"x" * size)).status == status
            parts = [b"x" * 8192, b"x" * (size - 8192), b""]
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in parts)
            answer = await web.exchange(head("Transfer-Encoding: chunked", "Connection: close", **PUBLISH) + chunks)
            assert status_of(answer) == status
            document = b'{"name": "b"}'.ljust(size)
            created = await web.request("POST", "/topics", document, Content_Type="application/json")
            assert created.status == {200: 201}.get(status, status)


async def test_a_client_that_resets_its_connection_within_a_body_is_no_failure_of_the_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_web() as web:
        stream = await trio.open_tcp_stream("127.0.0.1", web.port)
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.send_all(head("Content-Length: 100000", **PUBLISH) + b"x")
        await trio.testing.wait_all_tasks_blocked(0.01)
        stream.socket.close()
        assert await web.is_alive()
    assert not [each for each in caplog.records if each.name == "dafka.http"]


TARGETS = [
    *("/topics/%ff", "/topics/orders%00.txt", "/topics/" + "x" * 10_000, "/topics/..", "//topics", "/topics//records"),
    *("/topics/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/topics/a%2Frecords", "/topics/%0d%0aSet-Cookie:%20a=b"),
    *("/topics/<script>", "/topics/orders;a=b", "/Topics", "/topics/"),
    *(f"/console{each}" for each in ("", "/", "//etc/passwd", "/%2fetc%2fpasswd")),
]


async def test_no_path_leads_astray(web: SharedWeb) -> None:
    for target in TARGETS:
        answer = await web.exchange(head("Connection: close", target=target))
        assert status_of(answer) in {400, 404, 431}, target
        assert b"\r\nSet-Cookie" not in answer, target
        error_of(answer)


async def test_slow_clients_are_ended_and_others_are_served_meanwhile() -> None:
    async with open_web(config=SHORT) as web, trio.open_nursery() as nursery:
        answers: dict[str, bytes] = {}

        async def send_slowly(name: str, begin: bytes) -> None:
            stream = await trio.open_tcp_stream("127.0.0.1", web.port)
            async with stream:
                await stream.send_all(begin)
                answers[name] = await read_all(stream)

        nursery.start_soon(send_slowly, "head", b"GET /topics HTTP/1.1\r\nHost: ")
        nursery.start_soon(send_slowly, "body", head("Content-Length: 9000", **PUBLISH) + b"a")
        nursery.start_soon(send_slowly, "chunks", head("Transfer-Encoding: chunked", **PUBLISH) + b"1\r\na\r\n")
        nursery.start_soon(send_slowly, "nothing", b"")
        nursery.start_soon(send_slowly, "no further request", head())
        with trio.fail_after(DEADLINE_S):
            while len(answers) < 5:
                assert await web.is_alive()
        assert [error_of(answers[each]) for each in ("head", "body", "chunks")] == ["request_timeout"] * 3
        assert answers["nothing"] == b""
        assert status_of(answers["no further request"]) == 200


async def test_a_client_that_does_not_read_is_ended(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = SHORT.with_http(body_bytes_max=2**24)
    async with open_web(f"filelog:{tmp_path_factory.mktemp('log')}", config) as web:
        for _ in range(20):
            assert (await web.request("POST", "/topics/orders/records", b"x" * 900_000)).status == 200
        stream = await trio.open_tcp_stream("127.0.0.1", web.port)
        async with stream:
            await stream.send_all(head(target="/topics/orders/records"))
            with trio.fail_after(DEADLINE_S):
                while not web.server.counters.disconnected["slow reader"]:
                    assert await web.is_alive()


async def test_connections_are_limited_and_silent_ones_give_way() -> None:
    async with open_web(config=Config().with_http(connections_max=3)) as web, AsyncExitStack() as stack:
        quotas = web.server.quotas

        async def connect() -> trio.SocketStream:
            return await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", web.port))

        async def get(stream: trio.SocketStream) -> bytes:
            await stream.send_all(head())
            return bytes(await stream.receive_some())

        with trio.fail_after(DEADLINE_S):
            for _ in range(20):
                silent = await connect()
            assert status_of(await get(silent)) == 200
            served = [silent, *[await connect() for _ in range(2)]]
            for stream in served:
                assert status_of(await get(stream)) == 200
            assert len(quotas) == 3
            assert await read_all(await connect()) == b"", "nobody can be replaced"
            assert (len(quotas), quotas.refused) == (3, 1)
            await served.pop().aclose()
            while len(quotas) == 3:
                await trio.testing.wait_all_tasks_blocked()
            assert await web.is_alive()


async def test_connections_of_an_address_are_limited() -> None:
    async with open_web(config=Config().with_http(connections_per_address_max=1)) as web, AsyncExitStack() as stack:
        stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", web.port))
        await stream.send_all(head())
        assert status_of(bytes(await stream.receive_some())) == 200
        assert await web.exchange(head()) == b""


# Clients that do not read, or send slowly or never all: others are served, and memory stays within its limit


UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n" % KEY.encode()
)
SUBSCRIBE = b'{"type":"subscribe","id":1,"topic":"large","from":"earliest","credit":1000000}'
MIB = 2**20
HOSTILE = 20
GET = b"GET /topics/large/records HTTP/1.1\r\nHost: localhost\r\n"
POST = GET.replace(b"GET", b"POST")
READERS = {
    "lines": GET + b"\r\n",
    "events": GET + b"Accept: text/event-stream\r\n\r\n",
    "pipelined": (GET + b"\r\n") * 20,
    "subscriber": UPGRADE + frame(TEXT, SUBSCRIBE),
    "messages": UPGRADE + frame(TEXT, b'{"type":"describe","id":1,"topic":"large"}') * 500,
    "pings": UPGRADE + frame(PING, b"x" * 125) * 2000,
    "incomplete body": POST + b"Content-Length: 900000\r\n\r\nx",
    "too large": POST + b"Content-Length: 99999999\r\n\r\nx",
    "endless head": b"GET / HTTP/1.1\r\nX: " + b"x" * 10_000,
}


@pytest.mark.parametrize("kind", READERS)
async def test_hostile_clients_do_not_hold_up_others(kind: str) -> None:
    config = Config().with_broker(memory=16 * MIB)
    async with open_web(config=config) as web:
        for _ in range(8):
            answer = await web.request("POST", "/topics/large/records", os.urandom(900_000))
            assert answer.status == 200
        hostile = []
        for _ in range(HOSTILE):
            client = trio.socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await client.connect(("127.0.0.1", web.port))
            await client.send(READERS[kind])
            hostile.append(client)
        memory = web.broker.broker.memory
        with trio.fail_after(DEADLINE_S):
            for _ in range(3):
                found = await web.get("/topics/large/records?limit=2")
                assert (found.status, found.body.count(b"\n")) == (200, 2)
                assert memory.used_bytes <= memory.bytes_max
        for client in hostile:
            client.close()
        server = web.server
        assert server is not None
        with trio.fail_after(DEADLINE_S):
            while server.answers.taken_bytes or server.receiving.taken_bytes:
                server.reads._kept.clear()
                gc.collect()  # errors hold what was being sent
                await trio.sleep(0.01)


COUNT = 40
SENT = bytes(100_000)
BEGINNINGS = {
    "length": POST + b"Content-Length: %d\r\n\r\n" % (16 * MIB) + SENT,
    "chunks": POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % (16 * MIB) + SENT,
    "WebSocket": UPGRADE + struct.pack(">BBQI", 0x82, 0xFF, 4 * MIB, 0) + SENT,
}


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
async def test_others_publish_beside_slow_uploads(beginning: bytes) -> None:
    """The slow ones claim several times what there is. None of them has ended when the others are answered."""
    config = Config().with_http(receiving_bytes_max=32 * MIB)
    async with open_web(config=config) as web, AsyncExitStack() as stack:
        for _ in range(COUNT):
            stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", web.port))
            await stream.send_all(beginning)
        receiving = web.server.receiving
        await wait_until(lambda: receiving.taken_bytes >= COUNT * len(SENT))
        with trio.fail_after(DEADLINE_S):
            for _ in range(3):
                assert (await web.request("POST", "/topics/orders/records", bytes(1_000_000))).status == 200
        assert not web.server.counters.disconnected
        assert receiving.taken_bytes <= 2 * COUNT * (len(SENT) + 2**16)
        await stack.aclose()
        await wait_until(lambda: not receiving.taken_bytes)


async def test_kafka_clients_are_served_beside_slow_uploads() -> None:
    config = Config().with_kafka(receiving_bytes_max=32 * MIB)
    async with open_web(config=config) as web, AsyncExitStack() as stack:
        kafka = web.broker.kafka
        assert kafka is not None
        host, _, port = web.broker.bootstrap_servers.rpartition(":")
        for _ in range(COUNT):
            stream = await stack.enter_async_context(await trio.open_tcp_stream(host, int(port)))
            await stream.send_all((16 * MIB).to_bytes(4, "big") + SENT)
        with trio.fail_after(DEADLINE_S):
            await wait_until(lambda: kafka.receiving.taken_bytes >= COUNT * len(SENT))
            stream = await stack.enter_async_context(await trio.open_tcp_stream(host, int(port)))
            request = encode_request(ApiVersionsRequest(), 0, 1)[4:] + bytes(MIB)
            await stream.send_all(len(request).to_bytes(4, "big") + request)
            assert await stream.receive_some()
        assert not kafka.counters.disconnected
        assert kafka.receiving.taken_bytes <= 16 * MIB + COUNT * (len(SENT) + 2**16)
