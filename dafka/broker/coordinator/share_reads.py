"""Reads the records that the members of share groups acquire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import attrs
import trio

from dafka.batches import read_header
from dafka.broker.coordinator.led_share_partition import LedSharePartition
from dafka.broker.coordinator.share_partitions import SharePartitions
from dafka.broker.core.groups.share.share_partition import AcquiredRange, FetchedBatch
from dafka.broker.core.log.log import Log
from dafka.broker.core.positions import Offset
from dafka.broker.log.reader import LogReader, split_committed
from dafka.errors import StorageCorruptError
from dafka.steady_clock import steady_now_ms


class AcquiredRecords(NamedTuple):
    """Record batches with the records that a member has acquired, and which ones these are."""

    batches: Sequence[bytes] = ()
    ranges: Sequence[AcquiredRange] = ()

    @property
    def record_count(self) -> int:
        """The number of offsets in the ranges."""
        return sum(each.end - each.first for each in self.ranges)


READ_BYTES = 2**18
"""How much of a log is read at a time, in bytes, until a member has as many records as it wants."""


@attrs.frozen(kw_only=True)
class ShareRead:
    """How much a member wants.

    Attributes:
        records_max: The number of records. The last batch can exceed it, unless the limit `is_exact`.
        range_max: How many records the acquired ranges should have.
        may_exceed: Whether a batch that is larger than the size is acquired.
    """

    member_id: str
    records_max: int
    range_max: int
    is_exact: bool = False
    may_exceed: bool = True


class _Unread(NamedTuple):
    """Offsets of records to read, up to `end`. Those up to `enough` are as many as a member wants."""

    first: Offset
    enough: Offset
    end: Offset


@attrs.define(eq=False, slots=False)
class ShareReader:
    """Reads and acquires the next records of share partitions."""

    _partitions: SharePartitions
    _reader: LogReader

    async def read(self, served: LedSharePartition, wanted: ShareRead, bytes_max: int) -> AcquiredRecords:
        """Acquire the next records for a member; none if there are none, or another member reads them.

        Raise `StorageError` or `BatchError` if the records cannot be read.
        """
        served.is_wanted |= served.is_reading
        if served.partition is None or served.is_reading or wanted.records_max <= 0 or bytes_max <= 0:
            return AcquiredRecords()
        served.is_reading = True
        try:
            # A read can find only transaction markers, removed records or records of others: the next ones follow.
            while (unread := self._find_wanted(served, wanted)) is not None:
                found = await self._read(served.log, unread, bytes_max)
                if found and len(found[0]) > bytes_max and not wanted.may_exceed:
                    return AcquiredRecords()
                if served.is_current and (acquired := self._acquire(served, wanted, unread, found)).ranges:
                    return acquired
                await trio.lowlevel.checkpoint()  # markers are read without one
            return AcquiredRecords()
        finally:
            served.is_reading = False
            self._partitions.on_read(served)

    def _find_wanted(self, served: LedSharePartition, wanted: ShareRead) -> _Unread | None:
        """Return what to read for a member; None if there is nothing."""
        found = self.find_next(served)
        if found is None or served.partition is None:
            return None
        first, end = found
        enough = Offset(served.partition.find_end(wanted.records_max, end))
        return _Unread(first, enough, enough if wanted.is_exact else end)

    async def _read(self, log: Log, unread: _Unread, bytes_max: int) -> Sequence[bytes]:
        """Return the next record batches until there are enough records, up to a size."""
        found, offset = list[bytes](), unread.first
        while offset < unread.enough and bytes_max > 0:
            try:
                part = await self._reader.read(log, offset, unread.end, min(bytes_max, READ_BYTES))
            except StorageCorruptError:
                if not found:
                    raise
                break
            if not part or (found and len(part[0]) > bytes_max):
                break
            found += part
            offset, bytes_max = Offset(read_header(part[-1]).end_offset), bytes_max - sum(map(len, part))
        return found

    def find_next(self, served: LedSharePartition) -> tuple[Offset, Offset] | None:
        """Return the offsets from the next available record up to the end for the group; None if there is none."""
        log, partition = served.log, served.partition
        if partition is None or not served.is_current:
            return None
        settings = self._partitions.settings_of(served.key.group_id)
        partition.advance_log_start(log.index.start_offset)
        offset = partition.next_offset(settings.limits)
        end = log.last_stable_offset if settings.is_committed else log.high_watermark
        return None if offset is None or offset >= end else (Offset(offset), end)

    def _acquire(
        self, served: LedSharePartition, wanted: ShareRead, unread: _Unread, found: Sequence[bytes]
    ) -> AcquiredRecords:
        """Acquire what is available of the records that were read."""
        assert served.partition is not None
        settings, (offset, _, end) = self._partitions.settings_of(served.key.group_id), unread
        batches = _describe(served.log, offset, found, is_committed=settings.is_committed)
        if not found:  # all records up to the end of what was read were deleted
            batches = [FetchedBatch(offset, end, has_records=False)]
        ranges = served.partition.acquire(
            wanted.member_id,
            offset,
            batches,
            settings.limits,
            steady_now_ms(),
            records_max=wanted.records_max,
            range_max=wanted.range_max,
            is_exact=wanted.is_exact,
        )
        self._partitions.on_change(served)
        if not ranges:
            return AcquiredRecords()
        last = ranges[-1].end
        kept = [
            data
            for data, batch in zip(found, batches, strict=True)
            if batch.has_records and batch.first < last and batch.end > ranges[0].first
        ]
        return AcquiredRecords(kept, ranges)


def _describe(log: Log, offset: Offset, found: Sequence[bytes], *, is_committed: bool) -> list[FetchedBatch]:
    """Return the batches that were read. Markers are not delivered, nor aborted records if only committed ones are."""
    headers = [read_header(data) for data in found]
    aborted = set[int]()
    if is_committed and headers:
        transactions = log.aborted_between(offset, Offset(headers[-1].end_offset))
        split = split_committed(list(zip(headers, found, strict=True)), transactions)
        aborted = {header.base_offset for (header, _), is_kept in split if not is_kept}
    return [
        FetchedBatch(
            header.base_offset,
            header.end_offset,
            header.count > 0 and not header.is_control and header.base_offset not in aborted,
        )
        for header in headers
    ]
