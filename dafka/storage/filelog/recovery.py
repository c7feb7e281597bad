"""Opening a file log for writing: finding the partitions, and repairing an incomplete end.

If the catalog is trusted, partitions that it describes are not read again: a `stat` shows whether their active segment
has more or less data. Otherwise the folders are read.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import attrs

from dafka.records import Partition, decode_text
from dafka.storage.base import Damage
from dafka.storage.filelog.catalog import GOOD, VACANT, CatalogReader, CatalogWriter
from dafka.storage.filelog.entries import FLAG_FIRST, FLAG_MORE, SEQUENCE_END_MAX
from dafka.storage.filelog.files import FilePool, file_size, read_file
from dafka.storage.filelog.layout import TOPICS_FOLDER, walk_names
from dafka.storage.filelog.partition import (
    BASE_DIGITS,
    EARLIEST_FILE,
    INDEX_SUFFIX,
    Head,
    PartitionLog,
    find_bases,
    is_segment_name,
    read_earliest_file,
    write_earliest_file,
)
from dafka.storage.filelog.reading import LogReader
from dafka.storage.filelog.segment import BODY_READ_BYTES, ReadBuffer, SegmentIndex, iterate_entries, read_body_at
from dafka.storage.filelog.syncing import Syncer
from dafka.storage.filelog.writer import LogWriter

VACANT_MAX = 1000
"""Slots of deleted partitions that a catalog may have in any case. If it has more, and more than of other partitions,
it is rewritten without them."""


@attrs.define
class _Tail:
    """The result of scanning the end of a segment: how far it is valid, and which entries before that are damaged."""

    length: int
    end: int
    seen_end: int
    content_bytes: int = 0
    first_at: int = 0
    last_at: int = 0
    damaged: list[tuple[int, int, int]] = attrs.Factory(list)
    """The position, first sequence and end sequence of damage."""


@attrs.define
class Recovery:
    """Recovers partitions, one after the other. Every method raises `OSError`.

    Attributes:
        reader: The reader of the partitions.
        pool: The open segments.
        is_writer: Whether to truncate incomplete ends and to report damage; false for readers.
        damages: The damage found so far.
    """

    reader: LogReader
    pool: FilePool
    is_writer: bool
    damages: list[Damage] = attrs.Factory(list)
    unsynced: list[PartitionLog] = attrs.Factory(list)
    """The partitions that a process that was killed may have written, and not synced."""

    def resume_partition(self, log: PartitionLog, known: Head) -> bool:
        """Continue from a head that is trusted. Return False if the partition does not exist."""
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
        log.bases = find_bases(log.folder)
        for base in log.bases:
            self.reader.drop_segment(log.log_path(base))
        if log.bases:
            self._scan_partition(log)
            self.unsynced.append(log)
        if known is not None and self.is_writer:
            end = log.head.end if log.bases else known.earliest
            if end < known.end:
                self._add_damage(log, log.folder, "lost: their file is missing or too short", end, known.end)
        return bool(log.bases)

    def _scan_partition(self, log: PartitionLog) -> None:
        stored_earliest, stored_latest_at = self._read_earliest(log)
        while len(log.bases) > 1 and log.bases[1] <= stored_earliest:
            self._drop_segment(log, log.bases[0])
        sizes = {base: os.stat(log.log_path(base)).st_size for base in log.bases}
        for base in log.bases[:-1]:
            if not sizes[base]:  # the process was killed after creating the segment, or the segment was never used
                self._drop_segment(log, base)
        self._drop_bad_indexes(log, sizes)
        head = Head(end=SEQUENCE_END_MAX, base=log.bases[-1], length=sizes[log.bases[-1]])
        indexes = [self.reader.load_index(log, head, base) for base in log.bases[:-1]]
        if indexes and not head.length and stored_earliest < head.base != indexes[-1].end_sequence:
            self._drop_segment(log, head.base)  # created by an incomplete reset
            del indexes[-1]
            head = head._replace(base=log.bases[-1], length=sizes[log.bases[-1]])
        for index, next_base in zip(indexes, log.bases[1:], strict=True):
            if self.is_writer and index.end_sequence != next_base:
                self._add_damage(
                    log,
                    log.log_path(index.base),
                    "lost: there is a gap between two segments",
                    index.end_sequence,
                    next_base,
                )
        closed_bytes = sum(sizes[base] + file_size(log.index_path(base)) for base in log.bases[:-1])
        earliest_file_bytes = file_size(f"{log.folder}/{EARLIEST_FILE}")
        start = head._replace(
            end=head.base,
            length=0,
            closed_bytes=closed_bytes + earliest_file_bytes,
            content_bytes=sum(index.content_bytes for index in indexes),
            latest_at=max([stored_latest_at, *(index.last_stored_at for index in indexes)]),
        )
        head = self._scan_tail(log, start, head.length) if head.length else start
        earliest = min(max(log.bases[0], stored_earliest), head.end)
        if earliest < stored_earliest and self.is_writer:
            write_earliest_file(log.folder, earliest, head.latest_at)
        if earliest == head.end:
            head = head._replace(earliest=earliest, content_bytes=0)
        else:
            trimmed_bytes = self.reader.count_content_bytes(log, head, log.bases[0], earliest)
            earliest_at = self.reader.find_stored_at(log, head, earliest)
            content_bytes = max(head.content_bytes - trimmed_bytes, 0)
            head = head._replace(earliest=earliest, content_bytes=content_bytes, earliest_at=earliest_at)
        log.head = head

    def _scan_tail(self, log: PartitionLog, known: Head, size: int) -> Head:
        """Add what follows the known part of the active segment, and truncate an incomplete append."""
        path = log.log_path(known.base)
        with self.pool.open_file(path) as fd:
            tail = _scan_segment(fd, size, known.length, known.end, log.segment_seed(known.base))
            if self.is_writer:
                for position, first_sequence, end_sequence in tail.damaged:
                    self._add_damage(log, f"{path} at byte {position}", "damaged", first_sequence, end_sequence)
                if tail.length < size:
                    os.ftruncate(fd, tail.length)
                    os.fsync(fd)
                    reason = f"truncated: {size - tail.length} bytes at the end are not a complete append"
                    self._add_damage(log, path, reason, tail.end, tail.seen_end)
        if tail.length == known.length:
            return known
        return known._replace(
            end=tail.end,
            length=tail.length,
            content_bytes=known.content_bytes + tail.content_bytes,
            earliest_at=tail.first_at if known.earliest == known.end else known.earliest_at,
            latest_at=max(known.latest_at, tail.last_at),
            base_at=known.base_at if known.length else tail.first_at,
        )

    def _read_earliest(self, log: PartitionLog) -> tuple[int, int]:
        try:
            return read_earliest_file(log.folder) or (0, 0)
        except ValueError:
            reason = "damaged: trimmed records may be held again"
            if self.is_writer:
                self.damages.append(Damage(f"{log.folder}/{EARLIEST_FILE}", reason))
            return 0, 0

    def _drop_segment(self, log: PartitionLog, base: int) -> None:
        log.bases = tuple(other for other in log.bases if other != base)
        if self.is_writer:
            for path in (log.log_path(base), log.index_path(base)):
                with suppress(FileNotFoundError):
                    os.unlink(path)

    def _drop_bad_indexes(self, log: PartitionLog, sizes: dict[int, int]) -> None:
        """Remove the index files that a power failure left incomplete or outdated. They are never synced."""
        if not self.is_writer:
            return
        for name in os.listdir(log.folder):
            if not is_segment_name(name, INDEX_SUFFIX):
                continue
            base, path = int(name[:BASE_DIGITS]), f"{log.folder}/{name}"
            index = SegmentIndex.decode(read_file(path) or b"")
            is_grown = base == log.bases[-1]
            if index is None or base not in log.bases or not (is_grown or index.length == sizes[base]):
                with suppress(FileNotFoundError):
                    os.unlink(path)

    def _add_damage(
        self, log: PartitionLog, location: str, reason: str, first_sequence: int, end_sequence: int
    ) -> None:
        end_sequence = max(end_sequence, first_sequence + 1)
        self.damages.append(Damage(location, reason, log.partition, first_sequence, end_sequence))


def _scan_segment(fd: int, size: int, position: int, sequence: int, seed: int) -> _Tail:
    """Read a segment from a position. Damage is reported only if a complete append follows it."""
    buffer = ReadBuffer(fd, size, BODY_READ_BYTES)
    tail = _Tail(position, sequence, sequence)
    damaged: list[tuple[int, int, int]] = []
    content_bytes = 0
    is_complete = False
    first_at: int | None = None
    for entry in iterate_entries(buffer, position, sequence, seed):
        if entry.position != position:
            damaged.append((position, sequence, entry.first_sequence))
            is_complete = False
        if read_body_at(buffer, entry) is None:
            damaged.append((entry.position, entry.first_sequence, entry.end_sequence))
            is_complete = False
        elif entry.flags & FLAG_FIRST:
            is_complete = True
        content_bytes += entry.content_bytes
        first_at = entry.stored_at if first_at is None else first_at
        position, sequence = entry.next_position, entry.end_sequence
        tail.seen_end = sequence
        if is_complete and not entry.flags & FLAG_MORE:
            tail.length, tail.end, tail.last_at, tail.first_at = position, sequence, entry.stored_at, first_at
            tail.content_bytes, tail.damaged = content_bytes, damaged.copy()
            is_complete = False
    return tail


_logger = logging.getLogger("dafka.storage")


def open_writer(
    folder: str, *, segment_bytes: int, segment_ms: int, sync_delay_ms: int | None
) -> tuple[LogWriter, list[Damage]]:
    """Open the partitions of a file log, and repair incomplete ends; return these as damage. Raises `OSError`."""
    pool = FilePool(os.O_RDWR)
    catalog = CatalogWriter(folder, is_synced=sync_delay_ms == 0)
    reader = LogReader(pool)
    writer = LogWriter(
        f"{folder}/{TOPICS_FOLDER}", {}, catalog, pool, reader, Syncer(pool, sync_delay_ms), segment_bytes, segment_ms
    )
    recovery = Recovery(reader, pool, is_writer=True)
    try:
        writer.add_found_logs(_recover(folder, catalog, recovery, writer.sync_logs))
    except BaseException:
        writer.syncer.close()
        catalog.close(is_clean=False)
        pool.close()
        raise
    for damage in recovery.damages:
        _logger.warning("%s", damage)
    return writer, recovery.damages


def _recover(
    folder: str, catalog: CatalogWriter, recovery: Recovery, sync_logs: Callable[[Sequence[PartitionLog]], None]
) -> list[tuple[PartitionLog, bool]]:
    """Return every partition that the catalog lists afterward, and whether it is held.

    Partitions that may not be durable are synced before the catalog says that this writer has it in use.
    """
    topics_folder = f"{folder}/{TOPICS_FOLDER}"
    known = CatalogReader(folder)
    known.load()
    if not (known.is_complete and known.is_trusted):
        found = _recover_by_folders(known, topics_folder, recovery)
        if not known.is_of_earlier_boot:  # otherwise the data was read from the disk
            sync_logs([log for log, is_held in found if is_held] if known.is_unsynced else recovery.unsynced)
        catalog.create([(log.name, GOOD if is_held else VACANT, log.head) for log, is_held in found])
        return found
    recovered = [_recover_slot(known, slot, topics_folder, recovery) for slot in range(len(known.names))]
    found = [(log, is_held) for log, is_held, _ in recovered]
    held = [each for each in found if each[1]]
    sync_logs([log for log, _ in held] if known.is_unsynced else recovery.unsynced)
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
    for partition in _walk_partitions(topics_folder):
        if partition not in found or not found[partition][1]:
            log = PartitionLog(partition, topics_folder)
            found[partition] = log, recovery.rescan_partition(log)
    for slot, (log, _) in enumerate(found.values()):
        log.slot = slot
    return list(found.values())


def _walk_partitions(topics_folder: str) -> Iterator[Partition]:
    for topic, folder in walk_names(topics_folder):
        for address, _ in walk_names(folder):
            yield Partition(decode_text(topic), decode_text(address))
