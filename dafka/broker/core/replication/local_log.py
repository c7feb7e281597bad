"""What a broker stores of one log: by leader epoch, the index up to an offset and all records that it names."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

import attrs

from dafka.broker.core.log.entries import (
    Entry,
    EpochStartEntry,
    LogStartEntry,
    MarkerEntry,
    NextStartEntry,
    RunEntry,
    decode_entries,
    is_rewrite,
)
from dafka.broker.core.log.log import LEADER
from dafka.broker.core.partition_address import EpochAddress
from dafka.broker.core.positions import FIRST_OFFSET, FIRST_SEQUENCE, Offset, RecordSequence
from dafka.broker.core.replication.checkpoints import Checkpoint, Restart
from dafka.broker.core.replication.records import LeaderAndEpoch
from dafka.records import Partition

RECENT_RECORDS = 4096
"""At least how many index records of an epoch have their ends remembered. Earlier acknowledgements do not matter."""

CHECKPOINT_RECORDS = 1000
"""Index records of the latest epoch between two checkpoints. Other epochs get one as soon as they are stored."""

CHECKPOINT_PARTITIONS_MAX = 1000
"""Partitions that an epoch with checkpoints can name: each checkpoint names all. Other indexes are read again."""

REWRITE_RECORDS = 100
"""More index records than a rewrite of an index takes. When this number follows its start, the rewrite is stored."""


class _NamedEnd(NamedTuple):
    """The end of what an index names of a partition: the sequence and the offset after the last record."""

    sequence: int
    offset: Offset


@attrs.frozen
class _IndexRecord:
    """A stored index record whose records can be missing."""

    end_sequence: RecordSequence  # after the index record
    end_offset: Offset  # after the last record that it names
    named: dict[Partition, _NamedEnd]
    restart_offset: Offset | None  # the end of the log, if a rewritten index begins here


@attrs.define
class _LocalEpoch:
    index_end: RecordSequence = FIRST_SEQUENCE
    end_offset: Offset = FIRST_OFFSET
    known_offset: Offset = FIRST_OFFSET
    start_offset: Offset = FIRST_OFFSET
    open_run: RunEntry | None = None
    restart: Restart | None = None
    recent: list[tuple[RecordSequence, Offset]] = attrs.field(factory=list)
    waiting: list[_IndexRecord] = attrs.field(factory=list)
    named: dict[Partition, _NamedEnd] = attrs.field(factory=dict)
    needed: dict[str, int] = attrs.field(factory=dict)
    checkpoint_end: RecordSequence = FIRST_SEQUENCE


@attrs.define(eq=False, slots=False)
class LocalLog:
    """What a broker stores of one log.

    `durable_end` returns the sequence after the last stored record of a partition. `start_offset` is the start of the
    log, and `next_start` the one that a leader has decided. Records before the start are not needed: perhaps nobody has
    them. If epochs `can_diverge`, only the start in the index of an epoch itself says so.
    """

    _topic: str
    _topic_id: str
    _number: int
    _durable_end: Callable[[Partition], int]
    _can_diverge: bool = False
    start_offset: Offset = FIRST_OFFSET
    next_start: Offset = FIRST_OFFSET
    _local_epochs: dict[LeaderAndEpoch, _LocalEpoch] = attrs.field(init=False, factory=dict)
    _waiting: dict[LeaderAndEpoch, _LocalEpoch] = attrs.field(init=False, factory=dict)
    _advanced: dict[LeaderAndEpoch, None] = attrs.field(init=False, factory=dict)

    def clear(self) -> None:
        """Forget everything, because the local log is deleted."""
        self._local_epochs.clear()
        self._waiting.clear()
        self._advanced.clear()
        self.start_offset = self.next_start = FIRST_OFFSET

    def ends(self) -> dict[LeaderAndEpoch, Offset]:
        """Return the offset up to which each epoch is stored."""
        return {leader_epoch: local_epoch.end_offset for leader_epoch, local_epoch in self._local_epochs.items()}

    def acknowledged_end(self, leader_epoch: LeaderAndEpoch) -> RecordSequence:
        """Return the sequence after the last index record of an epoch that is stored together with its records."""
        local_epoch = self._local_epochs.get(leader_epoch)
        return FIRST_SEQUENCE if local_epoch is None else local_epoch.index_end

    def restore(self, leader_epoch: LeaderAndEpoch, checkpoint: Checkpoint) -> None:
        """Restore an epoch, so far unknown, from a checkpoint. `add_index` gets what follows it."""
        local_epoch = self._local_epochs[leader_epoch] = _LocalEpoch(
            checkpoint.index_end, checkpoint.end_offset, checkpoint.end_offset
        )
        local_epoch.restart, local_epoch.needed = checkpoint.restart, dict(checkpoint.needed)
        local_epoch.checkpoint_end = checkpoint.index_end
        local_epoch.recent.append((checkpoint.index_end, checkpoint.end_offset))
        self.start_offset = max(self.start_offset, checkpoint.start_offset)
        self.next_start = max(self.next_start, checkpoint.next_start)

    def take_checkpoints(self, latest: LeaderAndEpoch) -> Iterator[tuple[LeaderAndEpoch, Checkpoint]]:
        """Yield checkpoints for the epochs that have advanced beyond their last ones. The latest one still grows."""
        for leader_epoch in list(self._advanced):
            local_epoch = self._local_epochs[leader_epoch]
            is_due = leader_epoch != latest or local_epoch.index_end - local_epoch.checkpoint_end >= CHECKPOINT_RECORDS
            if not is_due or local_epoch.waiting or local_epoch.open_run is not None:
                continue
            del self._advanced[leader_epoch]
            if len(local_epoch.needed) <= CHECKPOINT_PARTITIONS_MAX:
                local_epoch.checkpoint_end, needed = local_epoch.index_end, dict(local_epoch.needed)
                yield (
                    leader_epoch,
                    Checkpoint(
                        local_epoch.index_end,
                        local_epoch.end_offset,
                        self.start_offset,
                        self.next_start,
                        local_epoch.restart,
                        needed,
                    ),
                )

    def add_index(self, leader_epoch: LeaderAndEpoch, first_sequence: RecordSequence, values: list[bytes]) -> None:
        """Add stored index records of an epoch. Records that are already known are skipped.

        Raise `StorageFormatError` if one is malformed.
        """
        local_epoch = self._local_epochs.setdefault(leader_epoch, _LocalEpoch())
        known_end = local_epoch.recent[-1][0] if local_epoch.recent else first_sequence
        values, first_sequence = values[max(known_end - first_sequence, 0) :], max(first_sequence, known_end)
        address = str(EpochAddress(leader_epoch.leader, self._topic_id, self._number, leader_epoch.epoch))
        for sequence, value in enumerate(values, first_sequence):
            named: dict[Partition, _NamedEnd] = {}
            restart_offset = local_epoch.known_offset if is_rewrite(value) else None
            for entry in decode_entries(value):
                if isinstance(entry, LogStartEntry):
                    self.start_offset = max(self.start_offset, entry.offset)
                    local_epoch.start_offset = max(local_epoch.start_offset, entry.offset)
                if isinstance(entry, LogStartEntry | NextStartEntry):
                    self.next_start = max(self.next_start, entry.offset)
                local_epoch.known_offset = max(local_epoch.known_offset, _end_of(entry))
                for run in _ended_runs(local_epoch, entry):
                    partition = Partition(self._topic, address if run.address == LEADER else run.address)
                    end = _NamedEnd(run.first_sequence + run.record_count, Offset(run.offset + run.record_count))
                    named[partition] = max(end, named.get(partition, end))
            local_epoch.named |= {each: max(end, local_epoch.named.get(each, end)) for each, end in named.items()}
            self._waiting[leader_epoch] = local_epoch
            end_sequence = RecordSequence(sequence + 1)
            local_epoch.waiting.append(_IndexRecord(end_sequence, local_epoch.known_offset, named, restart_offset))
            local_epoch.recent.append((end_sequence, local_epoch.known_offset))
        if len(local_epoch.recent) >= 2 * RECENT_RECORDS:
            del local_epoch.recent[:-RECENT_RECORDS]

    def offset_at(self, leader_epoch: LeaderAndEpoch, index_end: RecordSequence) -> Offset | None:
        """Return the offset after the last record that the index of an epoch names before a sequence.

        Return None if it is not remembered.
        """
        local_epoch = self._local_epochs.get(leader_epoch)
        found = 0 if local_epoch is None else bisect_right(local_epoch.recent, index_end, key=lambda each: each[0])
        return local_epoch.recent[found - 1][1] if local_epoch is not None and found else None

    def advance(self) -> Iterator[tuple[LeaderAndEpoch, Offset]]:
        """Yield the epochs that have advanced, each with the offset up to which it is stored."""
        for leader_epoch, local_epoch in list(self._waiting.items()):
            before, start, waiting = local_epoch.index_end, self._start_of(local_epoch), local_epoch.waiting
            count = next((at for at, each in enumerate(waiting) if self._missing(each.named, start)), len(waiting))
            complete = waiting[:count]
            del waiting[:count]
            for record in complete:
                local_epoch.index_end, local_epoch.end_offset = record.end_sequence, record.end_offset
                for partition, end in record.named.items():
                    if self._durable_end(partition) >= end.sequence:
                        address = partition.address
                        local_epoch.needed[address] = max(end.sequence, local_epoch.needed.get(address, 0))
                if record.restart_offset is not None:
                    local_epoch.restart = Restart(RecordSequence(record.end_sequence - 1), record.restart_offset)
            if not local_epoch.waiting:
                local_epoch.named.clear()
                self._waiting.pop(leader_epoch, None)
            if local_epoch.index_end > before:
                self._advanced[leader_epoch] = None
                yield leader_epoch, local_epoch.end_offset

    def restart(self, leader_epoch: LeaderAndEpoch) -> Restart | None:
        """Return where the index of an epoch was last written again, as far as it is stored; None if it was not."""
        local_epoch = self._local_epochs.get(leader_epoch)
        return None if local_epoch is None else local_epoch.restart

    def needed_from(self) -> dict[LeaderAndEpoch, RecordSequence]:
        """Return the epochs whose index was written again, each with the sequence of its first record that counts."""
        return {
            leader_epoch: local_epoch.restart.sequence
            for leader_epoch, local_epoch in self._local_epochs.items()
            if local_epoch.restart is not None
            and local_epoch.index_end >= local_epoch.restart.sequence + REWRITE_RECORDS
        }

    def known_ends(self) -> dict[LeaderAndEpoch, Offset]:
        """Return the offset up to which the index of each epoch is stored, with or without its records."""
        return {leader_epoch: local_epoch.known_offset for leader_epoch, local_epoch in self._local_epochs.items()}

    def missing(self) -> dict[Partition, int]:
        """Return the partitions with named records that are not stored, each with the sequence after the last one."""
        found: dict[Partition, int] = {}
        for local_epoch in self._waiting.values():
            local_epoch.named = self._missing(local_epoch.named, self._start_of(local_epoch))
            found.update((partition, end.sequence) for partition, end in local_epoch.named.items())
        return found

    def _start_of(self, local_epoch: _LocalEpoch) -> Offset:
        return local_epoch.start_offset if self._can_diverge else self.start_offset

    def _missing(self, named: dict[Partition, _NamedEnd], start: Offset) -> dict[Partition, _NamedEnd]:
        return {
            partition: end
            for partition, end in named.items()
            if self._durable_end(partition) < end.sequence and end.offset > start
        }


def _ended_runs(local_epoch: _LocalEpoch, entry: Entry) -> Iterator[RunEntry]:
    """Yield the runs whose length an entry makes known: its own, and that of an open run before it."""
    if not isinstance(entry, RunEntry | MarkerEntry):
        return
    before, local_epoch.open_run = local_epoch.open_run, None
    if before is not None:
        yield before._replace(record_count=entry.offset - before.offset)
    if isinstance(entry, RunEntry):
        if entry.record_count:
            yield entry
        else:
            local_epoch.open_run = entry


def _end_of(entry: Entry) -> Offset:
    """Return the offset after the records or the marker of an entry, or the start of an epoch; 0 for other entries."""
    if isinstance(entry, RunEntry):
        return Offset(entry.offset + entry.record_count)
    if isinstance(entry, MarkerEntry):
        return Offset(entry.offset + 1)
    return entry.offset if isinstance(entry, EpochStartEntry) else FIRST_OFFSET
