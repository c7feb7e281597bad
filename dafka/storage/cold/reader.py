"""Reading records from the objects of a cold tier: verified, by row groups, with a cache of limited size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Generic, TypeVar

import attrs
import pyarrow as pa
import trio
from crc32c import crc32c

from dafka.errors import StorageCorruptError
from dafka.records import RecordBatch
from dafka.storage.cold.objects import ObjectMissingError, ObjectStoreError
from dafka.storage.cold.parquet import RECORD_COLUMNS, ColumnChunk, SegmentIndex
from dafka.storage.cold.remote import ATTEMPTS, RetryingObjectStore
from dafka.storage.cold.segments import Segment

GAP_BYTES_MAX = 64 * 1024
"""How many bytes between two columns are fetched with them, rather than with a request of their own."""

INDEX_CACHE_BYTES = 16 * 2**20
"""The size of the cache of the tails of objects, in bytes."""

_T = TypeVar("_T")


class Cache(Generic[_T]):
    """Values by key, up to a total size; those used last are kept. Each is loaded once, however many tasks wait for it.

    Args:
        bytes_max: The maximum total size of the values, in bytes. One value is kept even if it is larger.
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


@attrs.define
class ReadCounts:
    """What was read from the objects of a cold tier.

    Attributes:
        wrong_answers: Pieces of objects that were not what had been written. They were asked for again.
        damaged: Pieces that stayed wrong, so that their records cannot be read.
    """

    wrong_answers: int = 0
    damaged: int = 0


class SegmentReader:
    """Reads segments.

    Args:
        remote: The object store.
        find_name: Returns the name of a segment's object in it.
        cache_bytes: The size of the cache of row groups, in bytes.

    Attributes:
        counts: What was read.
        groups: The cache of row groups.
    """

    def __init__(self, remote: RetryingObjectStore, find_name: Callable[[str], str], cache_bytes: int) -> None:
        self.counts = ReadCounts()
        self.groups: Cache[RecordBatch] = Cache(cache_bytes)
        self._indexes: Cache[SegmentIndex] = Cache(INDEX_CACHE_BYTES)
        self._remote = remote
        self._find_name = find_name

    async def read(self, segment: Segment, first_sequence: int, count: int, bytes_max: int) -> RecordBatch:
        """Return records of one row group, from a sequence that the segment has, with their times.

        Raises `StorageCorruptError` if they are damaged or the object is missing, and `ObjectStoreError`.
        """
        index = await self.read_index(segment)
        group = await self._read_group(segment, index, index.find(first_sequence))
        found = group.between(first_sequence, first_sequence + count).within(bytes_max)
        return index.with_transactions(found)

    async def find_sequence_by_time(self, segment: Segment, stored_at: int) -> int:
        """Return the first sequence in a segment that was stored at a time or later; the segment has one."""
        index = await self.read_index(segment)
        number = index.find_by_time(stored_at)
        if index.groups[number].first_at >= stored_at:
            return index.groups[number].first
        group = await self._read_group(segment, index, number)
        assert group.stored_at is not None, "cached with times"
        later = next(at for at, each in enumerate(group.stored_at) if each >= stored_at)
        return group.first_sequence + later

    async def cut(self, segment: Segment, start: int) -> Segment:
        """Return a segment without the records before a sequence that it has. Raises what `read` raises."""
        index = await self.read_index(segment)
        number = index.find(start)
        group = await self._read_group(segment, index, number)
        rest = group.between(start, group.end_sequence)
        assert rest.stored_at is not None, "cached with times"
        later = sum(each.content_bytes for each in index.groups[number + 1 :])
        return attrs.evolve(segment, start=start, content_bytes=rest.content_bytes + later, first_at=rest.stored_at[0])

    async def read_ahead(self, segment: Segment, sequence: int) -> None:
        """Load the row group with a sequence into the cache. Raises what `read` raises."""
        index = await self.read_index(segment)
        await self._read_group(segment, index, index.find(sequence))

    async def read_index(self, segment: Segment) -> SegmentIndex:
        """Return the index of an object. Raises what `read` raises."""

        async def load() -> tuple[SegmentIndex, int]:
            start = segment.object_bytes - segment.tail_bytes
            tail = ColumnChunk("the index", start, segment.object_bytes, segment.tail_crc)
            pieces = await self._fetch(segment, [tail], segment.start, segment.end)
            index = SegmentIndex(segment, pieces[start])
            return index, index.memory_bytes

        return await self._indexes.get(segment.name, load)

    async def read_table(
        self, segment: Segment, index: SegmentIndex, number: int, columns: Collection[str]
    ) -> pa.Table:
        """Return columns of a row group, which are fetched without the others. Raises what `read` raises."""
        group = index.groups[number]
        pieces = await self._fetch(segment, index.chunks(number, columns), group.first, group.end)
        return await trio.to_thread.run_sync(index.read_table, number, pieces, columns)

    def forget(self) -> None:
        """Empty the caches, so that a check reads what is really there."""
        self.groups = Cache(self.groups.bytes_max)
        self._indexes = Cache(INDEX_CACHE_BYTES)

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
        name = self._find_name(segment.name)
        answers: list[object] = []
        for attempt in range(ATTEMPTS):
            if attempt:
                await self._remote.pause(attempt)
            try:
                pieces = await self._fetch_once(name, chunks)
            except ObjectMissingError as error:
                answer: Any = str(error)
            else:
                wrong = [each for each in chunks if crc32c(pieces[each.start]) != each.crc]
                if not wrong:
                    return pieces
                answer = [(each.column, crc32c(pieces[each.start])) for each in wrong]
            self.counts.wrong_answers += 1
            answers.append(answer)
        if any(each != answer for each in answers):
            raise ObjectStoreError(f"{name}: the object store gives a different answer each time")
        self.counts.damaged += 1
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
            data = await self._remote.read_range(name, start, end)
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
