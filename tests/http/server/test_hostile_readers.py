"""Clients that do not read, or send slowly or never all: others are served, and memory stays within its limit."""

from __future__ import annotations

import gc
import os
import socket
import struct
from contextlib import AsyncExitStack

import pytest
import trio

from dafka import Config
from dafka.kafka.protocol.frames import encode_request
from dafka.kafka.protocol.messages.connections import ApiVersionsRequest
from tests.http.running import DEADLINE_S, open_web
from tests.http.websocket.raw import KEY, PING, TEXT, frame
from tests.waiting import wait_until

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
        server = web.broker.web
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
        assert web.broker.web is not None
        for _ in range(COUNT):
            stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", web.port))
            await stream.send_all(beginning)
        receiving = web.broker.web.receiving
        await wait_until(lambda: receiving.taken_bytes >= COUNT * len(SENT))
        with trio.fail_after(DEADLINE_S):
            for _ in range(3):
                assert (await web.request("POST", "/topics/orders/records", bytes(1_000_000))).status == 200
        assert not web.broker.web.counters.disconnected
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
        assert kafka.receiving.taken_bytes <= 2 * COUNT * (len(SENT) + 2**16)
