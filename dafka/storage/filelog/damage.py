"""Finding damage that reading the records does not show: in indexes, ends, the catalog, and unexpected files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise

from dafka.errors import StorageError
from dafka.storage.base import Damage
from dafka.storage.filelog.catalog import HEADS_FILE, NAMES_FILE, CatalogReader, decode_slot
from dafka.storage.filelog.files import is_temporary_file
from dafka.storage.filelog.index import SegmentIndex, is_beginning, read_index_files
from dafka.storage.filelog.layout import LOCK_FILE, MARKER_FILE, TOPICS_FOLDER, read_identity, walk_names
from dafka.storage.filelog.partition import EARLIEST_FILE, Head, PartitionLog, parse_segment_name, partition_seed
from dafka.storage.filelog.positions import POSITIONS_FOLDER, PositionFiles
from dafka.storage.filelog.reading import LogReader
from dafka.storage.filelog.segment import Segment
from dafka.storage.filelog.stored import ROW_BYTES, StoredRows
from dafka.storage.tiers import TIER_FOLDER

_KNOWN_FILES = {MARKER_FILE, LOCK_FILE, TOPICS_FOLDER, POSITIONS_FOLDER, NAMES_FILE, HEADS_FILE, TIER_FOLDER}


def find_folder_damage(folder: str) -> Iterator[Damage]:
    """Yield the damage outside the partitions. Raises `OSError`."""
    try:
        read_identity(folder)
    except StorageError as error:
        yield Damage(f"{folder}/{MARKER_FILE}", str(error))
    unexpected = [
        f"{folder}/{name}" for name in os.listdir(folder) if name not in _KNOWN_FILES and not is_temporary_file(name)
    ]
    for _, topic_folder in walk_names(f"{folder}/{TOPICS_FOLDER}", unexpected=unexpected):
        for _ in walk_names(topic_folder, unexpected=unexpected):
            pass
    positions = PositionFiles(folder)
    for name in positions.names(unexpected):
        try:
            positions.load(name)
        except StorageError as error:
            yield Damage(positions.folder, str(error))
    for path in unexpected:
        yield Damage(path, "not a file of a file log")
    yield from _check_catalog(folder)


def _check_catalog(folder: str) -> Iterator[Damage]:
    catalog = CatalogReader(folder)
    catalog.load()
    if not (catalog.is_complete and catalog.is_trusted):
        yield Damage(f"{folder}/{HEADS_FILE}", "damaged: it is rebuilt when a writer opens the file log")
        return
    for slot, name in enumerate(catalog.names):
        seed = partition_seed(*name)
        if all(decode_slot(catalog.read_slot(slot) or b"", seed) is None for _ in range(3)):
            yield Damage(
                f"{folder}/{HEADS_FILE}", f"slot {slot} is damaged: it is rewritten when a writer opens the file log"
            )


def find_partition_damage(log: PartitionLog, reader: LogReader) -> Iterator[Damage]:
    """Yield the damage of a partition. Raises `OSError`."""
    head = log.head
    try:
        log.read_earliest()
    except ValueError:
        yield Damage(log.earliest_path, "damaged", log.partition)
    for name in os.listdir(log.folder):
        is_known = name == EARLIEST_FILE or parse_segment_name(name) is not None
        if not is_known and not is_temporary_file(name):
            yield Damage(f"{log.folder}/{name}", "not a file of a file log")
    bases = [base for base in log.find_bases() if base <= head.base]
    for base, end in zip(bases, [*bases[1:], head.end][: len(bases)], strict=True):
        try:
            with reader.open_segment(log, head, base) as segment:
                yield from _check_segment(segment, head, end)
        except FileNotFoundError:
            if end > log.head.earliest:  # otherwise it has just been trimmed
                raise
    first = bases[0] if bases else head.end
    if first > log.head.earliest:
        yield _lost(log, log.log_path(head.earliest), head.earliest, first)


def _check_segment(segment: Segment, head: Head, end: int) -> Iterator[Damage]:
    log, base, path = segment.log, segment.base, segment.path
    built = SegmentIndex(base)
    for block in segment.iterate(segment.open_buffer(), 0, base):
        if block.first_sequence != built.end_sequence:
            yield _lost(log, f"{path} at byte {built.length}", built.end_sequence, block.first_sequence)
        built.add_block(block)
    if built.end_sequence != end:
        yield _lost(log, path, built.end_sequence, end)
    elif built.length != segment.limit:
        yield Damage(path, f"{segment.limit - built.length} bytes follow the last record")
    files = read_index_files(log, base)
    # The files of the active segment were written when the storage was last closed.
    is_right = is_beginning(files, built) if base == head.base else files == built.encode()
    if files != (None, None) and not is_right:
        yield Damage(log.index_paths(base)[0], "damaged: it is not used, and can be deleted")
    if segment.limit and not _is_stored_file_whole(segment, min(end, built.end_sequence)):
        yield Damage(log.stored_path(base), "damaged: the times of some records are those of others")


def _is_stored_file_whole(segment: Segment, end: int) -> bool:
    """Return whether all records of a segment have rows, and none of the rows is damaged."""
    path = segment.log.stored_path(segment.base)
    try:
        with segment.pool.open_file(path) as fd:
            rows = StoredRows(fd, segment.base, segment.log.segment_seed(segment.base))
            found = [row for _, row in rows.iterate(0)]
            is_aligned = os.fstat(fd).st_size % ROW_BYTES == 0
    except FileNotFoundError:
        return False
    increases = all(earlier.end_sequence < later.end_sequence for earlier, later in pairwise(found))
    return is_aligned and len(found) >= rows.count and bool(found) and found[-1].end_sequence >= end and increases


def _lost(log: PartitionLog, location: str, first_sequence: int, end_sequence: int) -> Damage:
    return Damage(location, "lost or damaged", log.partition, first_sequence, max(end_sequence, first_sequence + 1))
