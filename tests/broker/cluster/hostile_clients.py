"""Hostile clients of a broker, of all or some kinds at once, until they are killed.

    python -m tests.broker.cluster.hostile_clients KAFKA_PORT HTTP_PORT SCALE [KIND ...]

They come from an address and a user of their own, and come again whenever the broker ends their connections.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import random
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from dafka.batches import Compression, encode_batch
from dafka.kafka.protocol.frames import encode_request
from dafka.kafka.protocol.messages.connections import SaslAuthenticateRequest, SaslHandshakeRequest
from dafka.kafka.protocol.messages.logs import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

MIB = 2**20
ADDRESS, GUESSER = "127.0.0.2", "127.0.0.3"
"""Where they come from, and where wrong passwords do: those would lock out the others."""

USER, PASSWORD = "mallory", "right"
LARGE, ZEROS, OWN = "large", "zeros", "mallory"
"""Topics: incompressible records of a megabyte, records of many megabytes in batches of some bytes, and any."""

ZEROS_BYTES = 15 * MIB
AGAIN_S = 0.2

_ESTABLISHED = 1
"""A state of TCP."""

_numbers = itertools.count(1)


@attrs.frozen
class Target:
    """The broker, and how many connections each kind of client has."""

    kafka_port: int
    http_port: int
    scale: int


Client = Callable[[Target], Awaitable[None]]


async def connect(port: int, receive_bytes: int = 4096, address: str = ADDRESS) -> trio.SocketStream:
    """Return a connection that takes few bytes on its own."""
    found = trio.socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await found.bind((address, 0))
    await found.connect(("127.0.0.1", port))
    return trio.SocketStream(found)


def head(method: str, path: str, *lines: str, user: str = USER, password: str = PASSWORD) -> bytes:
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    fixed = (f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Basic {login}")
    return "\r\n".join((*fixed, *lines, "", "")).encode()


async def wait_end(stream: trio.SocketStream) -> None:
    """Wait until the broker ends a connection, without reading what it sends."""
    while stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO) & 0xFF == _ESTABLISHED:  # noqa: ASYNC110
        await trio.sleep(AGAIN_S)


async def drain(stream: trio.SocketStream) -> None:
    while await stream.receive_some(MIB):
        pass


async def http_unread(target: Target) -> None:
    async with await connect(target.http_port) as stream:
        await stream.send_all(head("GET", f"/topics/{LARGE}/records?limit=1000"))
        await wait_end(stream)


async def events_unread(target: Target) -> None:
    async with await connect(target.http_port) as stream:
        await stream.send_all(head("GET", f"/topics/{LARGE}/records", "Accept: text/event-stream"))
        await wait_end(stream)


async def http_bombs(target: Target) -> None:
    accept = () if random.random() < 0.5 else ("Accept: text/event-stream",)
    async with await connect(target.http_port, MIB) as stream:
        await stream.send_all(head("GET", f"/topics/{ZEROS}/records?limit=1000", *accept))
        await drain(stream)


async def open_websocket(target: Target) -> trio.SocketStream:
    stream = await connect(target.http_port)
    key = base64.b64encode(os.urandom(16)).decode()
    upgrade = ("Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13")
    await stream.send_all(head("GET", "/ws", *upgrade))
    await stream.receive_some(1)
    return stream


async def send_messages(stream: trio.SocketStream, *messages: dict[str, Any]) -> None:
    for number, message in enumerate(messages):
        data = json.dumps({"id": number, **message}).encode()
        size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + struct.pack(">H", len(data))
        await stream.send_all(b"\x81" + size + bytes(4) + data)


async def subscriptions_unread(target: Target) -> None:
    async with await open_websocket(target) as stream:
        wanted = {"type": "subscribe", "from": "earliest", "credit": 1_000_000}
        await send_messages(stream, *({**wanted, "topic": each} for each in (LARGE, ZEROS) * 5))
        await wait_end(stream)


async def watches(target: Target) -> None:
    paths = ["/topics", f"/topics/{LARGE}", f"/topics/{OWN}", f"/topics/{OWN}/offsets"] * 5
    async with await open_websocket(target) as stream:
        await send_messages(stream, *({"type": "watch", "path": each, "interval_ms": 100} for each in paths))
        await drain(stream)


async def log_in(target: Target) -> trio.SocketStream:
    stream = await connect(target.kafka_port)
    await send_login(stream, USER, PASSWORD)
    return stream


async def send_login(stream: trio.SocketStream, user: str, password: str) -> None:
    data = f"\0{user}\0{password}".encode()
    for request, version in (
        (SaslHandshakeRequest(mechanism="PLAIN"), 1),
        (SaslAuthenticateRequest(auth_bytes=data), 0),
    ):
        await stream.send_all(encode_request(request, version, 1))
        await stream.receive_some(4096)


def fetch(topic: str, version: int) -> bytes:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MIB)
    wanted = [FetchTopic(topic=topic, partitions=[partition])]
    return encode_request(FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=50 * MIB, topics=wanted), version, 1)


async def fetches_unread(target: Target) -> None:
    async with await log_in(target) as stream:
        for _ in range(20):
            await stream.send_all(fetch(LARGE, 11))
        await wait_end(stream)


async def fetch_bombs(target: Target) -> None:
    """Fetch in the format in which the broker unpacks the records, and read slowly."""
    async with await log_in(target) as stream:
        while True:
            await stream.send_all(fetch(ZEROS, random.choice((2, 11))))
            for _ in range(20):
                await stream.receive_some(MIB)
                await trio.sleep(0.05)


BOMBS = [
    encode_batch(0, [bytes(size)], timestamps=1, compression=kind)
    for kind, size in itertools.product((Compression.GZIP, Compression.ZSTD, Compression.LZ4), (ZEROS_BYTES, 20 * MIB))
]
"""Batches that contain as much as is allowed, and a little more."""


async def produce_bombs(target: Target) -> None:
    async with await log_in(target) as stream:
        for data in itertools.cycle(BOMBS):
            part = [PartitionProduceData(index=0, records=data)]
            topics = [TopicProduceData(name=OWN, partition_data=part)]
            await stream.send_all(encode_request(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=topics), 8, 1))
            await stream.receive_some(4096)


async def oversize_posts(target: Target) -> None:
    framing = ("Content-Length: 1000000000",) if random.random() < 0.5 else ("Transfer-Encoding: chunked",)
    async with await connect(target.http_port) as stream:
        await stream.send_all(head("POST", f"/topics/{OWN}/records", *framing))
        while True:
            await stream.send_all(b"10000\r\n" + bytes(0x10000) + b"\r\n")


async def half_requests(target: Target) -> None:
    beginnings = [
        (target.kafka_port, (90 * MIB).to_bytes(4, "big") + bytes(32 * 1024)),
        (target.http_port, head("POST", f"/topics/{OWN}/records", "Content-Length: 900000") + bytes(100_000)),
        (target.http_port, b"GET / HTTP/1.1\r\nX: " + b"x" * 10_000),
    ]
    port, data = random.choice(beginnings)
    async with await connect(port) as stream:
        await stream.send_all(data)
        await wait_end(stream)


async def idle(target: Target) -> None:
    async with await connect(random.choice((target.kafka_port, target.http_port))) as stream:
        await wait_end(stream)


async def wrong_passwords(target: Target) -> None:
    """Guess the passwords of all users."""
    user, password = (USER, "alice")[next(_numbers) % 2], f"wrong {next(_numbers)}"
    if random.random() < 0.5:
        async with await connect(target.http_port, address=GUESSER) as stream:
            await stream.send_all(head("GET", "/topics", user=user, password=password))
            await stream.receive_some(4096)
    else:
        async with await connect(target.kafka_port, address=GUESSER) as stream:
            await send_login(stream, user, password)


KINDS: dict[Client, float] = {
    http_unread: 1,
    events_unread: 1,
    subscriptions_unread: 1,
    fetches_unread: 1,
    http_bombs: 1,
    fetch_bombs: 1,
    produce_bombs: 0.5,
    oversize_posts: 0.5,
    half_requests: 1,
    idle: 20,
    watches: 0.5,
    wrong_passwords: 0.5,
}
"""The kinds, and how many connections each has for one of the scale."""


async def repeat(client: Client, target: Target) -> None:
    while True:
        try:
            await client(target)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.sleep(AGAIN_S)
        await trio.sleep(AGAIN_S / 10)


async def attack(target: Target, names: list[str]) -> None:
    async with trio.open_nursery() as nursery:
        for client, share in KINDS.items():
            if not names or client.__name__ in names:
                for _ in range(max(round(share * target.scale), 1)):
                    nursery.start_soon(repeat, client, target)
        print("attacking", flush=True)


if __name__ == "__main__":
    trio.run(attack, Target(*map(int, sys.argv[1:4])), sys.argv[4:])
