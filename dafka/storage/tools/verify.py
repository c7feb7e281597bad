"""Verifying a storage: reading every record once, and comparing the totals.

A storage can be verified while it is written to: records appended meanwhile are not read, and records dropped meanwhile
are not reported as missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import le

import attrs

from dafka.errors import StorageCorruptError
from dafka.records import Partition, RecordBatch
from dafka.storage.base import Damage, PartitionInfo, Storage
from dafka.storage.tools.partitions import ProgressCallback, select_partitions

_READING = "found by reading"
_LISTING = "found by comparing totals"


@attrs.frozen
class Verification:
    """The result of `verify_storage`. `records` and `content_bytes` count what is readable."""

    partitions: int
    records: int
    content_bytes: int
    damages: tuple[Damage, ...]
    """The damage in the storage now. Adjacent damage is reported as one."""
    repairs: tuple[Damage, ...]
    """The damage in `Storage.repairs` that `damages` does not cover."""


async def verify_storage(storage: Storage, *, progress: ProgressCallback | None = None) -> Verification:
    """Read every record, and ask the storage for damage that reading does not show.

    Raise `StorageError` if the medium cannot be read at all.
    """
    verifier = _Verifier(storage, progress)
    await verifier.compare_statistics()
    await verifier.read_everything()
    found = tuple(verifier.damages)
    checked = tuple(_not_covered(await storage.find_damage(), found))
    repairs = tuple(_not_covered(storage.repairs, found + checked))
    return Verification(len(verifier.infos), verifier.records, verifier.content_bytes, found + checked, repairs)


def _not_covered(damages: Iterable[Damage], known: tuple[Damage, ...]) -> Iterable[Damage]:
    """Return the damages that do not overlap known ones."""
    hit: dict[Partition, list[Damage]] = {}
    for damage in known:
        if damage.partition is not None:
            hit.setdefault(damage.partition, []).append(damage)
    for damage in damages:
        others = hit.get(damage.partition, []) if damage.partition is not None else []
        if not any(
            damage.first_sequence < other.end_sequence and other.first_sequence < damage.end_sequence
            for other in others
        ):
            yield damage


class _Verifier:
    def __init__(self, storage: Storage, progress: ProgressCallback | None) -> None:
        self.infos: dict[Partition, PartitionInfo] = {}
        self.records = 0
        self.content_bytes = 0
        self.damages: list[Damage] = []
        self._storage = storage
        self._progress = progress
        self._done = 0
        self._total = 0

    async def compare_statistics(self) -> None:
        """Compare the totals of the storage with those of its partitions, unless they change meanwhile."""
        before = await select_partitions(self._storage)
        statistics = await self._storage.statistics()
        self.infos = await select_partitions(self._storage)
        self._total = sum(info.count for info in self.infos.values())
        if before != self.infos:
            return
        for what, given, listed in (
            ("partitions", statistics.partitions, len(before)),
            ("records", statistics.records, self._total),
            ("bytes of content", statistics.content_bytes, sum(info.content_bytes for info in before.values())),
        ):
            if given != listed:
                self.damages.append(Damage("statistics", f"{given} {what}, but the partitions add up to {listed}"))

    async def read_everything(self) -> None:
        for partition in list(self.infos):
            await self._read_partition(partition)

    async def _read_partition(self, partition: Partition) -> None:
        info = self.infos[partition]
        totals = _PartitionTotals()
        damages: list[Damage] = []
        sequence = info.earliest_sequence
        while sequence < info.end_sequence:
            following, reason = await self._read_from(partition, sequence, info.end_sequence, totals)
            if reason:
                _add_run(damages, Damage(_READING, reason, partition, sequence, following))
            self._report_progress(following - sequence)
            sequence = following
        self.records += totals.records
        self.content_bytes += totals.content_bytes
        difference = "" if damages else totals.find_difference(info)
        if difference and await self._refresh_earliest(partition) == info.earliest_sequence:
            damages.append(Damage(_LISTING, difference, partition, info.earliest_sequence, info.end_sequence))
        self.damages += damages

    async def _read_from(
        self, partition: Partition, sequence: int, end_sequence: int, totals: _PartitionTotals
    ) -> tuple[int, str]:
        """Read some records; return the next sequence, and the reason why those before it are damaged, or ""."""
        try:
            batch = await self._storage.read(partition, sequence, end_sequence - sequence, with_times=True)
        except StorageCorruptError as error:
            return min(max(error.end_sequence, sequence + 1), end_sequence), _reason(error, partition)
        if batch is not None:
            totals.add_batch(batch)
            return batch.end_sequence, ""
        earliest = await self._refresh_earliest(partition)
        if earliest > sequence:
            return min(earliest, end_sequence), ""
        return await self._find_next(partition, sequence, end_sequence), "missing"

    async def _find_next(self, partition: Partition, missing: int, end_sequence: int) -> int:
        """Return the sequence after a run of missing records, searching in doubling steps because runs can be long."""
        step = 1
        while missing + step < end_sequence and not await self._is_found(partition, missing + step):
            missing += step
            step *= 2
        there = min(missing + step, end_sequence)
        while there - missing > 1:
            middle = (missing + there) // 2
            if await self._is_found(partition, middle):
                there = middle
            else:
                missing = middle
        return there

    async def _is_found(self, partition: Partition, sequence: int) -> bool:
        """Return whether a record is held at this sequence, readable or damaged."""
        try:
            return await self._storage.read(partition, sequence, 1) is not None
        except StorageCorruptError:
            return True

    async def _refresh_earliest(self, partition: Partition) -> int:
        """Return the partition's current earliest sequence, and refresh the limits of the topic's other partitions."""
        current = await self._storage.partitions(partition.topic)
        for other, info in current.items():
            if other in self.infos:
                self.infos[other] = info
        return current.get(partition, PartitionInfo()).earliest_sequence

    def _report_progress(self, records: int) -> None:
        self._done += records
        if self._progress is not None:
            self._progress(self._done, max(self._done, self._total))


@attrs.define
class _PartitionTotals:
    """The totals of the records that were read from one partition."""

    records: int = 0
    content_bytes: int = 0
    earliest_stored_at: int | None = None
    latest_stored_at: int | None = None
    goes_back: bool = False
    begins_compacted: bool = False
    """Whether compaction has removed the first record, so that its time is unknown."""

    def add_batch(self, batch: RecordBatch) -> None:
        if not self.records and batch.compacted is not None:
            self.begins_compacted = bool(batch.compacted[0])
        self.records += len(batch)
        self.content_bytes += batch.content_bytes
        times = batch.stored_at or ()
        if not times:
            return
        if self.latest_stored_at is None:
            self.earliest_stored_at = self.latest_stored_at = times[0]
        is_in_order = self.latest_stored_at <= times[0] and all(map(le, times, times[1:]))
        self.goes_back = self.goes_back or not is_in_order
        self.latest_stored_at = times[-1]

    def find_difference(self, info: PartitionInfo) -> str:
        """Describe how the listed totals differ from those read; "" if they are equal."""
        if self.goes_back:
            return "the times of its records decrease"
        earliest_at = info.earliest_stored_at if self.begins_compacted else self.earliest_stored_at
        for what, read, listed in (
            ("records", self.records, info.count),
            ("bytes of content", self.content_bytes, info.content_bytes),
            ("time of the first record", earliest_at, info.earliest_stored_at),
            ("time of the last record", self.latest_stored_at, info.latest_stored_at),
        ):
            if read != listed:
                return f"{what}: listed as {listed}, but reading gave {read}"
        return ""


def _add_run(damages: list[Damage], damage: Damage) -> None:
    """Add damage to a list, joined with the last one if they are adjacent."""
    if damages and damages[-1].end_sequence == damage.first_sequence:
        damages[-1] = attrs.evolve(damages[-1], end_sequence=damage.end_sequence)
    else:
        damages.append(damage)


def _reason(error: StorageCorruptError, partition: Partition) -> str:
    """Return an error's message without the partition and the sequences, which `Damage` names itself."""
    records = r"sequences? \d+(?: to \d+)?(?:: | is | are )"
    return re.sub(rf"^{re.escape(str(partition))}(?:: |, )(?:{records})?", "", str(error))
