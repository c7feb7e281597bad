"""Moves records from the hot storage to the cold tier, in the background.

A segment is moved in steps, each of which may be the last one of a process that is killed:

1. Its records are read from the hot storage, and written as an object. Nothing refers to the object yet.
2. The object is read again and compared with what was written.
3. The manifest is replaced. From now on, the cold tier has the records; so has the hot storage.
4. The hot storage drops them.

A process that finds the manifest of step 3 at its start does step 4. One that finds an object of step 1 deletes it
before it moves records of the same partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa
import trio

from dafka.errors import StorageBusyError, StorageError
from dafka.internal_topics import is_internal_topic
from dafka.records import Partition, RecordBatch
from dafka.storage.base import READ_BYTES, PartitionInfo, RetentionPolicy, Storage
from dafka.storage.cold.manifest_store import ManifestStore
from dafka.storage.cold.object_store import ObjectStoreError, RetryingObjectStore
from dafka.storage.cold.options import ColdOptions
from dafka.storage.cold.parquet import SegmentWriter
from dafka.storage.cold.segments import Segment, digest_of, partition_folder
from dafka.storage.plugin_helpers import now_ms

_logger = logging.getLogger("dafka.storage.cold")

_T = TypeVar("_T")


class Offloader:
    """Moves segments of the partitions that hold more than their local retention. `TierStatistics` has its counters."""

    def __init__(
        self, hot: Storage, manifest_store: ManifestStore, object_store: RetryingObjectStore, options: ColdOptions
    ) -> None:
        self.hot_topics: set[str] = set()
        """Topics that are compacted, whose records do not move."""
        self.tails: dict[Partition, tuple[int, int]] = {}
        """Partitions of which a segment is being committed: the new boundary, and the size of the records behind it."""
        self.deleted: set[Partition] = set()
        """Partitions that were deleted after the last segment was begun. Its records must not come back."""
        self.moved_records = 0
        self.moved_bytes = 0
        self.failures = 0
        self.last_error = ""
        self.due_bytes = 0
        self._hot = hot
        self._manifest_store = manifest_store
        self._object_store = object_store
        self._options = options
        self._policy = RetentionPolicy(age_ms=options.local_retention_ms, bytes_max=options.local_retention_bytes)
        self._cleaned: set[Partition] = set()
        self._lock = trio.Lock()

    async def keep_moving(self) -> None:
        """Move what is due again and again, until cancelled. Failures are logged and counted."""
        reported = ""
        while True:
            await trio.sleep(self._options.cold_interval_ms / 1000)
            try:
                await self.move_due()
                reported = ""
            except StorageError as error:
                if str(error) != reported:
                    _logger.warning("Nothing is moved to the cold tier for now: %s", error)
                reported = str(error)

    async def move_due(self) -> int:
        """Move all segments that are due now. Return their number.

        A partition whose records cannot be moved does not keep others from being moved. Raise `StorageError` if the
        object store or the hot storage fails. What was not moved stays where it is.
        """
        async with self._manifest_store.lock:
            await self._manifest_store.refresh_stale()
            await self.finish_moves()
            await self._manifest_store.delete_dropped()
        moved = due_bytes = 0
        async with self._lock:
            for partition, info in (await self._hot.partitions()).items():
                if self._policy and not is_internal_topic(partition.topic) and partition.topic not in self.hot_topics:
                    count, left = await self._move_partition(partition, info)
                    moved += count
                    due_bytes += left
            self.due_bytes = due_bytes
        return moved

    async def finish_moves(self) -> None:
        """Drop from the hot storage what the cold tier has, too. The tier must not change meanwhile.

        Raise `StorageError` if the hot storage fails.
        """
        await self._manifest_store.save_copy()
        infos = await self._hot.partitions()
        for partition, found in self._manifest_store.contents.ranges().items():
            info = infos.get(partition, PartitionInfo())
            if info.end_sequence < found.end:  # an older copy of the hot storage, or one that lost its last records
                await self._hot.reset_to(partition, found.end)
            elif info.earliest_sequence < found.end:
                await self._hot.trim(partition, found.end)

    def count_appended(self, batches: Sequence[RecordBatch]) -> None:
        """Count records that were appended to the hot storage while segments are committed."""
        for batch in batches if self.tails else ():
            if batch.partition in self.tails:
                boundary, tail_bytes = self.tails[batch.partition]
                self.tails[batch.partition] = boundary, tail_bytes + batch.content_bytes

    async def _move_partition(self, partition: Partition, info: PartitionInfo) -> tuple[int, int]:
        """Move the segments of a partition that are due; return their number, and the bytes that are due still."""
        moved = 0
        try:
            while end := await self._find_due_end(partition, info):
                if not await self._move(partition, info.earliest_sequence, end):
                    break
                moved += 1
                info = await self._hot.find_partition(partition) or PartitionInfo()
        except (ObjectStoreError, StorageBusyError) as error:
            self._record_failure(partition, error)
            raise
        except StorageError as error:  # of this partition, such as damage
            self._record_failure(partition, error)
            return moved, info.content_bytes
        else:
            self.last_error = ""
        return moved, 0

    def _record_failure(self, partition: Partition, error: StorageError) -> None:
        self.failures += 1
        if str(error) != self.last_error:
            _logger.warning("%s: records stay in the hot storage for now: %s", partition, error)
        self.last_error = str(error)

    async def _find_due_end(self, partition: Partition, info: PartitionInfo) -> int:
        """Return the sequence up to which a segment is due; 0 if none is."""
        if info.earliest_stored_at is None:
            return 0
        policy = self._policy
        segment_bytes = self._options.cold_segment_bytes
        if policy.bytes_max is not None and info.content_bytes - segment_bytes >= policy.bytes_max:
            return info.end_sequence
        cut_at = None if policy.age_ms is None else now_ms() - policy.age_ms
        if cut_at is None or info.earliest_stored_at >= cut_at:
            return 0
        end = await self._hot.find_sequence_by_time(partition, cut_at)
        is_late = info.earliest_stored_at < cut_at - self._options.cold_segment_ms
        is_full = (end - info.earliest_sequence) * info.content_bytes >= segment_bytes * info.count
        return end if is_late or is_full else 0

    async def _move(self, partition: Partition, first_sequence: int, end_sequence: int) -> bool:
        """Move one segment from a sequence on; return whether it was moved."""
        begun = trio.current_time()
        self.deleted.clear()
        made = await self._make_segment(partition, first_sequence, end_sequence)
        if made is None:
            return False
        segment, data = made
        await self._clean(partition)
        self._manifest_store.writing.add(segment.name)
        self._cleaned.discard(partition)
        try:
            await self._write(segment, data)
            is_moved = await self._commit(segment)
        finally:
            self._manifest_store.writing.discard(segment.name)
        self._cleaned.add(partition)
        if not is_moved:  # others have trimmed or deleted the records meanwhile
            await self._object_store.delete([self._manifest_store.object_name(segment.name)])
            return False
        self.moved_records += segment.count
        self.moved_bytes += segment.object_bytes
        if self._options.cold_rate_bytes:
            await trio.sleep_until(begun + len(data) / self._options.cold_rate_bytes)
        return True

    async def _make_segment(
        self, partition: Partition, first_sequence: int, end_sequence: int
    ) -> tuple[Segment, bytes] | None:
        """Return the next segment and its object; None if its records are gone."""
        writer = SegmentWriter(partition)
        sequence = first_sequence
        while sequence < end_sequence and writer.content_bytes < self._options.cold_segment_bytes:
            bytes_max = min(self._options.cold_segment_bytes - writer.content_bytes, READ_BYTES)
            batch = await self._hot.read(partition, sequence, end_sequence - sequence, bytes_max, with_times=True)
            if batch is not None and batch.compacted is not None:  # other stores have compacted the topic
                self.hot_topics.add(partition.topic)
            if batch is None or batch.compacted is not None:
                return None
            await self._encode(partition, partial(writer.add, batch))
            sequence = batch.end_sequence
        return await self._encode(partition, writer.finish)

    @staticmethod
    async def _encode(partition: Partition, encode: Callable[[], _T]) -> _T:
        try:
            return await trio.to_thread.run_sync(encode)
        except pa.ArrowInvalid as error:  # such as a time that Parquet cannot have
            raise StorageError(f"{partition}: {error}") from None

    async def _write(self, segment: Segment, data: bytes) -> None:
        """Write an object, and check that it is there."""
        name = self._manifest_store.object_name(segment.name)
        await self._object_store.write(name, data)
        found, _ = await self._object_store.read(name)
        if found != data:
            raise ObjectStoreError(
                f"{name}: {len(data)} bytes with digest {segment.digest} were written, and {len(found)} bytes with "
                f"digest {digest_of(found)} were read"
            )

    async def _commit(self, segment: Segment) -> bool:
        """Add a segment whose object was written, and drop its records from the hot storage.

        Return whether it was added; it is not if its records were trimmed or deleted meanwhile.
        """
        partition = segment.partition
        async with self._manifest_store.lock:
            info = await self._hot.find_partition(partition) or PartitionInfo()
            found = self._manifest_store.contents.find(partition)
            removed: Collection[Segment] = ()
            if info.earliest_sequence != segment.first or info.end_sequence < segment.end:
                return False
            if partition.topic in self.hot_topics or partition in self.deleted:
                return False
            if found is not None and found.end != segment.first:
                if not found.is_apart(info):
                    return False
                removed = found.segments
            self.tails[partition] = segment.end, info.content_bytes - segment.content_bytes
            try:
                await self._manifest_store.change(added=[segment], removed=removed)
                await self._hot.trim(partition, segment.end)
            finally:
                del self.tails[partition]
        return True

    async def _clean(self, partition: Partition) -> None:
        """Delete the objects of a partition that a process has written and not moved, once."""
        if partition in self._cleaned:
            return
        found = self._manifest_store.contents.find(partition)
        known = set() if found is None else {self._manifest_store.object_name(each.name) for each in found.segments}
        listed = await self._object_store.list(self._manifest_store.object_name(partition_folder(partition)))
        await self._object_store.delete(each.name for each in listed if each.name not in known)
        self._cleaned.add(partition)
