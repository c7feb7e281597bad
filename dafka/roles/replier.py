"""Answers FETCHes from wherever the records are. While one chunk is being sent, the next one is being read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from dafka import wire
from dafka.errors import StorageError
from dafka.protocol import Answers, Chunk, StorageFailed
from dafka.records import RecordBatch
from dafka.roles.node import Node

REPORTS_MAX = 1000
"""Different failures to read that are reported."""

UNVERIFIED_PAUSE_S = 0.02
"""Before each chunk for who may not listen at all."""


class Replier:
    """Sends what `read` gives for each chunk."""

    def __init__(self, node: Node, answers: Answers, read: Callable[[Chunk], Awaitable[RecordBatch | None]]) -> None:
        self._node = node
        self._answers = answers
        self._read = read
        self._reported: set[str] = set()
        self._idle = trio.lowlevel.ParkingLot()

    def wake(self) -> None:
        """There may be something to answer."""
        if self._answers:
            self._idle.unpark_all()

    def _report(self, error: StorageError) -> None:
        """Once: whoever asks for damaged records asks again and again."""
        if str(error) not in self._reported and len(self._reported) < REPORTS_MAX:
            self._reported.add(str(error))
            self._node.events.put(StorageFailed(str(error)))

    async def run(self) -> None:
        """Answers until cancelled."""
        runs, found = trio.open_memory_channel[wire.RecordRun](0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send, found)
            while True:
                await runs.send(await self._next_run())

    async def _next_run(self) -> wire.RecordRun:
        while True:
            chunk = self._answers.next()
            if chunk is None:
                await self._idle.park()
                continue
            if not chunk.reply.is_listening:
                await trio.sleep(UNVERIFIED_PAUSE_S)
            try:
                batch = await self._read(chunk)
            except StorageError as error:
                self._report(error)
                batch = None
            run = self._answers.read(chunk, batch)
            if run is not None:
                return run

    async def _send(self, runs: trio.MemoryReceiveChannel[wire.RecordRun]) -> None:
        async for run in runs:
            await trio.lowlevel.checkpoint()  # the reading of the next one begins first
            self._node.send([run])
