"""What a broker holds of one log: up to which offset of each branch it has the index, and all records that it names."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator

import attrs

from dafka.broker.core.log.entries import (
    Entry,
    EpochStartEntry,
    LogStartEntry,
    MarkerEntry,
    RunEntry,
    begins_again,
    decode_entries,
)
from dafka.broker.core.log.log import LEADER
from dafka.broker.core.partition_address import BranchAddress
from dafka.broker.core.replication.checkpoints import Checkpoint, Restart
from dafka.broker.core.replication.records import LeaderAndEpoch
from dafka.records import Partition

RECENT_RECORDS = 4096
"""Index records of a branch of which is remembered what they name. Acknowledgements of earlier ones do not matter."""

CHECKPOINT_RECORDS = 1000
"""Index records of the latest branch between checkpoints. Other branches get one as soon as they are held."""

CHECKPOINT_PARTITIONS_MAX = 1000
"""Partitions that a branch with checkpoints may name: each checkpoint names all of them. Other indexes are read."""

REWRITE_RECORDS = 100
"""More index records than are written when an index is written again. All of them are held when so many follow."""


@attrs.frozen
class _IndexRecord:
    """An index record that is stored, of which records may be missing.

    Attributes:
        end_sequence: The sequence after the index record.
        end_offset: The offset after the last record that it names.
        needed: By partition, the sequence after the last record that it names.
        restart_offset: If it and those behind it replace all before, the offset up to which the log reached then.
    """

    end_sequence: int
    end_offset: int
    needed: dict[Partition, int]
    restart_offset: int | None


@attrs.define
class _LocalEpoch:
    index_end: int = 0
    end_offset: int = 0
    known_offset: int = 0
    open_run: RunEntry | None = None
    restart: Restart | None = None
    recent: deque[tuple[int, int]] = attrs.field(factory=lambda: deque(maxlen=RECENT_RECORDS))
    waiting: deque[_IndexRecord] = attrs.field(factory=deque)
    named: dict[Partition, int] = attrs.field(factory=dict)
    needed: dict[str, int] = attrs.field(factory=dict)
    checkpoint_end: int = 0


class LocalLog:
    """What a broker holds of one log.

    Args:
        topic: The name of the topic.
        topic_id: The id of the topic.
        number: The number of the log.
        durable_end: Returns the sequence after the last stored record of a partition.

    Attributes:
        start_offset: The offset before which leaders have deleted the records of the log.
    """

    def __init__(self, topic: str, topic_id: str, number: int, durable_end: Callable[[Partition], int]) -> None:
        self.start_offset = 0
        self._topic = topic
        self._topic_id = topic_id
        self._number = number
        self._durable_end = durable_end
        self._branches: dict[LeaderAndEpoch, _LocalEpoch] = {}
        self._waiting: dict[LeaderAndEpoch, _LocalEpoch] = {}
        self._advanced: set[LeaderAndEpoch] = set()

    def clear(self) -> None:
        """Note that nothing of the log is held any more."""
        self._branches.clear()
        self._waiting.clear()
        self._advanced.clear()
        self.start_offset = 0

    def ends(self) -> dict[LeaderAndEpoch, int]:
        """Return the offset up to which each branch is held."""
        return {branch: held.end_offset for branch, held in self._branches.items()}

    def acknowledged_end(self, branch: LeaderAndEpoch) -> int:
        """Return the sequence after the last index record of a branch of which everything is held."""
        held = self._branches.get(branch)
        return 0 if held is None else held.index_end

    def restore(self, branch: LeaderAndEpoch, checkpoint: Checkpoint) -> None:
        """Take over a checkpoint of a branch, of which nothing is known yet. `add_index` gets what follows it."""
        held = self._branches[branch] = _LocalEpoch(checkpoint.index_end, checkpoint.end_offset, checkpoint.end_offset)
        held.restart, held.needed = checkpoint.restart, dict(checkpoint.needed)
        held.checkpoint_end = checkpoint.index_end
        held.recent.append((checkpoint.index_end, checkpoint.end_offset))
        self.start_offset = max(self.start_offset, checkpoint.start_offset)

    def take_checkpoints(self, latest: LeaderAndEpoch) -> Iterator[tuple[LeaderAndEpoch, Checkpoint]]:
        """Go through the branches that are held further than their last checkpoints say.

        Args:
            latest: The latest branch, of which more is to come.

        Yields:
            Each with its next checkpoint.
        """
        for branch in list(self._advanced):
            held = self._branches[branch]
            is_due = branch != latest or held.index_end - held.checkpoint_end >= CHECKPOINT_RECORDS
            if not is_due or held.waiting or held.open_run is not None:
                continue
            self._advanced.discard(branch)
            if len(held.needed) <= CHECKPOINT_PARTITIONS_MAX:
                held.checkpoint_end, needed = held.index_end, dict(held.needed)
                yield branch, Checkpoint(held.index_end, held.end_offset, self.start_offset, held.restart, needed)

    def add_index(self, branch: LeaderAndEpoch, first_sequence: int, values: list[bytes]) -> None:
        """Note index records of a branch that are stored; those that are known already are passed over.

        Args:
            branch: The branch.
            first_sequence: The sequence of the first of them.
            values: Their values.

        Raises:
            StorageFormatError: One is malformed.
        """
        held = self._branches.setdefault(branch, _LocalEpoch())
        known_end = held.recent[-1][0] if held.recent else first_sequence
        values, first_sequence = values[max(known_end - first_sequence, 0) :], max(first_sequence, known_end)
        address = str(BranchAddress(branch.leader, self._topic_id, self._number, branch.epoch))
        for sequence, value in enumerate(values, first_sequence):
            needed: dict[Partition, int] = {}
            restart_offset = held.known_offset if begins_again(value) else None
            for entry in decode_entries(value):
                if isinstance(entry, LogStartEntry):
                    self.start_offset = max(self.start_offset, entry.offset)
                held.known_offset = max(held.known_offset, _end_of(entry))
                for run in _ended_runs(held, entry):
                    partition = Partition(self._topic, address if run.address == LEADER else run.address)
                    end = run.first_sequence + run.record_count
                    needed[partition] = max(end, needed.get(partition, 0))
                    held.named[partition] = max(end, held.named.get(partition, 0))
            self._waiting[branch] = held
            held.waiting.append(_IndexRecord(sequence + 1, held.known_offset, needed, restart_offset))
            held.recent.append((sequence + 1, held.known_offset))

    def offset_at(self, branch: LeaderAndEpoch, index_end: int) -> int | None:
        """Return the offset after the last record that the index records of a branch up to a sequence name.

        Args:
            branch: The branch.
            index_end: The sequence after the last index record.

        Returns:
            The offset; None if it is not remembered.
        """
        held = self._branches.get(branch)
        found = 0 if held is None else bisect_right(held.recent, index_end, key=lambda each: each[0])
        return held.recent[found - 1][1] if held is not None and found else None

    def advance(self) -> Iterator[tuple[LeaderAndEpoch, int]]:
        """Yield the branches of which more is held than before, each with the offset up to which it is held."""
        for branch, held in list(self._waiting.items()):
            before = held.index_end
            while held.waiting and not self._missing(held.waiting[0]):
                record = held.waiting.popleft()
                held.index_end, held.end_offset = record.end_sequence, record.end_offset
                for partition, end in record.needed.items():
                    held.needed[partition.address] = max(end, held.needed.get(partition.address, 0))
                if record.restart_offset is not None:
                    held.restart = Restart(record.end_sequence - 1, record.restart_offset)
            if not held.waiting:
                held.named.clear()
                self._waiting.pop(branch, None)
            if held.index_end > before:
                self._advanced.add(branch)
                yield branch, held.end_offset

    def restart(self, branch: LeaderAndEpoch) -> Restart | None:
        """Return where the index of a branch was last written again, as far as it is held; None if it was not."""
        held = self._branches.get(branch)
        return None if held is None else held.restart

    def needed_from(self) -> dict[LeaderAndEpoch, int]:
        """Return the branches whose index was written again, each with the sequence of its first record that counts."""
        return {
            branch: held.restart.sequence
            for branch, held in self._branches.items()
            if held.restart is not None and held.index_end >= held.restart.sequence + REWRITE_RECORDS
        }

    def known_ends(self) -> dict[LeaderAndEpoch, int]:
        """Return the offset up to which the index of each branch is held, with or without the records that it names."""
        return {branch: held.known_offset for branch, held in self._branches.items()}

    def missing(self) -> dict[Partition, int]:
        """Return the partitions of which records are named, and not held, each with the sequence after the last one."""
        found: dict[Partition, int] = {}
        for held in self._waiting.values():
            held.named = {each: end for each, end in held.named.items() if self._durable_end(each) < end}
            found.update(held.named)
        return found

    def _missing(self, record: _IndexRecord) -> list[tuple[Partition, int]]:
        return [(partition, end) for partition, end in record.needed.items() if self._durable_end(partition) < end]


def _ended_runs(held: _LocalEpoch, entry: Entry) -> Iterator[RunEntry]:
    """Yield the runs whose ends an entry tells: its own, and that of an open run before it."""
    if not isinstance(entry, RunEntry | MarkerEntry):
        return
    before, held.open_run = held.open_run, None
    if before is not None:
        yield before._replace(record_count=entry.offset - before.offset)
    if isinstance(entry, RunEntry):
        if entry.record_count:
            yield entry
        else:
            held.open_run = entry


def _end_of(entry: Entry) -> int:
    """Return the offset after what an entry gives an offset to; 0 if it does not."""
    if isinstance(entry, RunEntry):
        return entry.offset + entry.record_count
    if isinstance(entry, MarkerEntry):
        return entry.offset + 1
    return entry.offset if isinstance(entry, EpochStartEntry) else 0
