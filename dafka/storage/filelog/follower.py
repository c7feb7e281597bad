"""The partitions as a reader sees them: by the catalog where that is good, else by the folders.

A reader holds no lock and changes nothing. It sees an append when the writer has put it in the catalog; without a
catalog, when all of it is in the segment.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from dafka.records import Partition, decode_text
from dafka.storage.filelog.catalog import CHANGING, GOOD, CatalogReader, decode_slot
from dafka.storage.filelog.files import FilePool
from dafka.storage.filelog.layout import TOPICS_FOLDER, walk_names
from dafka.storage.filelog.partition import Head, PartitionLog, find_bases, read_earliest_file
from dafka.storage.filelog.reading import LogReader
from dafka.storage.filelog.recovery import Recovery

ATTEMPTS = 5
"""A slot that is read while it is written is read again so often."""


class PartitionFollower:
    """Keeps up with a writer. Any thread may use it. Every method raises `OSError`."""

    def __init__(self, folder: str, pool: FilePool) -> None:
        self.reader = LogReader(pool, self.refresh)
        self._topics_folder = f"{folder}/{TOPICS_FOLDER}"
        self._catalog = CatalogReader(folder)
        self._recovery = Recovery(self.reader, pool, is_writer=False)
        self._listed: list[PartitionLog] = []
        self._slots: list[bytes] = []
        self._logs: dict[Partition, PartitionLog] = {}
        self._lock = threading.RLock()

    def load(self) -> None:
        """Makes the first listing quick."""
        for log in self.select(None):
            log.compute_info()

    def find(self, partition: Partition) -> PartitionLog | None:
        """The partition as it is now; None where it is not there."""
        with self._lock:
            log = self._logs.get(partition)
            if log is None:
                self._load()
                log = self._logs.get(partition)
            if log is None:
                if self._catalog.is_complete and self._catalog.is_trusted:
                    return None
                log = PartitionLog(partition, self._topics_folder)
            if not self._update(log):
                return None
            self._logs[partition] = log
            return log

    def refresh(self, log: PartitionLog) -> None:
        """Brings the log up to date."""
        with self._lock:
            if not self._update(log):
                log.head = Head()

    def select(self, topic: str | None) -> list[PartitionLog]:
        """All partitions that are there, or one topic's, as they are now."""
        with self._lock:
            self._load()
            if not (self._catalog.is_complete and self._catalog.is_trusted):
                return self._walk(topic)
            held = []
            for slot, log in enumerate(self._listed):
                if topic is not None and log.partition.topic != topic:
                    continue
                octets = self._catalog.octets(slot)
                if octets == self._slots[slot] or self._take(log, octets) or self._update(log):
                    held.append(log)
            return held

    def _load(self) -> None:
        """Reads the catalog anew, and begins to follow the partitions that are new in it."""
        if not self._catalog.load():
            for log in self._listed:
                log.slot = -1
            self._listed, self._slots = [], []
        for topic, address in self._catalog.names[len(self._listed) :]:
            partition = Partition(decode_text(topic), decode_text(address))
            log = self._logs.get(partition) or PartitionLog(partition, self._topics_folder)
            log.slot = len(self._listed)
            self._logs[partition] = log
            self._listed.append(log)
            self._slots.append(b"")

    def _update(self, log: PartitionLog) -> bool:
        """Brings one log up to date. False where it is not there."""
        for _ in range(ATTEMPTS):
            octets = self._catalog.read_slot(log.slot)
            if octets is None:
                break
            if self._take(log, octets):
                return True
            found = decode_slot(octets, log.seed)
            if found is not None:
                return False
        return self._look(log)

    def _take(self, log: PartitionLog, octets: bytes) -> bool:
        """Takes over what a slot says. False where it is damaged, or says that there is nothing."""
        found = decode_slot(octets, log.seed)
        if found is None:
            return False
        state, head = found
        if state != GOOD and not (state == CHANGING and head.end):
            return False
        if (head.earliest, head.base) != (log.head.earliest, log.head.base):
            log.bases = ()
        log.head = head
        if log.slot < len(self._slots):
            self._slots[log.slot] = octets
        return True

    def _look(self, log: PartitionLog) -> bool:
        """Goes by the files."""
        if log.slot >= 0 and log.slot < len(self._slots):
            self._slots[log.slot] = b""
        for _ in range(ATTEMPTS):
            with suppress(FileNotFoundError):  # the writer has dropped a segment meanwhile
                if _is_unchanged(log):
                    return self._recovery.resume(log, log.head)
                return self._recovery.rescan(log)
        return False

    def _walk(self, topic: str | None) -> list[PartitionLog]:
        held = []
        for topic_octets, folder in walk_names(self._topics_folder):
            name = decode_text(topic_octets)
            if topic is None or topic == name:
                for address_octets, path in walk_names(folder):
                    if os.path.isdir(path) and (log := self._found(Partition(name, decode_text(address_octets)))):
                        held.append(log)
        return held

    def _found(self, partition: Partition) -> PartitionLog | None:
        log = self._logs.get(partition) or PartitionLog(partition, self._topics_folder)
        if not self._look(log):
            return None
        self._logs[partition] = log
        return log


def _is_unchanged(log: PartitionLog) -> bool:
    """Tells whether at most the active segment has grown."""
    try:
        floor, _ = read_earliest_file(log.folder) or (0, 0)
    except ValueError:
        return False
    return bool(log.bases) and find_bases(log.folder) == log.bases and floor <= log.head.earliest
