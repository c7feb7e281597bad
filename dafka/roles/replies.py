"""The tasks of a node that answer requests of other nodes: FETCHes, and questions for positions at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from dafka import wire
from dafka.errors import StorageError
from dafka.protocol import FetchResponder, PositionResponder, PositionSearch, ReadRequest, StorageFailed
from dafka.records import Partition, RecordBatch
from dafka.roles.sockets import NodeSockets
from dafka.storage import Storage
from dafka.storage.made_at import search_made_at

COLD_READS_MAX = 4
"""The number of chunks that are read from an object store at the same time."""

REPORTS_MAX = 1000
"""The maximum number of different read failures that are reported."""


class _Replies:
    """Waits for requests, and reports each read failure once, since requests are repeated."""

    def __init__(self, sockets: NodeSockets, requests: FetchResponder | PositionResponder) -> None:
        self._sockets = sockets
        self._requests = requests
        self._reported: set[str] = set()
        self._idle = trio.lowlevel.ParkingLot()

    def wake(self) -> None:
        """Continue if there is a request to answer."""
        if self._requests:
            self._idle.unpark_all()

    def _report(self, error: StorageError) -> None:
        if str(error) not in self._reported and len(self._reported) < REPORTS_MAX:
            self._reported.add(str(error))
            self._sockets.events.put(StorageFailed(str(error)))


class FetchReplies(_Replies):
    """Reads the records that the responder requests, and publishes them. A chunk is read while another is being sent.

    `cold_end` returns the sequence before which the records of a partition are in a cold tier; it is None without one.
    Records of a cold tier are read concurrently with all others, so that a slow object store does not delay recent
    records. `read` raises `StorageError`.
    """

    def __init__(
        self,
        sockets: NodeSockets,
        responder: FetchResponder,
        read: Callable[[ReadRequest], Awaitable[RecordBatch | None]],
        cold_end: Callable[[Partition], int] | None = None,
    ) -> None:
        super().__init__(sockets, responder)
        self._responder = responder
        self._read = read
        self._cold_end = cold_end
        self._reading: set[tuple[str, Partition]] = set()

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


class PositionReplies(_Replies):
    """Searches a store's records for the responder's questions, and publishes the answers."""

    def __init__(
        self,
        sockets: NodeSockets,
        responder: PositionResponder,
        storage: Storage,
        durable_end: Callable[[Partition], int],
    ) -> None:
        super().__init__(sockets, responder)
        self._responder = responder
        self._storage = storage
        self._durable_end = durable_end

    async def run(self) -> None:
        """Answer questions until cancelled."""
        while True:
            search = self._responder.next_search()
            if search is None:
                await self._idle.park()
                continue
            try:
                await self._continue(search)
            except StorageError as error:
                self._responder.drop(search)
                self._report(error)

    async def _continue(self, search: PositionSearch) -> None:
        """Search a chunk of records, and answer if the record is found or does not exist."""
        await trio.lowlevel.checkpoint()
        partition = search.partition
        if not (end := self._durable_end(partition)):
            self._sockets.publish([self._responder.complete(search, None)])
            return
        step = await search_made_at(self._storage, partition, search.time_ms, search.next_sequence, end)
        if step.is_over:
            self._sockets.publish([self._responder.complete(search, step.found)])
        else:
            self._responder.advance(search, step.next_sequence)
