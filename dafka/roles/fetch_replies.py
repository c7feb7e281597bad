"""The tasks that answer FETCHes from a storage or a buffer. The next chunk is read while one is being sent.

Records of a cold tier are read concurrently with all others, so that a slow object store does not delay recent records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from dafka import wire
from dafka.errors import StorageError
from dafka.protocol import FetchResponder, ReadRequest, StorageFailed
from dafka.records import Partition, RecordBatch
from dafka.roles.sockets import NodeSockets

COLD_READS_MAX = 4
"""The number of chunks that are read from an object store at the same time."""

REPORTS_MAX = 1000
"""The maximum number of different read failures that are reported."""


class FetchReplies:
    """Reads the records that the responder requests, and publishes them.

    Args:
        sockets: The sockets of the node.
        responder: Chooses the next records to read.
        read: Reads records. Raises `StorageError`.
        cold_end: Returns the sequence before which the records of a partition are in a cold tier; None without one.
    """

    def __init__(
        self,
        sockets: NodeSockets,
        responder: FetchResponder,
        read: Callable[[ReadRequest], Awaitable[RecordBatch | None]],
        cold_end: Callable[[Partition], int] | None = None,
    ) -> None:
        self._sockets = sockets
        self._responder = responder
        self._read = read
        self._cold_end = cold_end
        self._reading: set[tuple[str, Partition]] = set()
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
            if self._cold_end is None:
                await self._read_all(runs, None)
            else:
                for _ in range(COLD_READS_MAX):
                    nursery.start_soon(self._read_all, runs, partial(self._is_wanted, is_cold=True))
                await self._read_all(runs, partial(self._is_wanted, is_cold=False))

    def _is_wanted(self, request: ReadRequest, *, is_cold: bool) -> bool:
        """Return whether records are in this tier, and the records before them are not being read."""
        assert self._cold_end is not None
        is_free = (request.requestor, request.partition) not in self._reading
        return is_free and is_cold == (request.first_sequence < self._cold_end(request.partition))

    async def _read_all(
        self, runs: trio.MemorySendChannel[wire.RecordRun], is_wanted: Callable[[ReadRequest], bool] | None
    ) -> None:
        while True:
            request = self._responder.next_read(is_wanted=is_wanted)
            if request is None:
                await self._idle.park()
                continue
            place = request.requestor, request.partition
            self._reading.add(place)
            try:
                run = await self._read_chunk(request)
                if run is not None:
                    await runs.send(run)
            finally:
                self._reading.remove(place)
            if is_wanted is not None:
                self.wake()  # the next records may be in the other tier

    async def _read_chunk(self, request: ReadRequest) -> wire.RecordRun | None:
        if request.delay_s:
            await trio.sleep(request.delay_s)
        try:
            batch = await self._read(request)
        except StorageError as error:
            self._report(error)
            batch = None
        return self._responder.complete_read(request, batch)

    async def _send_all(self, runs: trio.MemoryReceiveChannel[wire.RecordRun]) -> None:
        async for run in runs:
            await trio.lowlevel.checkpoint()  # lets the next read begin before this run is encoded
            self._sockets.publish([run])

    def _report(self, error: StorageError) -> None:
        """Report a read failure once, since nodes fetch damaged records repeatedly."""
        if str(error) not in self._reported and len(self._reported) < REPORTS_MAX:
            self._reported.add(str(error))
            self._sockets.events.put(StorageFailed(str(error)))
