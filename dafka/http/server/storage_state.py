"""Measures a broker's storage, and verifies it when an operator requests it."""

from __future__ import annotations

import logging
from typing import Annotated, Literal

import trio

from dafka.errors import StorageError
from dafka.http.server.documents import Count, Document, doc
from dafka.storage import Storage
from dafka.storage.base import Damage
from dafka.storage.disk_space import measure_disk
from dafka.storage.plugin_helpers import now_ms
from dafka.storage.tools.verify import verify_storage

_LOGGER = logging.getLogger("dafka.http")


USAGE_S = 3.0
"""How long a measurement of the storage is cached."""


class StorageUsage(Document):
    """The size of a storage."""

    partitions: Annotated[Count, doc("Partitions.")]
    records: Annotated[Count, doc("Records.")]
    content_bytes: Annotated[Count, doc("The size of their values, keys and headers.")]
    stored_bytes: Annotated[Count, doc("The space in use, with indexes.")]
    free_bytes: Annotated[Count | None, doc("The free space on the disk; null if the storage is not on one.")]
    total_bytes: Annotated[Count | None, doc("The size of the disk; null if the storage is not on one.")]


class DamageDetails(Document):
    """Damaged data in the storage."""

    location: Annotated[str, doc("Where it is.")]
    reason: Annotated[str, doc("What is damaged.")]
    topic: Annotated[str, doc("The topic of the records affected; empty if none are.")]
    address: Annotated[str, doc("The producer of the records affected; empty if none are.")]
    first_sequence: Annotated[Count, doc("The sequence of the first record affected.")]
    end_sequence: Annotated[Count, doc("The sequence after the last record affected.")]


class Verification(Document):
    """A verification of the storage."""

    state: Literal["none", "running", "done", "failed"] = "none"
    records_read: Annotated[Count, doc("Records that were read.")] = 0
    records_total: Annotated[Count, doc("Records that there are to read.")] = 0
    partitions: Annotated[Count, doc("Partitions that were read, when it is done.")] = 0
    damages: Annotated[list[DamageDetails], doc("The damage that it has found, when it is done.")] = []
    error: Annotated[str, doc("Why it has failed; empty if it has not.")] = ""
    started_at: Annotated[Count | None, doc("When it has begun, in milliseconds since 1970.")] = None
    finished_at: Annotated[Count | None, doc("When it has ended, in milliseconds since 1970.")] = None


class StorageVerification:
    """Verifies the storage on request. One verification runs at a time, and the broker continues to work."""

    def __init__(self, storage: Storage) -> None:
        self.report = Verification()
        """The latest verification."""
        self._storage = storage
        self._wanted = trio.Event()

    def start(self) -> bool:
        """Start a verification. Return False if one is running."""
        if self.report.state == "running":
            return False
        self.report = Verification(state="running", started_at=now_ms())
        self._wanted.set()
        return True

    async def run(self) -> None:
        """Verify the storage on request, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            report = self.report
            try:
                found = await verify_storage(self._storage, progress=self._record_progress)
            except StorageError as error:
                report.state, report.error = "failed", str(error)
            except Exception:
                # A bug in this program, or in a plugin, must not stop the broker.
                report.state, report.error = "failed", "the broker's log has the reason"
                _LOGGER.exception("The verification of the storage failed")
            else:
                report.records_read, report.partitions = found.records, found.partitions
                report.damages = list(map(describe_damage, found.damages))
                report.state = "done"
            report.finished_at = now_ms()

    def _record_progress(self, records_read: int, records_total: int | None) -> None:
        self.report.records_read, self.report.records_total = records_read, records_total or 0


def describe_damage(damage: Damage) -> DamageDetails:
    """Return the description of damage."""
    partition = damage.partition
    return DamageDetails(
        damage.location,
        damage.reason,
        "" if partition is None else partition.topic,
        "" if partition is None else partition.address,
        damage.first_sequence,
        damage.end_sequence,
    )


class StorageMeter:
    """Measures the size of the storage at a URL, and caches it briefly."""

    def __init__(self, storage: Storage, url: str) -> None:
        self._storage = storage
        self._url = url
        self._usage: StorageUsage | None = None
        self._measured_at = 0.0

    async def measure(self) -> StorageUsage:
        """Return the size of the storage. Raises `StorageError`."""
        if self._usage is None or trio.current_time() - self._measured_at >= USAGE_S:
            disk = await trio.to_thread.run_sync(measure_disk, self._url)
            total, free = (None, None) if disk is None else disk
            self._usage = StorageUsage.of(await self._storage.statistics(), free_bytes=free, total_bytes=total)
            self._measured_at = trio.current_time()
        return self._usage
