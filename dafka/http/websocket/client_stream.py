"""Limits the memory and the time that a large message takes on a WebSocket connection."""

from __future__ import annotations

from collections.abc import Callable

import trio

from dafka.broker.connections.memory import MemoryPool
from dafka.broker.connections.uploads import SMALL_BYTES, SlowUploadError, Upload

READ_BYTES = 2**18
SEND_BYTES = 2**18


class ClientStream(trio.abc.HalfCloseableStream):
    """The byte stream of a connection.

    A message above 16 KiB takes memory from the pool as it arrives, and the client must send it in time.

    Args:
        stream: The connection.
        received: The bytes that were received before.
        memory: The memory for messages that are being received.
        source: The user, or the address of the client.
        message_bytes_max: The size of the largest message.
        receive_ms: How long a client may take to send a message that it has begun; one second more for each MiB that it
            has sent.

    Attributes:
        pending_bytes: Returns the number of received bytes of an incomplete message.
        last_progress: When the client last read a good part of the sent data, by trio's clock.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        received: bytes,
        memory: MemoryPool,
        source: str,
        message_bytes_max: int,
        receive_ms: int,
    ) -> None:
        self.pending_bytes: Callable[[], int] = lambda: 0
        self.last_progress = trio.current_time()
        self._stream = stream
        self._received = received
        self._memory = memory
        self._source = source
        self._message_bytes_max = message_bytes_max
        self._receive_ms = receive_ms
        self._upload: Upload | None = None

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive bytes when there is memory for their message."""
        if self._received:
            await trio.lowlevel.checkpoint()
            size = len(self._received) if max_bytes is None else max_bytes
            part, self._received = self._received[:size], self._received[size:]
            return part
        most, pending = READ_BYTES if max_bytes is None else max_bytes, self.pending_bytes()
        if pending <= SMALL_BYTES:
            self._give_back()
            return await self._stream.receive_some(most)
        if self._upload is None:
            self._upload = Upload(self._memory, self._source, self._message_bytes_max, self._receive_ms)
        try:
            return await self._upload.receive(self._stream.receive_some, pending, most)
        except SlowUploadError as error:
            raise trio.BrokenResourceError(f"slow message: {error}") from None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, and record when the client reads many of them."""
        if len(data) < SMALL_BYTES:
            await self._stream.send_all(data)
            return
        view = memoryview(data)
        for position in range(0, len(view), SEND_BYTES):
            await self._stream.send_all(view[position : position + SEND_BYTES])
            self.last_progress = trio.current_time()

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until bytes can be sent."""
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """End the outgoing stream. TLS cannot signal that, so close the connection instead."""
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()
        else:
            await self._stream.aclose()

    async def aclose(self) -> None:
        """Close the connection, and release the memory."""
        self._give_back()
        await self._stream.aclose()

    def _give_back(self) -> None:
        if self._upload is not None:
            self._upload.close()
            self._upload = None
