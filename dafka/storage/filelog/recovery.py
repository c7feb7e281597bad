"""Opening a file log for writing: finding the partitions, and repairing an incomplete end.

If the catalog is trusted, partitions that it describes are not read again: a `stat` shows whether their active segment
has more or less data. Otherwise the folders are read.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial

import attrs

from dafka.records import Partition, decode_text
from dafka.storage.base import Damage
from dafka.storage.filelog.catalog import GOOD, VACANT, CatalogReader, CatalogWriter
from dafka.storage.filelog.files import FilePool, file_size, remove_files, temporary_path
from dafka.storage.filelog.index import is_beginning, read_index_files
from dafka.storage.filelog.layout import TOPICS_FOLDER
from dafka.storage.filelog.partition import LOG_SUFFIX, Head, PartitionLog, parse_segment_name, walk_partitions
from dafka.storage.filelog.reading import LogReader, count_segment_bytes
from dafka.storage.filelog.segment import Segment
from dafka.storage.filelog.syncing import Syncer
from dafka.storage.filelog.writer import LogWriter
from dafka.storage.plugin_helpers import now_ms

VACANT_MAX = 1000
"""A catalog with more slots of deleted partitions than this, and than of existing partitions, is rewritten without
them."""


@attrs.define
class Recovery:
    """Recovers partitions, one after the other. A writer also truncates incomplete ends, and reports damage.

    Every method raises `OSError`.
    """

    reader: LogReader
    is_writer: bool
    damages: list[Damage] = attrs.field(factory=list, init=False)
    unsynced: list[PartitionLog] = attrs.field(factory=list, init=False)
    """The partitions that a killed process may have written without syncing."""

    def resume_partition(self, log: PartitionLog, known: Head) -> bool:
        """Continue from a trusted head. Return False if the partition does not exist."""
        try:
            size = os.stat(log.log_path(known.base)).st_size
        except (FileNotFoundError, NotADirectoryError):
            size = -1
        if size < known.length:
            return self.rescan_partition(log, known)
        if size == known.length:
            log.head = known
        else:
            log.head = self._scan_tail(log, known, size)
            self.unsynced.append(log)
        return True

    def rescan_partition(self, log: PartitionLog, known: Head | None = None) -> bool:
        """Read the files of a partition; return False if there are none. Missing records of `known` are damage."""
        log.bases = log.find_bases()
        for base in log.bases:
            self.reader.drop_segment(log, base)
        log.forget_tail()
        if log.bases:
            self._scan_partition(log)
            self.unsynced.append(log)
        if known is not None and self.is_writer:
            end = log.head.end if log.bases else known.earliest
            if end < known.end:
                reason = "lost: their file is missing or too short"
                self._add_damage(log, log.folder, reason, end, known.end, is_lost=True)
        return bool(log.bases)

    def _scan_partition(self, log: PartitionLog) -> None:
        stored_earliest, stored_latest_at = self._read_earliest(log)
        while len(log.bases) > 1 and log.bases[1] <= stored_earliest:
            self._drop_segment(log, log.bases[0])
        sizes = {base: os.stat(log.log_path(base)).st_size for base in log.bases}
        for base in log.bases[:-1]:
            if not sizes[base]:  # the process was killed after creating the segment, or the segment was never used
                self._drop_segment(log, base)
        self._drop_stray_files(log)
        head = Head(end=_UNKNOWN_END, base=log.bases[-1], length=sizes[log.bases[-1]])
        indexes = [self.reader.load_index(log, head, base) for base in log.bases[:-1]]
        if indexes and not head.length and stored_earliest < head.base != indexes[-1].end_sequence:
            self._drop_segment(log, head.base)  # created by an incomplete reset
            del indexes[-1]
            head = head._replace(base=log.bases[-1], length=sizes[log.bases[-1]])
        for index, next_base in zip(indexes, log.bases[1:], strict=True):
            if self.is_writer and index.end_sequence != next_base:
                reason = "lost: there is a gap between two segments"
                self._add_damage(log, log.log_path(index.base), reason, index.end_sequence, next_base, is_lost=True)
        start = head._replace(end=head.base, length=0)
        for base in log.bases[:-1]:
            with self.reader.open_segment(log, start, base) as segment:
                is_last = not head.length and base == log.bases[-2]
                latest_at = max(start.latest_at, stored_latest_at if is_last else 0)
                self._repair_stored_file(segment, latest_at, head)
                self._undo_compaction(segment)
                start = start._replace(
                    latest_at=max(start.latest_at, segment.last_stored_at()),
                    content_bytes=start.content_bytes + segment.content_bytes(),
                )
        start = start._replace(latest_at=max(start.latest_at, stored_latest_at))
        head = self._scan_tail(log, start, head.length) if head.length else start
        self._drop_bad_indexes(log, head)
        paths = [log.earliest_path, *(path for base in log.bases for path in log.segment_paths(base))]
        paths.remove(log.log_path(head.base))
        head = head._replace(closed_bytes=sum(map(file_size, paths)))
        earliest = min(max(log.bases[0], stored_earliest), head.end)
        if earliest < stored_earliest and self.is_writer:
            log.write_earliest(earliest, head.latest_at)
        if earliest == head.end:
            head = head._replace(earliest=earliest, content_bytes=0)
        else:
            trimmed_bytes = self.reader.count_content_bytes(log, head, log.bases[0], earliest)
            earliest_at = self.reader.find_stored_at(log, head, earliest, head.earliest_at)
            content_bytes = max(head.content_bytes - trimmed_bytes, 0)
            head = head._replace(earliest=earliest, content_bytes=content_bytes, earliest_at=earliest_at)
        log.head = head

    def _scan_tail(self, log: PartitionLog, known: Head, size: int) -> Head:
        """Scan the active segment after its known part, and truncate an incomplete append."""
        path = log.log_path(known.base)
        with self.reader.pool.open_file(path) as fd:
            segment = Segment(log, known.base, _UNKNOWN_END, fd, size, self.reader.pool, self.reader.get_index)
            tail = segment.scan_tail(known.length, known.end)
            if self.is_writer:
                for position, first_sequence, end_sequence in tail.damaged:
                    self._add_damage(log, f"{path} at byte {position}", "damaged", first_sequence, end_sequence)
                if tail.length < size:
                    os.ftruncate(fd, tail.length)
                    os.fsync(fd)
                    reason = f"truncated: {size - tail.length} bytes at the end are not complete"
                    self._add_damage(log, path, reason, tail.end, tail.seen_end)
            if tail.length == known.length:
                return known
            segment.end_sequence, segment.limit = tail.end, tail.length
            self._repair_stored_file(segment, known.latest_at, known)
            first_at = next(segment.runs(known.end)).stored_at
            return known._replace(
                end=tail.end,
                length=tail.length,
                content_bytes=known.content_bytes + count_segment_bytes(segment, known.end, tail.end),
                earliest_at=first_at if known.earliest == known.end else known.earliest_at,
                latest_at=max(known.latest_at, segment.last_stored_at()),
                base_at=known.base_at if known.length else first_at,
            )

    def _repair_stored_file(self, segment: Segment, latest_at: int, head: Head) -> None:
        """Fill in when records were stored if a power failure or damage has left that out."""
        if self.is_writer:
            segment.drop_bad_rows()
            segment.repair_rows(latest_at, partial(self._find_later_time, segment, head))

    def _undo_compaction(self, segment: Segment) -> None:
        """Correct the sizes of records if compaction had replaced the `.stored` file, but not yet the segment."""
        unused = temporary_path(segment.path)
        if self.is_writer and os.path.lexists(unused):
            segment.recount_rows()
            remove_files([unused])

    def _find_later_time(self, segment: Segment, head: Head) -> int:
        """Return the first known time in later segments of a partition; the time of recovery if there is none."""
        for base in [base for base in segment.log.bases if base > segment.base]:
            with self.reader.open_segment(segment.log, head, base) as later:
                run = next(later.runs(base), None)
            if run is not None and run.content_bytes is not None:
                return run.stored_at
        return now_ms()

    def _read_earliest(self, log: PartitionLog) -> tuple[int, int]:
        try:
            return log.read_earliest() or (0, 0)
        except ValueError:
            reason = "damaged: trimmed records may be held again"
            if self.is_writer:
                self.damages.append(Damage(log.earliest_path, reason))
            return 0, 0

    def _drop_segment(self, log: PartitionLog, base: int) -> None:
        log.bases = tuple(other for other in log.bases if other != base)
        if self.is_writer:
            remove_files(log.segment_paths(base))

    def _drop_stray_files(self, log: PartitionLog) -> None:
        """Remove the accompanying files of missing segments."""
        if not self.is_writer:
            return
        for name in os.listdir(log.folder):
            base, suffix = parse_segment_name(name) or (0, LOG_SUFFIX)
            if suffix != LOG_SUFFIX and base not in log.bases:
                remove_files([f"{log.folder}/{name}"])

    def _drop_bad_indexes(self, log: PartitionLog, head: Head) -> None:
        """Remove the index files that a power failure left incomplete or outdated."""
        for base in log.bases if self.is_writer else ():
            if not any(map(os.path.lexists, log.index_paths(base))):
                continue
            files, index = read_index_files(log, base), self.reader.load_index(log, head, base)
            if not (is_beginning(files, index) if base == head.base else files == index.encode()):
                remove_files(log.index_paths(base))

    def _add_damage(
        self,
        log: PartitionLog,
        location: str,
        reason: str,
        first_sequence: int,
        end_sequence: int,
        *,
        is_lost: bool = False,
    ) -> None:
        end_sequence = max(end_sequence, first_sequence + 1)
        self.damages.append(Damage(location, reason, log.partition, first_sequence, end_sequence, is_lost))


_UNKNOWN_END = 2**64 - 1
"""The end of a segment until it is scanned: more than any sequence."""

_logger = logging.getLogger("dafka.storage")


def open_writer(
    folder: str, *, segment_bytes: int, segment_ms: int, sync_delay_ms: int | None
) -> tuple[LogWriter, list[Damage]]:
    """Open the partitions of a file log, and repair incomplete ends; return the repairs as damage. Raises `OSError`."""
    pool = FilePool(os.O_RDWR)
    catalog = CatalogWriter(folder, is_synced=sync_delay_ms == 0)
    reader = LogReader(pool)
    syncer = Syncer(pool, sync_delay_ms, folder)
    writer = LogWriter(f"{folder}/{TOPICS_FOLDER}", catalog, pool, reader, syncer, segment_bytes, segment_ms)
    recovery = Recovery(reader, is_writer=True)
    try:
        writer.add_found_logs(_recover(folder, catalog, recovery, writer))
    except BaseException:
        writer.syncer.close()
        catalog.close(is_clean=False)
        pool.close()
        raise
    for damage in recovery.damages:
        _logger.warning("%s", damage)
    return writer, recovery.damages


def _recover(
    folder: str, catalog: CatalogWriter, recovery: Recovery, writer: LogWriter
) -> list[tuple[PartitionLog, bool]]:
    """Return every partition that the catalog lists afterward, and whether it is held.

    Records that may not be durable are synced before the catalog is marked as in use. The times of storing are synced
    before it is marked as closed.
    """
    topics_folder = f"{folder}/{TOPICS_FOLDER}"
    known = CatalogReader(folder)
    known.load()
    if not (known.is_complete and known.is_trusted):
        found = _recover_by_folders(known, topics_folder, recovery)
        if not known.is_of_earlier_boot:  # otherwise the data was read from the disk
            writer.sync_logs([log for log, is_held in found if is_held] if known.is_unsynced else recovery.unsynced)
        _sync_times_later(writer, found)
        catalog.create([(log.name, GOOD if is_held else VACANT, log.head) for log, is_held in found])
        return found
    recovered = [_recover_slot(known, slot, topics_folder, recovery) for slot in range(len(known.names))]
    found = [(log, is_held) for log, is_held, _ in recovered]
    held = [each for each in found if each[1]]
    writer.sync_logs([log for log, _ in held] if known.is_unsynced else recovery.unsynced)
    if not known.is_closed:
        _sync_times_later(writer, held)
    if len(found) - len(held) > max(len(held), VACANT_MAX):
        catalog.create([(log.name, GOOD, log.head) for log, _ in held])
        for slot, (log, _) in enumerate(held):
            log.slot = slot
        return held
    catalog.open(len(known.names))  # marks it as in use
    for slot, (log, is_held, is_changed) in enumerate(recovered):
        if is_changed:
            catalog.write_slot(slot, log.seed, GOOD if is_held else VACANT, log.head)
    return found


def _sync_times_later(writer: LogWriter, found: Sequence[tuple[PartitionLog, bool]]) -> None:
    """Sync the `.stored` files that a killed process may have written, or that were repaired."""
    for log, is_held in found:
        if is_held:
            writer.syncer.sync_later([log.stored_path(base) for base in log.bases or (log.head.base,)], [log.folder])


def _recover_slot(
    known: CatalogReader, slot: int, topics_folder: str, recovery: Recovery
) -> tuple[PartitionLog, bool, bool]:
    """Return a partition of the catalog, whether it is held, and whether its slot must be rewritten."""
    topic, address = known.names[slot]
    log = PartitionLog(Partition(decode_text(topic), decode_text(address)), topics_folder, slot)
    state, head = known.loaded_slot(slot, log.seed)
    if state == VACANT:
        return log, False, False
    is_held = recovery.resume_partition(log, head) if state == GOOD else recovery.rescan_partition(log)
    return log, is_held, (state, head) != (GOOD if is_held else VACANT, log.head)


def _recover_by_folders(
    known: CatalogReader, topics_folder: str, recovery: Recovery
) -> list[tuple[PartitionLog, bool]]:
    """Return all partitions that have a folder, and those that a partly damaged catalog lists."""
    found: dict[Partition, tuple[PartitionLog, bool]] = {}
    for slot in range(len(known.names)):
        log, is_held, _ = _recover_slot(known, slot, topics_folder, recovery)
        found[log.partition] = log, is_held
    for partition in walk_partitions(topics_folder):
        if partition not in found or not found[partition][1]:
            log = PartitionLog(partition, topics_folder)
            found[partition] = log, recovery.rescan_partition(log)
    for slot, (log, _) in enumerate(found.values()):
        log.slot = slot
    return list(found.values())
