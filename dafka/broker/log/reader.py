"""Reads the logs of a broker: the records of all their partitions, as record batches with the offsets of the log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from itertools import accumulate
from typing import NamedTuple

import attrs

from dafka.batches import (
    BatchHeader,
    encode_batch,
    encode_marker,
    encode_records,
    move_in_place,
    read_header,
    with_base_offset,
)
from dafka.broker.core.log.entries import CONTROL, MarkerEntry
from dafka.broker.core.log.log import Log
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.log.damaged_logs import DamagedLogs
from dafka.errors import StorageCorruptError
from dafka.records import NO_TIMESTAMP, Partition, RecordBatch
from dafka.storage import READ_BYTES, ReadsStoredBatches, Storage, StoredBatches
from dafka.storage.plugin_helpers import now_ms
from dafka.storage.tiers import HasColdTier

READ_BYTES_MIN = 2**12
"""The smallest read, in bytes, whatever a client asks for."""

PART_BYTES_MAX = 2**22
"""The maximum size of the records unpacked at a time, unless a single record is larger."""

UNPACKED_BYTES_MAX = 2**26
"""The maximum size of all records of a read, uncompressed. Small compressed batches can contain gigabytes."""


@attrs.frozen
class _LogPart:
    """A part of a log up to an offset: markers or records of one partition; empty where records were dropped."""

    end_offset: Offset
    markers: Sequence[MarkerEntry] = ()
    batch: RecordBatch | None = None


class LogRecords(NamedTuple):
    """Record batches of a log, one after the other, and the offset after the last one."""

    data: bytes | memoryview
    end_offset: Offset


LAST_OFFSETS_MAX = 100
"""The number of last offsets to search for the last record: markers have offsets, too."""


@attrs.define(eq=False, slots=False)
class LogReader:
    """Reads the logs of a broker. `damaged` takes note of damaged records, which are never skipped."""

    _storage: Storage
    _damaged: DamagedLogs | None = None

    async def read(
        self,
        log: Log,
        offset: Offset,
        end_offset: Offset,
        bytes_max: int,
        unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
    ) -> list[bytes]:
        """Return record batches of a log, whose base offsets and leader epochs are those of the log.

        They begin after `offset` if its record was dropped. `end_offset` is at most the high watermark. One batch is
        returned even if it is larger than `bytes_max`, or its records are larger than `unpacked_bytes_max`,
        uncompressed. Raise `StorageError` if the storage fails, and `StorageCorruptError` if the first records are
        damaged.
        """
        found, _ = await self.read_measured(log, offset, end_offset, bytes_max, unpacked_bytes_max)
        return found

    async def read_joined(
        self, log: Log, offset: Offset, end_offset: Offset, bytes_max: int, *, at_least_one: bool = True
    ) -> LogRecords:
        """Return what `read` returns, in one piece. Some storages return their record batches without decoding them.

        If it need not be `at_least_one` batch, none is larger than `bytes_max`. Raises the errors of `read`.
        """
        found: list[bytes | memoryview] = []
        offset = max(offset, log.index.start_offset)
        while offset < end_offset and bytes_max > 0:
            stored, difference = await self._read_stored(log, offset, end_offset, bytes_max)
            if stored is None:
                break
            if len(stored.data) > bytes_max and (found or not at_least_one):
                return LogRecords(_join(found), offset)
            found.append(stored.data)
            offset = Offset(stored.end_sequence + difference)
            if stored.is_full and bytes_max <= PART_BYTES_MAX:
                return LogRecords(_join(found), offset)
            bytes_max -= len(stored.data)
        try:
            rest = await self.read(log, offset, end_offset, bytes_max)
        except StorageCorruptError:
            if not found:
                raise
            rest = []
        for data in rest:
            if len(data) > bytes_max and (found or not at_least_one):
                break
            found.append(data)
            offset = Offset(read_header(data).end_offset)
            bytes_max -= len(data)
        return LogRecords(_join(found), offset)

    async def _read_stored(
        self, log: Log, offset: Offset, end_offset: Offset, bytes_max: int
    ) -> tuple[StoredBatches | None, int]:
        """Return stored batches with the offsets of a log, and the difference between their offsets and sequences.

        They are None if the records at the offset must be decoded.
        """
        storage, location = self._storage, log.index.locate(offset)
        if location is None or location.address == CONTROL:
            return None, 0
        if len(log.transaction_runs) or not isinstance(storage, ReadsStoredBatches):
            return None, 0
        epoch, epoch_end = _epoch_at(log, offset)
        count = min(location.record_count, epoch_end - offset, end_offset - offset)
        found = await storage.read_batches(
            log.partition_of(location.address),
            location.sequence,
            location.sequence + count,
            min(bytes_max, PART_BYTES_MAX),
        )
        difference = offset - location.sequence
        if found is not None:
            move_in_place(found.data, difference, epoch)
        return found, difference

    async def read_measured(
        self, log: Log, offset: Offset, end_offset: Offset, bytes_max: int, unpacked_bytes_max: int
    ) -> tuple[list[bytes], int]:
        """Return record batches of a log, and the size of their records, uncompressed. See `read`."""
        found: list[bytes] = []
        unpacked = 0
        offset = max(offset, log.index.start_offset)
        while offset < end_offset and bytes_max > 0 and unpacked < unpacked_bytes_max:
            epoch, epoch_end = _epoch_at(log, offset)
            size = min(max(bytes_max, READ_BYTES_MIN), PART_BYTES_MAX)
            try:
                part = await self._read_part(log, offset, min(epoch_end, end_offset), size)
            except StorageCorruptError:
                if found:
                    break
                raise
            if part is None:
                break
            unpacked += 0 if part.batch is None else part.batch.content_bytes
            left = bytes_max
            for data in _encode_part(log, part, offset, epoch):
                if found and len(data) > bytes_max:
                    return found, unpacked
                found.append(data)
                bytes_max -= len(data)
            if bytes_max < left // 2 and part.end_offset < min(epoch_end, end_offset):
                break  # the next record does not fit; to find that out, it would be read
            offset = part.end_offset
            del part  # frees its records during the next read
        return found, unpacked

    async def find_offset_by_time(self, log: Log, timestamp_ms: int) -> tuple[Offset, int] | None:
        """Return the offset and the timestamp of the first record that was made at a time or later, if there is one.

        The time is in milliseconds since 1970. Raise `StorageError` if the storage fails.
        """
        offset, end = log.index.start_offset, log.high_watermark
        if timestamp_ms <= now_ms():  # a record is made before it is stored, unless its clock is wrong
            for address in log.index.addresses():
                partition = log.partition_of(address)
                sequence = await self._storage.find_sequence_by_time(partition, timestamp_ms)
                end = min(end, log.index.find_from(address, RecordSequence(sequence)))
            offset, end = max(offset, end), log.high_watermark
        async with aclosing(self._records_from(log, offset, end)) as records:
            async for at, batch in records:
                for number, timestamp in enumerate(batch.timestamps or ()):
                    if timestamp >= timestamp_ms:
                        return Offset(at + number), timestamp
        return None

    async def find_latest_time(self, log: Log) -> tuple[Offset, int] | None:
        """Return the offset and the timestamp of the record with the latest timestamp. Raises `StorageError`."""
        found: tuple[Offset, int] | None = None
        async with aclosing(self._records_from(log, log.index.start_offset, log.high_watermark)) as records:
            async for at, batch in records:
                latest = max(batch.timestamps or (-1,))
                if latest >= 0 and (found is None or latest > found[1]):
                    found = Offset(at + list(batch.timestamps or ()).index(latest)), latest
        return found

    def find_local_start(self, log: Log) -> Offset | None:
        """Return the offset before which all records of a log are in the cold tier; None if there is no cold tier."""
        storage = self._storage
        if not isinstance(storage, HasColdTier):
            return None
        ends = ((address, storage.cold_end(log.partition_of(address))) for address in log.index.addresses())
        found = (log.index.find_from(address, RecordSequence(end)) for address, end in ends)
        return max(min(found, default=log.index.start_offset), log.index.start_offset)

    async def find_last_timestamp(self, log: Log) -> int | None:
        """Return the timestamp of the last record of a log; None if there is no record. Raises `StorageError`."""
        end = log.high_watermark
        for offset in range(end - 1, max(log.index.start_offset, end - LAST_OFFSETS_MAX) - 1, -1):
            async with aclosing(self._records_from(log, Offset(offset), Offset(offset + 1))) as records:
                async for _, batch in records:
                    if batch.held_count:
                        return NO_TIMESTAMP if batch.timestamps is None else batch.timestamps[-1]
        return None

    async def find_after_bytes(self, log: Log, size: int) -> Offset:
        """Return the offset after the oldest records of a log whose contents have at least a size, in bytes.

        It is at most the high watermark. Raises `StorageError`.
        """
        async with aclosing(self._records_from(log, log.index.start_offset, log.high_watermark)) as records:
            async for offset, batch in records:
                if batch.content_bytes < size:
                    size -= batch.content_bytes
                    continue
                for count, found in enumerate(accumulate(batch.record_sizes()), 1):
                    if found >= size:
                        return Offset(offset + count)
        return log.high_watermark

    async def _count_dropped(self, partition: Partition, sequence: RecordSequence, count: int) -> int:
        """Return how many records from a sequence on were dropped, at most `count`."""
        info = await self._storage.find_partition(partition)
        if info is None or not sequence < info.earliest_sequence < sequence + count:
            return count
        return info.earliest_sequence - sequence

    async def _records_from(
        self, log: Log, offset: Offset, end_offset: Offset
    ) -> AsyncGenerator[tuple[int, RecordBatch]]:
        """Yield the records in a range of offsets, each batch with its offset."""
        while offset < end_offset and (part := await self._read_part(log, offset, end_offset)) is not None:
            if part.batch is not None:
                yield offset, part.batch
            offset = part.end_offset
            del part

    async def _read_part(
        self, log: Log, offset: Offset, end_offset: Offset, bytes_max: int = READ_BYTES
    ) -> _LogPart | None:
        """Read from an offset up to the records of another partition; None at the end of the log."""
        location = log.index.locate(offset)
        if location is None:
            return None
        count = min(location.record_count, end_offset - offset)
        if location.address == CONTROL:
            return _LogPart(Offset(offset + count), markers=log.index.markers(location, count))
        partition = log.partition_of(location.address)
        try:
            batch = await self._storage.read(partition, location.sequence, count, bytes_max)
        except StorageCorruptError as error:  # a reader that skips acknowledged records loses them
            if self._damaged is not None:
                self._damaged.record(partition, error)
            raise
        if batch is None:
            return _LogPart(Offset(offset + await self._count_dropped(partition, location.sequence, count)))
        return _LogPart(Offset(offset + len(batch)), batch=batch)


def _join(found: Sequence[bytes | memoryview]) -> bytes | memoryview:
    return found[0] if len(found) == 1 else b"".join(found)


def _epoch_at(log: Log, offset: Offset) -> tuple[int, Offset]:
    """Return the leader epoch of an offset, and the offset at which the next epoch begins."""
    number = bisect_right(log.epochs, offset, key=lambda each: each[1])
    end = log.epochs[number][1] if number < len(log.epochs) else log.index.end_offset
    return log.epochs[max(number - 1, 0)][0], end


def _encode_marker(marker: MarkerEntry, leader_epoch: int) -> bytes:
    data = encode_marker(
        marker.producer_id,
        marker.producer_epoch,
        marker.timestamp_ms,
        is_commit=bool(marker.is_commit),
    )
    return with_base_offset(data, marker.offset, leader_epoch=leader_epoch)


def _encode_part(log: Log, part: _LogPart, offset: Offset, leader_epoch: int) -> Iterator[bytes]:
    """Yield a part of a log, at an offset, as record batches with the offsets of the log."""
    for marker in part.markers:
        yield _encode_marker(marker, leader_epoch)
    if part.batch is not None:
        difference = offset - part.batch.first_sequence
        for header, data in _encode(log, part.batch, offset):
            yield with_base_offset(data, header.base_offset + difference, leader_epoch=leader_epoch)


def _encode(log: Log, batch: RecordBatch, offset: Offset) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield the records at an offset as record batches with their headers, and with their transactions, if any."""
    runs, before = log.transaction_runs, batch.first_sequence - offset
    if len(runs) and not batch.encoded:
        yield from _encode_runs(batch, before, runs.split(offset, Offset(offset + len(batch))))
        return
    for data in encode_records(batch):
        header = read_header(data)
        split: list[tuple[int, int, int, int]] = []
        if len(runs) and header.producer_id < 0:  # a storage encodes records by itself that it gets without batches
            split += runs.split(Offset(header.base_offset - before), Offset(header.end_offset - before))
        if any(producer_id >= 0 for _, _, producer_id, _ in split):
            yield from _encode_runs(batch, before, split)
        else:
            yield header, data


def _encode_runs(
    batch: RecordBatch, before: int, runs: Iterable[tuple[int, int, int, int]]
) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield runs of records, each of one transaction or of none, as record batches with their headers.

    `before` is the difference between their sequences and their offsets. See `TransactionRuns.split`.
    """
    for first, end, producer_id, producer_epoch in runs:
        part = batch.between(first + before, end + before)
        is_plain = producer_id < 0
        for data in encode_records(part) if is_plain else _encode_transaction(part, producer_id, producer_epoch):
            yield read_header(data), data


def _encode_transaction(part: RecordBatch, producer_id: int, producer_epoch: int) -> Iterator[bytes]:
    """Yield the record batches of records that belong to a transaction, and of the positions of removed ones."""
    sequence = part.first_sequence
    for run in (*part.held_runs(), part.between(part.end_sequence, part.end_sequence)):
        if run.first_sequence > sequence:
            yield from encode_records(RecordBatch.removed(part.partition, sequence, run.first_sequence))
        if len(run):
            yield encode_batch(
                run.first_sequence,
                run.values,
                keys=run.keys,
                headers=run.headers,
                timestamps=NO_TIMESTAMP if run.timestamps is None else run.timestamps,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                is_transactional=True,
            )
        sequence = run.end_sequence


def split_committed(
    batches: Sequence[tuple[BatchHeader, bytes]], aborted: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[BatchHeader, bytes], bool]]:
    """Yield the batches of a log without transaction markers, and whether each is committed.

    The batches are in order, up to the last stable offset at most. `aborted` has the producers of aborted transactions
    and the offsets of their first records, in order of the offsets.
    """
    begun = 0
    aborting = set[int]()
    for header, data in batches:
        while begun < len(aborted) and aborted[begun][1] < header.end_offset:
            aborting.add(aborted[begun][0])
            begun += 1
        if header.is_control:
            aborting.discard(header.producer_id)
        else:
            yield (header, data), not header.is_transactional or header.producer_id not in aborting
