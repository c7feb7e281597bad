"""Compacts the logs of a broker's topics: keeps the last committed record of each key.

Offsets decide which record is the last one, also if the records are in several partitions. A pass reads the new part of
the log, up to the last stable offset, and records the last offset of each key. Then the storage removes records with
lower offsets and those of aborted transactions from each partition. Records beyond the high watermark or of open
transactions stay.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import attrs
import trio

from dafka.batches import decode_batch, decode_held, read_header
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.topic_settings import is_compacted, number_of
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import FIRST_OFFSET, Offset, RecordSequence
from dafka.broker.log.expiry import find_stored_offset
from dafka.broker.log.reader import LogReader, split_committed
from dafka.config import Config
from dafka.errors import BatchError, StorageError
from dafka.internal_topics import is_internal_topic
from dafka.records import Partition, RecordBatch
from dafka.roles.compactor import CLEAN_ENDS, Compactor
from dafka.storage import Compactable, Compacted, CompactsPartitions, Storage
from dafka.storage.compaction import CompactionPolicy, LatestKeys, find_tombstones
from dafka.storage.plugin_helpers import now_ms

KEYS_READ_BYTES = 2**17
"""The size of one read while keys are recorded, in bytes."""


class CompactableRun(NamedTuple):
    """Consecutive records of a partition that have consecutive offsets in the log, from `offset` on."""

    first_sequence: RecordSequence
    end_sequence: RecordSequence
    offset: Offset


@attrs.frozen
class _Part:
    """A partition of a log, with its address in the index. It was compacted before up to the sequence `clean_end`."""

    address: str
    partition: Partition
    clean_end: RecordSequence
    found: Compactable

    @property
    def is_dirty(self) -> bool:
        """Whether there are records that no pass has read."""
        return self.found.end_sequence > self.clean_end


@attrs.frozen(kw_only=True)
class LogPolicy(CompactionPolicy):
    """How the logs of a topic are compacted."""

    lag_min_ms: int = 0
    """How long records stay uncompacted after they were stored, in milliseconds."""
    lag_max_ms: int = 2**63 - 1
    """How long after a record was stored a pass begins at the latest, whatever was appended since, in milliseconds."""


class KeyOffsetMap:
    """Decides which records of a log a pass removes. `end_offset` is the offset after the last recorded record.

    Tombstones that were stored before a time, in milliseconds since 1970, are removed.
    """

    def __init__(self, keys_max: int, stored_before: int) -> None:
        self.end_offset = FIRST_OFFSET
        self._latest = LatestKeys(keys_max)
        self._stored_before = stored_before
        self._aborted: list[tuple[Offset, Offset]] = []

    def add(self, batches: list[bytes], aborted: list[tuple[int, Offset]]) -> bool:
        """Record the keys of record batches of the log that follow those recorded before.

        Return whether all fitted; if not, `end_offset` is that of the first batch that did not. `aborted` has the
        producers of aborted transactions, and the offsets of their first records. Raise `BatchError` if a batch is
        malformed.
        """
        headers = [(read_header(data), data) for data in batches]
        for (header, data), is_committed in split_committed(headers, aborted):
            if not is_committed:
                self._aborted.append((Offset(header.base_offset), Offset(header.end_offset)))
            elif not self._latest.has_capacity:
                self.end_offset = Offset(header.base_offset)
                return False
            elif header.is_compacted:
                for offset, columns in decode_held(header, data):
                    if columns.keys is not None:
                        self._latest.add(columns.keys, range(offset, offset + len(columns)))
            else:
                keys = decode_batch(data, header=header).keys
                if keys is not None:
                    self._latest.add(keys, range(header.base_offset, header.end_offset))
        self.end_offset = Offset(headers[-1][0].end_offset)
        return True

    def find_removed(self, runs: list[CompactableRun], batch: RecordBatch) -> bytes:
        """Return a byte for each record of a partition: 1 if it is removed, else 0. The runs are in order."""
        removed = bytearray(len(batch))
        number = max(bisect_right(runs, batch.first_sequence, key=lambda run: run.first_sequence) - 1, 0)
        for run in runs[number:]:
            if run.first_sequence >= batch.end_sequence:
                break
            offset = Offset(run.offset + max(batch.first_sequence - run.first_sequence, 0))
            part = batch.between(run.first_sequence, run.end_sequence)
            part = part.between(part.first_sequence, part.first_sequence + max(self.end_offset - offset, 0))
            if len(part):
                at = part.first_sequence - batch.first_sequence
                removed[at : at + len(part)] = self._find_in_run(part, offset)
        return bytes(removed)

    def _find_in_run(self, part: RecordBatch, offset: Offset) -> bytes:
        found = bytearray(len(part))
        if part.keys is not None:
            superseded = self._latest.find_superseded(part.keys, range(offset, offset + len(part)))
            found[:] = bytes(map(max, superseded, find_tombstones(part, self._stored_before)))
        number = bisect_right(self._aborted, offset, key=lambda each: each[1])
        for first, end in self._aborted[number:]:
            if first >= offset + len(part):
                break
            start, stop = max(first - offset, 0), min(end - offset, len(part))
            found[start:stop] = b"\1" * (stop - start)
        return bytes(found)


@attrs.define(eq=False, slots=False)
class LogCompaction:
    """Compacts the logs of a broker in the background.

    Tombstones are removed by the leader of a log alone, while `may_expire` is true of it: others go by its clock.
    """

    _log_table: LogTable
    _reader: LogReader
    _storage: Storage
    _compactor: Compactor
    _config: Config
    _may_expire: Callable[[Log], bool]

    async def run(self) -> None:
        """Compact logs until cancelled."""
        while self._compactor.is_possible:
            for name, topic in list(self._log_table.topics.items()):
                policy = None if is_internal_topic(name) else _policy_of(topic, self._config)
                if policy is None:
                    continue
                for log in self._log_table.logs(name):
                    if log.leadership.is_led or log.leadership.is_follower_readable:
                        await self._compactor.attempt(log.leader_partition, partial(self.compact_log, log, policy))
            await trio.sleep(self._config.store.compaction_interval_ms / 1000)

    async def compact_log(self, log: Log, policy: LogPolicy) -> None:
        """Compact a log if enough of it is new, or its records have waited for long enough.

        Raise `StorageError` if the storage fails or a record is damaged.
        """
        parts = await self._find_parts(log)
        dirty = sum(each.found.dirty_bytes for each in parts if each.is_dirty)
        total = sum(each.found.clean_bytes + each.found.dirty_bytes for each in parts)
        if not dirty:
            return
        first = min(log.index.find_from(each.address, each.clean_end) for each in parts if each.is_dirty)
        first, end = max(first, log.index.start_offset), log.last_stable_offset
        if policy.lag_min_ms:
            new_count = end - first
            end = min(end, await self._find_stored_before(log, policy.lag_min_ms))
            if end <= first:
                return
            dirty = dirty * (end - first) // new_count
        if dirty < policy.dirty_ratio * total and not await self._is_overdue(log, first, policy):
            return
        key_offsets = await self._record_keys(log, first, end, policy)
        for each in parts:
            await self._compact_part(log, each, key_offsets)

    async def _is_overdue(self, log: Log, first: Offset, policy: LogPolicy) -> bool:
        """Return whether the first new record has waited for `lag_max_ms`."""
        return policy.lag_max_ms < now_ms() and first < await self._find_stored_before(log, policy.lag_max_ms)

    async def _find_stored_before(self, log: Log, age_ms: int) -> Offset:
        """Return the offset after the records of a log that were stored longer ago than an age."""
        infos = await self._storage.partitions(log.topic)
        return await find_stored_offset(self._storage, log, infos, now_ms() - age_ms)

    async def _find_parts(self, log: Log) -> list[_Part]:
        storage = self._storage
        assert isinstance(storage, CompactsPartitions)
        parts = []
        for address in log.index.addresses():
            partition = log.partition_of(address)
            clean_end = RecordSequence(await self._compactor.clean_end(partition, _name(log)))
            found = await storage.find_compactable(partition, clean_end)
            if found is not None:
                parts.append(_Part(address, partition, clean_end, found))
        return parts

    async def _record_keys(self, log: Log, offset: Offset, end: Offset, policy: LogPolicy) -> KeyOffsetMap:
        """Record the keys of a log in a range of offsets, up to the capacity."""
        stored_before = now_ms() - policy.tombstone_ms if self._may_expire(log) else 0
        key_offsets = KeyOffsetMap(policy.keys_max, stored_before)
        key_offsets.end_offset = offset
        while offset < end:
            batches = await self._reader.read(log, offset, end, KEYS_READ_BYTES)
            if not batches:
                key_offsets.end_offset = end
                break
            aborted = log.aborted_between(offset, Offset(read_header(batches[-1]).end_offset))
            try:
                is_recorded = await trio.to_thread.run_sync(key_offsets.add, batches, aborted)
            except BatchError as error:
                raise StorageError(f"log {log.number} of {log.topic}: {error}") from None
            if not is_recorded:
                break
            offset = key_offsets.end_offset
            await self._compactor.throttle(sum(map(len, batches)))
        return key_offsets

    async def _compact_part(self, log: Log, part: _Part, key_offsets: KeyOffsetMap) -> None:
        storage, compactor = self._storage, self._compactor
        assert isinstance(storage, CompactsPartitions)
        runs = list(find_runs(log, part.address, RecordSequence(part.found.end_sequence)))
        recorded_ends = (run.first_sequence + key_offsets.end_offset - run.offset for run in runs)
        ends = (
            min(end, run.end_sequence) for run, end in zip(runs, recorded_ends, strict=True) if end > run.first_sequence
        )
        clean_end = min(max(ends, default=0), part.found.end_sequence)  # records without an index entry are not clean
        done: Compacted = await storage.compact(
            part.partition, clean_end, partial(key_offsets.find_removed, runs), compactor.throttle
        )
        compactor.record_removed(part.partition, done)
        if clean_end > part.clean_end:
            await compactor.save_clean_end(part.partition, clean_end, _name(log))


def find_runs(log: Log, address: str, end_sequence: RecordSequence) -> Iterator[CompactableRun]:
    """Yield the runs of a partition in a log, up to a sequence."""
    index = log.index
    sequence = index.sequence_from(address, index.start_offset)
    while sequence is not None and sequence < end_sequence:
        offset = index.find(address, sequence)
        location = None if offset is None else index.locate(offset)
        if location is None or offset is None or location.address != address:
            return
        yield CompactableRun(sequence, RecordSequence(sequence + location.record_count), offset)
        sequence = index.sequence_from(address, Offset(offset + location.record_count))


def _name(log: Log) -> str:
    """Return the name under which the storage saves the clean ends of a log's partitions."""
    return f"{CLEAN_ENDS} {log.number}"


def _policy_of(topic: Topic, config: Config) -> LogPolicy | None:
    """Return how a topic is compacted; None if it is not."""
    if not is_compacted(topic, config):
        return None
    settings, store = topic.settings, config.store
    return LogPolicy(
        dirty_ratio=float(settings.get("min.cleanable.dirty.ratio", store.compaction_dirty_percent / 100)),
        tombstone_ms=number_of(topic, config, "delete.retention.ms"),
        keys_max=store.compaction_keys_max,
        lag_min_ms=number_of(topic, config, "min.compaction.lag.ms"),
        lag_max_ms=number_of(topic, config, "max.compaction.lag.ms"),
    )
