"""One log of a broker: its index, and what is to be written of it."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from dafka.protocol.logs.entries import (
    NO_SEQUENCE,
    BatchEntry,
    EndEntry,
    Entry,
    MarkerEntry,
    ProducerEntry,
    RestartEntry,
    RunEntry,
    StartEntry,
    decode_entries,
)
from dafka.protocol.logs.log_index import LogIndex
from dafka.protocol.logs.producer_batches import ProducerBatches, TransactionRuns
from dafka.records import Partition

OWN = ""
"""The address that stands for the broker's own partition in the index of a log."""


@attrs.define(eq=False)
class LogState:
    """One log.

    Attributes:
        topic: The name of its topic.
        number: The number of the log in the topic.
        own: The partition of the records that the broker's clients append.
        index_partition: The partition of the index.
        index: The order of the records.
        high_watermark: The offset after the last durable record.
        producers: The batches of producers that matter after a restart.
        transaction_runs: Which records belong to transactions; empty if the storage keeps that with the records.
        index_first: The sequence of the first index record that matters.
        index_trimmed: The sequence up to which index records were dropped.
        index_end: The sequence of the next index record.
        entry_count: The number of entries from that first record on.
        unwritten: Entries that are written with the next records.
        markers: Ends of transactions that get their offsets with the next records.
    """

    topic: str
    number: int
    own: Partition
    index_partition: Partition
    index: LogIndex = attrs.field(factory=LogIndex)
    high_watermark: int = 0
    producers: ProducerBatches = attrs.field(factory=ProducerBatches)
    transaction_runs: TransactionRuns = attrs.field(factory=TransactionRuns)
    index_first: int = 0
    index_trimmed: int = 0
    index_end: int = 0
    entry_count: int = 0
    unwritten: list[Entry] = attrs.field(factory=list)
    markers: list[MarkerEntry] = attrs.field(factory=list)

    def address_of(self, partition: Partition) -> str:
        """Return the address of a partition in the index."""
        return OWN if partition == self.own else partition.address

    def partition_of(self, address: str) -> Partition:
        """Return the partition that has an address in the index."""
        return self.own if address == OWN else Partition(self.topic, address)

    def add_producer_entry(self, entry: Entry, *, keeps_record_batches: bool) -> None:
        """Note what a producer has done, when it is durable."""
        if isinstance(entry, MarkerEntry):
            self.producers.end_transaction(entry)
        elif isinstance(entry, BatchEntry):
            if entry.base_sequence != NO_SEQUENCE:
                self.producers.add(entry)
            if not keeps_record_batches:
                self.transaction_runs.add(entry)

    def restore(self, sequence: int, value: bytes, *, keeps_record_batches: bool) -> list[ProducerEntry]:
        """Take over an index record; see `LogOrder.restore`."""
        found: list[ProducerEntry] = []
        for entry in decode_entries(value):
            self.entry_count += 1
            if isinstance(entry, RunEntry):
                self.index.restore(entry)
            elif isinstance(entry, StartEntry):
                self.index.start_offset = max(self.index.start_offset, entry.offset)
            elif isinstance(entry, EndEntry):
                self.index.dropped_ends[entry.address] = entry.sequence
            elif isinstance(entry, RestartEntry):
                self.index, self.producers = LogIndex(), ProducerBatches()
                self.transaction_runs = TransactionRuns()
                self.index_first, self.entry_count = sequence, 1
                found = [entry]
            else:
                if isinstance(entry, MarkerEntry):
                    self.index.restore_marker(entry)
                self.add_producer_entry(entry, keeps_record_batches=keeps_record_batches)
                if isinstance(entry, MarkerEntry) or entry.base_sequence != NO_SEQUENCE:
                    found.append(entry)
        self.index_end = sequence + 1
        return found

    def needed_entries(self) -> int:
        """Return about how many entries the index has if it is rewritten."""
        return len(self.index) + self.index.marker_count + len(self.producers) + len(self.transaction_runs)

    def rewrite(self, added: Iterable[BatchEntry], now_ms: int) -> list[Entry]:
        """Return entries that replace all before them, with batches that are appended now."""
        self.producers.expire(now_ms)
        batches = [*self.producers.entries(), *added]
        written: list[Entry] = [RestartEntry(), *self.transaction_runs.entries()]
        position = 0
        for entry in self.index.entries():
            while isinstance(entry, MarkerEntry) and position < len(batches):
                if batches[position].sequence >= entry.position:
                    break
                written.append(batches[position])
                position += 1
            written.append(entry)
        return written + batches[position:]
