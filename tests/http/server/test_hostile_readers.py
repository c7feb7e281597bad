"""Clients that do not read, or never complete what they send: others are served, and memory stays within its limit."""

from __future__ import annotations

import gc
import os
import socket

import pytest
import trio

from dafka import Config
from tests.http.running import DEADLINE_S, open_web
from tests.http.websocket.raw import KEY, TEXT, frame

UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n" % KEY.encode()
)
SUBSCRIBE = b'{"type":"subscribe","id":1,"topic":"large","from":"earliest","credit":1000000}'
MIB = 2**20
HOSTILE = 20
READERS = {
    "lines": b"GET /topics/large/records HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "events": b"GET /topics/large/records HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
    "pipelined": b"GET /topics/large/records HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20,
    "subscriber": UPGRADE + frame(TEXT, SUBSCRIBE),
    "messages": UPGRADE + frame(TEXT, b'{"type":"describe","id":1,"topic":"large"}') * 500,
    "incomplete body": b"POST /topics/large/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\nx",
    "too large": b"POST /topics/large/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\nx",
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
