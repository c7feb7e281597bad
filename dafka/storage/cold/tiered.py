"""A storage of two tiers: recent records in a hot storage, older ones in an object store.

Each partition has a boundary, the end of its last segment in the cold tier. Records before it are read from there, and
those from it on from the hot storage. While the hot storage drops records that were moved, both have them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs
import pyarrow as pa
import trio

from dafka.errors import StorageCorruptError, StorageError, StorageSequenceError
from dafka.records import Partition, RecordBatch
from dafka.storage.base import READ_BYTES, Damage, PartitionInfo, RetentionPolicy, Storage, StorageStatistics
from dafka.storage.capabilities import (
    Compactable,
    Compacted,
    CompactsPartitions,
    DeletesPartitions,
    DetectsRemoval,
    FindRemoved,
    KeepsRecordBatches,
    Throttle,
)
from dafka.storage.cold.contents import ColdContents, ColdRange
from dafka.storage.cold.manifest_store import ManifestStore
from dafka.storage.cold.object_store import ObjectMissingError, RetryingObjectStore
from dafka.storage.cold.offloader import Offloader
from dafka.storage.cold.options import ColdOptions
from dafka.storage.cold.reader import SegmentReader
from dafka.storage.cold.segments import RECORDS_FOLDER, Segment
from dafka.storage.plugin_helpers import now_ms
from dafka.storage.tiers import TierStatistics


class TieredStorage:
    """A `Storage` that keeps older records in an object store; see `open_tiered`.

    It has the optional parts that its hot storage has.
    """

    def __init__(
        self,
        hot: Storage,
        object_store: RetryingObjectStore,
        manifest_store: ManifestStore,
        options: ColdOptions,
        nursery: trio.Nursery,
        *,
        is_writer: bool,
    ) -> None:
        self.hot = hot
        self.identity = hot.identity
        self.options = options
        self.reader = SegmentReader(object_store, manifest_store, nursery, options.cold_cache_bytes)
        self.offloader = Offloader(hot, manifest_store, object_store, options)
        self._object_store = object_store
        self._manifest_store = manifest_store
        self._is_writer = is_writer
        self._merged: dict[Partition, tuple[PartitionInfo, ColdRange, PartitionInfo]] = {}
        if isinstance(hot, KeepsRecordBatches):
            self.keeps_record_batches = True
        if isinstance(hot, DeletesPartitions):
            self.delete_partitions = self._delete_partitions
        if isinstance(hot, DetectsRemoval):
            self.check_not_removed = hot.check_not_removed
        if isinstance(hot, CompactsPartitions):
            self.find_compactable = self._find_compactable
            self.compact = self._compact

    @property
    def repairs(self) -> Sequence[Damage]:
        """See `Storage.repairs`."""
        return self.hot.repairs

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        """See `Storage.append`."""
        await self.hot.append(batches)
        self.offloader.count_appended(batches)

    async def read(
        self,
        partition: Partition,
        first_sequence: int,
        count: int,
        bytes_max: int = READ_BYTES,
        *,
        with_times: bool = False,
    ) -> RecordBatch | None:
        """See `Storage.read`. Records of the cold tier are read from one row group at a time."""
        segment = self._contents.find_segment(partition, first_sequence)
        if segment is None:
            found = await self.hot.read(partition, first_sequence, count, bytes_max, with_times=with_times)
            if found is not None or count < 1:
                return found
            await self._follow()
            segment = self._contents.find_segment(partition, first_sequence)  # they may have been moved meanwhile
            if segment is None:
                return None
        if count < 1:
            await trio.lowlevel.checkpoint()
            return None
        return await self._read_cold(segment, first_sequence, count, bytes_max, with_times=with_times)

    async def find_sequence_by_time(self, partition: Partition, stored_at: int) -> int:
        """See `Storage.find_sequence_by_time`. It is searched again if records were moved meanwhile."""
        found = await self._find_visible(partition, await self.hot.find_partition(partition))
        while (segment := None if found is None else found.find_by_time(stored_at)) is None:
            sequence = await self.hot.find_sequence_by_time(partition, stored_at)
            before, found = found, await self._find_visible(partition, await self.hot.find_partition(partition))
            is_moved = found is not None and (before is None or found.end != before.end)
            if not is_moved:
                return sequence if before is None else max(sequence, before.end)
        if stored_at <= segment.first_at:
            return segment.start
        return max(await self.reader.find_sequence_by_time(segment, stored_at), segment.start)

    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        """See `Storage.partitions`. A writer answers from memory."""
        infos = await self.hot.partitions(topic)
        await self._follow()
        for partition, found in self._contents.ranges(topic).items():
            info = infos.get(partition, PartitionInfo())
            known = self._merged.get(partition)
            if known is not None and known[0] is info and known[1] is found and partition not in self.offloader.tails:
                infos[partition] = known[2]
            elif not found.is_apart(info):
                infos[partition] = await self._merge(partition, info, found)
                self._merged[partition] = info, found, infos[partition]
        return infos

    async def find_partition(self, partition: Partition) -> PartitionInfo | None:
        """See `Storage.find_partition`."""
        info = await self.hot.find_partition(partition)
        found = await self._find_visible(partition, info)
        return info if found is None else await self._merge(partition, info or PartitionInfo(), found)

    async def statistics(self) -> StorageStatistics:
        """See `Storage.statistics`. The objects of the cold tier count as stored."""
        hot = await self.hot.statistics()
        infos = (await self.partitions()).values()
        return StorageStatistics(
            len(infos),
            sum(info.count for info in infos),
            sum(info.content_bytes for info in infos),
            hot.stored_bytes + sum(found.object_bytes for found in self._contents.ranges().values()),
        )

    def cold_end(self, partition: Partition) -> int:
        """Return the sequence up to which the records of a partition are in the cold tier; 0 if none are."""
        found = self._contents.find(partition)
        return 0 if found is None else found.end

    async def read_columns(
        self, partition: Partition, first_sequence: int, end_sequence: int, columns: Sequence[str]
    ) -> pa.RecordBatch | None:
        """Return columns of `dafka.storage.arrow.ARROW_TYPES` of records in the cold tier, of one row group.

        Only these columns are fetched. Return None if the cold tier does not have the first record. Raise
        `StorageCorruptError` if the records are damaged, and `StorageError` if the object store fails.
        """
        segment = self._contents.find_segment(partition, first_sequence)
        if segment is None:
            await trio.lowlevel.checkpoint()
            return None
        return await self.reader.read_columns(segment, first_sequence, end_sequence, columns)

    def object_urls(self, topic: str | None = None) -> list[str]:
        """Return the URLs of the Parquet objects, in the order of their records, for Spark, DuckDB, Polars and others.

        The objects have the records of the cold tier, each of them once; the hot storage has the later ones. The first
        object of a partition may have records that were trimmed, too. Without a topic, return those of all topics.
        """
        place = self.options.place if "://" in self.options.place else f"file://{self.options.place}"
        return [
            f"{place}/{self._manifest_store.object_name(segment.name)}"
            for _, found in sorted(self._contents.ranges(topic).items())
            for segment in found.segments
        ]

    def tier_statistics(self) -> TierStatistics:
        """Return what the cold tier holds, and the counters since the storage was opened."""
        ranges = self._contents.ranges().values()
        moved, reads, requests = self.offloader, self.reader, self._object_store
        return TierStatistics(
            place=self.options.place,
            segments=sum(len(found.segments) for found in ranges),
            records=sum(found.count for found in ranges),
            content_bytes=sum(found.content_bytes for found in ranges),
            object_bytes=sum(found.object_bytes for found in ranges),
            moved_records=moved.moved_records,
            moved_bytes=moved.moved_bytes,
            move_failures=moved.failures,
            move_error=moved.last_error,
            due_bytes=moved.due_bytes,
            requests=requests.requests,
            request_failures=requests.failures,
            request_error=requests.last_error,
            wrong_answers=reads.wrong_answers,
            damaged=reads.damaged,
            cache_hits=self.reader.groups.hits,
            cache_misses=self.reader.groups.misses,
            cached_bytes=self.reader.groups.bytes_held,
            is_stale=self._manifest_store.is_stale,
        )

    async def trim(self, partition: Partition, earliest_sequence: int) -> None:
        """See `Storage.trim`. Objects whose records are all dropped are deleted."""
        async with self._dropping():
            await self._trim_cold(partition, earliest_sequence)
            await self.hot.trim(partition, earliest_sequence)

    async def reset_to(self, partition: Partition, next_sequence: int) -> None:
        """See `Storage.reset_to`."""
        async with self._dropping():
            info = await self.hot.find_partition(partition) or PartitionInfo()
            if next_sequence < info.end_sequence:
                raise StorageSequenceError(
                    f"{partition}: cannot be reset to {next_sequence}, expected at least {info.end_sequence}"
                )
            await self._drop_cold([partition])
            await self.hot.reset_to(partition, next_sequence)

    async def apply_retention(self, policy: RetentionPolicy, topic: str | None = None) -> dict[Partition, int]:
        """See `Storage.apply_retention`. Both tiers count. The cold tier drops whole segments."""
        async with self._dropping():
            await self.offloader.finish_moves()
            infos = await self.partitions(topic)
            cut_at = None if policy.age_ms is None else now_ms() - policy.age_ms
            removed = [
                segment
                for partition, found in self._contents.ranges(topic).items()
                if partition in infos
                for segment in found.find_surplus(infos[partition], policy, cut_at)
            ]
            if removed:
                await self._manifest_store.change(removed=removed)
            await self.hot.apply_retention(policy, topic)
            after = await self.partitions(topic)
        return {
            partition: info.earliest_sequence
            for partition, info in after.items()
            if partition in infos and info.earliest_sequence > infos[partition].earliest_sequence
        }

    async def flush(self) -> None:
        """See `Storage.flush`."""
        await self.hot.flush()

    async def find_damage(self) -> list[Damage]:
        """See `Storage.find_damage`. All objects are listed; the cache is emptied, so that records are read anew."""
        damages = list(await self.hot.find_damage())
        await self._follow()
        infos = await self.hot.partitions()
        listed = await self._object_store.list(self._manifest_store.object_name(f"{RECORDS_FOLDER}/"))
        sizes = {each.name: each.size for each in listed}
        for partition, found in self._contents.ranges().items():
            info = infos.get(partition, PartitionInfo())
            if found.is_apart(info):
                reason = "the records between the cold tier and the hot storage are missing"
                damages.append(Damage(self.options.place, reason, partition, found.end, info.earliest_sequence))
            for segment in found.segments:
                name = self._manifest_store.object_name(segment.name)
                if sizes.get(name) != segment.object_bytes:
                    size = "is missing" if name not in sizes else f"has {sizes[name]} bytes"
                    reason = f"the object {size}, expected {segment.object_bytes} bytes"
                    location = f"{self.options.place}/{name}"
                    damages.append(Damage(location, reason, partition, segment.start, segment.end))
        self.reader.forget()
        return damages

    async def save_positions(self, name: str, positions: Mapping[Partition, int]) -> None:
        """See `Storage.save_positions`."""
        await self.hot.save_positions(name, positions)

    async def load_positions(self, name: str) -> dict[Partition, int]:
        """See `Storage.load_positions`."""
        return await self.hot.load_positions(name)

    async def position_names(self) -> list[str]:
        """See `Storage.position_names`."""
        return await self.hot.position_names()

    async def move_due(self) -> int:
        """Move what is due to the cold tier now, rather than at the next look; see `Offloader.move_due`."""
        self._require_writer()
        return await self.offloader.move_due()

    # Optional parts

    async def _delete_partitions(self, partitions: Collection[Partition]) -> None:
        """See `DeletesPartitions.delete_partitions`."""
        assert isinstance(self.hot, DeletesPartitions)
        async with self._dropping():
            await self._drop_cold(partitions)
            self.offloader.deleted.update(partitions)
            await self.hot.delete_partitions(partitions)

    async def _find_compactable(self, partition: Partition, clean_end: int) -> Compactable | None:
        """See `CompactsPartitions.find_compactable`. What is compacted is not moved, nor the other way round.

        Otherwise a tombstone could go while an earlier value of its key stays in an object.
        """
        assert isinstance(self.hot, CompactsPartitions)
        return await self.hot.find_compactable(partition, clean_end) if await self._may_compact(partition) else None

    async def _compact(
        self, partition: Partition, end_sequence: int, find_removed: FindRemoved, throttle: Throttle
    ) -> Compacted:
        """See `CompactsPartitions.compact`."""
        assert isinstance(self.hot, CompactsPartitions)
        if not await self._may_compact(partition):
            return Compacted()
        return await self.hot.compact(partition, end_sequence, find_removed, throttle)

    @asynccontextmanager
    async def _dropping(self) -> AsyncIterator[None]:
        """Keep the manifest as it is during a block that drops records, and first find out what it is."""
        self._require_writer()
        async with self._manifest_store.lock:
            await self._manifest_store.refresh_stale()
            yield

    async def _may_compact(self, partition: Partition) -> bool:
        """Keep the records of a topic hot from now on. Return whether all of a partition are known to be."""
        self.offloader.hot_topics.add(partition.topic)
        if self._manifest_store.is_stale or self._contents.find(partition) is not None:
            await trio.lowlevel.checkpoint()
            return False
        return True

    # Reading

    @property
    def _contents(self) -> ColdContents:
        return self._manifest_store.contents

    async def _follow(self) -> None:
        """Take over what the writer has changed, in another process."""
        if not self._is_writer:
            await self._manifest_store.follow()

    async def _find_visible(self, partition: Partition, hot: PartitionInfo | None) -> ColdRange | None:
        """Return what the cold tier has of a partition, unless records between it and the hot storage are missing."""
        await self._follow()
        found = self._contents.find(partition)
        return None if found is None or found.is_apart(hot or PartitionInfo()) else found

    async def _read_cold(
        self, segment: Segment, first_sequence: int, count: int, bytes_max: int, *, with_times: bool
    ) -> RecordBatch | None:
        try:
            found = await self.reader.read(segment, first_sequence, count, bytes_max)
        except StorageError as error:
            hot = await self.hot.read(segment.partition, first_sequence, count, bytes_max, with_times=with_times)
            if hot is not None:  # not dropped there yet
                return hot
            if isinstance(error, StorageCorruptError | ObjectMissingError):
                await self._follow()
            if self._contents.find_segment(segment.partition, first_sequence) is None:  # dropped meanwhile
                return None
            raise
        return found if with_times else attrs.evolve(found, stored_at=None)

    async def _merge(self, partition: Partition, info: PartitionInfo, found: ColdRange) -> PartitionInfo:
        """Return the description of a partition that has records in both tiers."""
        tail_bytes = await self._count_tail(partition, info, found)
        is_beyond = info.end_sequence > found.end
        return PartitionInfo(
            found.start,
            max(info.end_sequence, found.end),
            found.content_bytes + tail_bytes,
            found.segments[0].first_at,
            info.latest_stored_at if is_beyond else found.segments[-1].last_at,
            info.last_append_at,
            compacted_end=info.compacted_end,
        )

    async def _count_tail(self, partition: Partition, info: PartitionInfo, found: ColdRange) -> int:
        """Return the size of the records behind the boundary, in bytes."""
        boundary, tail_bytes = self.offloader.tails.get(partition, (0, 0))
        if boundary == found.end:
            return tail_bytes
        sequence, both = info.earliest_sequence, 0
        while sequence < min(found.end, info.end_sequence):
            segment = found.find(sequence)
            if segment is not None and sequence == segment.start:
                both += segment.content_bytes
                sequence = segment.end
                continue
            end = found.end if segment is None else segment.end
            batch = await self.hot.read(partition, sequence, end - sequence)
            if batch is None:
                break  # dropped meanwhile
            both += batch.content_bytes
            sequence = batch.end_sequence
        return max(info.content_bytes - both, 0)

    # Changing

    def _require_writer(self) -> None:
        if not self._is_writer:
            raise StorageError("the storage was opened read-only; open it for writing to change it")

    async def _trim_cold(self, partition: Partition, earliest_sequence: int) -> None:
        found = self._contents.find(partition)
        if found is None or earliest_sequence <= found.start:
            return
        removed = [segment for segment in found.segments if segment.start < earliest_sequence]
        cut = [segment for segment in removed if segment.end > earliest_sequence]
        added = [await self.reader.cut(segment, earliest_sequence) for segment in cut]
        await self._manifest_store.change(added=added, removed=removed)

    async def _drop_cold(self, partitions: Collection[Partition]) -> None:
        ranges = [found for each in partitions if (found := self._contents.find(each)) is not None]
        if ranges:
            await self._manifest_store.change(removed=[segment for found in ranges for segment in found.segments])
