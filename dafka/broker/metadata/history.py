"""Reads what the commands in the log of metadata have changed."""

from __future__ import annotations

import attrs

from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.history import Change, apply_orders
from dafka.broker.core.positions import FIRST_OFFSET, Offset
from dafka.broker.metadata.metadata_log import MetadataLog


@attrs.frozen
class MetadataHistory:
    """The changes that are still in the log of metadata, as one broker has applied them."""

    _metadata: MetadataLog

    async def read(self, before: int | None, count: int) -> tuple[list[Change], Offset | None]:
        """Return the changes at the last offsets before one, and the offset before which there are more; None if none.

        Whether a command took effect, and which names it had, is a matter of the state before it. So the commands are
        applied again, from the last snapshot on. Raise `StorageError` if the log cannot be read.
        """
        log, applied = self._metadata.log, self._metadata.state.applied
        if log is None:
            return [], None
        end = applied if before is None else Offset(min(max(before, 0), applied))
        oldest = self._find_oldest(log.index.start_offset)
        first = Offset(max(end - count, oldest))
        if first >= end:
            return [], None
        state = self._state_before(first)
        found: list[Change] = []
        while state.applied < end and (batches := await self._metadata.read_orders(log, state.applied)):
            for header, orders in batches:
                numbered = ((Offset(offset), each) for offset, each in enumerate(orders, header.base_offset))
                found += apply_orders(state, (each for each in numbered if state.applied <= each[0] < end))
                state.applied = max(state.applied, Offset(header.end_offset))
        return [each for each in found if each.offset >= first], first if first > oldest else None

    def _find_oldest(self, start: Offset) -> Offset:
        """Return the offset from which on changes can be read: that of a snapshot, if the log does not begin with 0."""
        offsets = [each for each in self._metadata.snapshots.offsets if each >= start]
        return min(offsets, default=self._metadata.state.applied) if start else FIRST_OFFSET

    def _state_before(self, offset: Offset) -> ClusterState:
        snapshot = self._metadata.snapshots.find_before(offset)
        if snapshot is not None:
            return snapshot.restore()
        state = ClusterState()
        state.found(self._metadata.state.cluster_id)
        return state
