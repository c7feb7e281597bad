"""Reading records from the objects of a cold tier: verified, by row groups, with a cache of limited size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import attrs
import pyarrow as pa
import trio
from crc32c import crc32c

from dafka.errors import StorageCorruptError, StorageError
from dafka.records import Partition, RecordBatch
from dafka.storage.arrow import arrow_schema
from dafka.storage.cold.manifest_store import ManifestStore
from dafka.storage.cold.object_store import ATTEMPTS, ObjectMissingError, ObjectStoreError, RetryingObjectStore
from dafka.storage.cold.parquet import RECORD_COLUMNS, ColumnChunk, SegmentIndex
from dafka.storage.cold.segments import Segment

GAP_BYTES_MAX = 64 * 1024
"""How many bytes between two columns are fetched with them, rather than with a request of their own."""

SEQUENTIAL_READS_MAX = 1024
"""The maximum number of reads whose end is remembered, to recognize one that continues it."""

READS_AHEAD_MAX = 4
"""The maximum number of row groups that are fetched before they are asked for, at the same time."""

INDEX_CACHE_BYTES = 16 * 2**20
"""The size of the cache of the tails of objects, in bytes."""

_T = TypeVar("_T")


class Cache(Generic[_T]):
    """Values by key, up to a total size; those used last are kept. Each is loaded once, however many tasks wait for it.

    The limit is in bytes. One value is kept even if it is larger.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self.hits = 0
        self.misses = 0
        self._values: OrderedDict[object, tuple[_T, int]] = OrderedDict()
        self._loading: dict[object, trio.Event] = {}

    async def get(self, key: object, load: Callable[[], Awaitable[tuple[_T, int]]]) -> _T:
        """Return a value; `load` returns it and its size in bytes, if it is not cached."""
        while True:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                self.hits += 1
                await trio.lowlevel.checkpoint()
                return found[0]
            waiting = self._loading.get(key)
            if waiting is None:
                break
            await waiting.wait()
        self.misses += 1
        done = self._loading[key] = trio.Event()
        try:
            value, size = await load()
        finally:
            del self._loading[key]
            done.set()
        self._values[key] = value, size
        self.bytes_held += size
        while self.bytes_held > self.bytes_max and len(self._values) > 1:
            self.bytes_held -= self._values.popitem(last=False)[1][1]
        return value


class SegmentReader:
    """Reads segments. If a program reads record after record, what it will ask for next is fetched before.

    The counters are those of `TierStatistics`.
    """

    def __init__(
        self, object_store: RetryingObjectStore, manifest_store: ManifestStore, nursery: trio.Nursery, cache_bytes: int
    ) -> None:
        self.groups: Cache[RecordBatch] = Cache(cache_bytes)
        self.wrong_answers = 0
        self.damaged = 0
        self._indexes: Cache[SegmentIndex] = Cache(INDEX_CACHE_BYTES)
        self._object_store = object_store
        self._manifest_store = manifest_store
        self._nursery = nursery
        self._read_ends: OrderedDict[tuple[Partition, int], None] = OrderedDict()
        self._reads_ahead = 0

    async def read(self, segment: Segment, first_sequence: int, count: int, bytes_max: int) -> RecordBatch:
        """Return records of one row group, from a sequence that the segment has, with their times.

        Raise `StorageCorruptError` if they are damaged or the object is missing, and `ObjectStoreError`.
        """
        index = await self._read_index(segment)
        group = await self._read_group(segment, index, index.find(first_sequence))
        found = group.between(first_sequence, first_sequence + count).within(bytes_max)
        self._read_ahead(segment, found)
        return index.with_transactions(found)

    async def find_sequence_by_time(self, segment: Segment, stored_at: int) -> int:
        """Return the first sequence in a segment that was stored at a time or later; the segment has one."""
        index = await self._read_index(segment)
        number = index.find_by_time(stored_at)
        if index.groups[number].first_at >= stored_at:
            return index.groups[number].first
        group = await self._read_group(segment, index, number)
        assert group.stored_at is not None, "cached with times"
        later = next(at for at, each in enumerate(group.stored_at) if each >= stored_at)
        return group.first_sequence + later

    async def cut(self, segment: Segment, start: int) -> Segment:
        """Return a segment without the records before a sequence that it has. Raise what `read` raises."""
        index = await self._read_index(segment)
        number = index.find(start)
        group = await self._read_group(segment, index, number)
        rest = group.between(start, group.end_sequence)
        assert rest.stored_at is not None, "cached with times"
        later = sum(each.content_bytes for each in index.groups[number + 1 :])
        return attrs.evolve(segment, start=start, content_bytes=rest.content_bytes + later, first_at=rest.stored_at[0])

    async def read_columns(
        self, segment: Segment, first_sequence: int, end_sequence: int, columns: Sequence[str]
    ) -> pa.RecordBatch:
        """Return columns of records of one row group, fetched without the other columns. Raise what `read` raises."""
        index = await self._read_index(segment)
        number = index.find(first_sequence)
        group = index.groups[number]
        pieces = await self._fetch(segment, index.chunks(number, columns), group.first, group.end)
        table = await trio.to_thread.run_sync(index.read_table, number, pieces, columns)
        table = table.slice(first_sequence - group.first, min(end_sequence, group.end) - first_sequence)
        arrays = [table.column(name).combine_chunks() for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))

    def forget(self) -> None:
        """Empty the caches, so that a check reads what is really there."""
        self.groups = Cache(self.groups.bytes_max)
        self._indexes = Cache(INDEX_CACHE_BYTES)

    def _read_ahead(self, segment: Segment, found: RecordBatch) -> None:
        """Begin to fetch what a reader will ask for next, if it reads record after record."""
        partition, end = found.partition, found.end_sequence
        is_sequential = self._read_ends.pop((partition, found.first_sequence), True) is None
        self._read_ends[partition, end] = None
        if len(self._read_ends) > SEQUENTIAL_READS_MAX:
            self._read_ends.popitem(last=False)
        if is_sequential and self._reads_ahead < READS_AHEAD_MAX:
            following = segment if end < segment.end else self._manifest_store.contents.find_segment(partition, end)
            if following is not None:
                self._reads_ahead += 1
                self._nursery.start_soon(self._fetch_ahead, following, end)

    async def _fetch_ahead(self, segment: Segment, sequence: int) -> None:
        try:
            index = await self._read_index(segment)
            await self._read_group(segment, index, index.find(sequence))
        except StorageError:
            pass  # the reader will meet it
        finally:
            self._reads_ahead -= 1

    async def _read_index(self, segment: Segment) -> SegmentIndex:
        async def load() -> tuple[SegmentIndex, int]:
            start = segment.object_bytes - segment.tail_bytes
            tail = ColumnChunk("the index", start, segment.object_bytes, segment.tail_crc)
            pieces = await self._fetch(segment, [tail], segment.start, segment.end)
            index = SegmentIndex(segment, pieces[start])
            return index, index.memory_bytes

        return await self._indexes.get(segment.name, load)

    async def _read_group(self, segment: Segment, index: SegmentIndex, number: int) -> RecordBatch:
        async def load() -> tuple[RecordBatch, int]:
            columns = RECORD_COLUMNS & index.columns
            group = index.groups[number]
            pieces = await self._fetch(segment, index.chunks(number, columns), group.first, group.end)

            def decode() -> RecordBatch:
                return index.to_records(number, index.read_table(number, pieces, columns))

            batch = await trio.to_thread.run_sync(decode)
            return batch, batch.memory_bytes

        return await self.groups.get((segment.name, number), load)

    async def _fetch(
        self, segment: Segment, chunks: list[ColumnChunk], first_sequence: int, end_sequence: int
    ) -> dict[int, bytes]:
        """Return verified pieces of an object by position.

        A wrong answer is asked for again. If the same one comes each time, the object is damaged, and otherwise the
        object store fails.
        """
        name = self._manifest_store.object_name(segment.name)
        answers: list[object] = []
        for attempt in range(ATTEMPTS):
            if attempt:
                await self._object_store.pause(attempt)
            try:
                pieces = await self._fetch_once(name, chunks)
            except ObjectMissingError as error:
                answer: Any = str(error)
            else:
                wrong = [each for each in chunks if crc32c(pieces[each.start]) != each.crc]
                if not wrong:
                    return pieces
                answer = [(each.column, crc32c(pieces[each.start])) for each in wrong]
            self.wrong_answers += 1
            answers.append(answer)
        if any(each != answer for each in answers):
            raise ObjectStoreError(f"{name}: the object store gives a different answer each time")
        self.damaged += 1
        what = (
            answer if isinstance(answer, str) else f"{name} is damaged in {', '.join(column for column, _ in answer)}"
        )
        raise StorageCorruptError(
            f"{segment.partition}: sequences {first_sequence} to {end_sequence - 1} are damaged, {what}", end_sequence
        )

    async def _fetch_once(self, name: str, chunks: list[ColumnChunk]) -> dict[int, bytes]:
        pieces: dict[int, bytes] = {}
        for run in _join_ranges(chunks):
            start, end = run[0].start, run[-1].end
            data = await self._object_store.read_range(name, start, end)
            pieces.update((each.start, data[each.start - start : each.end - start]) for each in run)
        return pieces


def _join_ranges(chunks: list[ColumnChunk]) -> list[list[ColumnChunk]]:
    """Return chunks in the order of their positions, those that are close to each other together."""
    runs: list[list[ColumnChunk]] = []
    for chunk in sorted(chunks, key=lambda each: each.start):
        if runs and chunk.start - runs[-1][-1].end <= GAP_BYTES_MAX:
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return runs
