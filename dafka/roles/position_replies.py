"""The task of a store that answers questions for the positions of partitions at a time."""

from __future__ import annotations

from collections.abc import Callable

import trio

from dafka.errors import StorageError
from dafka.protocol import PositionResponder, PositionSearch, StorageFailed
from dafka.records import Partition
from dafka.roles.sockets import NodeSockets
from dafka.storage import Storage
from dafka.storage.made_at import search_made_at

REPORTS_MAX = 1000
"""The maximum number of different failures that are reported."""


class PositionReplies:
    """Searches the records for the responder's questions, and publishes the answers.

    Args:
        sockets: The sockets of the store.
        responder: The questions.
        storage: The storage.
        durable_end: Returns the sequence after the last durable record of a partition.
    """

    def __init__(
        self,
        sockets: NodeSockets,
        responder: PositionResponder,
        storage: Storage,
        durable_end: Callable[[Partition], int],
    ) -> None:
        self._sockets = sockets
        self._responder = responder
        self._storage = storage
        self._durable_end = durable_end
        self._reported: set[str] = set()
        self._idle = trio.lowlevel.ParkingLot()

    def wake(self) -> None:
        """Continue if there is a question to answer."""
        if self._responder:
            self._idle.unpark_all()

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

    def _report(self, error: StorageError) -> None:
        """Report a failure once: questions are repeated."""
        if str(error) not in self._reported and len(self._reported) < REPORTS_MAX:
            self._reported.add(str(error))
            self._sockets.events.put(StorageFailed(str(error)))
