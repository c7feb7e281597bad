"""Changing partitions: appending records, dropping records, and dropping whole segments.

One thread at a time writes; any number of threads can read at the same time (`partition` says how they share state). A
change that fails has no effect. If the process is killed during an append, each partition may have some of its first
record batches.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import attrs

from dafka.durable_files import sync_folder
from dafka.errors import StorageError, StorageLostError, StorageSequenceError
from dafka.records import Partition, RecordBatch
from dafka.storage.base import PartitionInfo
from dafka.storage.filelog.appends import PlannedAppend, check_sequences, plan_append
from dafka.storage.filelog.catalog import CHANGING, GOOD, VACANT, CatalogWriter
from dafka.storage.filelog.files import (
    FilePool,
    ancestors,
    file_size,
    make_folders,
    remove_files,
    remove_folders,
    replace_file,
    write_at,
)
from dafka.storage.filelog.index import ROW_EVERY_BYTES, write_index
from dafka.storage.filelog.partition import LOG_SUFFIX, STORED_SUFFIX, Head, PartitionLog
from dafka.storage.filelog.reading import LogReader
from dafka.storage.filelog.stored import ROW_BYTES
from dafka.storage.filelog.syncing import Syncer
from dafka.storage.plugin_helpers import now_ms


@attrs.define
class LogWriter:
    """The writer of a file log. If the medium fails, a method raises `OSError` and changes nothing."""

    topics_folder: str
    catalog: CatalogWriter
    pool: FilePool
    reader: LogReader
    syncer: Syncer
    segment_bytes: int
    segment_ms: int
    _logs: dict[str, dict[Partition, PartitionLog]] = attrs.field(factory=dict, init=False)
    _pending_slots: set[PartitionLog] = attrs.field(factory=set, init=False)
    _vacant: dict[Partition, PartitionLog] = attrs.field(factory=dict, init=False)
    _synced_folders: set[str] = attrs.field(factory=set, init=False)
    """The folders above partitions that this writer has synced after their last change."""
    _unlinked_in: set[str] = attrs.field(factory=set, init=False)
    """The folders from which segments were removed. A power failure may undo that until they are synced."""

    def add_found_logs(self, logs: Iterable[tuple[PartitionLog, bool]]) -> None:
        """Add the partitions that were found, and those that only have a slot in the catalog."""
        for log, is_held in logs:
            if is_held:
                log.compute_info()
                self._logs.setdefault(log.partition.topic, {})[log.partition] = log
            else:
                self._vacant[log.partition] = log

    def sync_logs(self, logs: Sequence[PartitionLog]) -> None:
        """Sync existing partitions: a killed process may have written records without syncing them."""
        paths = [log.log_path(base) for log in logs for base in log.list_bases()]
        root = os.path.dirname(self.topics_folder)
        self.syncer.sync_now(paths, {folder for path in paths for folder in ancestors(path, root)})

    def find_log(self, partition: Partition) -> PartitionLog | None:
        """Return a partition, or None if it is not held."""
        return self._logs.get(partition.topic, {}).get(partition)

    def list_logs(self, topic: str | None) -> list[PartitionLog]:
        """Return all partitions, or those of a topic. Any thread may call this."""
        if topic is not None:
            return list(self._logs.get(topic, {}).values())
        return [log for logs in list(self._logs.values()) for log in list(logs.values())]

    def append(self, batches: Sequence[RecordBatch]) -> None:
        """See `Storage.append`."""
        self.syncer.raise_delayed_error()
        self._write_pending_slots()
        self._apply(self._plan_appends(batches))

    def trim_log(self, log: PartitionLog, earliest_sequence: int) -> bool:
        """See `Storage.trim`. Return whether records were dropped."""
        head = log.head
        earliest = min(earliest_sequence, head.end)
        if earliest <= head.earliest:
            return False
        if earliest == head.end:
            self._drop_everything(log, earliest)
            return True
        content_bytes = head.content_bytes - self.reader.count_content_bytes(log, head, head.earliest, earliest)
        earliest_at = self.reader.find_stored_at(log, head, earliest, head.earliest_at)
        new_head = head._replace(earliest=earliest, content_bytes=max(content_bytes, 0), earliest_at=earliest_at)
        bases = log.list_bases()
        kept = tuple(base for base, end in zip(bases, (*bases[1:], head.end), strict=True) if end > earliest)
        with self._changing(log):
            if earliest not in kept:
                before = file_size(log.earliest_path)
                log.write_earliest(earliest, head.latest_at)
                grown = file_size(log.earliest_path) - before
                new_head = new_head._replace(closed_bytes=head.closed_bytes + grown)
        self._drop_segments(log, new_head, kept)
        return True

    def reset_to(self, partition: Partition, next_sequence: int) -> None:
        """See `Storage.reset_to`."""
        log = self.find_log(partition)
        if log is not None and next_sequence < log.head.end:
            raise StorageSequenceError(
                f"{partition}: cannot reset to sequence {next_sequence}, expected {log.head.end} or later"
            )
        check_sequences(partition, next_sequence, next_sequence + 1)
        if log is None:
            head = Head(next_sequence, next_sequence, base=next_sequence)
            self._apply([PlannedAppend(self._new_log(partition), is_new=True, head=head, begins_segment=True)])
        elif next_sequence != log.head.earliest:
            self._drop_everything(log, next_sequence)

    def delete_log(self, log: PartitionLog) -> None:
        """Delete a partition. Its active segment, which determines its end, is removed last."""
        if log.head.earliest < log.head.end:
            self._drop_everything(log, log.head.end)
        with self._changing(log):
            remove_files([log.earliest_path])
            for base in log.list_bases():
                self._unlink(log, base)
        del self._logs[log.partition.topic][log.partition]
        log.head, log.bases = Head(), ()
        log.forget_tail()
        vacant = PartitionLog(log.partition, self.topics_folder)  # another object, for compactions that go on
        vacant.slot = log.slot
        self._vacant[log.partition] = vacant
        self._pending_slots.discard(log)
        self._write_slot(log, VACANT)
        self.syncer.sync_written([], [remove_folders(log.folder, self.topics_folder)])

    def close_segment(self, log: PartitionLog) -> None:
        """Begin an empty active segment, so that the one before it can be compacted."""
        head = log.head
        if self.find_log(log.partition) is log and head.length:
            head = head._replace(base=head.end, length=0, base_at=0, closed_bytes=head.closed_bytes + head.length)
            self._apply([PlannedAppend(log, is_new=False, head=head, begins_segment=True)])
            log.forget_tail()

    def replace_segment(self, log: PartitionLog, base: int, path: str, rows: bytes, content_bytes_removed: int) -> None:
        """Replace a closed segment with a durable file of the same sequences, and its `.stored` file with rows."""
        grown = file_size(path) + len(rows) - sum(map(file_size, log.segment_paths(base)))
        with self._changing(log):
            replace_file(log.stored_path(base), rows)
            remove_files(log.index_paths(base))
            os.replace(path, log.log_path(base))
        self.reader.drop_segment(log, base)
        grown += self._write_index(log, base)
        log.head = log.head._replace(
            closed_bytes=max(log.head.closed_bytes + grown, 0),
            content_bytes=max(log.head.content_bytes - content_bytes_removed, 0),
        )
        sync_folder(log.folder)
        self._write_slot(log, GOOD)

    def check_not_removed(self, paths: Iterable[str] | None = None) -> None:
        """Raise `StorageLostError` if a segment is not at its path. Checks all open segments if `paths` is None."""
        for path in self.pool.open_paths() if paths is None else paths:
            if path.endswith(LOG_SUFFIX) and not self.pool.is_in_place(path):
                raise StorageLostError(f"{path} was removed or replaced while it was in use")

    def close(self) -> None:
        """Make everything durable, and write the indexes that speed up the next opening."""
        self._rewrite_failed_rows()
        self.syncer.flush()
        self.syncer.sync_now([], self._unlinked_in)  # a closed catalog is trusted, and would not list these segments
        for log in self.list_logs(None):
            head = log.head
            if head.length > ROW_EVERY_BYTES and self.reader.find_cached_index(log, head.base) is not None:
                log.head = head._replace(closed_bytes=head.closed_bytes + self._write_index(log, head.base))
                self._pending_slots.add(log)
        self._write_pending_slots()

    def _rewrite_failed_rows(self) -> None:
        """Write again the rows that could not be synced. Records that could not be synced were never acknowledged."""
        for path in self.syncer.take_failed():
            if path.endswith(STORED_SUFFIX):
                with suppress(FileNotFoundError), self.pool.open_file(path) as fd:
                    write_at(fd, [os.pread(fd, os.fstat(fd).st_size, 0)], 0)
                self.syncer.sync_later([path])

    def _plan_appends(self, batches: Sequence[RecordBatch]) -> list[PlannedAppend]:
        """Plan the append to each partition. Raise before any change if a batch cannot be appended."""
        by_partition: dict[Partition, list[RecordBatch]] = {}
        for batch in batches:
            if batch.values:
                by_partition.setdefault(batch.partition, []).append(batch)
        for partition, wanted in by_partition.items():
            log = self.find_log(partition)
            end = 0 if log is None else log.head.end
            for batch in wanted:
                PartitionInfo(0, end).check_append(batch)
                end = batch.end_sequence
        time_ms = now_ms()
        appends = []
        for partition, wanted in by_partition.items():
            log = self.find_log(partition)
            is_new = log is None
            log = log or self._new_log(partition)
            if log.stored_length < 0 and not is_new:
                self._check_tail(log)
            appends.append(plan_append(log, wanted, time_ms, self.segment_bytes, self.segment_ms, is_new=is_new))
        return appends

    def _check_tail(self, log: PartitionLog) -> None:
        """Check, once after opening, how the active segment can be continued."""
        head = log.head
        with self.reader.open_segment(log, head, head.base) as segment:
            before = file_size(log.stored_path(head.base))
            log.stored_length, last = segment.repair_rows(head.latest_at)
            log.segment_content_bytes = last.content_bytes
            log.head = head._replace(closed_bytes=max(head.closed_bytes + log.stored_length - before, 0))

    def _new_log(self, partition: Partition) -> PartitionLog:
        return self._vacant.get(partition) or PartitionLog(partition, self.topics_folder)

    def _apply(self, appends: Sequence[PlannedAppend]) -> None:
        try:
            folders = self._begin_segments(appends)
            for append in appends:
                self._write_rows(append)
                with self.pool.open_file(append.path) as fd:
                    write_at(fd, append.buffers, append.position)
            self._sync_appended(appends, folders)
        except BaseException:
            self._roll_back(appends)
            raise
        for append in appends:
            self._commit(append)

    def _begin_segments(self, appends: Iterable[PlannedAppend]) -> set[str]:
        """Create the new segments, and return the folders that have changed."""
        folders: set[str] = set()
        unlisted = [append.log for append in appends if append.log.slot < 0]
        if unlisted:
            try:
                slot = self.catalog.add_slots([log.name for log in unlisted])
            except OSError:
                with suppress(OSError):
                    self.catalog.undo_add_slots()
                raise
            for number, log in enumerate(unlisted, slot):
                log.slot = number
                self._vacant[log.partition] = log
        for append in appends:
            log = append.log
            if log.is_tail_dirty:
                self._truncate_tail(log)
            append.is_prepared = True
            if append.begins_segment:
                if not append.is_new:
                    log.list_bases()
                self._mark_changing(log)
                folders.add(log.folder)
                if append.is_new:
                    folders.update(self._make_folders(log))
                self._create_segment(append.path)
                append.is_created = True
        return folders

    def _make_folders(self, log: PartitionLog) -> set[str]:
        """Create the folder of a partition, and return the folders above it that must be synced.

        An existing folder may have been created by a failed append, or by a killed process.
        """
        changed = {os.path.dirname(log.folder), *make_folders(log.folder)}
        self._synced_folders -= changed
        above = ancestors(log.folder, os.path.dirname(self.topics_folder))
        return {folder for folder in above if folder not in self._synced_folders}

    def _create_segment(self, path: str) -> None:
        """Create an empty segment, or use an existing empty one."""
        with self.pool.open_file(path, is_created=True) as fd:
            found = os.fstat(fd)
            self.syncer.check_device(found.st_dev)
            if found.st_size:
                raise StorageError(
                    f"{path} is in the way of a new segment: delete the catalog files and open the file log again"
                )

    def _write_rows(self, append: PlannedAppend) -> None:
        """Write the times of storing. They are written before the records, so that each record has one."""
        if append.rows:
            with self.pool.open_file(append.stored_path, is_created=True) as fd:
                if append.begins_segment:
                    os.ftruncate(fd, 0)
                write_at(fd, [append.encoded_rows], append.stored_position)

    def _sync_appended(self, appends: Sequence[PlannedAppend], folders: set[str]) -> None:
        full = [append.log for append in appends if append.begins_segment and append.log.head.length]
        created = [append.path for append in appends if append.is_created]
        others = [append.path for append in appends if not append.is_created]
        others += [log.stored_path(log.head.base) for log in full]
        self.syncer.sync_segments(created, others, folders)
        rows = [append for append in appends if append.rows]
        reset = [each for each in rows if not each.stored_position and not each.begins_segment]
        self.syncer.sync_later([each.stored_path for each in rows], [each.log.folder for each in reset])
        self._synced_folders |= folders - {append.log.folder for append in appends}

    def _roll_back(self, appends: Iterable[PlannedAppend]) -> None:
        for append in appends:
            log = append.log
            if not append.is_prepared:
                if append.is_new and log.slot >= 0:
                    self._write_slot(log, VACANT)
                continue
            if append.begins_segment:
                if append.is_created:
                    for path in (append.path, append.stored_path):
                        with suppress(OSError):
                            os.unlink(path)
                        self.pool.drop(path)
                if append.is_new:
                    with suppress(OSError):
                        os.rmdir(log.folder)
                self._write_slot(log, VACANT if append.is_new else GOOD)
            else:
                log.is_tail_dirty = True
                with suppress(OSError):
                    self._truncate_tail(log)

    def _truncate_tail(self, log: PartitionLog) -> None:
        """Remove a failed append from the active segment."""
        head = log.head
        with self.pool.open_file(log.log_path(head.base)) as fd:
            os.ftruncate(fd, head.length)
        with self.pool.open_file(log.stored_path(head.base), is_created=True) as fd:
            os.ftruncate(fd, log.stored_length)
        log.is_tail_dirty = False

    def _commit(self, append: PlannedAppend) -> None:
        log, head = append.log, append.head
        before = log.head
        if append.begins_segment:
            self.reader.start_index(log, head.base)
            if before.length:
                head = head._replace(closed_bytes=head.closed_bytes + self._write_index(log, before.base))
            log.bases = (*log.bases, head.base)
        if append.blocks:
            self.reader.extend_cached_index(log, head.base, append.blocks)
        log.stored_length = append.stored_position + ROW_BYTES * len(append.rows)
        log.segment_content_bytes = append.rows[-1].content_bytes if append.rows else 0
        log.head = head
        if append.is_new:
            self._vacant.pop(log.partition, None)
            self._logs.setdefault(log.partition.topic, {})[log.partition] = log
        self._write_slot(log, GOOD)
        if append.begins_segment and not append.is_new and not before.length:
            # The old segment is empty and begins at another sequence, where it would conflict with later segments.
            log.bases = tuple(base for base in log.bases if base != before.base)
            self._unlink(log, before.base)

    def _drop_everything(self, log: PartitionLog, next_sequence: int) -> None:
        """Drop all records, and continue the partition in a new segment."""
        head = log.head
        bases = log.list_bases()
        path = log.log_path(next_sequence)
        is_created = False
        with self._changing(log):
            try:
                if head.base != next_sequence:
                    self._create_segment(path)
                    is_created = True
                    self.syncer.sync_written([path], [log.folder])
                log.write_earliest(next_sequence, head.latest_at)
            except BaseException:
                if is_created:
                    with suppress(OSError):
                        os.unlink(path)
                    self.pool.drop(path)
                raise
        new_head = Head(next_sequence, next_sequence, latest_at=head.latest_at, base=next_sequence)
        log.bases = (*bases, next_sequence) if is_created else bases
        self._drop_segments(log, new_head, (next_sequence,))

    def _drop_segments(self, log: PartitionLog, head: Head, kept: tuple[int, ...]) -> None:
        """Remove segments from the catalog first, so that other processes do not read them, then from the disk."""
        dropped = [base for base in log.list_bases() if base not in kept]
        earliest_file_bytes = file_size(log.earliest_path)
        if head.base != log.head.base:
            log.forget_tail()
        log.head = head
        log.bases = kept
        self._write_slot(log, CHANGING)
        closed_bytes = head.closed_bytes
        for base in dropped:
            closed_bytes -= sum(map(file_size, log.segment_paths(base)))
            self._unlink(log, base)
        if head.earliest == head.end:
            closed_bytes = earliest_file_bytes
        log.head = head._replace(closed_bytes=max(closed_bytes, 0))
        self._write_slot(log, GOOD)

    def _unlink(self, log: PartitionLog, base: int) -> None:
        self._unlinked_in.add(log.folder)
        remove_files(log.segment_paths(base))
        self.reader.drop_segment(log, base)

    def _write_index(self, log: PartitionLog, base: int) -> int:
        """Write the index of a segment unless it is short, and return by how many bytes its files have grown.

        Errors are ignored: without the files, the next reader rebuilds the index.
        """
        with suppress(OSError):
            index = self.reader.load_index(log, log.head, base)
            if index.length > ROW_EVERY_BYTES:
                return write_index(log, index, is_durable=self.syncer.is_immediate)
        return 0

    @contextmanager
    def _changing(self, log: PartitionLog) -> Iterator[None]:
        """Mark a partition as changing, and as good again if the block fails."""
        self._mark_changing(log)
        try:
            yield
        except BaseException:
            self._write_slot(log, GOOD)
            raise

    def _mark_changing(self, log: PartitionLog) -> None:
        self.catalog.write_slot(log.slot, log.seed, CHANGING, log.head)

    def _write_slot(self, log: PartitionLog, state: int) -> None:
        """Write the slot of a partition. If this fails, the slot is written before the next change."""
        try:
            self.catalog.write_slot(log.slot, log.seed, state, log.head)
        except OSError:
            if state == GOOD:
                self._pending_slots.add(log)

    def _write_pending_slots(self) -> None:
        for log in list(self._pending_slots):
            self.catalog.write_slot(log.slot, log.seed, GOOD, log.head)
            self._pending_slots.remove(log)
