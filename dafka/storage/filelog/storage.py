"""Opening a file log, and its `Storage` methods.

A file log has a folder per partition, with segments that only grow, and no database. docs/reference/filelog-format.md
describes the files.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from itertools import pairwise
from typing import ClassVar, TypeVar

import trio

from dafka.errors import StorageError, StorageLostError
from dafka.records import Partition, RecordBatch
from dafka.storage.base import READ_BYTES, Damage, PartitionInfo, RetentionPolicy, Storage, StorageStatistics
from dafka.storage.capabilities import Compactable, Compacted, FindRemoved, StoredBatches, Throttle
from dafka.storage.filelog.compaction import SegmentCompaction, find_compactable, find_segments
from dafka.storage.filelog.damage import find_folder_damage, find_partition_damage
from dafka.storage.filelog.files import FilePool
from dafka.storage.filelog.follower import PartitionFollower
from dafka.storage.filelog.layout import LOCK_FILE, MARKER_FILE, create_identity, prepare_folder, read_identity
from dafka.storage.filelog.partition import PartitionLog
from dafka.storage.filelog.positions import POSITIONS_FOLDER, PositionFiles
from dafka.storage.filelog.reading import LogReader
from dafka.storage.filelog.recovery import open_writer
from dafka.storage.filelog.stored_batches import read_batches
from dafka.storage.filelog.writer import LogWriter
from dafka.storage.plugin_helpers import (
    FileIdentity,
    int_at_least,
    now_ms,
    opened_in_thread,
    parse_location,
    writer_lock,
)

READ_THREADS = 4
"""The number of concurrent reads. More would not help: except for waiting for the disk, they need the interpreter
lock."""

SEGMENT_BYTES = 64 * 2**20
"""The default size at which a new segment begins, in bytes."""

SEGMENT_MS = 7 * 24 * 3600 * 1000
"""The default age at which a new segment begins, in milliseconds."""

RETENTION_SEGMENTS = 8
"""The number of segments that retention removes before the next append can run."""

_T = TypeVar("_T")


@asynccontextmanager
async def open_filelog(location: str, *, read_only: bool = False) -> AsyncIterator[Storage]:
    """Open `filelog:FOLDER?segment_bytes=N&segment_ms=N&fsync=batch|never|MS`; see `open_storage`.

    A writer creates a missing folder, in a folder that exists. A new segment begins when the active one reaches
    `segment_bytes` (64 MiB) or `segment_ms` (7 days). `fsync` says when records are durable: `batch` (the default) when
    `append` returns; a number, at most that many milliseconds later; `never`, when the system writes them or `flush` is
    called. Raise `StorageError` if an option is wrong or the folder cannot be opened.
    """
    options = {"segment_bytes": int_at_least(1), "segment_ms": int_at_least(1), "fsync": _parse_fsync}
    folder, found = parse_location("filelog", location, options)
    if not folder or "\0" in folder:
        raise StorageError("storage 'filelog:': expected a folder, as in filelog:dafka-log")
    folder = folder.rstrip("/") or "/"

    def open_for_reading() -> FilelogStorage:
        with storage_errors(folder), ExitStack() as opened:  # it closes what is open if the rest fails
            identity = read_identity(folder)
            marker = opened.enter_context(closing(_open_marker(folder)))
            pool = opened.enter_context(closing(FilePool(os.O_RDONLY)))
            follower = PartitionFollower(folder, pool)
            follower.load()
            storage = FilelogStorage(folder, identity, marker, follower)
            opened.pop_all()
            return storage

    def open_locked() -> FilelogStorage:
        with storage_errors(folder), ExitStack() as opened:
            identity = create_identity(folder)
            marker = opened.enter_context(closing(_open_marker(folder)))
            writer, repairs = open_writer(
                folder,
                segment_bytes=found.get("segment_bytes", SEGMENT_BYTES),
                segment_ms=found.get("segment_ms", SEGMENT_MS),
                sync_delay_ms=found.get("fsync", 0),
            )
            storage = FilelogStorage(folder, identity, marker, writer, repairs)
            opened.pop_all()
            return storage

    if read_only:
        async with opened_in_thread(open_for_reading) as storage:
            yield storage
        return
    with storage_errors(folder):
        await trio.to_thread.run_sync(prepare_folder, folder)
    with writer_lock(f"{folder}/{LOCK_FILE.removesuffix('.lock')}", folder):
        async with opened_in_thread(open_locked) as storage:
            yield storage


def _open_marker(folder: str) -> FileIdentity:
    """Open the file that marks a file log."""
    return FileIdentity(f"{folder}/{MARKER_FILE}", is_kept_open=True)


def _parse_fsync(text: str) -> int | None:
    """Return the delay in milliseconds; None for never."""
    if text in ("batch", "never"):
        return 0 if text == "batch" else None
    if text.isascii() and text.isdigit() and int(text):
        return int(text)
    raise ValueError(f"expected batch, never or a number of milliseconds, not {text!r}")


class FilelogStorage:
    """A `Storage` in a folder of log files, which `source` reads, and also writes unless it is only a follower."""

    keeps_record_batches: ClassVar[bool] = True

    def __init__(
        self,
        folder: str,
        identity: str,
        marker: FileIdentity,
        source: LogWriter | PartitionFollower,
        repairs: Sequence[Damage] = (),
    ) -> None:
        self.identity = identity
        self.repairs = repairs
        self._folder = folder
        self._source = source
        self._writer = source if isinstance(source, LogWriter) else None
        self._reader = source.reader
        self._file_identity = marker
        self._lost: StorageLostError | None = None
        self._positions = PositionFiles(folder)
        self._read_limiter = trio.CapacityLimiter(READ_THREADS)
        self._write_limiter = trio.CapacityLimiter(1)
        self._position_limiter = trio.CapacityLimiter(1)
        self._compaction_limiter = trio.CapacityLimiter(1)

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        """See `Storage.append`."""

        def append(writer: LogWriter) -> None:
            try:
                writer.append(batches)
                logs = filter(None, (writer.find_log(batch.partition) for batch in batches))
                writer.check_not_removed([log.log_path(log.head.base) for log in logs])
            except FileNotFoundError as error:
                raise StorageLostError(f"{error.filename} was removed while it was in use") from None

        await self._write(append)

    async def read(
        self,
        partition: Partition,
        first_sequence: int,
        count: int,
        bytes_max: int = READ_BYTES,
        *,
        with_times: bool = False,
    ) -> RecordBatch | None:
        """See `Storage.read`."""
        return await self._read_log(
            partition,
            lambda log: self._reader.read_records(log, first_sequence, count, bytes_max, with_times=with_times),
        )

    async def read_several(
        self, ranges: Sequence[tuple[Partition, int, int]], bytes_max: int
    ) -> list[RecordBatch | None]:
        """See `ReadsSeveral.read_several`."""

        def read(partition: Partition, first_sequence: int, count: int) -> RecordBatch | None:
            log = self._source.find_log(partition)
            return None if log is None else self._reader.read_records(log, first_sequence, count, bytes_max)

        return await self._read(lambda: [read(*each) for each in ranges])

    async def read_batches(
        self, partition: Partition, first_sequence: int, end_sequence: int, bytes_max: int
    ) -> StoredBatches | None:
        """See `ReadsStoredBatches.read_batches`."""
        return await self._read_log(
            partition, lambda log: read_batches(self._reader, log, first_sequence, end_sequence, bytes_max)
        )

    async def find_sequence_by_time(self, partition: Partition, stored_at: int) -> int:
        """See `Storage.find_sequence_by_time`."""
        return await self._read_log(partition, lambda log: self._reader.find_sequence_by_time(log, stored_at)) or 0

    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        """See `Storage.partitions`. A writer answers from memory."""

        def describe() -> dict[Partition, PartitionInfo]:
            return {log.partition: log.info for log in self._source.list_logs(topic)}

        if self._writer is None:
            return await self._read(describe)
        await trio.lowlevel.checkpoint()
        return describe()

    async def find_partition(self, partition: Partition) -> PartitionInfo | None:
        """See `Storage.find_partition`. A writer answers from memory."""
        if self._writer is None:
            return await self._read_log(partition, lambda log: log.info)
        await trio.lowlevel.checkpoint()
        log = self._writer.find_log(partition)
        return None if log is None else log.info

    async def statistics(self) -> StorageStatistics:
        """See `Storage.statistics`."""

        def add_up() -> StorageStatistics:
            heads = [log.head for log in self._source.list_logs(None)]
            return StorageStatistics(
                partitions=len(heads),
                records=sum(head.end - head.earliest for head in heads),
                content_bytes=sum(head.content_bytes for head in heads),
                stored_bytes=sum(head.length + head.closed_bytes for head in heads)
                + _count_other_file_bytes(self._folder),
            )

        return await self._read(add_up)

    async def trim(self, partition: Partition, earliest_sequence: int) -> None:
        """See `Storage.trim`."""

        def trim(writer: LogWriter) -> None:
            log = writer.find_log(partition)
            if log is not None:
                writer.trim_log(log, earliest_sequence)

        await self._write(trim)

    async def reset_to(self, partition: Partition, next_sequence: int) -> None:
        """See `Storage.reset_to`."""
        await self._write(lambda writer: writer.reset_to(partition, next_sequence))

    async def delete_partitions(self, partitions: Collection[Partition]) -> None:
        """See `DeletesPartitions.delete_partitions`. Appends run between the partitions."""
        writer = self._writable()
        await trio.lowlevel.checkpoint()
        for partition in partitions:
            log = writer.find_log(partition)
            if log is not None:
                await self._write(partial(LogWriter.delete_log, log=log))

    async def apply_retention(self, policy: RetentionPolicy, topic: str | None = None) -> dict[Partition, int]:
        """See `Storage.apply_retention`. Only whole segments are dropped. Appends can run after every few removals."""
        writer = self._writable()
        time_ms = now_ms()

        def plan() -> list[tuple[PartitionLog, list[int]]]:
            return [(log, _find_trim_points(self._reader, log, policy, time_ms)) for log in writer.list_logs(topic)]

        moved = {}
        for log, steps in await self._read(plan):
            for earliest in steps:
                if await self._run(partial(writer.trim_log, log, earliest), self._write_limiter):
                    moved[log.partition] = log.head.earliest
        return moved

    async def find_compactable(self, partition: Partition, clean_end: int) -> Compactable | None:
        """See `CompactsPartitions.find_compactable`."""
        return await self._read_log(partition, lambda log: find_compactable(log, clean_end))

    async def compact(
        self, partition: Partition, end_sequence: int, find_removed: FindRemoved, throttle: Throttle
    ) -> Compacted:
        """See `CompactsPartitions.compact`. Segments are rewritten one at a time."""
        writer = self._writable()
        await trio.lowlevel.checkpoint()
        log = writer.find_log(partition)
        done = Compacted()
        if log is None:
            return done
        if end_sequence > log.head.base:
            await self._write(lambda writer: writer.close_segment(log))
        for base in await self._read(partial(find_segments, log, end_sequence)):
            with closing(SegmentCompaction(self._reader, log, base, end_sequence, find_removed)) as segment:
                while count := await self._run(segment.step, self._compaction_limiter):
                    await throttle(count)
                done = done.plus(await self._write(segment.finish))
        return done

    async def flush(self) -> None:
        """See `Storage.flush`."""
        if self._writer is None:
            await trio.lowlevel.checkpoint()
        else:
            await self._read(self._writer.syncer.flush)

    async def find_damage(self) -> list[Damage]:
        """See `Storage.find_damage`."""

        def check() -> list[Damage]:
            found = list(find_folder_damage(self._folder))
            for log in self._source.list_logs(None):
                try:
                    found += find_partition_damage(log, self._reader)
                except OSError as error:
                    found.append(Damage(error.filename or log.folder, error.strerror or "unreadable", log.partition))
            return found

        return await self._read(check)

    async def save_positions(self, name: str, positions: Mapping[Partition, int]) -> None:
        """See `Storage.save_positions`."""
        self._writable()
        if positions:
            await self._run(lambda: self._positions.save(name, positions), self._position_limiter)
        else:
            await trio.lowlevel.checkpoint()

    async def load_positions(self, name: str) -> dict[Partition, int]:
        """See `Storage.load_positions`."""
        return await self._read(lambda: self._positions.load(name))

    async def position_names(self) -> list[str]:
        """See `Storage.position_names`."""
        return await self._read(self._positions.names)

    async def check_not_removed(self) -> None:
        """See `DetectsRemoval.check_not_removed`. A writer checks open segments, a reader only the folder."""
        if self._writer is None:
            await self._run(self._check_folder, self._read_limiter)
        else:
            await self._write(lambda writer: writer.check_not_removed())

    def close(self) -> None:
        """Make everything durable and close all files. Raise `StorageError` if that fails; all files are closed."""
        with ExitStack() as stack:
            stack.callback(self._file_identity.close)
            stack.callback(self._reader.pool.close)
            if self._writer is not None:
                stack.callback(self._writer.syncer.close)
                stack.enter_context(storage_errors(self._folder))
                is_clean = False
                try:
                    if self._lost is None:
                        self._writer.close()
                        is_clean = True
                finally:
                    self._writer.catalog.close(is_clean=is_clean)

    def _check_folder(self) -> None:
        """Check that the folder was not removed. A writer that raises the version replaces the file that marks it."""
        if not self._file_identity.is_in_place:
            with suppress(OSError, StorageError):
                replaced = FileIdentity(f"{self._folder}/{MARKER_FILE}", is_kept_open=True)
                if read_identity(self._folder) == self.identity:
                    self._file_identity = replaced
        self._file_identity.check_in_place()

    def _writable(self) -> LogWriter:
        if self._writer is None:
            raise StorageError(f"{self._folder} was opened read-only; open it for writing to change it")
        return self._writer

    async def _write(self, change: Callable[[LogWriter], _T]) -> _T:
        """Run a change, and check before and after it that the folder was not removed."""
        writer = self._writable()

        def run() -> _T:
            if self._lost is not None:
                raise self._lost
            try:
                self._file_identity.check_in_place()  # otherwise the folders would be created again
                result = change(writer)
                self._file_identity.check_in_place()
            except StorageLostError as error:
                self._lost = error
                raise
            return result

        return await self._run(run, self._write_limiter)

    async def _read(self, query: Callable[[], _T]) -> _T:
        return await self._run(query, self._read_limiter)

    async def _read_log(self, partition: Partition, query: Callable[[PartitionLog], _T]) -> _T | None:
        """Return the answer to a query about a partition; None if the partition is unknown."""

        def run() -> _T | None:
            log = self._source.find_log(partition)
            return None if log is None else query(log)

        return await self._read(run)

    async def _run(self, work: Callable[[], _T], limiter: trio.CapacityLimiter) -> _T:
        def run() -> _T:
            with storage_errors(self._folder):
                return work()

        return await trio.to_thread.run_sync(run, limiter=limiter)


@contextmanager
def storage_errors(folder: str) -> Iterator[None]:
    """Raise an `OSError` as `StorageError`."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{error.filename or folder}: {error.strerror or error}") from error


def _count_other_file_bytes(folder: str) -> int:
    """Return the size of all files outside the topics, in bytes."""
    total = 0
    for path, folders, names in os.walk(folder):
        if path == folder:
            folders[:] = [POSITIONS_FOLDER]
        total += sum(os.stat(os.path.join(path, name)).st_size for name in names)
    return total


def _find_trim_points(reader: LogReader, log: PartitionLog, policy: RetentionPolicy, time_ms: int) -> list[int]:
    """Return the sequences to trim to, a few segments each time, until a policy is satisfied."""
    earliest = log.head.earliest
    surplus = _find_surplus_end(reader, log, policy, time_ms)
    if surplus <= earliest:
        return []
    between = [base for base in log.list_bases() if earliest < base < surplus]
    return [*between[RETENTION_SEGMENTS - 1 :: RETENTION_SEGMENTS], surplus]


def _find_surplus_end(reader: LogReader, log: PartitionLog, policy: RetentionPolicy, time_ms: int) -> int:
    """Return the sequence after the segments that a policy does not keep; the earliest sequence if it keeps all."""
    head = log.head
    cut_at = -math.inf if policy.age_ms is None else time_ms - policy.age_ms
    records_max = math.inf if policy.records_max is None else policy.records_max
    bytes_max = math.inf if policy.bytes_max is None else policy.bytes_max
    earliest, content_bytes = head.earliest, head.content_bytes
    if earliest == head.end or (
        head.earliest_at >= cut_at and head.end - earliest <= records_max and content_bytes <= bytes_max
    ):
        return earliest
    if head.latest_at < cut_at or records_max == 0 or (bytes_max == 0 and content_bytes > 0):
        return head.end
    for base, end in pairwise(log.list_bases()):
        segment_bytes = reader.count_content_bytes(log, head, max(base, earliest), end)
        if not (
            head.end - end >= records_max
            or content_bytes - segment_bytes >= bytes_max
            or reader.find_last_stored_at(log, head, base) < cut_at
        ):
            break
        earliest, content_bytes = end, content_bytes - segment_bytes
    return earliest
