"""The task that answers FETCHes from a storage or a buffer. It reads the next chunk while one is being sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from dafka import wire
from dafka.errors import StorageError
from dafka.protocol import FetchResponder, ReadRequest, StorageFailed
from dafka.records import RecordBatch
from dafka.roles.sockets import NodeSockets

REPORTS_MAX = 1000
"""Different read failures that are reported; further ones are not."""


class FetchReplies:
    """Reads what the responder asks for, and publishes it."""

    def __init__(
        self,
        sockets: NodeSockets,
        responder: FetchResponder,
        read: Callable[[ReadRequest], Awaitable[RecordBatch | None]],
    ) -> None:
        self._sockets = sockets
        self._responder = responder
        self._read = read
        self._reported: set[str] = set()
        self._idle = trio.lowlevel.ParkingLot()

    def wake(self) -> None:
        """Continue if there is a FETCH to answer."""
        if self._responder:
            self._idle.unpark_all()

    async def run(self) -> None:
        """Answer FETCHes until cancelled."""
        runs, found = trio.open_memory_channel[wire.RecordRun](0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_all, found)
            while True:
                await runs.send(await self._next_run())

    async def _next_run(self) -> wire.RecordRun:
        while True:
            request = self._responder.next_read()
            if request is None:
                await self._idle.park()
                continue
            if request.delay_s:
                await trio.sleep(request.delay_s)
            try:
                batch = await self._read(request)
            except StorageError as error:
                self._report(error)
                batch = None
            run = self._responder.complete_read(request, batch)
            if run is not None:
                return run

    async def _send_all(self, runs: trio.MemoryReceiveChannel[wire.RecordRun]) -> None:
        async for run in runs:
            await trio.lowlevel.checkpoint()  # lets the next read begin before this run is encoded
            self._sockets.publish([run])

    def _report(self, error: StorageError) -> None:
        """Report a read failure once: nodes fetch damaged records again and again."""
        if str(error) not in self._reported and len(self._reported) < REPORTS_MAX:
            self._reported.add(str(error))
            self._sockets.events.put(StorageFailed(str(error)))
