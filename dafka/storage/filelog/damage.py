"""Finding damage that reading the records does not show: in indexes, ends, the catalog, and unexpected files."""

from __future__ import annotations

import os
from collections.abc import Iterator

from dafka.errors import StorageError
from dafka.storage.base import Damage
from dafka.storage.filelog.catalog import HEADS_FILE, NAMES_FILE, CatalogReader, decode_slot
from dafka.storage.filelog.entries import partition_seed
from dafka.storage.filelog.files import FilePool, is_temporary_file, read_file
from dafka.storage.filelog.layout import LOCK_FILE, MARKER_FILE, TOPICS_FOLDER, read_identity, walk_names
from dafka.storage.filelog.partition import (
    EARLIEST_FILE,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    Head,
    PartitionLog,
    find_bases,
    is_segment_name,
    read_earliest_file,
)
from dafka.storage.filelog.positions import POSITIONS_FOLDER, PositionFiles
from dafka.storage.filelog.segment import HEADER_READ_BYTES, ReadBuffer, SegmentIndex, iterate_entries

_KNOWN_FILES = {MARKER_FILE, LOCK_FILE, TOPICS_FOLDER, POSITIONS_FOLDER, NAMES_FILE, HEADS_FILE}


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


def find_partition_damage(log: PartitionLog, pool: FilePool) -> Iterator[Damage]:
    """Yield the damage of a partition. Raises `OSError`."""
    head = log.head
    try:
        read_earliest_file(log.folder)
    except ValueError:
        yield Damage(f"{log.folder}/{EARLIEST_FILE}", "damaged", log.partition)
    for name in os.listdir(log.folder):
        is_known = is_segment_name(name, LOG_SUFFIX) or is_segment_name(name, INDEX_SUFFIX) or name == EARLIEST_FILE
        if not is_known and not is_temporary_file(name):
            yield Damage(f"{log.folder}/{name}", "not a file of a file log")
    bases = [base for base in find_bases(log.folder) if base <= head.base]
    for base, end in zip(bases, [*bases[1:], head.end][: len(bases)], strict=True):
        try:
            yield from _check_segment(log, head, base, end, pool)
        except FileNotFoundError:
            if end > log.head.earliest:  # otherwise it has just been trimmed
                raise
    first = bases[0] if bases else head.end
    if first > log.head.earliest:
        yield _lost(log, log.log_path(head.earliest), head.earliest, first)


def _check_segment(log: PartitionLog, head: Head, base: int, end: int, pool: FilePool) -> Iterator[Damage]:
    path = log.log_path(base)
    with pool.open_file(path) as fd:
        size = os.fstat(fd).st_size
        limit = head.length if base == head.base else size
        built = SegmentIndex.empty(base)
        for entry in iterate_entries(ReadBuffer(fd, limit, HEADER_READ_BYTES), 0, base, log.segment_seed(base)):
            if entry.first_sequence != built.end_sequence:
                yield _lost(log, f"{path} at byte {built.length}", built.end_sequence, entry.first_sequence)
            built.add_entry(entry)
    if built.end_sequence != end:
        yield _lost(log, path, built.end_sequence, end)
    elif built.length != limit:
        yield Damage(path, f"{limit - built.length} bytes follow the last record")
    data = read_file(log.index_path(base))
    if data is not None:
        index = SegmentIndex.decode(data)
        is_grown = base == head.base  # the file was written when the storage was last closed
        rows = None if index is None else built.rows[: len(index.rows)] if is_grown else built.rows
        if index is None or index.base != base or index.rows != rows or not (is_grown or index.length == limit):
            yield Damage(log.index_path(base), "damaged: it is not used, and can be deleted")


def _lost(log: PartitionLog, location: str, first_sequence: int, end_sequence: int) -> Damage:
    return Damage(location, "lost or damaged", log.partition, first_sequence, max(end_sequence, first_sequence + 1))
