"""Answers FETCHes from wherever the records are, a chunk at a time, requestors taking turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from dafka import wire
from dafka.errors import StorageError
from dafka.protocol import Reply, ReplyQueue, StorageFailed
from dafka.records import RecordBatch
from dafka.roles.node import Node

CHUNK_RECORDS_MAX = 2000
"""Records sent before others, and what came in meanwhile, get their turn: a few milliseconds' worth."""


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
        self._idle = trio.lowlevel.ParkingLot()

    def wake(self) -> None:
        """There may be something to answer."""
        if len(self._queue):
            self._idle.unpark_all()

    async def run(self) -> None:
        """Answers until cancelled."""
        while True:
            reply = self._queue.next()
            if reply is None:
                await self._idle.park()
                continue
            first_sequence = reply.next_sequence
            count = min(reply.end_sequence - first_sequence, CHUNK_RECORDS_MAX)
            try:
                batch = await self._read(reply, count)
            except StorageError as error:
                self._node.events.put(StorageFailed(str(error)))
                batch = None
            if batch is None:
                self._queue.sent(reply, None)
                continue
            self._node.send([wire.RecordRun(batch, reply.requestor)])
            self.records_sent += len(batch)
            self._queue.sent(reply, batch.end_sequence)
            await trio.lowlevel.checkpoint()
