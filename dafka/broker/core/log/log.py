"""One log of a broker: its index, its transactions, and its unwritten index entries."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import attrs

from dafka.broker.core.log.entries import (
    TRANSACTIONAL,
    BatchEntry,
    DivergentEntry,
    DroppedEntry,
    Entry,
    EpochStartEntry,
    IndexRewriteEntry,
    LogStartEntry,
    MarkerEntry,
    MergedEntry,
    NextStartEntry,
    RunEntry,
    decode_entries,
)
from dafka.broker.core.log.log_index import LogIndex
from dafka.broker.core.log.open_transactions import OpenTransactions
from dafka.broker.core.log.producer_batches import ProducerBatches, TransactionRuns
from dafka.broker.core.log.producer_state import ProducerStates
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.positions import (
    FIRST_OFFSET,
    FIRST_SEQUENCE,
    AtOffset,
    Offset,
    Position,
    RecordSequence,
    log_order,
    sequence_of,
)
from dafka.records import Partition

LEADER = ""
"""The address of the leader partition in the index of a log: the partition of the leader's own clients."""

_RESTORED: Mapping[str, Callable[[], object]] = {
    "index": LogIndex,
    "producers": ProducerStates,
    "producer_batches": ProducerBatches,
    "unshared_batches": list,
    "transactions": OpenTransactions,
    "transaction_runs": TransactionRuns,
}
"""The parts of a log that are restored from its index."""

_WAITING: Mapping[str, Callable[[], object]] = {"unwritten": list, "markers": list, "divergent": list, "backfill": dict}
"""The parts of a log that are written with the next records."""

_PARTS = {**_RESTORED, **_WAITING, "withdrawn": list, "former_ends": dict}
"""The parts of a log that are made when they are first used: most logs of a broker are led by others, or are idle."""

UNSHARED_BATCHES_MAX = 10_000
"""How many batches of a log are kept because another leader epoch may not have them."""

FORMER_ENDS_MAX = 16
"""For how many leader epochs a broker remembers which records of its leader partition have an offset."""


@attrs.define(eq=False)
class Log:
    """One log of a topic.

    Some stored records get their offsets with the next ones: runs and batches of `divergent` epochs, and the records of
    producer partitions in `backfill`, from the next sequence to scan on. Ranges of the leader partition that are
    `withdrawn` get none; their clients know that. `former_ends` has the sequence after the last record with an offset
    in each of the latest former leader partitions of this broker, by address.

    `divergences` has the leader epochs that this log does not contain, each with the epoch and the end offset of the
    part that both share. It is None if clients read only records that all epochs share.

    If it `can_diverge` (the availability "branch"), some replicas can continue it without the others. `shared_offset`
    is the offset up to which its leader knows that all of them have it. Another leader epoch may not have the
    `unshared_batches`, here with their offsets, but what their producers have sent again. The index must have these
    batches when both epochs meet, also if it was rewritten. So it is rewritten only when all epochs have what is before
    `rewritable_from`.

    `next_start` is the start that its leader has decided. Records before it are deleted when enough replicas store
    the decision: then it is the start of the index. See `LogStarts`.

    Other brokers replicate the log if `is_replicated`, or did. Their acknowledgements name index records, so each
    append writes one, and the high watermark follows the acknowledgements.

    If `is_gone`, its topic was deleted or replaced by another one with the same name. Nothing else happens to it.
    """

    topic: str
    number: int
    leader_partition: Partition  # of the records that clients append through this broker
    index_partition: Partition
    index: LogIndex = attrs.field(init=False)
    next_start: Offset = FIRST_OFFSET
    high_watermark: Offset = FIRST_OFFSET  # the offset after the last durable record
    producers: ProducerStates = attrs.field(init=False)  # also before their batches are durable
    producer_batches: ProducerBatches = attrs.field(init=False)  # durable, and needed after a restart
    unshared_batches: list[tuple[Offset, BatchEntry]] = attrs.field(init=False)
    transactions: OpenTransactions = attrs.field(init=False)
    transaction_runs: TransactionRuns = attrs.field(init=False)
    index_first: RecordSequence = FIRST_SEQUENCE  # the first index record that is needed
    index_trimmed: RecordSequence = FIRST_SEQUENCE  # index records before it were deleted
    index_end: RecordSequence = FIRST_SEQUENCE
    entry_count: int = 0  # since the first needed index record
    epoch_count: int = 1  # leader epochs whose indexes contain these entries
    unwritten: list[Entry] = attrs.field(init=False)
    markers: list[MarkerEntry] = attrs.field(init=False)
    leadership: LeaderAndIsr = attrs.field(factory=lambda: LeaderAndIsr(""))
    epochs: list[tuple[int, Offset]] = attrs.field(factory=lambda: [(0, FIRST_OFFSET)])  # with their start offsets
    divergences: Mapping[int, tuple[int, Offset]] | None = None
    can_diverge: bool = False
    shared_offset: Offset = FIRST_OFFSET
    rewritable_from: Offset = FIRST_OFFSET
    is_replicated: bool = False
    divergent: list[DivergentEntry] = attrs.field(init=False)
    backfill: dict[str, RecordSequence] = attrs.field(init=False)
    withdrawn: list[tuple[RecordSequence, RecordSequence]] = attrs.field(init=False)
    former_ends: dict[str, RecordSequence] = attrs.field(init=False)
    is_gone: bool = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Make a part of the log that has not been used before."""
            if name not in _PARTS:
                raise AttributeError(name)
            found = _PARTS[name]()
            setattr(self, name, found)
            return found

    def begin_epoch(self, leader_partition: Partition, index_partition: Partition) -> None:
        """Forget the index, to restore that of all epochs up to the one with these partitions."""
        self.former_ends[self.leader_partition.address] = self.index.end_sequence(LEADER)
        if len(self.former_ends) > FORMER_ENDS_MAX:
            del self.former_ends[next(iter(self.former_ends))]
        self.leader_partition, self.index_partition = leader_partition, index_partition
        self._forget_entries()
        self.next_start = FIRST_OFFSET
        self.index_first = self.index_trimmed = self.index_end = FIRST_SEQUENCE
        self.entry_count = 0
        self.forget_waiting()
        self._forget("withdrawn")
        self.is_replicated = True

    def forget_waiting(self) -> None:
        """Forget what would be written with the next records: another broker writes them."""
        self._forget(*_WAITING)

    def _forget_entries(self) -> None:
        self._forget(*_RESTORED)

    def _forget(self, *parts: str) -> None:
        for name in parts:
            with suppress(AttributeError):
                delattr(self, name)

    @property
    def last_stable_offset(self) -> Offset:
        """The last stable offset: the end of what readers of committed records get."""
        return self.transactions.last_stable_offset(self.high_watermark)

    def aborted_between(self, offset: Offset, end_offset: Offset) -> list[tuple[int, Offset]]:
        """Return the aborted transactions in a range of offsets: producer ids and first offsets.

        They are in the order of their first offsets.
        """
        found = self.transactions.aborted_between(offset, end_offset)
        return [(each.producer_id, each.first_offset) for each in found]

    @property
    def is_end_known(self) -> bool:
        """Whether everything that was acknowledged to clients of former leaders is below `high_watermark`.

        A new leader does not know at first which records enough replicas have. This does not tell whether there is
        another leader already; see `Broker.holds_lease`.
        """
        return self.high_watermark >= self.epochs[-1][1]

    def find_offset(self, position: Position) -> Offset:
        """Return the offset of the record at a position, or of the next record of the leader partition."""
        return position.offset if isinstance(position, AtOffset) else self.index.find_from(LEADER, position)

    def epoch_at(self, offset: Offset) -> int:
        """Return the leader epoch of an offset."""
        return self.epochs[max(bisect_right(self.epochs, offset, key=lambda each: each[1]) - 1, 0)][0]

    def knows_epoch(self, epoch: int) -> bool:
        """Return whether `end_of_epoch` knows the end of an epoch. It does not if the epoch's start is unknown."""
        if self.divergences is None or epoch <= self.epochs[0][0] or epoch in self.divergences:
            return True
        return any(each == epoch for each, _ in self.epochs)

    def end_of_epoch(self, epoch: int) -> tuple[int, Offset] | None:
        """Return the end of a leader epoch, as Kafka's OffsetForLeaderEpoch defines it; None if there is no such epoch.

        It is the largest epoch of the log that is not larger, and the offset after its last record. If the log has
        diverged from the epoch, it is the end of the part that both share.
        """
        if self.divergences and epoch in self.divergences:
            return self.divergences[epoch]
        number = bisect_right(self.epochs, epoch, key=lambda each: each[0]) - 1
        if number < 0:
            return None
        is_last = number + 1 == len(self.epochs)
        return self.epochs[number][0], self.high_watermark if is_last else self.epochs[number + 1][1]

    def address_of(self, partition: Partition) -> str:
        """Return the address of a partition in the index."""
        return LEADER if partition == self.leader_partition else partition.address

    def partition_of(self, address: str) -> Partition:
        """Return the partition of an address in the index."""
        return self.leader_partition if address == LEADER else Partition(self.topic, address)

    def needed_from(self) -> dict[Partition, RecordSequence]:
        """Return the sequence from which on the log needs each partition that has or had records in it."""
        found = {self.partition_of(address): end for address, end in self.index.dropped_ends.items()}
        for address in self.index.addresses():
            first = self.index.sequence_from(address, self.index.start_offset)
            found[self.partition_of(address)] = self.index.end_sequence(address) if first is None else first
        return found

    def add_producer_entry(self, entry: Entry) -> None:
        """Apply an entry about a producer, once it is durable."""
        if isinstance(entry, MarkerEntry):
            self.producer_batches.end_transaction(entry)
            first = self._first_offset(entry, LEADER)
            self.transactions.end(entry.producer_id, entry.offset, first, is_commit=bool(entry.is_commit))
        elif isinstance(entry, BatchEntry):
            self.producer_batches.add(entry)
            if entry.flags & TRANSACTIONAL:
                self.transactions.begin(entry.producer_id, self._offset_from(entry.position, LEADER))
                self._add_transaction_run(entry)

    def _add_transaction_run(self, entry: BatchEntry) -> None:
        offset = self._offset_of(entry, LEADER)
        if offset is not None:
            self.transaction_runs.add(offset, entry)

    def restore(
        self,
        sequence: RecordSequence,
        value: bytes,
        *,
        leader_address: str = LEADER,
        end_offset: Offset | None = None,
    ) -> None:
        """Restore an index record; see `LogTable.restore`.

        The leader partition of the index's writer has `leader_address` in this index. If the writer's epoch ends in
        this log, `end_offset` is its end.
        """
        for each in decode_entries(value):
            self.entry_count += 1
            entry = each if leader_address == LEADER else self._move_entry(each, leader_address)
            if entry is None or (end_offset is not None and _begins_at(entry) >= end_offset):
                continue
            if isinstance(entry, IndexRewriteEntry):
                self._forget_entries()
                self.index_first, self.entry_count = sequence, 1
            elif isinstance(entry, BatchEntry) and entry.base_sequence is None:
                self._add_transaction_run(entry)
            elif isinstance(entry, BatchEntry | MarkerEntry):
                if isinstance(entry, MarkerEntry):
                    self.index.restore_marker(entry)
                self.add_producer_entry(entry)
                self.producers.restore(entry)
            else:
                self._restore_offsets(entry)
        if end_offset is not None:
            self.index.end_at(end_offset)
            self.next_start = min(self.next_start, end_offset)
        self.index_end = RecordSequence(sequence + 1)

    def _restore_offsets(
        self, entry: RunEntry | NextStartEntry | LogStartEntry | DroppedEntry | MergedEntry | EpochStartEntry
    ) -> None:
        if isinstance(entry, RunEntry):
            self.index.restore(entry)
        elif isinstance(entry, MergedEntry):
            self.index.merged_ends[entry.address] = entry
        elif isinstance(entry, NextStartEntry):
            self.next_start = max(self.next_start, entry.offset)
        elif isinstance(entry, LogStartEntry):
            self.index.start_offset = max(self.index.start_offset, entry.offset)
            self.next_start = max(self.next_start, entry.offset)
        elif isinstance(entry, DroppedEntry):
            self.index.dropped_ends[entry.address] = entry.sequence
        else:
            self.index.end_at(entry.offset)

    def _move_entry(self, entry: Entry, leader_address: str) -> Entry | None:
        """Convert an entry of another broker's index to one of this index; None if it has no meaning here."""
        if isinstance(entry, RunEntry) and entry.address == LEADER:
            return entry._replace(address=leader_address)
        if isinstance(entry, DroppedEntry) and entry.address == LEADER:
            return entry._replace(address=leader_address)
        if isinstance(entry, BatchEntry):
            offset = self._offset_of(entry, leader_address)
            if offset is None and sequence_of(entry.position) < self.index.end_sequence(leader_address):
                # Its records are deleted, and its producer goes on after them.
                entry, offset = entry._replace(flags=0), self._offset_from(entry.position, leader_address)
            return None if offset is None else entry._replace(position=AtOffset(offset))
        if isinstance(entry, MarkerEntry):
            first = self._first_offset(entry, leader_address)
            first_position = None if first is None else AtOffset(first)
            return entry._replace(position=AtOffset(entry.offset), first_position=first_position)
        return entry

    def _offset_of(self, entry: BatchEntry, leader_address: str) -> Offset | None:
        """Return the offset of a batch, given the address of its writer's leader partition; None if it is gone."""
        if isinstance(entry.position, AtOffset):
            return entry.position.offset
        return self.index.find_written(leader_address, entry.position)

    def _offset_from(self, position: Position, leader_address: str) -> Offset:
        """Return the offset at a position, or of the next record of the partition if that record is gone."""
        if isinstance(position, AtOffset):
            return position.offset
        found = self.index.find_written(leader_address, position)
        return self.index.find_from(leader_address, position) if found is None else found

    def _first_offset(self, marker: MarkerEntry, leader_address: str) -> Offset | None:
        return None if marker.first_position is None else self._offset_from(marker.first_position, leader_address)

    def needed_entries(self) -> int:
        """Return about how many entries the index has after a rewrite."""
        batches = len(self.producer_batches) + len(self.unshared_batches)
        index = len(self.index) + self.index.marker_count + len(self.index.merged_ends)
        return index + batches + len(self.transaction_runs)

    def add_unshared_batch(self, entry: BatchEntry) -> None:
        """Keep a batch that was appended until `drop_shared_batches`."""
        offset = self._offset_of(entry, LEADER) if self.is_replicated else None
        if offset is None:
            return
        if len(self.unshared_batches) >= UNSHARED_BATCHES_MAX:
            self.rewritable_from = offset
            self.unshared_batches.clear()
        self.unshared_batches.append((offset, entry))

    def drop_shared_batches(self) -> None:
        """Forget the batches that all leader epochs have."""
        del self.unshared_batches[: bisect_left(self.unshared_batches, self._common_offset, key=itemgetter(0))]

    @property
    def _common_offset(self) -> Offset:
        """The offset up to which all leader epochs have the log, as far as is known here."""
        return self.shared_offset if self.can_diverge else self.high_watermark

    @property
    def is_rewritable(self) -> bool:
        """Whether a rewrite of the index keeps all batches that another leader epoch may not have."""
        return not self.is_replicated or self._common_offset >= self.rewritable_from

    def rewrite(self, added: Iterable[BatchEntry], now_ms: int) -> list[Entry]:
        """Return entries that replace all earlier ones, including batches that are appended now."""
        self.producer_batches.expire(now_ms)
        batches = [*self._needed_batches(), *added]
        written: list[Entry] = [IndexRewriteEntry(), *self.transaction_runs.entries()]
        position = 0
        for entry in self.index.entries():
            while isinstance(entry, MarkerEntry) and position < len(batches):
                if log_order(batches[position].position) >= log_order(entry.position):
                    break
                written.append(batches[position])
                position += 1
            written.append(entry)
        if self.next_start > self.index.start_offset:
            written.append(NextStartEntry(self.next_start))
        return written + batches[position:]

    def _needed_batches(self) -> list[BatchEntry]:
        """Return the batches that a rewrite keeps, in log order."""
        recent = self.producer_batches.entries()
        if not self.unshared_batches:
            return recent
        found = {entry.position: entry._replace(flags=0) for _, entry in self.unshared_batches}
        found.update((entry.position, entry) for entry in recent)
        return [found[position] for position in sorted(found, key=log_order)]


def _begins_at(entry: Entry) -> int:
    """Return the offset that an entry of another broker's index refers to; 0 if it has none."""
    if isinstance(entry, MergedEntry):
        return entry.offset - 1  # it ends there
    if isinstance(entry, RunEntry | MarkerEntry):
        return entry.offset
    return entry.position.offset if isinstance(entry, BatchEntry) and isinstance(entry.position, AtOffset) else 0
