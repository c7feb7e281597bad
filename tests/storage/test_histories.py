"""Any history of every storage, with restarts in between, against lists in memory, by every way to read it."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import attrs
import pytest
import trio

from dafka.batches import decode_records, iter_batches
from dafka.errors import StorageSequenceError
from dafka.records import NO_TIMESTAMP, RECORD_MEMORY_BYTES, Header, Partition, Record, RecordBatch
from dafka.storage import (
    CompactsPartitions,
    DeletesPartitions,
    ReadsSeveral,
    ReadsStoredBatches,
    RetentionPolicy,
    Storage,
    StorageStatistics,
    open_storage,
)
from dafka.storage.cold import manifest
from dafka.storage.cold.manifest_store import COPY_FILE
from dafka.storage.cold.tiered import TieredStorage
from dafka.storage.filelog import compaction as filelog_compaction
from dafka.storage.made_at import CLOCK_ERROR_MS, search_made_at
from dafka.storage.opening import read_range, read_ranges
from dafka.storage.sqlite import storage as sqlite_storage
from dafka.storage.tools.copy import copy_storage
from dafka.storage.tools.json_lines import export_lines, import_lines
from dafka.storage.tools.partitions import find_retained_sequence
from dafka.storage.tools.verify import verify_storage
from tests.power.runs import no_wait
from tests.storage.model import Log, Model
from tests.storage.quick import quickly, with_checkpoints

PARTITIONS = [Partition("orders", "A" * 32), Partition("orders", "B"), Partition("\udcff/..\0", "")]
NAMES = ["reader", "", "ü/.."]
BEGIN_MS = 1_700_000_000_000
LATE_MS = 2**62
"""A time far in the future, which a wrong clock may give."""

STRANGE = [b"\xff\0", b"", None, '"\N{SNOWMAN}\u2028\n\\'.encode(), b"\0", b"x" * 300, b"\xed\xa0\x80"]
STRANGE_NAMES = ["\udcff", "", '"\N{SNOWMAN}\n', "a" * 300]
"""Contents, and names of headers, that programs may mix up or cannot read as text."""

PARQUET_MS_MAX = 2**63 // 1000
"""The latest time that an object in Parquet can hold. Later records stay hot."""

COLD = "cold=file://{folder}/bucket&cold_interval_ms=3600000&local_retention_bytes=300&cold_segment_bytes=150"
URLS = {
    "memory": "memory:",
    "sqlite": "sqlite:{folder}/s.db?synchronous=OFF",
    "filelog": "filelog:{folder}/log?fsync=never",
    "small segments": "filelog:{folder}/log?segment_bytes=300&fsync=never",
    "segment of one append": "filelog:{folder}/log?segment_bytes=1&segment_ms=5",
    "tiered": "tiered:sqlite:{folder}/s.db?synchronous=OFF&" + COLD,
    "tiered file log": "tiered:filelog:{folder}/log?segment_bytes=300&fsync=never&" + COLD,
}

Step: TypeAlias = tuple[int, ...]
"""What to do, and three numbers that say how."""

SEEDS = 6
STEPS_EACH = 30
"""The steps of one history."""


def make_history(seed: int) -> list[Step]:
    draw = random.Random(seed)
    return [tuple(draw.randrange(9999) for _ in range(4)) for _ in range(STEPS_EACH)]


@attrs.define
class Clock:
    """The clock of the system, in milliseconds."""

    now: int = BEGIN_MS

    def time_ns(self) -> int:
        return self.now * 1_000_000 + 999_999


class History:
    """A storage, its model, and what is done to both: `steps`."""

    steps: ClassVar[Sequence[Callable[[Any, int, int, int], Awaitable[None]]]]
    changes_within = 2
    """A partition changes in one of this number of first steps of its compaction."""

    def __init__(self, url: str, folder: Path, clock: Clock, stack: AsyncExitStack) -> None:
        self.url = url
        self.folder = folder
        self.model = Model()
        self.clock = clock
        self.stack = stack
        self.has_files = not url.startswith("memory:")
        self.reader: Storage | None = None

    async def open(self) -> None:
        """Open the storage to write it, and once more to read it."""
        url = self.url.format(folder=self.folder)
        self.storage = with_checkpoints(await self.stack.enter_async_context(open_storage(url)))
        assert list(self.storage.repairs) == []
        if self.has_files:
            self.reader = await self.stack.enter_async_context(open_storage(url, read_only=True))

    async def play(self, history: list[Step]) -> None:
        """Do all steps, and compare everything after each."""
        await self.open()
        for number, (kind, *rest) in enumerate(history):
            self.clock.now += (0, 1, 3, 1000, -5)[rest[0] % 5]
            await self.steps[kind % len(self.steps)](self, *rest)
            await self.check(self.storage, number)
            if self.reader is not None and number % 4 == 0:
                await self.check(self.reader, number)
        await self.check(self.storage, 0)
        await self.check_tools()
        await self.restart(0, 0, 0)
        await self.check(self.storage, 0)

    # What is done

    async def append(self, a: int, b: int, c: int) -> None:
        """Append batches of one or several partitions, with or without times, keys, headers and timestamps."""
        chosen = [PARTITIONS[(a + number) % 3] for number in range((1, 1, 2, 5)[b % 4])]
        batches = []
        for number, partition in enumerate(chosen):
            log = self.model.logs.setdefault(partition, Log(0))
            if log.end == 0:  # the first record may have any sequence
                log.reset((0, 0, 7)[c % 3])
            batch = self.make_batch(partition, log.end, b + 7 * number, c + 3 * number)
            batches.append(batch)
            times = batch.stored_at or [self.clock.now] * len(batch)
            log.append(list(attrs.evolve(batch, stored_at=times)))
        await self.storage.append(batches)

    def make_batch(self, partition: Partition, first: int, b: int, c: int) -> RecordBatch:
        count = (1, 1, 2, 3, 5, 9, 33, 40)[b % 8]
        sequences = range(first, first + count)
        values: list[bytes | None] = [(b"%d." % each).ljust(c % 3 * 9 * (each % 4), b"x") for each in sequences]
        if c % 8 == 2:
            values = [b""] * count
        keys: list[bytes | None] | None = None
        headers: list[tuple[Header, ...]] | None = None
        if c % 4 == 1:
            values = [None if each % 3 == c % 3 else values[each - first] for each in sequences]
            keys = [b"k%d" % (each % 5) if each % 4 else None for each in sequences]
        if c % 5 == 1:
            headers = [(("h", b"%d" % each), ("h", None)) if each % 2 else () for each in sequences]
        made_at = [NO_TIMESTAMP if c % 7 == 1 and each % 2 else self.clock.now - 30 * (each % 3) for each in sequences]
        if c % 9 == 4:
            strange = [STRANGE[(b + each) % len(STRANGE)] for each in sequences]
            values, keys = strange, strange[::-1]
            headers = [((name, value), ("", b"\0")) for name, value in zip(cycle(STRANGE_NAMES), strange, strict=False)]
            made_at = [(0, 1, -5, 2**50)[each % 4] for each in sequences]
        spread = (0, 1, -1, 50)[c // 3 % 4]
        begin = LATE_MS if c % 97 == 5 else self.clock.now - 1000 + b % 40
        return RecordBatch(
            partition,
            first,
            values,
            keys=keys,
            headers=headers,
            timestamps=made_at if c % 3 else None,
            stored_at=[max(begin + spread * number // 2, 0) for number in range(count)] if c % 6 else None,
        )

    async def append_compacted(self, a: int, b: int, c: int) -> None:
        """Append records of which another store has removed some, or all."""
        partition = PARTITIONS[a % 3]
        log = self.model.logs.setdefault(partition, Log(0))
        batch = attrs.evolve(self.make_batch(partition, log.end, b, c), stored_at=None)
        mask = bytes(each % 3 < b % 4 for each in range(*span(batch)))
        log.append(list(attrs.evolve(batch, stored_at=[self.clock.now] * len(batch))))
        log.removed.update(each for each, is_gone in zip(range(*span(batch)), mask, strict=True) if is_gone)
        await self.storage.append([batch.without(mask)])

    async def append_wrongly(self, a: int, b: int, c: int) -> None:
        """Appending with a gap or an overlap in any batch changes nothing."""
        known = [each for each, log in self.model.logs.items() if log.end > 2]
        if known:
            wrong = known[a % len(known)]
            batches = [RecordBatch(each, self.end(each), [b"good"]) for each in PARTITIONS if each != wrong]
            shifted = self.end(wrong) + (-2, -1, 1, 5)[b % 4]
            batches.insert(c % 3, RecordBatch(wrong, shifted, [b"wrong"]))
            with pytest.raises(StorageSequenceError):
                await self.storage.append(batches)

    def end(self, partition: Partition) -> int:
        log = self.model.logs.get(partition)
        return 0 if log is None else log.end

    async def trim(self, a: int, b: int, c: int) -> None:
        partition = PARTITIONS[a % 3]
        log = self.model.logs.get(partition, Log(0))
        sequence = log.earliest + b % 4 if c % 3 == 0 else max(log.end - (b % 60 - 3), 0)
        await self.storage.trim(partition, sequence)
        if partition in self.model.logs:
            self.model.logs[partition].drop_before(sequence)

    async def reset(self, a: int, b: int, c: int) -> None:
        partition, by = PARTITIONS[a % 3], (0, 1, 9, -1)[b % 4]
        sequence = self.end(partition) + by
        if by >= 0:
            await self.storage.reset_to(partition, sequence)
            self.model.logs.setdefault(partition, Log(sequence)).reset(sequence)
        elif sequence >= 0:
            with pytest.raises(StorageSequenceError):
                await self.storage.reset_to(partition, sequence)

    async def delete(self, a: int, b: int, c: int) -> None:
        """Delete partitions; some begin again, without records."""
        assert isinstance(self.storage, DeletesPartitions)
        chosen = [each for number, each in enumerate(PARTITIONS) if a >> number & 1]
        await self.storage.delete_partitions(chosen)
        for partition in chosen:
            self.model.logs.pop(partition, None)
            if b % 2:
                await self.storage.reset_to(partition, 0)
                self.model.logs[partition] = Log(0)

    async def retain(self, a: int, b: int, c: int) -> None:
        """Exactly what may go goes: by age, size and number, at the edges of records and segments."""
        log = self.model.logs.get(PARTITIONS[b % 3], Log(0))
        edge = log.times()[c % len(log.records)] if log.records else self.clock.now
        policy = RetentionPolicy(
            age_ms=max(self.clock.now - edge + (-1, 0, 1)[c % 3], 0) if a % 4 == 0 else None,
            records_max=(len(log.records) * (c % 11) // 10 + (-1, 0, 1)[b % 3] + 1) if a % 3 == 0 else None,
            bytes_max=log.content_bytes(log.earliest + c % (len(log.records) + 1)) if a % 5 < 2 else None,
        )
        topic = (None, PARTITIONS[0].topic, PARTITIONS[2].topic)[a % 3]
        kept = self.find_kept(policy)
        for partition, each in self.model.of_topic(topic).items():
            info = (await self.storage.partitions())[partition]
            if not each.removed:
                found = await find_retained_sequence(self.storage, partition, info, policy, self.clock.now)
                assert found == each.kept_from(policy, self.clock.now)
        before = {each: attrs.evolve(log, records=[*log.records]) for each, log in self.model.logs.items()}
        expected = self.model.retain(policy, self.clock.now, topic, kept)
        moved = await self.storage.apply_retention(policy, topic)
        for partition, each in before.items():
            if each.removed:  # storages may count removed records before the first one held, or not know their times
                dropped = moved.pop(partition, each.earliest)
                assert each.skip_removed(dropped) == each.skip_removed(expected.pop(partition, each.earliest))
                each.drop_before(dropped)
                self.model.logs[partition] = each
        assert moved == expected

    def find_kept(self, policy: RetentionPolicy) -> Callable[[Partition, Log], int]:
        """Return what finds the first record that the storage keeps, by the segments that it has now."""
        now = self.clock.now
        bases = {each: self.bases(each) for each in PARTITIONS}
        cold = self.cold_ends()

        def kept(partition: Partition, log: Log) -> int:
            ends = cold.get(partition, [])
            first = log.end_of_surplus(policy, now, ends)
            if ends and first < ends[-1]:
                return first
            hot = attrs.evolve(log, earliest=first, records=log.records[first - log.earliest :])
            return (
                hot.kept_from_segments(policy, now, bases[partition])
                if bases[partition]
                else hot.kept_from(policy, now)
            )

        return kept

    def folder_of(self, partition: Partition) -> Path:
        """Return the folder of a partition of a file log."""
        topic, address = partition.topic, partition.address
        if partition == PARTITIONS[2]:
            topic, address = "%FF%2F..%00", "%"
        return self.folder / "log" / "topics" / topic / address

    def bases(self, partition: Partition) -> list[int]:
        """Return the first sequences of the segments of a file log, by their files."""
        if "filelog:" not in self.url:
            return []
        return sorted(int(each.stem) for each in self.folder_of(partition).glob("*.log"))

    def cold_ends(self) -> dict[Partition, list[int]]:
        """Return the ends of the objects of each partition in the cold tier."""
        if not isinstance(self.storage, TieredStorage):
            return {}
        ends: dict[Partition, list[int]] = {}
        for partition in PARTITIONS:
            urls = self.storage.object_urls(partition.topic)
            part = "!" if partition.address == "" else partition.address
            names = [url.rpartition("/")[2] for url in urls if url.split("/")[-2] == part]
            ends[partition] = [int(name.split("-")[1]) for name in names]
        return ends

    async def compact(self, a: int, b: int, c: int) -> None:
        """Remove any records of the part that may be compacted."""
        partition = PARTITIONS[a % 3]
        assert isinstance(self.storage, CompactsPartitions)
        if self.url.startswith("tiered:") or partition not in self.model.logs:  # topics that are compacted do not move
            return
        log = self.model.logs[partition]
        found = await self.storage.find_compactable(partition, 0)
        assert found is not None
        assert log.earliest <= found.end_sequence <= max(log.end - 1, log.earliest)
        if self.url.startswith("filelog:"):
            ends = [max(each, log.earliest) for each in (self.bases(partition)[-1], log.end - 1)]
            assert found.end_sequence in ends
        else:
            assert found.end_sequence == max(log.end - 1, log.earliest)
            assert found.clean_bytes + found.dirty_bytes == log.content_bytes()

        def choose(batch: RecordBatch) -> bytes:
            end = found.end_sequence
            return bytes(each < end and (each * 7 + b) % 4 < c % 4 for each in range(*span(batch)))

        expected = [each for each in log.records if is_chosen(each.sequence, found.end_sequence, b, c)]
        expected = [each for each in expected if each.sequence not in log.removed]
        done = await self.storage.compact(partition, found.end_sequence, choose, no_wait)
        assert done.records_removed == len(expected)
        log.removed.update(each.sequence for each in expected)

    async def compact_and_change(self, a: int, b: int, c: int) -> None:
        """Change a partition while it is compacted: only chosen records that were there before are removed."""
        partition = PARTITIONS[a % 3]
        assert isinstance(self.storage, CompactsPartitions)
        if self.url.startswith("tiered:"):
            return
        for number in range(3):
            await self.append(a, b + number, c + number)
        log = self.model.logs[partition]
        end = log.end
        left = b % self.changes_within

        async def change(_count: int) -> None:
            nonlocal left
            if abs(left) < 2:
                await self.check_between(partition)
            if left == 0:
                for step in ((self.append,), (self.trim,), (self.delete, self.append, self.append))[b // 2 % 3]:
                    await step(a, 2 * c, b)
            left -= 1

        def choose(batch: RecordBatch) -> bytes:
            return bytes(each < end - 1 and each % 4 < c % 4 for each in range(*span(batch)))

        await self.storage.compact(partition, end - 1, choose, change)
        if partition not in self.model.logs:
            return
        kept = self.model.logs[partition]
        async for batch in read_range(self.storage, partition, kept.earliest, kept.end):
            gone = {each for each, mark in zip(range(*span(batch)), batch.compacted or b"", strict=False) if mark}
            assert all(each < end - 1 and each % 4 < c % 4 for each in gone - kept.removed)
            assert kept is log or not gone
            kept.removed |= gone

    async def check_between(self, partition: Partition) -> None:
        """Read a partition of which compaction may have removed some records."""
        log = self.model.logs[partition]
        async for batch in read_all(self.storage, partition, log):
            held = {each.sequence: each for each in log.between(*span(batch))}
            assert [*batch] == [held[each.sequence] for each in batch]

    async def move(self, a: int, b: int, c: int) -> None:
        """Move what is due to the cold tier."""
        if isinstance(self.storage, TieredStorage):
            await self.storage.move_due()
            for info in (await self.storage.hot.partitions()).values():
                stays = (info.latest_stored_at or 0) > PARQUET_MS_MAX
                assert stays or info.content_bytes < 300 + 150, "nothing more is due"
            objects = {f"file://{path}" for path in self.folder.rglob("*.parquet")}
            assert objects == set(self.storage.object_urls()), "objects that are not needed are deleted"
            bucket = self.folder / "bucket" / self.storage.identity
            chunks = {f"manifest/{path.name}" for path in bucket.glob("manifest/*")}
            assert chunks == {chunk.name for chunk in self.storage._manifest_store.manifest.chunks}

    async def save_positions(self, a: int, b: int, c: int) -> None:
        saved = {each: b * (number + 1) for number, each in enumerate(PARTITIONS) if a >> number & 1}
        await self.storage.save_positions(NAMES[c % 3], saved)
        if saved:
            self.model.positions.setdefault(NAMES[c % 3], {}).update(saved)

    async def restart(self, a: int, b: int, c: int) -> None:
        """Close the storage and open it again, or its files as a killed process leaves them."""
        if not self.has_files:
            return
        identity = self.storage.identity
        if a % 2 and not self.url.startswith("tiered:"):
            killed = Path(f"{self.folder}x")
            shutil.copytree(self.folder, killed)
            await self.stack.aclose()
            shutil.rmtree(self.folder)
            os.rename(killed, self.folder)
        await self.stack.aclose()
        for name in ("catalog.heads", "catalog.names") if b % 3 == 0 else ():
            (self.folder / "log" / name).unlink(missing_ok=True)
        for copy in self.folder.rglob(COPY_FILE) if b % 3 < 2 else ():
            if "bucket" not in copy.parts:  # the manifest is read from the cold tier then
                copy.unlink()
        await self.open()
        assert self.storage.identity == identity

    async def flush(self, a: int, b: int, c: int) -> None:
        await self.storage.flush()

    # What must be there

    async def check(self, storage: Storage, number: int) -> None:
        """Compare everything that a storage says with the model."""
        logs = self.model.logs
        infos = await storage.partitions()
        assert infos.keys() == logs.keys()
        for partition, log in logs.items():
            info, expected = infos[partition], log.info()
            if log.removed:  # removed records may have the times of others
                expected = attrs.evolve(expected, earliest_stored_at=info.earliest_stored_at)
            assert info == expected, partition
            assert info.last_append_at == (log.latest_at or None), partition
            assert await storage.find_partition(partition) == info
            if number % 6 == 0 or partition == PARTITIONS[number % 3]:
                await self.check_reads(storage, partition, log, number)
                await self.check_times(storage, partition, log, number)
        for topic in ("orders", "none"):
            of_topic = {each: info for each, info in infos.items() if each.topic == topic}
            found_infos = await storage.partitions(topic)
            assert found_infos == of_topic
            found_infos.clear()  # a caller may change what it gets
        stored_bytes = (await storage.statistics()).stored_bytes
        if self.url.startswith("filelog:"):
            self.check_files(stored_bytes)
        elif self.url.startswith("memory:"):
            records = sum(len(log.records) for log in logs.values())
            assert stored_bytes == records * RECORD_MEMORY_BYTES + sum(log.content_bytes() for log in logs.values())
        found = attrs.evolve(await storage.statistics(), stored_bytes=0)
        records, size = (
            sum(each) for each in zip((0, 0), *((i.count, i.content_bytes) for i in infos.values()), strict=True)
        )
        assert found == StorageStatistics(len(infos), records, size, 0)
        for name in NAMES:
            positions = await storage.load_positions(name)
            assert positions == self.model.positions.get(name, {})
            positions.clear()
        assert await storage.position_names() == sorted(self.model.positions)

    def check_files(self, stored_bytes: int) -> None:
        """Check that a file log keeps no segment whose records were all dropped, and counts the bytes of its files."""
        for partition in PARTITIONS:
            assert self.folder_of(partition).exists() is (partition in self.model.logs)
        for partition, log in self.model.logs.items():
            first, *others = self.bases(partition)
            assert first <= log.earliest, partition
            assert not others or others[0] > log.earliest, partition
        files = (path for path in (self.folder / "log").rglob("*") if path.is_file())
        assert stored_bytes == sum(path.stat().st_size for path in files)

    async def check_reads(self, storage: Storage, partition: Partition, log: Log, number: int) -> None:
        """Read a partition in pieces of any size, and beyond its edges."""
        count, bytes_max = ((1000, 2**20), (7, 2**20), (50, 60), (1000, 1))[number % 4]
        sequence = log.earliest
        end = log.end if bytes_max > 60 else min(sequence + 20, log.end)
        while sequence < end:
            batch = await storage.read(partition, sequence, count, bytes_max, with_times=True)
            assert batch is not None
            expect_batch(batch, log, sequence, count, bytes_max)
            assert batch.stored_at is not None
            sequence = batch.end_sequence
        for outside in (log.earliest - 1, log.end, log.end + 1):
            assert outside < 0 or await storage.read(partition, outside, 5) is None
        assert await storage.read(partition, log.earliest, 0) is None
        middle = log.earliest + number * 7 % (len(log.records) + 1)
        found = await storage.read(partition, middle, 3)
        if found is not None:
            expect_batch(found, log, middle, 3, 2**20, with_times=False)
            assert found.stored_at is None
        if isinstance(storage, ReadsStoredBatches):
            await self.check_stored_batches(storage, partition, log, number)
        if isinstance(storage, ReadsSeveral):
            unknown = Partition("none", "")
            ranges = [(partition, middle, 9), (unknown, 0, 1), (partition, log.end, 1), (partition, log.earliest, 2)]
            several = await storage.read_several(ranges, 100)
            assert [each is not None for each in several] == [middle < log.end, False, False, bool(log.records)]
            for (_, first, most), each in zip(ranges, several, strict=True):
                if each is not None:
                    expect_batch(each, log, first, most, 100, with_times=False)

    async def check_stored_batches(
        self, storage: ReadsStoredBatches, partition: Partition, log: Log, number: int
    ) -> None:
        """Read whole record batches from every sequence on; they have what `read` returns, or there are none."""
        for first in range(log.earliest, log.end):
            end, bytes_max = min(first + 1 + number % 9, log.end), (1, 200, 2**20)[number % 3]
            found = await storage.read_batches(partition, first, end, bytes_max)
            if found is None:
                continue
            parts = [(header, bytes(found.data[at : at + header.size])) for at, header in iter_batches(found.data)]
            assert parts
            assert found.end_sequence <= end
            assert len(found.data) <= max(bytes_max, parts[0][0].size)
            sequence = first
            for header, data in parts:
                batch = decode_records(partition, data)
                assert header.base_offset == sequence
                expect_batch(batch, log, sequence, len(batch), 2**20, with_times=False)
                sequence = batch.end_sequence
            assert sequence == found.end_sequence
            found.data[:] = bytes(len(found.data))  # it belongs to the caller
        assert await storage.read_batches(partition, log.end, log.end + 1, 100) is None

    async def check_times(self, storage: Storage, partition: Partition, log: Log, number: int) -> None:
        """Search the time of a record, the moments before and after it, and the extremes."""
        if not log.removed:
            times = log.times()
            wanted = [times[0], times[number % len(times)], times[-1], self.clock.now] if times else [self.clock.now]
            for at in {0, LATE_MS * 2 - 1, *(time_ms + by for time_ms in wanted for by in (-1, 0, 1))}:
                assert await storage.find_sequence_by_time(partition, at) == log.by_time(at), (partition, at)

    async def check_tools(self) -> None:
        """Verify, copy and export the storage, read many ranges at once, and search records by when they were made."""
        assert await self.storage.find_damage() == []
        for storage in filter(None, (self.storage, self.reader)):
            verified = await verify_storage(storage)
            assert (verified.damages, verified.repairs) == ((), ())
            assert verified.records == sum(len(log.records) for log in self.model.logs.values())
        async with open_storage("memory:") as copied, open_storage("memory:") as imported:
            await copy_storage(self.storage, copied)
            ends = {each: info.end_sequence for each, info in (await copied.partitions()).items()}
            assert ends == {each: log.end for each, log in self.model.logs.items()}
            names = await copied.position_names()
            assert {name: await copied.load_positions(name) for name in names} == self.model.positions
            lines = b"".join([chunk async for chunk in export_lines(self.storage)]).splitlines()
            await import_lines(imported, several(lines))
            for partition, log in self.model.logs.items():
                for copy in (copied, imported) if log.records else ():
                    found = [each async for run in read_all(copy, partition, log) for each in run]
                    assert found == log.between(0, log.end)
        ranges = {each: (log.earliest + 1, log.end + 1) for each, log in self.model.logs.items()}
        found_ranges: dict[Partition, list[Record]] = {each: [] for each in ranges}
        async for batch in read_ranges(self.storage, ranges):
            found_ranges[batch.partition] += batch
        for partition, log in self.model.logs.items():
            held = [attrs.evolve(each, stored_at=None) for each in log.between(log.earliest + 1, log.end)]
            assert found_ranges[partition] == held
            for at in {0, self.clock.now - 30, *log.times()[:1]} if not log.removed else ():
                assert await self.find_made_at(partition, at) == log.made_at(at, CLOCK_ERROR_MS)

    async def find_made_at(self, partition: Partition, at: int) -> int | None:
        sequence: int | None = None
        while True:
            step = await search_made_at(self.storage, partition, at, sequence, self.end(partition))
            if step.is_over:
                return step.found
            sequence = step.next_sequence


History.steps = [
    *[History.append] * 8,
    *[History.append_wrongly, History.trim, History.trim, History.reset, History.delete, History.delete],
    *[History.retain] * 4,
    *[History.compact, History.compact, History.move, History.move],
    *[History.compact_and_change] * 4,
    *[History.save_positions, History.restart, History.restart, History.restart, History.flush],
]


class CompactingHistory(History):
    """A storage whose partitions are compacted most of the time, in many small steps."""

    steps = (
        *[History.append] * 4,
        *[History.append_compacted] * 2,
        *[History.trim, History.delete, History.retain, History.restart],
        *[History.compact] * 4,
        *[History.compact_and_change] * 4,
    )
    changes_within = 6


def span(batch: RecordBatch) -> tuple[int, int]:
    return batch.first_sequence, batch.end_sequence


def is_chosen(sequence: int, end: int, b: int, c: int) -> bool:
    return sequence < end and (sequence * 7 + b) % 4 < c % 4


def expect_batch(
    batch: RecordBatch, log: Log, first: int, count: int, bytes_max: int, *, with_times: bool = True
) -> None:
    assert (batch.first_sequence, 1 <= len(batch) <= count) == (first, True)
    assert batch.content_bytes <= bytes_max or batch.held_count == 1
    expected = log.between(first, batch.end_sequence)
    if not with_times:
        expected = [attrs.evolve(each, stored_at=None) for each in expected]
    assert [*batch] == expected
    gone = [each in log.removed for each in range(*span(batch))]
    assert [bool(each) for each in batch.compacted or bytes(len(batch))] == gone


async def several(lines: list[bytes]) -> AsyncIterator[list[bytes]]:
    for start in range(0, len(lines), 20):
        yield lines[start : start + 20]


def read_all(storage: Storage, partition: Partition, log: Log) -> AsyncIterator[RecordBatch]:
    return read_range(storage, partition, log.earliest, log.end, with_times=True)


async def play(kind: type[History], url: str, folder: Path, clock: Clock, history: list[Step]) -> None:
    async with AsyncExitStack() as stack:
        await kind(url, folder, clock, stack).play(history)


def play_seeds(kind: type[History], url: str, folder: Path, seeds: int = SEEDS) -> None:
    for seed in range(seeds):
        clock = Clock()
        with quickly(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time_ns", clock.time_ns)
            patch.setattr(manifest, "CHUNK_SEGMENTS", 2)
            each = Path(tempfile.mkdtemp(dir=folder, prefix=f"seed {seed} "))
            trio.run(play, kind, url, each, clock, make_history(seed))


@pytest.mark.parametrize("kind", URLS)
def test_every_storage_is_as_its_model(kind: str, tmp_path: Path) -> None:
    play_seeds(History, URLS[kind], tmp_path)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "small segments"])
def test_a_partition_that_is_compacted_again_and_again_changes_meanwhile(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_storage, "DELETE_RECORDS_MAX", 2)
    monkeypatch.setattr(filelog_compaction, "STEP_BYTES", 100)
    play_seeds(CompactingHistory, URLS[kind], tmp_path, 2 if kind == "small segments" else 4)
