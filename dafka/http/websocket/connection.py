"""A WebSocket connection that sends shared messages without copying them for each client.

Messages to clients are not masked, and each message is compressed by itself (RFC 7692, "no context takeover"). So all
subscribers of a log get the same bytes after their own header, and an idle connection needs no memory for compression.

A large message of a client takes memory from a pool, and must arrive in time.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import attrs
import trio
from websockets.exceptions import ConnectionClosed
from websockets.extensions import Extension
from websockets.extensions.permessage_deflate import PerMessageDeflate, ServerPerMessageDeflateFactory
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.trio.server import Server, ServerConnection
from websockets.typing import ExtensionParameter, Subprotocol

from dafka.broker.connections.memory import MemoryPool
from dafka.broker.connections.tcp_server import LINGER_S
from dafka.broker.connections.uploads import SMALL_BYTES, SlowUploadError, Upload

READ_BYTES = 2**18
SEND_BYTES = 2**18

COMPRESSED_BYTES_MIN = 1024
"""The minimum size of a compressed message, in bytes."""

JOINED_BYTES_MAX = 2**14
"""Up to this size, messages are copied to be sent in one write."""

_WINDOW_BITS = 15
_LEVEL = 1

_TEXT, _BINARY, _COMPRESSED_TEXT = 0x81, 0x82, 0xC1
_STORED_BYTES_MAX = 2**16 - 1
_SYNC_END = b"\x00\x00\xff\xff"


def deflate(data: bytes) -> bytes:
    """Compress data for the end of a compressed message."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -_WINDOW_BITS)
    return (compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)).removesuffix(_SYNC_END)


def stored_block(data: bytes) -> bytes:
    """Return up to 64 KiB of data as a stored block of a compressed message. Other blocks can follow."""
    return struct.pack("<BHH", 0, len(data), len(data) ^ _STORED_BYTES_MAX) + data


class _SelectiveDeflate(PerMessageDeflate):
    """Compresses large texts only. Record batches have their own compression."""

    def encode(self, frame: Frame) -> Frame:
        if frame.opcode is not Opcode.TEXT or len(frame.data) < COMPRESSED_BYTES_MIN:
            return frame
        return super().encode(frame)


class _DeflateFactory(ServerPerMessageDeflateFactory):
    """Negotiates compression without context takeover."""

    def __init__(self) -> None:
        super().__init__(
            server_no_context_takeover=True, client_no_context_takeover=True, compress_settings={"level": _LEVEL}
        )

    def process_request_params(
        self, params: Sequence[ExtensionParameter], accepted_extensions: Sequence[Extension]
    ) -> tuple[list[ExtensionParameter], PerMessageDeflate]:
        answer, found = super().process_request_params(params, accepted_extensions)
        selective = _SelectiveDeflate(
            found.remote_no_context_takeover,
            found.local_no_context_takeover,
            found.remote_max_window_bits,
            found.local_max_window_bits,
            found.compress_settings,
        )
        return answer, selective


@attrs.define(eq=False)
class ClientStream(trio.abc.HalfCloseableStream):
    """The byte stream of a connection, of which some bytes were received before.

    A message above 16 KiB takes memory from the pool as it arrives, for the source: the user, or the address of the
    client. The client must send it in time, with one second more for each MiB that it has sent.
    """

    _stream: trio.abc.Stream
    _received: bytes
    _memory: MemoryPool
    _source: str
    _message_bytes_max: int
    _receive_ms: int
    pending_bytes: Callable[[], int] = attrs.field(default=lambda: 0, init=False)
    """Returns the number of received bytes of an incomplete message."""
    last_progress: float = attrs.field(factory=trio.current_time, init=False)
    """When the client last read a good part of the sent data, by trio's clock."""
    _upload: Upload | None = attrs.field(default=None, init=False)

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


class Connection(ServerConnection):
    """The connection of one client, whose byte stream begins with the request of the handshake.

    The nursery runs the task that receives. The largest message has `message_bytes_max` bytes, uncompressed.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        stream: ClientStream,
        select_subprotocol: Callable[[ServerProtocol, Sequence[Subprotocol]], Subprotocol | None],
        message_bytes_max: int,
    ) -> None:
        self.is_sending = False
        """Whether a message waits until the client reads."""
        self._client = stream
        self._last_received = trio.current_time()
        protocol = ServerProtocol(
            extensions=[_DeflateFactory()],
            select_subprotocol=select_subprotocol,
            max_size=message_bytes_max,
        )
        stream.pending_bytes = lambda: len(protocol.reader.buffer) + (protocol.current_size or 0)
        # The session sends the pings: a client that is slow to read need not answer them in time.
        super().__init__(
            nursery,
            stream,
            protocol,
            Server([], _refuse_stream),
            ping_interval=None,
            close_timeout=LINGER_S,
            max_queue=1,
        )

    async def send_text(self, message: bytes) -> None:
        """Send a message that is already UTF-8."""
        await self.send(message, text=True)

    async def send_all_texts(self, messages: Sequence[bytes]) -> None:
        """Send several messages in one write."""
        async with self.send_context():
            for message in messages:
                self.protocol.send_text(message)

    async def send_shared_text(self, head: bytes, rest: bytes, deflated: bytes | None) -> None:
        """Send a text whose end is shared with other clients.

        `deflated` is the end as `deflate` returns it; None to send it uncompressed.
        """
        if deflated is not None:
            await self._send_parts(_COMPRESSED_TEXT, stored_block(head), deflated)
        else:
            await self._send_parts(_TEXT, head, rest)

    async def send_shared_binary(self, head: bytes, rest: bytes) -> None:
        """Send a binary message whose end is shared with other clients."""
        await self._send_parts(_BINARY, head, rest)

    @property
    def takes_deflated(self) -> bool:
        """Whether the client accepts what `deflate` returns."""
        extension: Any = next(iter(self.protocol.extensions), None)
        return extension is not None and extension.local_max_window_bits == _WINDOW_BITS

    @property
    def last_activity(self) -> float:
        """When the client last sent something or read a good part of the sent data, by trio's clock."""
        return max(self._last_received, self._client.last_progress)

    async def go_away(self, reason: str) -> None:
        """Close the connection: the client can connect to another broker. Its remaining messages are discarded."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._discard)
            await self.aclose(CloseCode.GOING_AWAY, reason)
            nursery.cancel_scope.cancel()

    async def _discard(self) -> None:
        with suppress(ConnectionClosed):
            while True:
                await self.recv()

    async def end(self) -> None:
        """Close the connection immediately."""
        await trio.aclose_forcefully(self._client)

    async def send_data(self) -> None:
        """Send the protocol's outgoing data, small messages in one write."""
        writes = self.protocol.writes
        if len(writes) > 1 and all(writes) and sum(map(len, writes)) <= JOINED_BYTES_MAX:
            self.protocol.writes = [b"".join(writes)]
        self.is_sending = True
        try:
            await super().send_data()
        finally:
            self.is_sending = False

    def process_event(self, event: Any) -> None:
        """Record that the client has sent something."""
        self._last_received = trio.current_time()
        super().process_event(event)

    async def _send_parts(self, first_byte: int, head: bytes, rest: bytes) -> None:
        """Send a message in one frame. The second part is not copied if it is large."""
        if self.protocol.state is not State.OPEN:
            await self.stream_closed.wait()
            raise self.close_exc
        size = len(head) + len(rest)
        if size < 126:
            start = struct.pack(">BB", first_byte, size)
        elif size < 2**16:
            start = struct.pack(">BBH", first_byte, 126, size)
        else:
            start = struct.pack(">BBQ", first_byte, 127, size)
        self.protocol.writes += (start + head, rest)
        try:
            await self.send_data()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.set_connection_exc(error)
            await self.end()
            await self.stream_closed.wait()
            raise self.close_exc from None


async def _refuse_stream(_stream: trio.abc.Stream) -> None:
    raise AssertionError  # the connections are accepted elsewhere
