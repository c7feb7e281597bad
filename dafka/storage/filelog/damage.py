"""Looking a file log over for what reading its records does not show: indexes, gaps, ends, and strange files."""

from __future__ import annotations

import os
from collections.abc import Iterator

from dafka.errors import StorageError
from dafka.storage.base import Damage
from dafka.storage.filelog.catalog import HEADS_FILE, NAMES_FILE, CatalogReader, decode_slot
from dafka.storage.filelog.entries import partition_seed
from dafka.storage.filelog.files import FilePool, is_temporary, read_file
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
    """What is wrong outside the partitions. Raises `OSError`."""
    try:
        read_identity(folder)
    except StorageError as error:
        yield Damage(f"{folder}/{MARKER_FILE}", str(error))
    strange = [f"{folder}/{name}" for name in os.listdir(folder) if name not in _KNOWN_FILES and not is_temporary(name)]
    for _, topic_folder in walk_names(f"{folder}/{TOPICS_FOLDER}", strange=strange):
        for _ in walk_names(topic_folder, strange=strange):
            pass
    positions = PositionFiles(folder)
    for name in positions.names(strange):
        try:
            positions.load(name)
        except StorageError as error:
            yield Damage(positions.folder, str(error))
    for path in strange:
        yield Damage(path, "no file of a file log")
    yield from _check_catalog(folder)


def _check_catalog(folder: str) -> Iterator[Damage]:
    catalog = CatalogReader(folder)
    catalog.load()
    if not (catalog.is_complete and catalog.is_trusted):
        yield Damage(f"{folder}/{HEADS_FILE}", "damaged: it is made anew when a writer opens the file log")
        return
    for slot, name in enumerate(catalog.names):
        seed = partition_seed(*name)
        if all(decode_slot(catalog.read_slot(slot) or b"", seed) is None for _ in range(3)):
            yield Damage(f"{folder}/{HEADS_FILE}", f"slot {slot} is damaged: it is made anew when a writer opens")


def find_partition_damage(log: PartitionLog, pool: FilePool) -> Iterator[Damage]:
    """What is wrong with a partition. Raises `OSError`."""
    head = log.head
    try:
        read_earliest_file(log.folder)
    except ValueError:
        yield Damage(f"{log.folder}/{EARLIEST_FILE}", "damaged", log.partition)
    for name in os.listdir(log.folder):
        is_known = is_segment_name(name, LOG_SUFFIX) or is_segment_name(name, INDEX_SUFFIX) or name == EARLIEST_FILE
        if not is_known and not is_temporary(name):
            yield Damage(f"{log.folder}/{name}", "no file of a file log")
    bases = [base for base in find_bases(log.folder) if base <= head.base]
    for base, end in zip(bases, [*bases[1:], head.end][: len(bases)], strict=True):
        try:
            yield from _check_segment(log, head, base, end, pool)
        except FileNotFoundError:
            if end > log.head.earliest:  # else it was trimmed meanwhile
                raise
    first = bases[0] if bases else head.end
    if first > log.head.earliest:
        yield _lost(log, log.log_path(head.earliest), head.earliest, first)


def _check_segment(log: PartitionLog, head: Head, base: int, end: int, pool: FilePool) -> Iterator[Damage]:
    path = log.log_path(base)
    with pool.lease(path) as fd:
        size = os.fstat(fd).st_size
        limit = head.length if base == head.base else size
        built = SegmentIndex.empty(base)
        for entry in iterate_entries(ReadBuffer(fd, limit, HEADER_READ_BYTES), 0, base, log.segment_seed(base)):
            if entry.first_sequence != built.end_sequence:
                yield _lost(log, f"{path} at octet {built.length}", built.end_sequence, entry.first_sequence)
            built.add(entry)
    if built.end_sequence != end:
        yield _lost(log, path, built.end_sequence, end)
    elif built.length != limit:
        yield Damage(path, f"there are {limit - built.length} octets after the last record")
    octets = read_file(log.index_path(base))
    if octets is not None:
        index = SegmentIndex.decode(octets)
        is_grown = base == head.base  # the file is as old as the last time that the storage was closed
        rows = None if index is None else built.rows[: len(index.rows)] if is_grown else built.rows
        if index is None or index.base != base or index.rows != rows or not (is_grown or index.length == limit):
            yield Damage(log.index_path(base), "damaged: not used, and may be deleted")


def _lost(log: PartitionLog, place: str, first_sequence: int, end_sequence: int) -> Damage:
    return Damage(place, "lost or damaged", log.partition, first_sequence, max(end_sequence, first_sequence + 1))
