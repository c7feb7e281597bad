"""Finding out what a partition's folder holds, and making an end that was torn off whole again.

What the catalog knows to be good is not read again: a `stat` tells whether there is more, or less.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress

import attrs

from dafka.records import Partition, decode_text
from dafka.storage.base import Damage
from dafka.storage.filelog.catalog import GOOD, VACANT, CatalogReader, CatalogWriter
from dafka.storage.filelog.entries import FIRST, MORE, SEQUENCE_END_MAX
from dafka.storage.filelog.files import FilePool, file_size
from dafka.storage.filelog.layout import TOPICS_FOLDER, walk_names
from dafka.storage.filelog.partition import (
    EARLIEST_FILE,
    Head,
    PartitionLog,
    find_bases,
    read_earliest_file,
    write_earliest_file,
)
from dafka.storage.filelog.reading import LogReader
from dafka.storage.filelog.segment import BODY_READ_BYTES, ReadBuffer, iterate_entries, read_body_at
from dafka.storage.filelog.syncing import Syncer
from dafka.storage.filelog.writer import LogWriter


@attrs.define
class _Tail:
    """What a scan of a segment's end found: how far it is good, and what was damaged before that."""

    length: int
    end: int
    seen_end: int
    content_bytes: int = 0
    first_at: int = 0
    last_at: int = 0
    holes: list[tuple[int, int, int]] = attrs.Factory(list)
    """Position, first sequence, end sequence."""


@attrs.define
class Recovery:
    """Recovers one partition after the other, for a writer (`repairs`), who cuts torn ends off, or a reader.

    Every method raises `OSError`.
    """

    reader: LogReader
    pool: FilePool
    is_writer: bool
    damages: list[Damage] = attrs.Factory(list)

    def resume(self, log: PartitionLog, known: Head) -> bool:
        """Goes on from what was known to be good. False where nothing of the partition is there."""
        try:
            size = os.stat(log.log_path(known.base)).st_size
        except (FileNotFoundError, NotADirectoryError):
            size = -1
        if size < known.length:
            return self.rescan(log, known)
        log.head = known if size == known.length else self._with_tail(log, known, size)
        return True

    def rescan(self, log: PartitionLog, known: Head | None = None) -> bool:
        """Begins from the files alone. False where there are none. What should be there and is not, is damage."""
        log.bases = find_bases(log.folder)
        for base in log.bases:
            self.reader.forget(log.log_path(base))
        if log.bases:
            self._rescan(log)
        if known is not None and self.is_writer:
            end = log.head.end if log.bases else known.earliest
            if end < known.end:
                self._report(log, log.folder, "lost: the file that held them is missing or cut short", end, known.end)
        return bool(log.bases)

    def _rescan(self, log: PartitionLog) -> None:
        floor, floor_at = self._read_floor(log)
        while len(log.bases) > 1 and log.bases[1] <= floor:
            self._drop(log, log.bases[0])
        sizes = {base: os.stat(log.log_path(base)).st_size for base in log.bases}
        for base in log.bases[:-1]:
            if not sizes[base]:  # a segment was begun and the process killed, or nothing was ever in it
                self._drop(log, base)
        head = Head(end=SEQUENCE_END_MAX, base=log.bases[-1], length=sizes[log.bases[-1]])
        indexes = [self.reader.load_index(log, head, base) for base in log.bases[:-1]]
        if indexes and not head.length and floor < head.base != indexes[-1].end_sequence:
            self._drop(log, head.base)  # begun by a skip that did not come to its end
            del indexes[-1]
            head = head._replace(base=log.bases[-1], length=sizes[log.bases[-1]])
        for index, next_base in zip(indexes, log.bases[1:], strict=True):
            if self.is_writer and index.end_sequence != next_base:
                self._report(
                    log, log.log_path(index.base), "lost: the segments do not fit", index.end_sequence, next_base
                )
        closed_bytes = sum(sizes[base] + file_size(log.index_path(base)) for base in log.bases[:-1])
        floor_bytes = file_size(f"{log.folder}/{EARLIEST_FILE}")
        start = head._replace(
            end=head.base,
            length=0,
            closed_bytes=closed_bytes + floor_bytes,
            content_bytes=sum(index.content_bytes for index in indexes),
            latest_at=max([floor_at, *(index.last_stored_at for index in indexes)]),
        )
        head = self._with_tail(log, start, head.length) if head.length else start
        earliest = min(max(log.bases[0], floor), head.end)
        if earliest < floor and self.is_writer:
            write_earliest_file(log.folder, earliest, head.latest_at)
        if earliest == head.end:
            head = head._replace(earliest=earliest, content_bytes=0)
        else:
            surplus = self.reader.content_bytes(log, head, log.bases[0], earliest)
            earliest_at = self.reader.stored_at(log, head, earliest)
            content_bytes = max(head.content_bytes - surplus, 0)
            head = head._replace(earliest=earliest, content_bytes=content_bytes, earliest_at=earliest_at)
        log.head = head

    def _with_tail(self, log: PartitionLog, known: Head, size: int) -> Head:
        """Takes in what follows what is known of the active segment, and cuts off what is no whole append."""
        path = log.log_path(known.base)
        with self.pool.lease(path) as fd:
            tail = _scan(fd, size, known.length, known.end, log.segment_seed(known.base))
            if self.is_writer:
                for position, first_sequence, end_sequence in tail.holes:
                    self._report(log, f"{path} at octet {position}", "damaged", first_sequence, end_sequence)
                if tail.length < size:
                    os.ftruncate(fd, tail.length)
                    os.fsync(fd)
                    reason = f"cut off: {size - tail.length} octets at the end are no whole append"
                    self._report(log, path, reason, tail.end, tail.seen_end)
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

    def _read_floor(self, log: PartitionLog) -> tuple[int, int]:
        try:
            return read_earliest_file(log.folder) or (0, 0)
        except ValueError:
            reason = "damaged: records that were trimmed may be held again"
            if self.is_writer:
                self.damages.append(Damage(f"{log.folder}/{EARLIEST_FILE}", reason))
            return 0, 0

    def _drop(self, log: PartitionLog, base: int) -> None:
        log.bases = tuple(other for other in log.bases if other != base)
        if self.is_writer:
            for path in (log.log_path(base), log.index_path(base)):
                with suppress(FileNotFoundError):
                    os.unlink(path)

    def _report(self, log: PartitionLog, place: str, reason: str, first_sequence: int, end_sequence: int) -> None:
        end_sequence = max(end_sequence, first_sequence + 1)
        self.damages.append(Damage(place, reason, log.partition, first_sequence, end_sequence))


def _scan(fd: int, size: int, position: int, sequence: int, seed: int) -> _Tail:
    """Reads all from this position on. Damage counts as such only where a whole append follows it."""
    window = ReadBuffer(fd, size, BODY_READ_BYTES)
    tail = _Tail(position, sequence, sequence)
    holes: list[tuple[int, int, int]] = []
    content_bytes = 0
    is_complete = False
    first_at: int | None = None
    for entry in iterate_entries(window, position, sequence, seed):
        if entry.position != position:
            holes.append((position, sequence, entry.first_sequence))
            is_complete = False
        if read_body_at(window, entry) is None:
            holes.append((entry.position, entry.first_sequence, entry.end_sequence))
            is_complete = False
        elif entry.flags & FIRST:
            is_complete = True
        content_bytes += entry.content_bytes
        first_at = entry.stored_at if first_at is None else first_at
        position, sequence = entry.next_position, entry.end_sequence
        tail.seen_end = sequence
        if is_complete and not entry.flags & MORE:
            tail.length, tail.end, tail.last_at, tail.first_at = position, sequence, entry.stored_at, first_at
            tail.content_bytes, tail.holes = content_bytes, holes.copy()
            is_complete = False
    return tail


_logger = logging.getLogger("dafka.storage")


def open_writer(
    folder: str, *, segment_bytes: int, segment_ms: int, sync_delay_ms: int | None
) -> tuple[LogWriter, list[Damage]]:
    """Finds out what is there and repairs what was torn; gives that as damage. Raises `OSError`."""
    pool = FilePool(os.O_RDWR)
    catalog = CatalogWriter(folder)
    reader = LogReader(pool)
    writer = LogWriter(
        f"{folder}/{TOPICS_FOLDER}", {}, catalog, pool, reader, Syncer(pool, sync_delay_ms), segment_bytes, segment_ms
    )
    recovery = Recovery(reader, pool, is_writer=True)
    try:
        writer.adopt(_recover(folder, catalog, recovery))
    except BaseException:
        catalog.close(is_clean=False)
        pool.close()
        raise
    for damage in recovery.damages:
        _logger.warning("%s", damage)
    return writer, recovery.damages


def _recover(folder: str, catalog: CatalogWriter, recovery: Recovery) -> list[tuple[PartitionLog, bool]]:
    """Every partition that the catalog lists afterwards, and whether it is there."""
    topics_folder = f"{folder}/{TOPICS_FOLDER}"
    known = CatalogReader(folder)
    known.load()
    if not (known.is_complete and known.is_trusted):
        found = _recover_by_folders(known, topics_folder, recovery)
        catalog.make([(log.name, GOOD if is_held else VACANT, log.head) for log, is_held in found])
        return found
    catalog.open(len(known.names))  # from here on, nobody takes it for one that was closed
    found = []
    for slot in range(len(known.names)):
        log, is_held, is_changed = _recover_slot(known, slot, topics_folder, recovery)
        if is_changed:
            catalog.put(slot, log.seed, GOOD if is_held else VACANT, log.head)
        found.append((log, is_held))
    return found


def _recover_slot(
    known: CatalogReader, slot: int, topics_folder: str, recovery: Recovery
) -> tuple[PartitionLog, bool, bool]:
    """A partition of the catalog, whether it is there, and whether the slot said otherwise."""
    topic, address = known.names[slot]
    log = PartitionLog(Partition(decode_text(topic), decode_text(address)), topics_folder, slot)
    state, head = known.slot(slot, log.seed)
    if state == VACANT:
        return log, False, False
    is_held = recovery.resume(log, head) if state == GOOD else recovery.rescan(log)
    return log, is_held, (state, head) != (GOOD if is_held else VACANT, log.head)


def _recover_by_folders(
    known: CatalogReader, topics_folder: str, recovery: Recovery
) -> list[tuple[PartitionLog, bool]]:
    """All partitions that have a folder, and those that a catalog damaged in part knows."""
    found: dict[Partition, tuple[PartitionLog, bool]] = {}
    for slot in range(len(known.names)):
        log, is_held, _ = _recover_slot(known, slot, topics_folder, recovery)
        found[log.partition] = log, is_held
    for partition in _walk(topics_folder):
        if partition not in found or not found[partition][1]:
            log = PartitionLog(partition, topics_folder)
            found[partition] = log, recovery.rescan(log)
    for slot, (log, _) in enumerate(found.values()):
        log.slot = slot
    return list(found.values())


def _walk(topics_folder: str) -> Iterator[Partition]:
    for topic, folder in walk_names(topics_folder):
        for address, _ in walk_names(folder):
            yield Partition(decode_text(topic), decode_text(address))
