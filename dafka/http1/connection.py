"""The server's side of one HTTP/1.1 connection: requests are answered one by one, also if several come at once.

After an error in the head or the framing of a request the connection ends, because the start of the next request is
unknown.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Protocol, TypeAlias

import h11
import trio

from dafka.http1.body import Body
from dafka.http1.head import HEAD_BYTES_MAX, Head, RequestError, read_head, take_head

READ_BYTES = 2**16

Headers: TypeAlias = list[tuple[str, str]]
Send: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Sends a part of a body. It waits until the client reads it."""


class ByteStream(Protocol):
    """The bytes of a connection."""

    async def receive_some(self, max_bytes: int) -> bytes | bytearray:
        """Receive bytes, up to a number; none at the end."""

    async def send_all(self, data: bytes) -> None:
        """Send bytes."""


class Http1Connection:
    """The connection of one client, with the head and the body of its current request.

    The head is None before the first request, and if it is malformed.
    """

    head: Head | None
    body: Body

    def __init__(self, stream: ByteStream, head_bytes_max: int = HEAD_BYTES_MAX) -> None:
        self.received = bytearray()
        """The received bytes that were not processed."""
        self.is_at_end = False
        """Whether the client has closed its side."""
        self._stream = stream
        self._head_bytes_max = head_bytes_max
        self._raw = b""

    # Receiving

    async def next_request(self, *, idle_s: float = math.inf, receive_s: float = math.inf) -> Head | None:
        """Wait for a request, and return its head; None if the client sends no more requests.

        Wait up to `idle_s` seconds for its first byte, and up to `receive_s` for the rest of the head. Raises
        `RequestError` if it is malformed or comes too slowly: `respond` answers it, and the connection must then end.
        Raises `BrokenResourceError` if the client has disconnected within a head.
        """
        self.head = None
        self._framing = h11.Connection(h11.SERVER, max_incomplete_event_size=self._head_bytes_max)
        raw = await self._receive_head(idle_s, receive_s)
        if raw is not None:
            self._raw = raw
            self.head = read_head(self._framing, raw)
            self.body = Body(self._framing, self.head, self.received)
        return self.head

    async def _receive_head(self, idle_s: float, receive_s: float) -> bytes | None:
        if not self.received:
            with trio.move_on_after(idle_s) as scope:
                await self.receive()
            if scope.cancelled_caught or not self.received:
                return None
        deadline = trio.current_time() + receive_s
        while (raw := take_head(self.received, self._head_bytes_max)) is None:
            with trio.move_on_at(deadline) as scope:
                is_open = await self.receive()
            if scope.cancelled_caught:
                raise RequestError(f"expected a request within {receive_s * 1000:.0f} ms", HTTPStatus.REQUEST_TIMEOUT)
            if not is_open:
                if bytes(self.received).strip(b"\r\n"):
                    raise trio.BrokenResourceError("the head is incomplete")
                return None
        return raw

    async def receive(self, most: int = READ_BYTES) -> bytes | bytearray:
        """Receive more bytes, up to a number, and return them; none at the end."""
        if self.is_at_end:
            await trio.lowlevel.checkpoint()
            return b""
        data = await self._stream.receive_some(most)
        self.received += data
        self.is_at_end = not data
        return data

    def unprocessed(self) -> bytes:
        """Return the current request's head and all bytes after it, for another protocol that continues with them."""
        return self._raw + bytes(self.received)

    # Sending

    async def respond(self, status: int, headers: Headers, body: bytes = b"") -> bool:
        """Send a response. Return whether the client may send another request.

        `Content-Length` is added to the headers; `Connection: close` in them ends the connection. HEAD gets no body.
        """
        if status not in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}:
            headers = [*headers, ("Content-Length", str(len(body)))]
        parts = [self._begin(status, headers)]
        if body and not self._is_head:
            parts.append(self._framing.send(h11.Data(data=body)))
        await self._stream.send_all(b"".join(each for each in parts if each))
        return self._is_done

    async def respond_stream(self, status: int, headers: Headers, produce: Callable[[Send], Awaitable[None]]) -> bool:
        """Send a response whose body is sent while it is produced. Return whether the client may send another request.

        `produce` sends the body; it is not called for HEAD. If it raises, the body has no end, and the connection must
        end, so that the client does not consider it complete.
        """

        async def send(data: bytes) -> None:
            if data:
                await self._stream.send_all(self._framing.send(h11.Data(data=data)) or b"")

        await self._stream.send_all(self._begin(status, headers))
        if not self._is_head:
            await produce(send)
        await self._stream.send_all(self._framing.send(h11.EndOfMessage()) or b"")
        return self._is_done

    def _begin(self, status: int, headers: Headers) -> bytes:
        if self.head is None:
            self._framing = _framing_of_malformed()
        else:
            self.body.skip_received()
        if self.is_at_end or self._framing.their_state in {h11.SEND_BODY, h11.ERROR}:
            headers = [*headers, ("Connection", "close")]
        reason = HTTPStatus(status).phrase.encode()
        return self._framing.send(h11.Response(status_code=status, headers=headers, reason=reason)) or b""

    @property
    def _is_head(self) -> bool:
        return self.head is not None and self.head.method == "HEAD"

    @property
    def _is_done(self) -> bool:
        return self._framing.their_state is h11.DONE


def _framing_of_malformed() -> h11.Connection:
    """Return the framing for the response to a malformed head: h11 sends none before it has parsed a request."""
    framing = h11.Connection(h11.SERVER)
    framing.receive_data(b"GET / HTTP/1.1\r\nHost: unknown\r\n\r\n")
    framing.next_event()
    return framing
