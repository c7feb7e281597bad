"""Opening a file log, and its `Storage` methods.

A file log has a folder per partition, with segments that only grow, and no database. docs/reference/filelog-format.md
describes the files.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import ClassVar, TypeVar

import trio

from dafka.errors import StorageError, StorageLostError
from dafka.records import Partition, RecordBatch
from dafka.storage.base import READ_BYTES, Damage, PartitionInfo, RetentionPolicy, Storage, StorageStatistics
from dafka.storage.capabilities import Compactable, Compacted, FindRemoved, Throttle
from dafka.storage.filelog.compaction import SegmentCompaction, find_compactable, find_segments
from dafka.storage.filelog.damage import find_folder_damage, find_partition_damage
from dafka.storage.filelog.files import FilePool
from dafka.storage.filelog.follower import PartitionFollower
from dafka.storage.filelog.layout import LOCK_FILE, MARKER_FILE, create_identity, prepare_folder, read_identity
from dafka.storage.filelog.partition import Head, PartitionLog
from dafka.storage.filelog.positions import POSITIONS_FOLDER, PositionFiles
from dafka.storage.filelog.reading import LogReader
from dafka.storage.filelog.recovery import open_writer
from dafka.storage.filelog.writer import LogWriter
from dafka.storage.plugin_helpers import FileIdentity, int_at_least, now_ms, parse_location, writer_lock

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

    A writer creates a missing folder, in a folder that exists.

    Args:
        location: The folder and the options. A new segment begins when the active one reaches `segment_bytes` (64 MiB)
            or `segment_ms` (7 days). `fsync` says when records are durable: `batch` (the default) when `append`
            returns; a number, at most that many milliseconds later; `never`, when the system writes them or `flush` is
            called.
        read_only: Whether to open the folder for reading only.

    Yields:
        The storage.

    Raises:
        StorageBusyError: If another writer has the folder open.
        StorageFormatError: If the folder is not a file log.
        StorageError: If an option is wrong or the folder cannot be opened.
    """
    options = {"segment_bytes": int_at_least(1), "segment_ms": int_at_least(1), "fsync": _parse_fsync}
    folder, found = parse_location("filelog", location, options)
    if not folder or "\0" in folder:
        raise StorageError("storage 'filelog:': expected a folder, as in filelog:dafka-log")
    folder = folder.rstrip("/") or "/"

    def open_for_reading() -> FilelogStorage:
        with storage_errors(folder):
            identity = read_identity(folder)
            follower = PartitionFollower(folder, FilePool(os.O_RDONLY))
            follower.load()
            return FilelogStorage(folder, identity, follower)

    if read_only:
        storage = await trio.to_thread.run_sync(open_for_reading)
        try:
            yield storage
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(storage.close)
        return

    def open_locked() -> FilelogStorage:
        with storage_errors(folder):
            identity = create_identity(folder)
            writer, repairs = open_writer(
                folder,
                segment_bytes=found.get("segment_bytes", SEGMENT_BYTES),
                segment_ms=found.get("segment_ms", SEGMENT_MS),
                sync_delay_ms=found.get("fsync", 0),
            )
            return FilelogStorage(folder, identity, writer, repairs)

    with storage_errors(folder):
        await trio.to_thread.run_sync(prepare_folder, folder)
    with writer_lock(f"{folder}/{LOCK_FILE.removesuffix('.lock')}"):
        storage = await trio.to_thread.run_sync(open_locked)
        try:
            yield storage
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(storage.close)


def _parse_fsync(text: str) -> int | None:
    """Return the delay in milliseconds; None for never."""
    if text in ("batch", "never"):
        return 0 if text == "batch" else None
    if text.isascii() and text.isdigit() and int(text):
        return int(text)
    raise ValueError(f"expected batch, never or a number of milliseconds, not {text!r}")


class FilelogStorage:
    """A `Storage` in a folder of log files.

    Args:
        folder: The folder.
        identity: See `Storage.identity`.
        source: The writer, or a follower for reading only.
        repairs: See `Storage.repairs`.
    """

    keeps_record_batches: ClassVar[bool] = True

    def __init__(
        self, folder: str, identity: str, source: LogWriter | PartitionFollower, repairs: Sequence[Damage] = ()
    ) -> None:
        self.identity = identity
        self.repairs = repairs
        self._folder = folder
        self._source = source
        self._writer = source if isinstance(source, LogWriter) else None
        self._reader = source.reader
        self._file_identity = FileIdentity(f"{folder}/{MARKER_FILE}", is_kept_open=True)
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
        return await self._read(
            lambda: self._read_records(partition, first_sequence, count, bytes_max, with_times=with_times)
        )

    async def read_several(
        self, ranges: Sequence[tuple[Partition, int, int]], bytes_max: int
    ) -> list[RecordBatch | None]:
        """See `ReadsSeveral.read_several`."""
        return await self._read(lambda: [self._read_records(*each, bytes_max) for each in ranges])

    def _read_records(
        self, partition: Partition, first_sequence: int, count: int, bytes_max: int, *, with_times: bool = False
    ) -> RecordBatch | None:
        log = self._source.find_log(partition)
        if log is None:
            return None
        return self._reader.read_records(log, first_sequence, count, bytes_max, with_times=with_times)

    async def find_sequence_by_time(self, partition: Partition, stored_at: int) -> int:
        """See `Storage.find_sequence_by_time`."""

        def find() -> int:
            log = self._source.find_log(partition)
            return 0 if log is None else self._reader.find_sequence_by_time(log, stored_at)

        return await self._read(find)

    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        """See `Storage.partitions`. A writer answers from memory."""
        if self._writer is not None:
            await trio.lowlevel.checkpoint()
            return {log.partition: log.info for log in self._source.list_logs(topic)}
        return await self._read(lambda: {log.partition: log.info for log in self._source.list_logs(topic)})

    async def find_partition(self, partition: Partition) -> PartitionInfo | None:
        """See `Storage.find_partition`. A writer answers from memory."""

        def find() -> PartitionInfo | None:
            log = self._source.find_log(partition)
            return None if log is None else log.info

        if self._writer is not None:
            await trio.lowlevel.checkpoint()
            return find()
        return await self._read(find)

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
        """See `CompactsPartitions.find_compactable`. The active segment is not compacted."""

        def find() -> Compactable | None:
            log = self._source.find_log(partition)
            return None if log is None else find_compactable(log, clean_end)

        return await self._read(find)

    async def compact(
        self, partition: Partition, end_sequence: int, find_removed: FindRemoved, throttle: Throttle
    ) -> Compacted:
        """See `CompactsPartitions.compact`. Segments are rewritten one at a time."""
        writer = self._writable()
        await trio.lowlevel.checkpoint()
        log = writer.find_log(partition)
        done = Compacted()
        for base in [] if log is None else await self._read(partial(find_segments, log, end_sequence)):
            assert log is not None
            segment = SegmentCompaction(writer, log, base, find_removed)
            try:
                while count := await self._run(segment.step, self._compaction_limiter):
                    await throttle(count)
                done = done.plus(await self._write(lambda _, segment=segment: segment.finish()))  # type: ignore[misc]
            finally:
                segment.close()
        return done

    async def flush(self) -> None:
        """See `Storage.flush`."""
        writer = self._writer
        if writer is None:
            await trio.lowlevel.checkpoint()
        else:
            await self._read(writer.syncer.flush)

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
        writer = self._writer
        try:
            if writer is not None and self._lost is not None:
                writer.catalog.close(is_clean=False)
            elif writer is not None:
                with storage_errors(self._folder):
                    is_clean = False
                    try:
                        writer.close()
                        is_clean = True
                    finally:
                        writer.catalog.close(is_clean=is_clean)
        finally:
            if writer is not None:
                writer.syncer.close()
            self._reader.pool.close()
            self._file_identity.close()

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
    """Yield sequences to trim to, a few segments each time, until a policy is satisfied."""
    earliest = log.head.earliest
    surplus = _find_surplus_end(reader, log, policy, time_ms)
    if surplus <= earliest:
        return []
    between = [base for base in log.list_bases() if earliest < base < surplus]
    return [*between[RETENTION_SEGMENTS - 1 :: RETENTION_SEGMENTS], surplus]


def _find_surplus_end(reader: LogReader, log: PartitionLog, policy: RetentionPolicy, time_ms: int) -> int:
    """Return the sequence after the segments that a policy does not keep; the earliest sequence if it keeps all."""
    head = log.head
    cut_at = None if policy.age_ms is None else time_ms - policy.age_ms
    if head.earliest == head.end or not _may_drop(head, policy, cut_at):
        return head.earliest
    if _drops_all(head, policy, cut_at):
        return head.end
    earliest, content_bytes = head.earliest, head.content_bytes
    for base, end in zip(bases := log.list_bases(), bases[1:], strict=False):
        segment_bytes = reader.count_content_bytes(log, head, max(base, earliest), end)
        is_old = cut_at is not None and reader.find_last_stored_at(log, head, base) < cut_at
        is_many = policy.records_max is not None and head.end - end >= policy.records_max
        is_large = policy.bytes_max is not None and content_bytes - segment_bytes >= policy.bytes_max
        if not (is_old or is_many or is_large):
            break
        earliest, content_bytes = end, content_bytes - segment_bytes
    return earliest


def _may_drop(head: Head, policy: RetentionPolicy, cut_at: int | None) -> bool:
    return (
        (cut_at is not None and head.earliest_at < cut_at)
        or (policy.records_max is not None and head.end - head.earliest > policy.records_max)
        or (policy.bytes_max is not None and head.content_bytes > policy.bytes_max)
    )


def _drops_all(head: Head, policy: RetentionPolicy, cut_at: int | None) -> bool:
    return (
        (cut_at is not None and head.latest_at < cut_at)
        or policy.records_max == 0
        or (policy.bytes_max == 0 and head.content_bytes > 0)
    )
