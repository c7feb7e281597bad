"""Slow uploads at every door hold what they have sent, so that others are served beside them."""

from __future__ import annotations

import struct
from contextlib import AsyncExitStack

import pytest
import trio

from dafka import Config
from dafka.kafka.protocol.frames import encode_request
from dafka.kafka.protocol.messages.connections import ApiVersionsRequest
from tests.http.running import DEADLINE_S, RunningWeb, open_web
from tests.http.server.test_hostile_readers import UPGRADE
from tests.waiting import wait_until

MIB = 2**20
COUNT = 40
SENT = bytes(100_000)
POST = b"POST /topics/orders/records HTTP/1.1\r\nHost: localhost\r\n"
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
        await _wait_for_uploads(web)
        with trio.fail_after(DEADLINE_S):
            for _ in range(3):
                answer = await web.request("POST", "/topics/orders/records", bytes(1_000_000))
                assert answer.status == 200
        assert not web.broker.web.counters.disconnected
        assert web.broker.web.receiving.taken_bytes <= 2 * COUNT * (len(SENT) + 2**16)
        await stack.aclose()
        receiving = web.broker.web.receiving
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


async def _wait_for_uploads(web: RunningWeb) -> None:
    assert web.broker.web is not None
    receiving = web.broker.web.receiving
    await wait_until(lambda: receiving.taken_bytes >= COUNT * len(SENT))
