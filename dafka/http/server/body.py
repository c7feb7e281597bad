"""Reads the body of a request, within limits of size, time and memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import h11

from dafka.broker.connections.memory import MemoryPool
from dafka.broker.connections.uploads import SlowUploadError, Upload
from dafka.http.server.errors import WebError
from dafka.http.server.head import Head

_READ_BYTES = 2**18
"""The maximum size of one receive, in bytes."""


class BodyReader:
    """The body of one request.

    Args:
        framing: Parses where the body begins and ends. It has processed the head.
        head: The head.
        received: The received bytes after the head. Bytes of the next request remain in it.
        receive: Receives more bytes, up to a number, into `received`. Returns them.
        send: Sends bytes.

    Attributes:
        failure: Why the connection cannot continue: the client has disconnected, or was too slow; empty if it can.
    """

    def __init__(
        self,
        framing: h11.Connection,
        head: Head,
        received: bytearray,
        receive: Callable[[int], Awaitable[bytes | bytearray]],
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
        self._upload: Upload | None = None
        self.failure = ""

    @property
    def is_complete(self) -> bool:
        """Whether the end of the body was received."""
        return self._framing.their_state not in {h11.IDLE, h11.SEND_BODY, h11.ERROR}

    async def read(self, bytes_max: int, receive_ms: int, memory: MemoryPool, source: str) -> bytes:
        """Return the body.

        Args:
            bytes_max: The maximum size.
            receive_ms: How long the client may take; one second more for each MiB that it has sent.
            memory: The memory for bodies. `release` returns the memory taken.
            source: The user, or the address of the client.

        Returns:
            The body.

        Raises:
            WebError: It is too large or malformed, or did not arrive in time.
        """
        if self._length > bytes_max:
            raise _too_large(bytes_max)
        size = bytes_max if self._is_chunked else self._length
        try:
            self._look(bytes_max)
            if not self.is_complete:
                self._upload = upload = Upload(memory, source, size, receive_ms)
                await self._read_rest(bytes_max, upload)
                upload.complete(self._size)
            return b"".join(self._parts)
        finally:
            self._parts.clear()  # the connection can continue for long, or receive the rest of a refused body

    def release(self) -> None:
        """Release the body's memory when the request has been answered."""
        if self._upload is not None:
            self._upload.close()

    def skip_received(self) -> None:
        """Skip the received part of a body that was not read."""
        if not self.failure:
            try:
                self._look(len(self._received) + self._size)
            except WebError as error:
                self.failure = error.code

    async def _read_rest(self, bytes_max: int, upload: Upload) -> None:
        if self._framing.they_are_waiting_for_100_continue:
            await self._send(self._framing.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        while not self.is_complete:
            try:
                data = await upload.receive(self._receive, self._size, _READ_BYTES)
            except SlowUploadError as error:
                self.failure = "slow request"
                raise WebError("request_timeout", f"the body comes too slowly: {error}") from None
            self._look(bytes_max)
            if not data and not self.is_complete:
                self.failure = "gone"
                raise WebError("bad_request", "the body is incomplete")

    def _look(self, bytes_max: int) -> None:
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
