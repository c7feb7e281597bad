"""Clients that send what they must not, stop in the middle, or never read: each is ended, and nobody else notices."""

from __future__ import annotations

import json
import random
import tracemalloc
import zlib
from contextlib import suppress

import pytest
import trio
import trio.testing

from dafka import Config
from dafka.http.websocket.connection import ClientStream
from tests.http.running import RunningWeb, SharedWeb, open_web
from tests.http.websocket.clients import (
    CLOSE,
    COMPRESSED,
    CONTINUATION,
    FINAL,
    PING,
    PONG,
    TEXT,
    frame,
    handshake,
    open_client,
    open_raw,
)
from tests.waiting import wait_until

DEADLINE_S = 60
PROTOCOL_ERROR, INVALID_DATA, TOO_BIG = 1002, 1007, 1009
PING_MESSAGE, PONG_MESSAGE = b'{"type":"ping","id":1}', (FINAL | TEXT, b'{"type":"pong","id":1}')
DEFLATE = "Sec-WebSocket-Extensions: permessage-deflate"


def deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4]


async def is_serving(web: RunningWeb) -> bool:
    async with open_client(web) as client:
        return bool((await client.ask("ping"))["type"] == "pong")


MALFORMED: list[tuple[list[bytes], int | None]] = [
    ([frame(TEXT, PING_MESSAGE, is_masked=False)], PROTOCOL_ERROR),
    *(([frame(each, b"x")], PROTOCOL_ERROR) for each in (3, 15, CONTINUATION)),
    *(([frame(TEXT, b"x", flags=FINAL | each)], PROTOCOL_ERROR) for each in (0x20, COMPRESSED)),
    ([frame(TEXT, b"x", flags=0), frame(TEXT, b"x")], PROTOCOL_ERROR),
    ([frame(PING, bytes(126))], PROTOCOL_ERROR),
    ([frame(PING, b"x", flags=0)], PROTOCOL_ERROR),
    *(([frame(CLOSE, each)], PROTOCOL_ERROR) for each in (b"x", b"\x00\x01")),
    ([frame(CLOSE, b"\x03\xe8\xff")], INVALID_DATA),
    *(([frame(TEXT, each)], INVALID_DATA) for each in (b"\xff\xfe", b"\xed\xa0\x80")),
    ([frame(TEXT, b'{"a":"\xc3', flags=0), frame(CONTINUATION, b'"}')], INVALID_DATA),
    *(([b"\x81\xff" + each * 8 + bytes(4)], TOO_BIG) for each in (b"\x7f", b"\xff")),
    ([b"\x82\xfe\xff\xff" + bytes(4)], 0),  # a message that ends nowhere
    *(([each], None) for each in (random.Random(5).randbytes(2000), b"GET / HTTP/1.1\r\n\r\n")),
]


async def test_malformed_frames_end_the_connection(web: SharedWeb) -> None:
    for frames, code in MALFORMED:
        async with open_raw(web) as client:
            await client.send(*frames)
            if code == 0:
                await client.stream.send_eof()
            found = await client.receive_close()
            assert found == code or code is None, frames
        assert await is_serving(web)


async def test_messages_have_a_size_limit() -> None:
    largest, compressed = PING_MESSAGE.ljust(2000), FINAL | COMPRESSED
    sent: list[tuple[list[bytes], int]] = [
        ([frame(TEXT, largest)], 0),
        ([frame(TEXT, largest[:1500], flags=0), frame(CONTINUATION, largest[1500:])], 0),
        ([frame(TEXT, deflate(largest), flags=compressed)], 0),
        ([frame(TEXT, deflate(largest + b" "), flags=compressed)], TOO_BIG),
        ([frame(TEXT, bytes(2001))[:20]], TOO_BIG),
        ([frame(TEXT, b"a" * 1500, flags=0), frame(CONTINUATION, b"a" * 501)], TOO_BIG),
    ]
    async with open_web(config=Config().with_http(message_bytes_max=2000)) as web:
        for frames, code in sent:
            async with open_raw(web, DEFLATE) as client:
                await client.send(*frames)
                if code:
                    assert await client.receive_close() == code
                else:
                    assert await client.receive() == PONG_MESSAGE
        assert await is_serving(web)


async def test_compressed_bomb_is_refused() -> None:
    async with open_web() as web, open_raw(web, DEFLATE) as client:
        bomb = deflate(bytes(2**26))
        assert len(bomb) < 2**17
        tracemalloc.start()
        try:
            await client.send(frame(TEXT, bomb, flags=FINAL | COMPRESSED))
            assert await client.receive_close() == TOO_BIG
            assert tracemalloc.get_traced_memory()[1] < 2**25
        finally:
            tracemalloc.stop()
        assert await is_serving(web)


async def test_fragments_without_end_are_refused(web: SharedWeb) -> None:
    async with open_raw(web) as client:
        await client.send(frame(TEXT, b"", flags=0))

        async def send_until_broken() -> None:
            with suppress(trio.BrokenResourceError):
                while True:
                    await client.send(frame(CONTINUATION, b"", flags=0) * 1000)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_until_broken)
            assert await client.receive_close() in {0, TOO_BIG}
            nursery.cancel_scope.cancel()
        assert await is_serving(web)


async def test_client_that_says_nothing_is_pinged_and_stays_while_it_answers() -> None:
    async with open_web(config=Config().with_http(idle_ms=400)) as web, open_raw(web) as client:
        for _ in range(5):
            first, payload = await client.receive()
            assert first == FINAL | PING
            await client.send(frame(PONG, payload))
        await client.send(frame(TEXT, PING_MESSAGE))
        while (received := await client.receive())[0] == FINAL | PING:
            await client.send(frame(PONG, received[1]))
        assert received == PONG_MESSAGE
        assert await client.receive_close() == 0
        assert web.server.counters.disconnected["idle"] == 1


async def test_large_messages_wait_for_room_and_must_come_in_time() -> None:
    config = Config().with_http(message_bytes_max=2**20, receiving_bytes_max=2**20, receive_ms=300)
    async with open_web(config=config) as web, open_raw(web) as slow, open_raw(web) as other:
        await slow.send(frame(TEXT, b" " * 500_000)[:100_000])
        receiving = web.server.receiving
        await wait_until(lambda: bool(receiving.taken_bytes))
        await other.send(frame(TEXT, b" " * 100_000 + PING_MESSAGE))
        assert await slow.receive_close() == 0
        assert await other.receive() == PONG_MESSAGE
        assert web.server.receiving.taken_bytes == 0


async def test_half_open_connection_gives_everything_back() -> None:
    async with open_web() as web:
        async with open_client(web) as publisher:
            await publisher.publish("orders", "a")
            assert web.server.counters.websocket_connections == 1
        for _ in range(3):
            async with open_raw(web) as client:
                subscribe = {"type": "subscribe", "id": 1, "topic": "orders", "from": "earliest", "credit": 10}
                await client.send(frame(TEXT, json.dumps(subscribe).encode()))
                await client.receive()
                await client.stream.send_eof()
                assert await client.receive_close() in {0, 1006}
        quotas = web.server.quotas
        await wait_until(lambda: not len(quotas))
        assert web.server.counters.websocket_connections == 0
        assert len(web.broker.node.watchers) <= 1, "only the log of metadata is watched"


async def test_close_right_behind_the_handshake_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    send_all = ClientStream.send_all

    async def send_slowly(stream: ClientStream, data: bytes) -> None:
        await send_all(stream, data)
        if data.startswith(b"HTTP"):
            await trio.sleep(0.1)  # meanwhile the client's frame comes

    monkeypatch.setattr(ClientStream, "send_all", send_slowly)
    async with open_web() as web:
        stream = await trio.open_tcp_stream("127.0.0.1", web.port)
        async with stream:
            await stream.send_all(handshake(web))
            received = b""
            with trio.fail_after(DEADLINE_S):
                while b"\r\n\r\n" not in received:
                    received += await stream.receive_some()
                await stream.send_all(frame(CLOSE, b"\x03\xe8"))
                while data := await stream.receive_some():
                    received += data
        assert received.endswith(b"\x88\x02\x03\xe8"), received
