"""A client that sends any bytes over WebSocket, also what no library would."""

from __future__ import annotations

import re
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from tests.http.running import RunningWeb

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FINAL = 0x80
COMPRESSED = 0x40
DEADLINE_S = 60

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
        chosen = re.search(rb"^sec-websocket-protocol: (.*)\r$", head + b"\r", re.IGNORECASE | re.MULTILINE)
        client = RawClient(stream, rest, chosen and chosen[1].decode())
        first, payload = await client.receive()
        assert (first, payload[:17]) == (FINAL | TEXT, b'{"type":"welcome"')
        yield client
