"""Reads the body of a request, within limits of size, time and memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import h11
import trio

from dafka.broker.room import SMALL_BYTES, Room
from dafka.web.errors import WebError
from dafka.web.http.head import Head

_MIB = 2**20


class BodyReader:
    """The body of one request.

    Args:
        framing: Where the body begins and ends. It has seen the head.
        head: The head.
        received: The bytes behind the head that were received. Those of the next request remain in it.
        receive: Receives further bytes into `received`. Returns whether there were any.
        send: Sends bytes.

    Attributes:
        failure: Why the connection cannot continue: the client has gone, or was too slow; empty if it can.
    """

    def __init__(
        self,
        framing: h11.Connection,
        head: Head,
        received: bytearray,
        receive: Callable[[], Awaitable[bool]],
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._framing = framing
        self._received = received
        self._receive = receive
        self._send = send
        self._parts: list[bytes] = []
        self._size = 0
        self._length = int(head.headers.get("content-length", "0"))
        self._is_chunked = "transfer-encoding" in head.headers
        self._room: Room | None = None
        self._taken = 0
        self.failure = ""

    @property
    def is_complete(self) -> bool:
        """Whether the end of the body was received."""
        return self._framing.their_state not in {h11.IDLE, h11.SEND_BODY, h11.ERROR}

    async def read(self, bytes_max: int, receive_ms: int, room: Room, host: str) -> bytes:
        """Return the body.

        Args:
            bytes_max: The largest size.
            receive_ms: How long the client may take; it may take a second more for each MiB.
            room: The memory for bodies. `release` gives back what is taken of it.
            host: The address of the client.

        Returns:
            The body.

        Raises:
            WebError: It is too large or malformed, or did not come in time.
        """
        if self._length > bytes_max:
            raise _too_large(bytes_max)
        size = bytes_max if self._is_chunked else self._length
        try:
            self._look(bytes_max)
            if not self.is_complete:
                limit_s = receive_ms / 1000 + size / _MIB
                if size > SMALL_BYTES:
                    self._room, self._taken = room, await room.wait(host, size)
                await self._read_rest(bytes_max, limit_s)
            body = b"".join(self._parts)
            self._give_back(self._taken - len(body))
            return body
        finally:
            self._parts.clear()  # the connection may go on for long, or take in the rest of a body that is refused

    def release(self) -> None:
        """Give back the room for the body, when the request was answered."""
        self._give_back(self._taken)

    def _give_back(self, size: int) -> None:
        if self._room is not None and size > 0:
            self._taken -= size
            self._room.give_back(size)

    def skip_received(self) -> None:
        """Skip a body that was not read, as far as it was received."""
        if not self.failure:
            try:
                self._look(len(self._received) + self._size)
            except WebError as error:
                self.failure = error.code

    async def _read_rest(self, bytes_max: int, limit_s: float) -> None:
        with trio.move_on_after(limit_s) as scope:
            if self._framing.they_are_waiting_for_100_continue:
                await self._send(self._framing.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            while not self.is_complete:
                is_open = await self._receive()
                self._look(bytes_max)
                if not is_open and not self.is_complete:
                    self.failure = "gone"
                    raise WebError("bad_request", "the body is incomplete")
        if scope.cancelled_caught:
            self.failure = "slow request"
            raise WebError("request_timeout", f"expected the body within {limit_s:.0f} s")

    def _look(self, bytes_max: int) -> None:
        """Take what was received as part of the body."""
        if self.is_complete:
            return
        if self._received:
            self._framing.receive_data(bytes(self._received))
            self._received.clear()
        while True:
            try:
                event = self._framing.next_event()
            except h11.RemoteProtocolError as error:
                raise WebError("bad_request", f"the body is malformed: {error}") from None
            if isinstance(event, h11.Data):
                self._size += len(event.data)
                if self._size > bytes_max:
                    raise _too_large(bytes_max)
                self._parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._received[:0] = self._framing.trailing_data[0]
                return
            else:
                return


def _too_large(bytes_max: int) -> WebError:
    return WebError("too_large", f"expected a body of at most {bytes_max} bytes")
