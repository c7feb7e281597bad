"""The partitions as a reader sees them: by the catalog if it is trusted, otherwise by the folders.

A reader holds no lock and changes nothing. It sees an append once the writer has written its slot in the catalog, or,
without a catalog, once all of it is in the segment.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from dafka.records import Partition, decode_text
from dafka.storage.filelog.catalog import CHANGING, GOOD, CatalogReader, decode_slot
from dafka.storage.filelog.files import FilePool
from dafka.storage.filelog.layout import TOPICS_FOLDER
from dafka.storage.filelog.partition import Head, PartitionLog, walk_partitions
from dafka.storage.filelog.reading import LogReader
from dafka.storage.filelog.recovery import Recovery

ATTEMPTS = 5
"""The number of attempts to read a slot while a writer may be writing it."""


class PartitionFollower:
    """Follows the changes of a writer. Threads may use it concurrently. Every method raises `OSError`."""

    def __init__(self, folder: str, pool: FilePool) -> None:
        self.reader = LogReader(pool, self.refresh_log)
        self._topics_folder = f"{folder}/{TOPICS_FOLDER}"
        self._catalog = CatalogReader(folder)
        self._recovery = Recovery(self.reader, is_writer=False)
        self._listed: list[PartitionLog] = []
        self._slots: list[bytes] = []
        self._logs: dict[Partition, PartitionLog] = {}
        self._lock = threading.RLock()

    def load(self) -> None:
        """Load all partitions, so that the first listing is quick."""
        for log in self.list_logs(None):
            log.compute_info()

    def find_log(self, partition: Partition) -> PartitionLog | None:
        """Return the current state of a partition, or None if it does not exist."""
        with self._lock:
            log = self._logs.get(partition)
            if log is None:
                self._load_catalog()
                log = self._logs.get(partition)
            if log is None:
                if self._catalog.is_complete and self._catalog.is_trusted:
                    return None
                log = PartitionLog(partition, self._topics_folder)
            if not self._update_log(log):
                return None
            self._logs[partition] = log
            return log

    def refresh_log(self, log: PartitionLog) -> None:
        """Update a partition."""
        with self._lock:
            if not self._update_log(log):
                log.head = Head()

    def list_logs(self, topic: str | None) -> list[PartitionLog]:
        """Return the current state of all partitions, or of those of a topic."""
        with self._lock:
            self._load_catalog()
            if not (self._catalog.is_complete and self._catalog.is_trusted):
                return self._list_by_files(topic)
            held = []
            for slot, log in enumerate(self._listed):
                if topic is not None and log.partition.topic != topic:
                    continue
                data = self._catalog.loaded_bytes(slot)
                if data == self._slots[slot] or self._apply_slot(log, data) or self._update_log(log):
                    held.append(log)
            return held

    def _load_catalog(self) -> None:
        """Read the catalog again, and add the partitions that are new in it."""
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

    def _update_log(self, log: PartitionLog) -> bool:
        """Update a partition; return False if it does not exist."""
        for _ in range(ATTEMPTS):
            data = self._catalog.read_slot(log.slot)
            if data is None:
                break
            if self._apply_slot(log, data):
                return True
            found = decode_slot(data, log.seed)
            if found is not None:
                return False
        return self._scan_files(log)

    def _apply_slot(self, log: PartitionLog, data: bytes) -> bool:
        """Apply the state of a slot. Return False if it is damaged or vacant."""
        found = decode_slot(data, log.seed)
        if found is None:
            return False
        state, head = found
        if state != GOOD and not (state == CHANGING and head.end):
            return False
        if (head.earliest, head.base) != (log.head.earliest, log.head.base):
            log.bases = ()
        log.head = head
        self._slots[log.slot] = data
        return True

    def _scan_files(self, log: PartitionLog) -> bool:
        """Update a partition by its files; return False if it does not exist."""
        if log.slot >= 0:
            self._slots[log.slot] = b""
        for _ in range(ATTEMPTS):
            with suppress(FileNotFoundError):  # the writer has just dropped a segment
                if _is_unchanged(log):
                    return self._recovery.resume_partition(log, log.head)
                return self._recovery.rescan_partition(log)
        return False

    def _list_by_files(self, topic: str | None) -> list[PartitionLog]:
        held = []
        for partition in walk_partitions(self._topics_folder, topic):
            log = self._logs.get(partition) or PartitionLog(partition, self._topics_folder)
            if self._scan_files(log):
                self._logs[partition] = log
                held.append(log)
        return held


def _is_unchanged(log: PartitionLog) -> bool:
    """Return whether only the active segment can have changed."""
    try:
        stored_earliest, _ = log.read_earliest() or (0, 0)
    except ValueError:
        return False
    return bool(log.bases) and log.find_bases() == log.bases and stored_earliest <= log.head.earliest
