"""Reads what the commands in the log of metadata have changed."""

from __future__ import annotations

import attrs
import trio

from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.history import Change, apply_orders
from dafka.broker.core.metadata.snapshots import decompress_snapshot
from dafka.broker.core.positions import FIRST_OFFSET, Offset
from dafka.broker.metadata.metadata_log import MetadataLog
from dafka.errors import StorageError

SMALL_BYTES = 2**15
"""The size of a compressed snapshot, in bytes, from which on it is restored in a thread, so that nothing waits for it.
"""


@attrs.frozen
class MetadataHistory:
    """The changes that are still in the log of metadata, as one broker has applied them."""

    _metadata: MetadataLog

    async def read(self, before: int | None, count: int) -> tuple[list[Change], Offset | None]:
        """Return the changes at the last offsets before one, and the offset before which there are more; None if none.

        Whether a command took effect, and which names it had, is a matter of the state before it. So commands that this
        broker has not applied since its start are applied again, from the last snapshot on. Raise `StorageError` if the
        log cannot be read.
        """
        log, applied, recent = self._metadata.log, self._metadata.state.applied, self._metadata.recent
        if log is None:
            return [], None
        end = applied if before is None else Offset(min(max(before, 0), applied))
        oldest = self._find_oldest(log.index.start_offset)
        first = Offset(max(end - count, oldest))
        if first >= end:
            return [], None
        begin = recent.begin
        found = await self._read_again(log, first, min(begin, end)) if first < begin else []
        if first < begin <= end and recent.begin == begin:
            recent.put_before(found, first)
        found += recent.between(max(first, begin), end)
        return found, first if first > oldest else None

    async def _read_again(self, log: Log, first: Offset, end: Offset) -> list[Change]:
        """Return the changes in a range of offsets, from the log."""
        state = await self._find_state_before(first)
        found: list[Change] = []
        while state.applied < end and (batches := await self._metadata.read_orders(log, state.applied)):
            for header, orders in batches:
                numbered = ((Offset(offset), each) for offset, each in enumerate(orders, header.base_offset))
                found += apply_orders(state, (each for each in numbered if state.applied <= each[0] < end))
                state.applied = max(state.applied, Offset(header.end_offset))
        if state.applied < end:
            raise StorageError("this broker has not loaded the log of metadata since its start: try again")
        return [each for each in found if each.offset >= first]

    def _find_oldest(self, start: Offset) -> Offset:
        """Return the offset from which on changes can be read: that of a snapshot, if the log does not begin with 0."""
        offsets = [each for each in self._metadata.snapshots.offsets if each >= start]
        return min(offsets, default=self._metadata.state.applied) if start else FIRST_OFFSET

    async def _find_state_before(self, offset: Offset) -> ClusterState:
        """Return the state at the last snapshot up to an offset, or the state before all commands."""
        data, support = self._metadata.snapshots.find_before(offset), self._metadata.state.members.support
        if data is None:
            state = ClusterState(support)
            state.found(self._metadata.state.cluster_id)
            return state
        if len(data) < SMALL_BYTES:
            return decompress_snapshot(data).restore(support)
        return await trio.to_thread.run_sync(lambda: decompress_snapshot(data).restore(support))
