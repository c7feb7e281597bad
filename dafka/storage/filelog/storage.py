"""The storage: what is in the other modules, off the event loop, with a turn for each change."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TypeVar

import trio

from dafka.errors import StorageError, StorageLostError
from dafka.records import Partition, RecordBatch
from dafka.storage.base import READ_BYTES, Damage, PartitionInfo, RetentionPolicy, Storage, StorageStatistics
from dafka.storage.filelog.damage import find_folder_damage, find_partition_damage
from dafka.storage.filelog.files import FilePool
from dafka.storage.filelog.follower import PartitionFollower
from dafka.storage.filelog.layout import LOCK_FILE, MARKER_FILE, make_identity, prepare, read_identity
from dafka.storage.filelog.partition import Head, PartitionLog
from dafka.storage.filelog.positions import POSITIONS_FOLDER, PositionFiles
from dafka.storage.filelog.reading import LogReader
from dafka.storage.filelog.recovery import open_writer
from dafka.storage.filelog.writer import LogWriter
from dafka.storage.plugin_helpers import FileIdentity, int_at_least, now_ms, parse_location, writer_lock

READ_THREADS = 4
"""Reads at once. They wait for the disk; what they do besides takes the interpreter lock."""

_T = TypeVar("_T")


class FilelogStorage:
    """See `Storage`."""

    def __init__(
        self, folder: str, identity: str, source: LogWriter | PartitionFollower, repairs: Sequence[Damage] = ()
    ) -> None:
        """With a writer, or, for reading only, with a follower."""
        self.identity = identity
        self.repairs = repairs
        self._folder = folder
        self._source = source
        self._writer = source if isinstance(source, LogWriter) else None
        self._reader = source.reader
        self._place = FileIdentity(f"{folder}/{MARKER_FILE}")
        self._lost: StorageLostError | None = None
        self._positions = PositionFiles(folder)
        self._read_limiter = trio.CapacityLimiter(READ_THREADS)
        self._write_limiter = trio.CapacityLimiter(1)
        self._position_limiter = trio.CapacityLimiter(1)

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        """See `Storage.append`."""

        def append(writer: LogWriter) -> None:
            try:
                writer.append(batches)
                logs = filter(None, (writer.find(batch.partition) for batch in batches))
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

        def read() -> RecordBatch | None:
            log = self._source.find(partition)
            if log is None:
                return None
            return self._reader.read(log, first_sequence, count, bytes_max, with_times=with_times)

        return await self._read(read)

    async def find_sequence_by_time(self, partition: Partition, stored_at: int) -> int:
        """See `Storage.find_sequence_by_time`."""

        def find() -> int:
            log = self._source.find(partition)
            return 0 if log is None else self._reader.find_sequence_by_time(log, stored_at)

        return await self._read(find)

    async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        """See `Storage.partitions`. A writer has them in memory."""
        if self._writer is not None:
            await trio.lowlevel.checkpoint()
            return {log.partition: log.info for log in self._source.select(topic)}
        return await self._read(lambda: {log.partition: log.info for log in self._source.select(topic)})

    async def statistics(self) -> StorageStatistics:
        """See `Storage.statistics`."""

        def add_up() -> StorageStatistics:
            heads = [log.head for log in self._source.select(None)]
            return StorageStatistics(
                partitions=len(heads),
                records=sum(head.end - head.earliest for head in heads),
                content_bytes=sum(head.content_bytes for head in heads),
                stored_bytes=sum(head.length + head.closed_bytes for head in heads) + _small_files(self._folder),
            )

        return await self._read(add_up)

    async def trim(self, partition: Partition, earliest_sequence: int) -> None:
        """See `Storage.trim`."""

        def trim(writer: LogWriter) -> None:
            log = writer.find(partition)
            if log is not None:
                writer.trim(log, earliest_sequence)

        await self._write(trim)

    async def reset_to(self, partition: Partition, next_sequence: int) -> None:
        """See `Storage.reset_to`."""
        await self._write(lambda writer: writer.reset_to(partition, next_sequence))

    async def apply_retention(self, retention: RetentionPolicy, topic: str | None = None) -> dict[Partition, int]:
        """See `Storage.apply_retention`. An append waits for no more than a few segments to be removed."""
        writer = self._writable()
        time_ms = now_ms()

        def find_surplus() -> list[tuple[PartitionLog, list[int]]]:
            return [(log, surplus_steps(self._reader, log, retention, time_ms)) for log in writer.select(topic)]

        moved = {}
        for log, steps in await self._read(find_surplus):
            for earliest in steps:
                if await self._run(partial(writer.trim, log, earliest), self._write_limiter):
                    moved[log.partition] = log.head.earliest
        return moved

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
            for log in self._source.select(None):
                try:
                    found += find_partition_damage(log, self._reader.pool)
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
        """See `DetectsRemoval.check_not_removed`. What is not in use is not looked at."""
        if self._writer is None:
            await self._run(self._place.check_unchanged, self._read_limiter)
        else:
            await self._write(lambda writer: writer.check_not_removed())

    def close(self) -> None:
        """Makes everything durable and closes all files. Raises `StorageError` where that fails; closed they are."""
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

    def _writable(self) -> LogWriter:
        if self._writer is None:
            raise StorageError(f"{self._folder} was opened for reading only")
        return self._writer

    async def _write(self, change: Callable[[LogWriter], _T]) -> _T:
        """A change to what stands where it was opened, then as before."""
        writer = self._writable()

        def run() -> _T:
            if self._lost is not None:
                raise self._lost
            try:
                self._place.check_unchanged()  # or folders would be made anew
                result = change(writer)
                self._place.check_unchanged()
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
    """Turns what the medium says into a `StorageError` of one sentence."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{error.filename or folder}: {error.strerror or error}") from error


def _small_files(folder: str) -> int:
    """What everything but the topics takes."""
    total = 0
    for place, folders, names in os.walk(folder):
        if place == folder:
            folders[:] = [POSITIONS_FOLDER]
        total += sum(os.stat(os.path.join(place, name)).st_size for name in names)
    return total


RETAIN_SEGMENTS = 8
"""Removed by limits at a time: an append waits no longer than for these."""


def surplus_steps(reader: LogReader, log: PartitionLog, retention: RetentionPolicy, time_ms: int) -> list[int]:
    """Where to trim to, one after the other, until these limits are kept: a few segments each time."""
    earliest = log.head.earliest
    surplus = _surplus(reader, log, retention, time_ms)
    if surplus <= earliest:
        return []
    between = [base for base in log.list_bases() if earliest < base < surplus]
    return [*between[RETAIN_SEGMENTS - 1 :: RETAIN_SEGMENTS], surplus]


def _surplus(reader: LogReader, log: PartitionLog, retention: RetentionPolicy, time_ms: int) -> int:
    """The sequence before which these limits keep no segment; the earliest where they keep all."""
    head = log.head
    cut_at = None if retention.age_ms is None else time_ms - retention.age_ms
    if head.earliest == head.end or not _may_drop(head, retention, cut_at):
        return head.earliest
    if _drops_all(head, retention, cut_at):
        return head.end
    earliest, content_bytes = head.earliest, head.content_bytes
    for base, end in zip(bases := log.list_bases(), bases[1:], strict=False):
        segment_bytes = reader.content_bytes(log, head, max(base, earliest), end)
        is_old = cut_at is not None and reader.last_stored_at(log, head, base) < cut_at
        is_many = retention.records_max is not None and head.end - end >= retention.records_max
        is_large = retention.bytes_max is not None and content_bytes - segment_bytes >= retention.bytes_max
        if not (is_old or is_many or is_large):
            break
        earliest, content_bytes = end, content_bytes - segment_bytes
    return earliest


def _may_drop(head: Head, retention: RetentionPolicy, cut_at: int | None) -> bool:
    return (
        (cut_at is not None and head.earliest_at < cut_at)
        or (retention.records_max is not None and head.end - head.earliest > retention.records_max)
        or (retention.bytes_max is not None and head.content_bytes > retention.bytes_max)
    )


def _drops_all(head: Head, retention: RetentionPolicy, cut_at: int | None) -> bool:
    return (
        (cut_at is not None and head.latest_at < cut_at)
        or retention.records_max == 0
        or (retention.bytes_max == 0 and head.content_bytes > 0)
    )


__all__ = ["FilelogStorage", "open_filelog"]

SEGMENT_BYTES = 64 * 2**20
SEGMENT_MS = 7 * 24 * 3600 * 1000


@asynccontextmanager
async def open_filelog(place: str, *, read_only: bool = False) -> AsyncIterator[Storage]:
    """Opens `filelog:FOLDER?segment_bytes=N&segment_ms=N&fsync=batch|never|MS`; see `open_storage`.

    A writer makes the folder where there is none, in one that is there.
    """
    options = {"segment_bytes": int_at_least(1), "segment_ms": int_at_least(1), "fsync": _read_fsync}
    folder, found = parse_location("filelog", place, options)
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
            identity = make_identity(folder)
            writer, repairs = open_writer(
                folder,
                segment_bytes=found.get("segment_bytes", SEGMENT_BYTES),
                segment_ms=found.get("segment_ms", SEGMENT_MS),
                sync_delay_ms=found.get("fsync", 0),
            )
            return FilelogStorage(folder, identity, writer, repairs)

    with storage_errors(folder):
        await trio.to_thread.run_sync(prepare, folder)
    with writer_lock(f"{folder}/{LOCK_FILE.removesuffix('.lock')}"):
        storage = await trio.to_thread.run_sync(open_locked)
        try:
            yield storage
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(storage.close)


def _read_fsync(text: str) -> int | None:
    """The delay in milliseconds; None for never."""
    if text in ("batch", "never"):
        return 0 if text == "batch" else None
    if text.isascii() and text.isdigit() and int(text):
        return int(text)
    raise ValueError(f"expected batch, never or a number of milliseconds, not {text!r}")
