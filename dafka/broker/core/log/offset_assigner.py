"""Assigns offsets to the records of all logs of a broker. It is sans-I/O.

`plan` assigns offsets to the records of one append to the storage, and returns the index records that belong to the
same append. `commit` or `undo` follows with the result. So a record is durable exactly when its offset is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import attrs

from dafka.broker.core.log.entries import (
    BatchEntry,
    Entry,
    MergedEntry,
    RunEntry,
    batch_entries,
    encode_entries,
)
from dafka.broker.core.log.log import LEADER, Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.partitioner import place_records
from dafka.broker.core.positions import (
    FIRST_OFFSET,
    FIRST_SEQUENCE,
    AtOffset,
    Offset,
    RecordSequence,
    sequence_of,
)
from dafka.records import RecordBatch

REWRITE_ENTRIES = 2000
"""Obsolete entries that an index can have, besides as many as there are useful ones, until it is rewritten."""

REWRITE_EPOCHS = 8
"""Leader epochs over which an index can spread until it is rewritten: a new leader reads a partition for each."""

RECORD_ENTRIES = 10_000
"""The maximum number of entries in one index record."""


@attrs.define(eq=False)
class LogOffsetPlan:
    """The changes of one append to one log, and how many of its waiting items it takes (`merged` of `divergent`)."""

    log: Log
    mark: tuple[Offset, bool]  # the state of its index before
    unwritten: int
    markers: int
    merged: int
    added: list[Entry]
    written: list[Entry]  # the entries to write: other ones than `added` if the index is rewritten
    is_rewrite: bool
    scanned_until: dict[str, RecordSequence] = attrs.field(factory=dict)  # the changes of `backfill`


@attrs.frozen(eq=False)
class OffsetPlan:
    """The offsets of the records of one append, and the index records to append with them."""

    index_records: list[RecordBatch]
    logs: list[Log]
    plans: list[LogOffsetPlan]


class OffsetAssigner:
    """Assigns offsets in the logs that a broker leads.

    An index is rewritten if it has more obsolete entries than useful ones and `rewrite_entries`.
    """

    def __init__(self, table: LogTable, rewrite_entries: int = REWRITE_ENTRIES) -> None:
        self.table = table
        self._rewrite_entries = rewrite_entries

    def plan(
        self,
        batches: Iterable[RecordBatch],
        now_ms: int,
        earlier: Iterable[tuple[Log, RecordBatch]] = (),
    ) -> OffsetPlan:
        """Assign offsets to the records of one append. `commit` or `undo` the plan before the next one.

        Records of other topics are ignored. `earlier` records are durable already, but not in their log yet.
        """
        plans: dict[Log, LogOffsetPlan] = {}
        for log in self.table.unwritten:
            plan = self._plan_of(log, plans)
            plan.added.extend(log.unwritten)
            self._assign_markers(plan, log.index.end_sequence(LEADER))
            self._assign_divergent(plan)
        for log, batch in earlier:
            if self.table.leads(log):
                self._assign_producer_partition(batch, [log], plans)
        for batch in batches:
            led_log = self.table.led.get(batch.partition)
            if led_log is not None:
                if len(batch):
                    entries = batch_entries(batch, now_ms)
                    end_sequence = RecordSequence(batch.end_sequence)
                    for first, end in _without(led_log.withdrawn, RecordSequence(batch.first_sequence), end_sequence):
                        self._assign_leader_partition(self._plan_of(led_log, plans), first, end, entries)
                    self._assign_markers(self._plan_of(led_log, plans), end_sequence)
            elif len(batch) and self.table.is_producer_partition(batch.partition):
                led = [log for log in self.table.logs(batch.partition.topic) if self.table.leads(log)]
                self._assign_producer_partition(batch, led, plans)
        made = [self._finish_plan(plan, now_ms) for plan in plans.values()]
        records = [
            RecordBatch(
                plan.log.index_partition,
                plan.log.index_end,
                [encode_entries(each) for each in _split_entries(plan.written)],
                timestamps=[now_ms] * _record_count(plan.written),
            )
            for plan in made
            if plan.written
        ]
        return OffsetPlan(records, list(plans), made)

    def commit(self, plan: OffsetPlan) -> None:
        """Apply a plan, whose records and index records are durable now."""
        for each in plan.plans:
            log = each.log
            del log.unwritten[: each.unwritten]
            del log.markers[: each.markers]
            del log.divergent[: each.merged]
            log.backfill.update(
                (address, end) for address, end in each.scanned_until.items() if address in log.backfill
            )
            if not log.unwritten and not log.markers and not log.divergent:
                self.table.unwritten.pop(log, None)
            for entry in each.added:
                log.add_producer_entry(entry)
                if isinstance(entry, BatchEntry):
                    log.add_unshared_batch(entry)
                elif isinstance(entry, MergedEntry):
                    log.index.merged_ends[entry.address] = entry
            if each.is_rewrite:
                log.index_first, log.entry_count, log.epoch_count = log.index_end, 0, 1
            log.entry_count += len(each.written)
            log.index_end = RecordSequence(log.index_end + _record_count(each.written))
            if not log.is_replicated:
                log.high_watermark = log.index.end_offset

    def undo(self, plan: OffsetPlan) -> None:
        """Undo a plan whose append has failed. Nothing of it is durable."""
        for each in plan.plans:
            each.log.index.undo_to(each.mark)

    def _plan_of(self, log: Log, plans: dict[Log, LogOffsetPlan]) -> LogOffsetPlan:
        plan = plans.get(log)
        if plan is None:
            plan = plans[log] = LogOffsetPlan(log, log.index.mark(), len(log.unwritten), 0, 0, [], [], False)
        return plan

    def _assign_producer_partition(
        self, batch: RecordBatch, led: Sequence[Log], plans: dict[Log, LogOffsetPlan]
    ) -> None:
        """Assign offsets to records of a producer partition in some logs that this broker leads."""
        if not led:
            return
        address, log_count = batch.partition.address, len(self.table.logs(batch.partition.topic))
        by_number = {log.number: log for log in led}
        for number, first_sequence, count in place_records(batch, log_count):
            log = by_number.get(number)
            if log is None:
                continue
            plan = self._plan_of(log, plans)
            scanned_until = plan.scanned_until.get(address, log.backfill.get(address))
            if scanned_until is not None and batch.first_sequence > scanned_until:
                continue  # earlier records come first
            known = log.index.end_sequence(address) if log.is_replicated else scanned_until or 0
            known = max(known, self.table.producer_starts.get(batch.partition, 0))
            first, end = RecordSequence(max(first_sequence, known)), first_sequence + count
            if end > first:
                self._assign(plan, address, first, end - first, is_open=log_count == 1)
        for log in led:
            if address in log.backfill:
                plan = self._plan_of(log, plans)
                scanned_until = plan.scanned_until.get(address, log.backfill[address])
                if batch.first_sequence <= scanned_until:
                    plan.scanned_until[address] = max(scanned_until, RecordSequence(batch.end_sequence))

    def _assign_divergent(self, plan: LogOffsetPlan) -> None:
        """Assign offsets to the records of divergent epochs that the log does not have, with their batches."""
        log, offset, first = plan.log, FIRST_OFFSET, FIRST_SEQUENCE
        for entry in log.divergent[plan.merged :]:
            if isinstance(entry, RunEntry):
                end = entry.first_sequence + entry.record_count
                first, offset = max(entry.first_sequence, log.index.merged_end(entry.address)), log.index.end_offset
                if end > first:
                    self._assign(plan, entry.address, first, end - first, is_open=False)
            elif isinstance(entry, MergedEntry):
                if entry.sequence > log.index.merged_end(entry.address):
                    plan.added.append(entry._replace(offset=log.index.end_offset))
            elif (sequence := sequence_of(entry.position)) >= first:
                position = AtOffset(Offset(offset + sequence - first))
                plan.added.append(entry._replace(position=position, flags=0))  # its markers stay in the other epoch
            plan.merged += 1

    def _assign(
        self, plan: LogOffsetPlan, address: str, first_sequence: RecordSequence, count: int, *, is_open: bool
    ) -> None:
        is_open = is_open and not plan.log.is_replicated
        entry = plan.log.index.append(address, first_sequence, count, is_open=is_open)
        if entry is not None:
            plan.added.append(entry)

    def _assign_leader_partition(
        self,
        plan: LogOffsetPlan,
        first_sequence: RecordSequence,
        end_sequence: RecordSequence,
        entries: Sequence[BatchEntry],
    ) -> None:
        """Assign offsets to records of the leader partition, and to the markers of transactions that end there."""
        self._assign_markers(plan, first_sequence)
        while first_sequence < end_sequence:
            waiting = plan.log.markers[plan.markers :]
            end = min(sequence_of(waiting[0].position), end_sequence) if waiting else end_sequence
            self._assign(plan, LEADER, first_sequence, end - first_sequence, is_open=True)
            plan.added.extend(entry for entry in entries if first_sequence <= sequence_of(entry.position) < end)
            self._assign_markers(plan, end)
            first_sequence = end

    def _assign_markers(self, plan: LogOffsetPlan, end_sequence: RecordSequence) -> None:
        """Assign offsets to transaction markers up to a sequence of the leader partition."""
        for marker in plan.log.markers[plan.markers :]:
            if sequence_of(marker.position) > end_sequence:
                break
            plan.added.append(plan.log.index.append_marker(marker))
            plan.markers += 1

    def _finish_plan(self, plan: LogOffsetPlan, now_ms: int) -> LogOffsetPlan:
        """Decide which entries to write."""
        log = plan.log
        needed = log.needed_entries()
        is_small = log.entry_count <= 2 * needed + self._rewrite_entries and log.epoch_count <= REWRITE_EPOCHS
        has_begun = log.index_end > 0  # an index first names the start of its epoch
        if not plan.added or not has_begun or is_small or not log.is_rewritable:
            return attrs.evolve(plan, written=plan.added)
        added = [each for each in plan.added if isinstance(each, BatchEntry)]
        return attrs.evolve(plan, written=log.rewrite(added, now_ms), is_rewrite=True)


def _without(
    withdrawn: Sequence[tuple[RecordSequence, RecordSequence]], first: RecordSequence, end: RecordSequence
) -> Iterator[tuple[RecordSequence, RecordSequence]]:
    """Yield the parts of a range of sequences that are not withdrawn."""
    for gone, gone_end in sorted(withdrawn):
        if first < gone < end:
            yield first, gone
        if gone < end:
            first = max(first, gone_end)
    if first < end:
        yield first, end


def _record_count(entries: Sequence[Entry]) -> int:
    return -(-len(entries) // RECORD_ENTRIES)


def _split_entries(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    for first in range(0, len(entries), RECORD_ENTRIES):
        yield entries[first : first + RECORD_ENTRIES]
