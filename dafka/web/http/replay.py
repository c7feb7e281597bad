"""A connection whose first bytes were read already."""

from __future__ import annotations

import trio


class ReplayingStream(trio.abc.HalfCloseableStream):
    """A connection that begins with bytes that were read from it before.

    Args:
        stream: The connection.
        received: The bytes.
    """

    def __init__(self, stream: trio.abc.Stream, received: bytes) -> None:
        self._stream = stream
        self._received = received

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Return the bytes that were read before, and then further ones."""
        if not self._received:
            return await self._stream.receive_some(max_bytes)
        await trio.lowlevel.checkpoint()
        size = len(self._received) if max_bytes is None else max_bytes
        part, self._received = self._received[:size], self._received[size:]
        return part

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until there is room for bytes to send."""
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """Say that nothing else will be sent, where the connection can (TLS cannot)."""
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()
