"""Reads the body of a request up to a size."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import h11

from dafka.http1.head import Head, RequestError

BODY_READ_BYTES = 2**18
"""The maximum size of one receive, in bytes."""

Receive: TypeAlias = Callable[[int, int], Awaitable[bytes | bytearray]]
"""Receives more bytes of a body, given the size that has arrived and the maximum size of this part. It appends them to
the received bytes, and returns them; nothing at the end."""


class Body:
    """The body of one request, whose head the framing has processed.

    The received bytes after the head are its beginning. Bytes of the next request remain in them.
    """

    def __init__(self, framing: h11.Connection, head: Head, received: bytearray) -> None:
        self.failure = ""
        """Why the connection cannot continue: the client has disconnected, or was too slow; empty if it can."""
        self.size = 0
        """The size of the part that has arrived, in bytes."""
        self._framing = framing
        self._received = received
        self._parts: list[bytes] = []
        self._length = int(head.headers.get("content-length", "0"))
        self._is_chunked = "transfer-encoding" in head.headers

    @property
    def is_complete(self) -> bool:
        """Whether the end of the body was received."""
        return self._framing.their_state not in {h11.IDLE, h11.SEND_BODY, h11.ERROR}

    def size_max(self, bytes_max: int) -> int:
        """Return the largest size that the body can have, up to a limit."""
        return bytes_max if self._is_chunked else self._length

    async def read(self, bytes_max: int, receive: Receive, send: Callable[[bytes], Awaitable[None]]) -> bytes:
        """Return the body, up to a size. Raises `RequestError` if it is too large, malformed or incomplete.

        `receive` can refuse to wait for the rest by raising `RequestError`. `send` is for a client that waits until the
        body is wanted.
        """
        if self._length > bytes_max:
            raise _too_large(bytes_max)
        try:
            self._parse(bytes_max)
            if not self.is_complete and self._framing.they_are_waiting_for_100_continue:
                await send(self._framing.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            while not self.is_complete:
                data = await receive(self.size, BODY_READ_BYTES)
                self._parse(bytes_max)
                if not data and not self.is_complete:
                    self.failure = "gone"
                    raise RequestError("the body is incomplete")
            return b"".join(self._parts)
        finally:
            self._parts.clear()  # the connection can continue for long, or receive the rest of a refused body

    def skip_received(self) -> None:
        """Skip the received part of a body that was not read."""
        if not self.failure:
            try:
                self._parse(len(self._received) + self.size)
            except RequestError:
                self.failure = "bad_request"

    def _parse(self, bytes_max: int) -> None:
        """Process received bytes as part of the body."""
        if self.is_complete:
            return
        if self._received:
            self._framing.receive_data(bytes(self._received))
            self._received.clear()
        while True:
            try:
                event = self._framing.next_event()
            except h11.RemoteProtocolError as error:
                raise RequestError(f"the body is malformed: {error}") from None
            if isinstance(event, h11.Data):
                self.size += len(event.data)
                if self.size > bytes_max:
                    raise _too_large(bytes_max)
                self._parts.append(bytes(event.data))
            else:
                if isinstance(event, h11.EndOfMessage):
                    self._received += self._framing.trailing_data[0]
                return


def _too_large(bytes_max: int) -> RequestError:
    return RequestError(f"expected a body of at most {bytes_max} bytes", 413)
