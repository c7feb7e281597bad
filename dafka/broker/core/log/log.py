"""One log of a broker: its index, and what is to be written of it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping

import attrs

from dafka.broker.core.log.entries import (
    TRANSACTIONAL,
    BatchEntry,
    DroppedEntry,
    Entry,
    EpochStartEntry,
    IndexRewriteEntry,
    LogStartEntry,
    MarkerEntry,
    ProducerEntry,
    RunEntry,
    decode_entries,
    names_offset,
    offset_of,
    position_of,
)
from dafka.broker.core.log.log_index import LogIndex
from dafka.broker.core.log.open_transactions import OpenTransactions
from dafka.broker.core.log.producer_batches import ProducerBatches, TransactionRuns
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.records import Partition

LEADER = ""
"""The address that stands for the broker's own partition in the index of a log."""

FORMER_ENDS_MAX = 16
"""Of how many branches that a broker has led it remembers which records have an offset."""


@attrs.define(eq=False)
class Log:
    """One log.

    Attributes:
        topic: The name of its topic.
        number: The number of the log in the topic.
        own: The partition of the records that the broker's clients append.
        index_partition: The partition of the index.
        index: The order of the records.
        high_watermark: The offset after the last durable record.
        producers: The batches of producers that matter after a restart.
        transactions: The transactions, as far as they are durable here.
        transaction_runs: Which records belong to transactions; empty if the storage keeps that with the records.
        index_first: The sequence of the first index record that matters.
        index_trimmed: The sequence up to which index records were dropped.
        index_end: The sequence of the next index record.
        entry_count: The number of entries from that first record on.
        branch_count: The number of branches whose indexes have these records.
        unwritten: Entries that are written with the next records.
        markers: Ends of transactions that get their offsets with the next records.
        leadership: Who leads the log.
        epochs: The leader epochs of the log with their first offsets, in their order.
        divergences: By each known epoch that is no ancestor of the log, the epoch and the end offset of what both
            share. None if clients read only what all epochs have.
        is_replicated: Whether other brokers keep the log, too, or did. They acknowledge index records, so that each
            append has one, and the high watermark follows what they acknowledge.
        healing: Runs and batches of other branches that get their offsets with the next records.
        withdrawn: Ranges of sequences of the own partition whose records get no offset: their clients were told so.
        former_ends: By the address of each own partition of an earlier branch that this broker has led, the sequence
            after its last record with an offset. Only the latest ones are remembered.
        behind: The addresses of producers' partitions of which records before those that come get their offsets
            first, each with the sequence up to which they have been looked at.
        is_gone: Whether the log is none of its broker's any more: its topic was deleted, or gave way to another one of
            that name. Nothing further happens to it.
    """

    topic: str
    number: int
    own: Partition
    index_partition: Partition
    index: LogIndex = attrs.field(factory=LogIndex)
    high_watermark: int = 0
    producers: ProducerBatches = attrs.field(factory=ProducerBatches)
    transactions: OpenTransactions = attrs.field(factory=OpenTransactions)
    transaction_runs: TransactionRuns = attrs.field(factory=TransactionRuns)
    index_first: int = 0
    index_trimmed: int = 0
    index_end: int = 0
    entry_count: int = 0
    branch_count: int = 1
    unwritten: list[Entry] = attrs.field(factory=list)
    markers: list[MarkerEntry] = attrs.field(factory=list)
    leadership: LeaderAndIsr = attrs.field(factory=lambda: LeaderAndIsr(""))
    epochs: list[tuple[int, int]] = attrs.field(factory=lambda: [(0, 0)])
    divergences: Mapping[int, tuple[int, int]] | None = None
    is_replicated: bool = False
    healing: list[RunEntry | BatchEntry] = attrs.field(factory=list)
    behind: dict[str, int] = attrs.field(factory=dict)
    withdrawn: list[tuple[int, int]] = attrs.field(factory=list)
    former_ends: dict[str, int] = attrs.field(factory=dict)
    is_gone: bool = False
    _early_runs: deque[tuple[BatchEntry, str]] = attrs.field(factory=deque)

    def begin_branch(self, own: Partition, index_partition: Partition) -> None:
        """Forget the index, to restore that of all branches up to the one with these partitions."""
        self.former_ends[self.own.address] = self.index.end_sequence(LEADER)
        if len(self.former_ends) > FORMER_ENDS_MAX:
            del self.former_ends[next(iter(self.former_ends))]
        self.own, self.index_partition = own, index_partition
        self._forget_entries()
        self.index_first = self.index_trimmed = self.index_end = self.entry_count = 0
        self.branch_count = 1
        self.unwritten, self.markers, self.healing, self.behind = [], [], [], {}
        self.withdrawn = []
        self.is_replicated = True

    def _forget_entries(self) -> None:
        self.index, self.producers = LogIndex(), ProducerBatches()
        self.transactions, self.transaction_runs = OpenTransactions(), TransactionRuns()
        self._early_runs.clear()

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which readers get records that want committed ones only."""
        return self.transactions.last_stable_offset(self.high_watermark)

    @property
    def is_end_known(self) -> bool:
        """Whether all that was acknowledged to clients of former leaders is below `high_watermark`.

        A new leader does not know at first which records enough replicas have. Whether there is another leader by now
        is for `Broker.holds_lease` to tell.
        """
        return self.high_watermark >= self.epochs[-1][1]

    def find_offset(self, position: int) -> int:
        """Return the offset of the record at a position, or of the next one of the broker's own partition."""
        return offset_of(position) if names_offset(position) else self.index.find_from(LEADER, position)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch in which an offset was given."""
        return self.epochs[max(bisect_right(self.epochs, offset, key=lambda each: each[1]) - 1, 0)][0]

    def knows_epoch(self, epoch: int) -> bool:
        """Return whether `end_of_epoch` can tell: it cannot if an epoch is that of a branch which is not known yet."""
        if self.divergences is None or epoch <= self.epochs[0][0] or epoch in self.divergences:
            return True
        return any(each == epoch for each, _ in self.epochs)

    def end_of_epoch(self, epoch: int) -> tuple[int, int] | None:
        """Return where the records of a leader epoch end, as Kafka's OffsetForLeaderEpoch has it.

        Args:
            epoch: The epoch.

        Returns:
            The largest epoch of the log that is not larger, and the offset after its last record. If the log parts from
            the branch of the epoch, what they share. None if there is no such epoch.
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
        return LEADER if partition == self.own else partition.address

    def partition_of(self, address: str) -> Partition:
        """Return the partition that has an address in the index."""
        return self.own if address == LEADER else Partition(self.topic, address)

    def add_producer_entry(self, entry: Entry, *, keeps_record_batches: bool) -> None:
        """Note what a producer has done, when it is durable."""
        if isinstance(entry, MarkerEntry):
            self.producers.end_transaction(entry)
            first = self._first_offset(entry, LEADER)
            self.transactions.end(entry.producer_id, entry.offset, first, is_commit=bool(entry.is_commit))
        elif isinstance(entry, BatchEntry):
            self.producers.add(entry)
            if entry.flags & TRANSACTIONAL:
                self.transactions.begin(entry.producer_id, self._offset_from(entry.sequence, LEADER))
                offset = self._offset_of(entry, LEADER)
                if not keeps_record_batches and offset is not None:
                    self.transaction_runs.add(offset, entry)

    def restore(
        self,
        sequence: int,
        value: bytes,
        *,
        keeps_record_batches: bool,
        own: str = LEADER,
        end_offset: int | None = None,
    ) -> list[ProducerEntry]:
        """Take over an index record; see `LogOrder.restore`.

        Args:
            sequence: The sequence of the record in the index.
            value: The value of the record.
            keeps_record_batches: Whether the storage keeps record batches as they came.
            own: The address that the own partition of the index's writer has in this index.
            end_offset: The offset at which the branch ends in this log; None if it does not.

        Returns:
            What the record says of producers with an id.
        """
        found: list[ProducerEntry] = []
        for each in decode_entries(value):
            self.entry_count += 1
            if isinstance(each, BatchEntry) and each.base_sequence is None:
                if not keeps_record_batches:
                    self._early_runs.append((each, own))
                continue
            self._place_early_runs(end_offset)
            entry = each if own == LEADER else self._move_entry(each, own)
            if entry is None or (end_offset is not None and _begins_at(entry) >= end_offset):
                continue
            if isinstance(entry, IndexRewriteEntry):
                self._forget_entries()
                self.index_first, self.entry_count = sequence, 1
                found = [entry]
            elif isinstance(entry, BatchEntry | MarkerEntry):
                if isinstance(entry, MarkerEntry):
                    self.index.restore_marker(entry)
                self.add_producer_entry(entry, keeps_record_batches=keeps_record_batches)
                found.append(entry)
            else:
                self._restore_offsets(entry)
        self._place_early_runs(end_offset)
        if end_offset is not None:
            self.index.end_at(end_offset)
        self.index_end = sequence + 1
        return found

    def _restore_offsets(self, entry: RunEntry | LogStartEntry | DroppedEntry | EpochStartEntry) -> None:
        if isinstance(entry, RunEntry):
            self.index.restore(entry)
        elif isinstance(entry, LogStartEntry):
            self.index.start_offset = max(self.index.start_offset, entry.offset)
        elif isinstance(entry, DroppedEntry):
            self.index.dropped_ends[entry.address] = entry.sequence
        else:
            self.index.end_at(entry.offset)

    def _move_entry(self, entry: Entry, own: str) -> Entry | None:
        """Return an entry of another broker's index as one of this index; None if it says nothing here."""
        if isinstance(entry, RunEntry) and entry.address == LEADER:
            return entry._replace(address=own)
        if isinstance(entry, DroppedEntry) and entry.address == LEADER:
            return entry._replace(address=own)
        if isinstance(entry, BatchEntry):
            offset = self._offset_of(entry, own)
            return None if offset is None else entry._replace(sequence=position_of(offset))
        if isinstance(entry, MarkerEntry):
            first = self._first_offset(entry, own)
            return entry._replace(
                position=position_of(entry.offset), first_sequence=None if first is None else position_of(first)
            )
        return entry

    def _offset_of(self, entry: BatchEntry, own: str) -> int | None:
        """Return the offset of a batch in an index whose writer's own partition has an address; None if it is gone."""
        if names_offset(entry.sequence):
            return offset_of(entry.sequence)
        return self.index.find_written(own, entry.sequence)

    def _offset_from(self, position: int, own: str) -> int:
        """Return the offset at a position, or of the next record of the partition if that one is gone."""
        if names_offset(position):
            return offset_of(position)
        found = self.index.find_written(own, position)
        return self.index.find_from(own, position) if found is None else found

    def _first_offset(self, marker: MarkerEntry, own: str) -> int | None:
        return None if marker.first_sequence is None else self._offset_from(marker.first_sequence, own)

    def _place_early_runs(self, end_offset: int | None) -> None:
        """Note which records belong to transactions, as soon as the index has these records.

        Former versions have written that before the runs that the records are in.
        """
        while self._early_runs:
            entry, own = self._early_runs[0]
            offset = self._offset_of(entry, own)
            if offset is None and self.index.end_sequence(own) <= entry.sequence:
                return
            self._early_runs.popleft()
            if offset is not None and (end_offset is None or offset < end_offset):
                self.transaction_runs.add(offset, entry)

    def needed_entries(self) -> int:
        """Return about how many entries the index has if it is rewritten."""
        return len(self.index) + self.index.marker_count + len(self.producers) + len(self.transaction_runs)

    def rewrite(self, added: Iterable[BatchEntry], now_ms: int) -> list[Entry]:
        """Return entries that replace all before them, with batches that are appended now."""
        self.producers.expire(now_ms)
        batches = [*self.producers.entries(), *added]
        written: list[Entry] = [IndexRewriteEntry(), *self.transaction_runs.entries()]
        position = 0
        for entry in self.index.entries():
            while isinstance(entry, MarkerEntry) and position < len(batches):
                if batches[position].sequence >= entry.position:
                    break
                written.append(batches[position])
                position += 1
            written.append(entry)
        return written + batches[position:]


def _begins_at(entry: Entry) -> int:
    """Return the offset of what an entry of another broker's index is about; 0 if it has none."""
    if isinstance(entry, RunEntry | MarkerEntry):
        return entry.offset
    return offset_of(entry.sequence) if isinstance(entry, BatchEntry) else 0
