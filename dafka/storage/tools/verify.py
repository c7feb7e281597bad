"""Is everything there, and readable? Reads every record once, and holds the totals against what was read.

Over the `Storage` protocol alone. May run beside a writer: what is appended meanwhile is not looked at, and what is
dropped meanwhile is not missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import le

import attrs

from dafka.errors import StorageCorruptError
from dafka.records import Partition, RecordBatch
from dafka.storage.base import Damage, PartitionInfo, Storage
from dafka.storage.tools.partitions import Progress, select_partitions

_READING = "found by reading"
_LISTING = "found by adding up"


@attrs.frozen
class Verification:
    """What was found: how many partitions, readable records and octets of their contents, and what is wrong.

    `damages` stand in the storage now; damage that runs on is one. `repairs` are `Storage.repairs` beyond these.
    """

    partitions: int
    records: int
    content_bytes: int
    damages: tuple[Damage, ...]
    repairs: tuple[Damage, ...]


async def verify(storage: Storage, *, progress: Progress | None = None) -> Verification:
    """Reads every record, and asks the storage what else is wrong.

    Raises `StorageError` where the medium cannot be read at all.
    """
    verifier = _Verifier(storage, progress)
    await verifier.compare_statistics()
    await verifier.read_everything()
    found = tuple(verifier.damages)
    checked = tuple(_news(await storage.find_damage(), found))
    repairs = tuple(_news(storage.repairs, found + checked))
    return Verification(verifier.partitions, verifier.records, verifier.content_bytes, found + checked, repairs)


def _news(damages: Iterable[Damage], known: tuple[Damage, ...]) -> Iterable[Damage]:
    """Those of which no part of the records is known to be damaged already."""
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
    def __init__(self, storage: Storage, progress: Progress | None) -> None:
        self.partitions = 0
        self.records = 0
        self.content_bytes = 0
        self.damages: list[Damage] = []
        self._storage = storage
        self._progress = progress
        self._infos: dict[Partition, PartitionInfo] = {}
        self._done = 0
        self._total = 0

    async def compare_statistics(self) -> None:
        """Sees that the storage's totals are those of its partitions, unless they change meanwhile."""
        before = await select_partitions(self._storage)
        statistics = await self._storage.statistics()
        self._infos = await select_partitions(self._storage)
        self._total = sum(info.count for info in self._infos.values())
        if before != self._infos:
            return
        for what, given, listed in (
            ("partitions", statistics.partitions, len(before)),
            ("records", statistics.records, self._total),
            ("octets of content", statistics.content_bytes, sum(info.content_bytes for info in before.values())),
        ):
            if given != listed:
                self.damages.append(Damage("statistics", f"{given} {what}, but the partitions add up to {listed}"))

    async def read_everything(self) -> None:
        for partition in list(self._infos):
            await self._read_partition(partition)
            self.partitions += 1

    async def _read_partition(self, partition: Partition) -> None:
        info = self._infos[partition]
        tally = _Tally()
        damages: list[Damage] = []
        sequence = info.earliest_sequence
        while sequence < info.end_sequence:
            following, reason = await self._read_from(partition, sequence, info.end_sequence, tally)
            if reason:
                _add_run(damages, Damage(_READING, reason, partition, sequence, following))
            self._show(following - sequence)
            sequence = following
        self.records += tally.records
        self.content_bytes += tally.content_bytes
        contradiction = "" if damages else tally.contradiction(info)
        if contradiction and await self._earliest_now(partition) == info.earliest_sequence:
            damages.append(Damage(_LISTING, contradiction, partition, info.earliest_sequence, info.end_sequence))
        self.damages += damages

    async def _read_from(
        self, partition: Partition, sequence: int, end_sequence: int, tally: _Tally
    ) -> tuple[int, str]:
        """Where to read on, and what is wrong with the records before; no reason where nothing is."""
        try:
            batch = await self._storage.read(partition, sequence, end_sequence - sequence, with_times=True)
        except StorageCorruptError as error:
            return min(max(error.end_sequence, sequence + 1), end_sequence), _reason(error, partition)
        if batch is not None:
            tally.add(batch)
            return batch.end_sequence, ""
        earliest = await self._earliest_now(partition)
        if earliest > sequence:
            return min(earliest, end_sequence), ""
        return await self._find_next(partition, sequence, end_sequence), "not there"

    async def _find_next(self, partition: Partition, missing: int, end_sequence: int) -> int:
        """The sequence after a run of missing ones, found in steps that double: the run may be long."""
        step = 1
        while missing + step < end_sequence and not await self._is_there(partition, missing + step):
            missing += step
            step *= 2
        there = min(missing + step, end_sequence)
        while there - missing > 1:
            middle = (missing + there) // 2
            if await self._is_there(partition, middle):
                there = middle
            else:
                missing = middle
        return there

    async def _is_there(self, partition: Partition, sequence: int) -> bool:
        """Whether reading here tells something: a record, or its damage."""
        try:
            return await self._storage.read(partition, sequence, 1) is not None
        except StorageCorruptError:
            return True

    async def _earliest_now(self, partition: Partition) -> int:
        """Where it begins by now. What else of the topic is still to be read is read as it is now, too."""
        current = await self._storage.partitions(partition.topic)
        for other, info in current.items():
            if other in self._infos:
                self._infos[other] = info
        return current.get(partition, PartitionInfo()).earliest_sequence

    def _show(self, records: int) -> None:
        self._done += records
        if self._progress is not None:
            self._progress(self._done, max(self._done, self._total))


@attrs.define
class _Tally:
    """What was read of one partition."""

    records: int = 0
    content_bytes: int = 0
    earliest_stored_at: int | None = None
    latest_stored_at: int | None = None
    goes_back: bool = False

    def add(self, batch: RecordBatch) -> None:
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

    def contradiction(self, info: PartitionInfo) -> str:
        """What of the totals is not so; empty where all are right."""
        if self.goes_back:
            return "the times of its records go back"
        for what, read, listed in (
            ("records", self.records, info.count),
            ("octets of content", self.content_bytes, info.content_bytes),
            ("as the first record's time", self.earliest_stored_at, info.earliest_stored_at),
            ("as the last record's time", self.latest_stored_at, info.latest_stored_at),
        ):
            if read != listed:
                return f"listed with {listed} {what}, but reading gives {read}"
        return ""


def _add_run(damages: list[Damage], damage: Damage) -> None:
    """Damage that goes on where the last one ends is one with it."""
    if damages and damages[-1].end_sequence == damage.first_sequence:
        damages[-1] = attrs.evolve(damages[-1], end_sequence=damage.end_sequence)
    else:
        damages.append(damage)


def _reason(error: StorageCorruptError, partition: Partition) -> str:
    """The error's message without the names of the partition and the records, which the damage gives itself."""
    records = r"sequences? \d+(?: to \d+)?(?:: | is | are )"
    return re.sub(rf"^{re.escape(str(partition))}(?:: |, )(?:{records})?", "", str(error))
