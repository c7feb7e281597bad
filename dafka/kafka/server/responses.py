"""Sends the responses to one client, in the order of its requests."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple, TypeAlias

import trio

from dafka.broker.connections.tcp_server import AcceptedClient
from dafka.kafka.apis.produce import PendingProduce
from dafka.kafka.protocol.frames import RequestHeader, encode_response_parts, join_small
from dafka.kafka.protocol.writing import Buffer
from dafka.kafka.server.kafka_server import KafkaServer

SEND_BYTES = 2**18
"""Responses that are ready are sent together up to this size, in bytes. It also limits a part that is encrypted."""

UNSENT_BYTES_MAX = 2**20
"""While a client has more unread bytes than this, its next request waits."""

UNANSWERED_MAX = 100
"""The maximum number of requests of a connection whose responses wait for the disk or the client."""


class DisconnectError(Exception):
    """The client must be disconnected.

    The message, for the log, is what it did; the reason, for the metrics, is short.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class PendingResponse(NamedTuple):
    """The response to a Produce request that was received at a time. It waits for the disk."""

    header: RequestHeader
    pending: PendingProduce
    begun: float


_Queued: TypeAlias = list[Buffer] | PendingResponse
"""A response in parts, or one that is not complete yet."""


class ResponseSender:
    """Sends the responses that are put into it, until its context ends. A client must read each part in time."""

    def __init__(self, stream: trio.abc.Stream, accepted: AcceptedClient, server: KafkaServer, send_s: float) -> None:
        self._stream = stream
        self._accepted = accepted
        self._memory = server.answers
        self._counters = server.counters
        self._send_s = send_s
        self._unsent_bytes = 0
        self._sent = trio.Event()
        self._waiting = 0
        """The number of responses that are queued, waited for, or being sent."""
        self._queue, self._queued = trio.open_memory_channel[_Queued](UNANSWERED_MAX)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._queue.close()

    async def put(self, response: _Queued) -> None:
        """Send a response if none is before it and the system takes all of it, or queue what is left of it."""
        if not isinstance(response, PendingResponse):
            if not self._waiting and isinstance(self._stream, trio.SocketStream):
                response = self._send_now(response)
                if not response:
                    return
            self._count_unsent(response)
        self._waiting += 1
        await self._queue.send(response)

    def _send_now(self, parts: list[Buffer]) -> list[Buffer]:
        """Send as much as the system takes without a wait, and return the rest."""
        parts = [*join_small(parts)]
        for number, part in enumerate(parts):
            sent = self._accepted.send_now(part)
            self._counters.sent_bytes += sent
            if sent < len(part):
                return [memoryview(part)[sent:], *parts[number + 1 :]]
        return []

    async def wait_read(self) -> None:
        """Wait until the client has at most `UNSENT_BYTES_MAX` to read."""
        while self._unsent_bytes > UNSENT_BYTES_MAX:
            self._sent = trio.Event()
            await self._sent.wait()

    def close(self) -> None:
        """Give back the memory of what was not sent."""
        self._memory.give_back(self._unsent_bytes)

    def _count_unsent(self, response: list[Buffer]) -> None:
        size = sum(map(len, response))
        self._unsent_bytes += size
        self._memory.take_now(size)

    async def run(self) -> None:
        """Send the responses in order, and together those that are ready together."""
        async for first in self._queued:
            each: _Queued | None = first
            ready: list[Buffer] = []
            count = 0
            while each is not None:
                if isinstance(each, PendingResponse):
                    if ready and not each.pending.is_ready():
                        await self._send(ready)
                        ready = []
                    each = await self._finish(each)
                ready += each
                count += 1
                each = self._next_queued() if sum(map(len, ready)) < SEND_BYTES else None
            await self._send(ready)
            self._waiting -= count

    def _next_queued(self) -> _Queued | None:
        """Return the next response that is queued, if there is one."""
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            return self._queued.receive_nowait()
        return None

    async def _finish(self, waiting: PendingResponse) -> list[Buffer]:
        """Wait for a response, and return it in parts; none if the client wants no response."""
        response = await waiting.pending.wait()
        self._counters.add_response(waiting.header.api_key, response, trio.current_time() - waiting.begun)
        if response is None:
            return []
        answer = encode_response_parts(waiting.header, response)
        self._count_unsent(answer)
        return answer

    async def _send(self, parts: list[Buffer]) -> None:
        """Send responses. A client that does not read them in time is disconnected."""
        for part in join_small(parts):
            left = memoryview(part)
            while left:
                since = trio.current_time()
                with (
                    trio.move_on_after(self._send_s) as scope,
                    self._memory.waiting_for_client(scope, self._unsent_bytes),
                ):
                    sent = await self._send_some(left)
                if scope.cancelled_caught:
                    waited_s = trio.current_time() - since
                    raise DisconnectError(f"it has not read its answers for {waited_s:.1f} s", "slow reader")
                self._accepted.sent_at = trio.current_time()
                self._counters.sent_bytes += sent
                left = left[sent:]
        size = sum(map(len, parts))
        self._unsent_bytes -= size
        self._memory.give_back(size)
        self._sent.set()

    async def _send_some(self, data: memoryview) -> int:
        """Send the beginning of some data, as much as the system takes at once, and return its size."""
        if not isinstance(self._stream, trio.SocketStream):
            await self._stream.send_all(data[:SEND_BYTES])
            return min(len(data), SEND_BYTES)
        try:
            return await self._stream.socket.send(data)
        except OSError as error:
            raise trio.BrokenResourceError(f"the client has disconnected: {error}") from error
