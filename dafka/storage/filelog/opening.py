"""Opening a file log for writing: what is there, by the catalog as far as it is good, by the folders beyond that."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

from dafka.records import Partition, decode_text
from dafka.storage.base import Damage
from dafka.storage.filelog.catalog import GOOD, VACANT, CatalogReader, CatalogWriter
from dafka.storage.filelog.files import FilePool
from dafka.storage.filelog.marker import TOPICS_FOLDER
from dafka.storage.filelog.names import walk_names
from dafka.storage.filelog.partition import PartitionLog
from dafka.storage.filelog.reading import LogReader
from dafka.storage.filelog.recovery import Recovery
from dafka.storage.filelog.syncing import Syncer
from dafka.storage.filelog.writer import LogWriter

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
    if not (known.is_whole and known.is_trusted):
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
