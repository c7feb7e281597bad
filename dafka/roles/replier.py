"""Answers FETCHes from wherever the records are, a chunk at a time, requestors taking turns.

While one chunk is being sent, the next one is being read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from dafka import wire
from dafka.errors import StorageError
from dafka.protocol import Reply, ReplyQueue, StorageFailed
from dafka.records import RecordBatch
from dafka.roles.node import Node

CHUNK_RECORDS_MAX = 10_000
"""Records sent before others, and what came in meanwhile, get their turn: a few milliseconds' worth."""

REPORTS_MAX = 1000
"""Different failures to read that are reported."""


class Replier:
    """Attributes:
    records_sent: DIRECT-RECORDs so far.
    """

    def __init__(
        self, node: Node, queue: ReplyQueue, read: Callable[[Reply, int], Awaitable[RecordBatch | None]]
    ) -> None:
        self.records_sent = 0
        self._node = node
        self._queue = queue
        self._read = read
        self._reported: set[str] = set()
        self._idle = trio.lowlevel.ParkingLot()

    def wake(self) -> None:
        """There may be something to answer."""
        if len(self._queue):
            self._idle.unpark_all()

    def _report(self, error: StorageError) -> None:
        """Once: whoever asks for damaged records asks again and again."""
        if str(error) not in self._reported and len(self._reported) < REPORTS_MAX:
            self._reported.add(str(error))
            self._node.events.put(StorageFailed(str(error)))

    async def run(self) -> None:
        """Answers until cancelled."""
        chunks, found = trio.open_memory_channel[wire.RecordRun](0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send, found)
            while True:
                await chunks.send(await self._next_chunk())

    async def _next_chunk(self) -> wire.RecordRun:
        while True:
            reply = self._queue.next()
            if reply is None:
                await self._idle.park()
                continue
            count = min(reply.end_sequence - reply.next_sequence, CHUNK_RECORDS_MAX)
            try:
                batch = await self._read(reply, count)
            except StorageError as error:
                self._report(error)
                batch = None
            self._queue.advance(reply, None if batch is None else batch.end_sequence)
            if batch is not None:
                return wire.RecordRun(batch, reply.requestor)

    async def _send(self, chunks: trio.MemoryReceiveChannel[wire.RecordRun]) -> None:
        async for chunk in chunks:
            await trio.lowlevel.checkpoint()  # the reading of the next one begins first
            self._node.send([chunk])
            self.records_sent += len(chunk.batch)
