"""The logs of the cluster, for clients of HTTP and WebSocket, whichever broker leads them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import attrs
import trio

from dafka.broker.core.log.log import Log
from dafka.broker.log.appending import Batch
from dafka.exceptions import unwrap_group
from dafka.http.forwarding.remote_logs import RemoteLogs
from dafka.http.logs.local_logs import LocalLogs
from dafka.http.logs.log_access import READ_BYTES, LogAccess, LogOffsets, PendingBatches, ReadRecords
from dafka.http.server.errors import LeaderMovedError
from dafka.records import RecordBatch

_T = TypeVar("_T")


@attrs.frozen(eq=False)
class ClusterLogs:
    """Implements `LogAccess` for all logs: passes each call on to where the log is led."""

    _local: LocalLogs
    _remote: RemoteLogs

    async def bounds(self, logs: Iterable[Log]) -> dict[Log, LogOffsets]:
        """Return the offsets of logs, in their order."""
        asked, found = list(logs), dict[Log, LogOffsets]()
        while missing := [log for log in asked if log not in found]:
            here, others = _split(missing)
            try:
                found |= await self._remote.bounds(others)
                found |= await self._local.bounds(here)
            except LeaderMovedError:
                pass
        return {log: found[log] for log in asked}

    async def known_bounds(self, logs: Iterable[Log]) -> dict[Log, LogOffsets]:
        """Return the offsets of the logs that can be reached promptly, for display."""
        here, others = _split(logs)
        return await self._local.known_bounds(here) | await self._remote.known_bounds(others)

    async def find_offset_by_time(self, log: Log, timestamp_ms: int) -> int:
        """Return the offset of the first committed record at a time or later; else the end of the log."""
        return await self._at_leader(log, lambda access: access.find_offset_by_time(log, timestamp_ms))

    async def read(
        self, log: Log, offset: int, *, bytes_max: int = READ_BYTES, end_offset: int | None = None
    ) -> ReadRecords:
        """Return the committed records of a log from an offset on, up to about a size."""
        return await self._at_leader(
            log, lambda access: access.read(log, offset, bytes_max=bytes_max, end_offset=end_offset)
        )

    def has_records(self, log: Log, offset: int) -> bool:
        """Return whether there are committed records at an offset or later, or the topic was deleted."""
        return self._access(log).has_records(log, offset)

    async def wait_records(self, offsets: Mapping[Log, int]) -> None:
        """Wait until one of these logs has records at its offset or later, is deleted, or gets another leader."""
        here, others = ({log: offsets[log] for log in logs} for logs in _split(offsets))
        if not others:
            await self._local.wait_records(here)
            return

        async def wait_here() -> None:
            with suppress(LeaderMovedError):
                await self._local.wait_records(here)
            nursery.cancel_scope.cancel()

        with unwrap_group():
            async with trio.open_nursery() as nursery:
                if here:
                    nursery.start_soon(wait_here)
                await self._remote.wait_records(others)
                nursery.cancel_scope.cancel()

    async def wait_capacity(self) -> None:
        """Wait until records that are not yet durable take less than `[store] pending_bytes_max`."""
        await self._local.wait_capacity()
        await self._remote.wait_capacity()

    def append(self, log: Log, batches: Sequence[Batch], records: RecordBatch | None = None) -> PendingBatches:
        """Append record batches of a client to a log, after those in flight to its former leader."""
        if log.leadership.is_led and not self._remote.is_appending(log):
            try:
                return self._local.append(log, batches, records, resend=self._remote.append)
            except LeaderMovedError:
                pass  # this broker has just stopped leading it
        return self._remote.append(log, batches)

    async def delete_before(self, log: Log, offset: int) -> int:
        """Delete the records of a log before an offset. Return the log's new start offset."""
        return await self._at_leader(log, lambda access: access.delete_before(log, offset))

    def _access(self, log: Log) -> LogAccess:
        return self._local if log.leadership.is_led else self._remote

    async def _at_leader(self, log: Log, call: Callable[[LogAccess], Awaitable[_T]]) -> _T:
        """Call the access to a log; again if its leader changes."""
        while True:
            try:
                return await call(self._access(log))
            except LeaderMovedError:
                pass


def _split(logs: Iterable[Log]) -> tuple[list[Log], list[Log]]:
    """Return the logs that this broker leads, and the others."""
    here: list[Log] = []
    others: list[Log] = []
    for log in logs:
        (here if log.leadership.is_led else others).append(log)
    return here, others
