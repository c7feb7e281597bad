"""A client of WebSocket that is none of ours: Python's `websockets`."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from websockets.trio.client import ClientConnection, connect

from dafka.http.websocket.messages import SERVER_MESSAGES
from tests.http.running import RunningWeb

DEADLINE_S = 60

JSON = "dafka.json.v1"
BINARY = "dafka.binary.v1"


class Client:
    """A client. Each message that it gets is held against the table of messages."""

    def __init__(self, connection: ClientConnection, welcome: dict[str, Any]) -> None:
        self.connection = connection
        self.welcome = welcome
        self._next_id = 100

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    async def send(self, kind: str, **fields: Any) -> int:
        """Send a message; `from_` stands for `from`. Return its id, which is a new one if none is given."""
        fields.setdefault("id", self.new_id())
        if "from_" in fields:
            fields["from"] = fields.pop("from_")
        await self.connection.send(json.dumps({"type": kind, **fields}))
        return int(fields["id"])

    async def receive(self) -> Any:
        """Return the next message: an object, or the bytes of a binary message."""
        with trio.fail_after(DEADLINE_S):
            received = await self.connection.recv()
        if isinstance(received, bytes):
            return received
        message = json.loads(received)
        assert message.keys() == {"type", *SERVER_MESSAGES[message["type"]].__struct_fields__}, message
        return message

    async def expect(self, kind: str, identifier: int | None = None) -> Any:
        message = await self.receive()
        assert message["type"] == kind, message
        if identifier is not None:
            assert message["id"] == identifier
        return message

    async def ask(self, kind: str, **fields: Any) -> Any:
        await self.send(kind, **fields)
        return await self.receive()

    async def publish(self, topic: str, *values: str, **fields: Any) -> list[dict[str, int]]:
        answer = await self.ask("publish", topic=topic, records=[{"value": value} for value in values], **fields)
        assert answer["type"] == "published", answer
        offsets: list[dict[str, int]] = answer["offsets"]
        return offsets

    async def subscribe(self, topic: str, position: Any = "earliest", credit: int = 1000, **fields: Any) -> int:
        identifier = await self.send("subscribe", topic=topic, from_=position, credit=credit, **fields)
        await self.expect("subscribed", identifier)
        return identifier

    async def take(self, count: int, identifier: int | None = None) -> list[dict[str, Any]]:
        """Return the next records of a subscription, which are as many as this."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            message = await self.expect("records", identifier)
            found += [{"log": message["log"], **each} for each in message["records"]]
        assert len(found) == count
        return found

    async def values(self, count: int, identifier: int | None = None) -> list[str]:
        return [str(each["value"]) for each in await self.take(count, identifier)]


@asynccontextmanager
async def open_client(
    web: RunningWeb, subprotocol: str | None = JSON, *, compression: str | None = None, **headers: str
) -> AsyncIterator[Client]:
    """Connect to a broker for the duration of a block."""
    async with connect(
        f"ws://127.0.0.1:{web.port}/ws",
        subprotocols=None if subprotocol is None else [subprotocol],  # type: ignore[list-item]
        compression=compression,
        additional_headers={name.replace("_", "-"): value for name, value in headers.items()},
        max_size=2**26,
        proxy=None,
    ) as connection:
        welcome = json.loads(await connection.recv())
        assert welcome["type"] == "welcome"
        yield Client(connection, welcome)


# A client that sends any bytes, also what no library would


CONTINUATION, TEXT, BINARY_FRAME, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FINAL = 0x80
COMPRESSED = 0x40


KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def frame(opcode: int, payload: bytes = b"", *, flags: int = FINAL, is_masked: bool = True) -> bytes:
    size = len(payload)
    mask_bit = 0x80 if is_masked else 0
    if size < 126:
        head = struct.pack(">BB", flags | opcode, mask_bit | size)
    elif size < 2**16:
        head = struct.pack(">BBH", flags | opcode, mask_bit | 126, size)
    else:
        head = struct.pack(">BBQ", flags | opcode, mask_bit | 127, size)
    if not is_masked:
        return head + payload
    mask = b"\x12\x34\x56\x78"
    repeated = (mask * (size // 4 + 1))[:size]
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")
    return head + mask + masked.to_bytes(size, "big")


class RawClient:
    def __init__(self, stream: trio.SocketStream, received: bytes, subprotocol: str | None) -> None:
        self.stream = stream
        self.subprotocol = subprotocol
        self._received = received

    async def send(self, *frames: bytes) -> None:
        await self.stream.send_all(b"".join(frames))

    async def receive(self) -> tuple[int, bytes]:
        """Return the first byte and the payload of the next frame; (-1, b"") at the end of the connection."""
        with trio.fail_after(DEADLINE_S):
            if not await self._fill(2):
                return -1, b""
            first, size = self._received[0], self._received[1]
            start = 2
            if size == 126:
                await self._fill(4)
                size, start = int.from_bytes(self._received[2:4], "big"), 4
            elif size == 127:
                await self._fill(10)
                size, start = int.from_bytes(self._received[2:10], "big"), 10
            if not await self._fill(start + size):
                return -1, b""
            payload = self._received[start : start + size]
            self._received = self._received[start + size :]
            return first, payload

    async def receive_close(self) -> int:
        """Return the code with which the broker ends the connection; 0 if it sends none. Other frames are skipped."""
        while True:
            first, payload = await self.receive()
            if first < 0:
                return 0
            if first == FINAL | CLOSE:
                return int.from_bytes(payload[:2], "big")

    async def _fill(self, size: int) -> bool:
        while len(self._received) < size:
            try:
                data = await self.stream.receive_some()
            except trio.BrokenResourceError:
                return False
            if not data:
                return False
            self._received += data
        return True


def handshake(web: RunningWeb, *headers: str) -> bytes:
    lines = [
        "GET /ws HTTP/1.1",
        f"Host: 127.0.0.1:{web.port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {KEY}",
        "Sec-WebSocket-Version: 13",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


@asynccontextmanager
async def open_raw(web: RunningWeb, *headers: str) -> AsyncIterator[RawClient]:
    stream = await trio.open_tcp_stream("127.0.0.1", web.port)
    async with stream:
        await stream.send_all(handshake(web, *headers))
        received = b""
        with trio.fail_after(DEADLINE_S):
            while b"\r\n\r\n" not in received:
                data = await stream.receive_some()
                assert data, received
                received += data
        head, _, rest = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101"), received
        assert head.count(b"_no_context_takeover") == (2 if any("deflate" in each for each in headers) else 0)
        chosen = re.search(rb"^sec-websocket-protocol: (.*)\r$", head + b"\r", re.IGNORECASE | re.MULTILINE)
        client = RawClient(stream, rest, chosen and chosen[1].decode())
        first, payload = await client.receive()
        assert (first, payload[:17]) == (FINAL | TEXT, b'{"type":"welcome"')
        yield client
