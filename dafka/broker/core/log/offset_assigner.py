"""Assigns offsets to the records of all logs of a broker. It is sans-I/O.

`plan` assigns offsets to the records of one append to the storage, and returns the index records that belong to the
same append. `commit` or `undo` follows with the result. So a record is durable exactly when its offset is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from dafka.batches import read_header
from dafka.broker.core.log.entries import (
    CONTROL,
    TRANSACTIONAL,
    BatchEntry,
    Entry,
    EpochStartEntry,
    LogStartEntry,
    MarkerEntry,
    RunEntry,
    encode_entries,
    position_of,
)
from dafka.broker.core.log.log import LEADER, Log
from dafka.broker.core.log.partitioner import place_records
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import INDEX_TOPIC, EpochAddress, parse_address
from dafka.internal_topics import is_internal_topic
from dafka.records import Partition, RecordBatch

REWRITE_ENTRIES = 2000
"""Obsolete entries that an index can have, besides as many as there are useful ones, until it is rewritten."""

REWRITE_EPOCHS = 8
"""Leader epochs over which an index can spread until it is rewritten: a new leader reads a partition for each."""

RECORD_ENTRIES = 10_000
"""The maximum number of entries in one index record."""


def leader_partition(identity: str, topic: Topic, log: int, epoch: int = 0) -> Partition:
    """Return the partition of the records that a broker's clients append to a log in a leader epoch."""
    return Partition(topic.name, str(EpochAddress(identity, topic.topic_id, log, epoch)))


def index_partition(identity: str, topic: Topic, log: int, epoch: int = 0) -> Partition:
    """Return the partition in which a broker stores the index of a log in a leader epoch."""
    return Partition(INDEX_TOPIC, str(EpochAddress(identity, topic.topic_id, log, epoch)))


@attrs.define(eq=False)
class LogOffsetPlan:
    """The changes of one append to one log.

    Attributes:
        log: The log.
        mark: The state of its index before.
        unwritten: The number of unwritten entries that it writes.
        markers: The number of transaction markers that get offsets.
        merged: The number of divergent runs and batches that get offsets.
        scanned_until: The changes of `backfill`.
        added: Its new entries.
        written: The entries to write; different from `added` if the index is rewritten.
        is_rewrite: Whether they replace all earlier ones.
    """

    log: Log
    mark: tuple[int, bool]
    unwritten: int
    markers: int
    merged: int
    added: list[Entry]
    written: list[Entry]
    is_rewrite: bool
    scanned_until: dict[str, int] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class OffsetPlan:
    """The offsets of the records of one append.

    Attributes:
        index_records: The index records to append with them.
        logs: The logs that change.
        plans: How they change.
    """

    index_records: list[RecordBatch]
    logs: list[Log]
    plans: list[LogOffsetPlan]


class OffsetAssigner:
    """The logs of a broker, and the assignment of offsets in them.

    To restart: `add_topic` every topic, `restore` every index record in its order, then `finish_restoring`.

    Args:
        identity: The address of the broker's storage.
        keeps_record_batches: Whether the storage stores record batches unchanged.
        rewrite_entries: Obsolete entries that an index can have, besides as many as there are useful ones.

    Attributes:
        topics: The topics by name.
        producer_starts: By producer partition, the sequence of the first record that belongs to no deleted topic; 0 for
            all others.
    """

    def __init__(
        self, identity: str, *, keeps_record_batches: bool = True, rewrite_entries: int = REWRITE_ENTRIES
    ) -> None:
        self.topics: dict[str, Topic] = {}
        self.producer_starts: Mapping[Partition, int] = {}
        self._identity = identity
        self._keeps_record_batches = keeps_record_batches
        self._rewrite_entries = rewrite_entries
        self._logs: dict[str, list[Log]] = {}
        self._led: dict[Partition, Log] = {}
        self._unwritten: dict[Log, None] = {}

    def all_logs(self) -> list[Log]:
        """Return the logs of all topics."""
        return [log for logs in self._logs.values() for log in logs]

    def has_unwritten(self) -> bool:
        """Return whether there are entries to write without new records."""
        return bool(self._unwritten)

    def logs(self, topic: str) -> Sequence[Log]:
        """Return the logs of a topic; none if there is no such topic."""
        return self._logs.get(topic, ())

    def find_log(self, topic: str, number: int, topic_id: str | None = None) -> Log | None:
        """Return a log.

        Args:
            topic: The name of its topic.
            number: The number of the log.
            topic_id: The id of the topic; None for the one that has the name at present.

        Returns:
            The log; None if there is no such log.
        """
        logs = self._logs.get(topic, ())
        is_other = topic_id is not None and logs and self.topics[topic].topic_id != topic_id
        return None if is_other or not 0 <= number < len(logs) else logs[number]

    def is_leader_partition(self, partition: Partition) -> bool:
        """Return whether a partition is the leader partition of one of the broker's logs."""
        return partition in self._led

    def add_topic(self, topic: Topic) -> None:
        """Add a topic, or change one: it can get more logs and other settings."""
        self.topics[topic.name] = topic
        logs = self._logs.setdefault(topic.name, [])
        if 0 < len(logs) < topic.log_count:
            self._close_runs(logs)
        for number in range(len(logs), topic.log_count):
            own = leader_partition(self._identity, topic, number)
            logs.append(Log(topic.name, number, own, index_partition(self._identity, topic, number)))
            self._led[own] = logs[-1]

    def begin_epoch(self, log: Log, epoch: int) -> None:
        """Begin to lead a log in a leader epoch, or to read it. The caller must restore its index next.

        Args:
            log: The log.
            epoch: The leader epoch.
        """
        topic = self.topics[log.topic]
        self._led.pop(log.leader_partition, None)
        self._unwritten.pop(log, None)
        own = leader_partition(self._identity, topic, log.number, epoch)
        log.begin_epoch(own, index_partition(self._identity, topic, log.number, epoch))

    def end_epoch(self, log: Log) -> None:
        """Stop assigning offsets in a log: another broker leads it."""
        self._led.pop(log.leader_partition, None)
        self._unwritten.pop(log, None)
        log.unwritten, log.markers, log.divergent, log.backfill = [], [], [], {}

    def replicate(self, log: Log) -> None:
        """Make each append to a log write an index record, for its other replicas."""
        if not log.is_replicated:
            log.is_replicated = True
            self._close_run(log)

    def withdraw(self, log: Log, leader_partition: Partition, first_sequence: int, end_sequence: int) -> bool:
        """Withdraw records that clients of this broker have appended, unless they have offsets.

        Args:
            log: The log.
            leader_partition: The partition of the records.
            first_sequence: The sequence of the first record.
            end_sequence: The sequence after the last one.

        Returns:
            Whether they are withdrawn: they never become part of the log.
        """
        if log.leader_partition != leader_partition:
            end = log.former_ends.get(leader_partition.address)
            return end is not None and first_sequence >= end
        if (first_sequence, end_sequence) in log.withdrawn:
            return True
        if first_sequence < log.index.end_sequence(LEADER):
            return False
        log.withdrawn.append((first_sequence, end_sequence))
        return True

    def merge_divergent(self, log: Log, entries: Iterable[RunEntry | BatchEntry]) -> None:
        """Merge the missing records of a divergent epoch: they are appended together with the next records.

        Args:
            log: The log.
            entries: Runs with their addresses, each followed by its batches.
        """
        log.divergent += entries
        if log.divergent:
            self._unwritten[log] = None

    def remove_topic(self, name: str) -> list[Log]:
        """Remove a topic. Return its logs, whose partitions the caller deletes."""
        del self.topics[name]
        logs = self._logs.pop(name)
        for log in logs:
            self._led.pop(log.leader_partition, None)
            self._unwritten.pop(log, None)
            log.is_gone = True
        return logs

    def restore(self, log: Log, sequence: int, value: bytes) -> None:
        """Restore an index record.

        Args:
            log: The log.
            sequence: The sequence of the record in the index.
            value: The value of the record.

        Raises:
            StorageFormatError: The record is malformed, or a newer version of dafka has written it.
        """
        log.restore(sequence, value, keeps_record_batches=self._keeps_record_batches)

    def finish_restoring(
        self, ends: Mapping[Partition, int], earliest: Mapping[Partition, int]
    ) -> list[tuple[Partition, int]]:
        """Set the ends of the stored partitions, in all logs that are not replicated.

        Args:
            ends: By partition, the sequence after its last record.
            earliest: By partition, the sequence of its first record, if it is not 0.

        Returns:
            The partitions with records that are in no log yet, and the first sequence of these. Plan them now.
        """
        for logs in self._logs.values():
            for log in logs:
                if self.leads(log) and not log.is_replicated:
                    self._extend_open_run(log, ends)
            if len(logs) > 1:
                self._close_runs(logs)
        rest = []
        for partition, end in ends.items():
            if partition in self._led or self.is_producer_partition(partition):
                ordered = max(self.ordered_end(partition), self._producer_start(partition, earliest))
                if end > ordered:
                    rest.append((partition, ordered))
        return rest

    def finish_epoch(self, log: Log, ends: Mapping[Partition, int], earliest: Mapping[Partition, int]) -> None:
        """Begin to assign offsets in a log whose index was restored.

        Args:
            log: The log.
            ends: By partition of its topic, the sequence after its last record.
            earliest: By partition, the sequence of its first record, if it is not 0.
        """
        self._extend_open_run(log, ends)
        self._close_run(log)
        epoch, start_offset = log.epochs[-1]
        if epoch and not log.index_end:
            self._write_later(log, [EpochStartEntry(start_offset, epoch)])
        self.catch_up(log, ends, earliest)
        self._led[log.leader_partition] = log

    def catch_up(self, log: Log, ends: Mapping[Partition, int], earliest: Mapping[Partition, int]) -> None:
        """Find the stored records of producer partitions that have no offset in a log yet: they get theirs first.

        Args:
            log: The log.
            ends: By partition of its topic, the sequence after its last record.
            earliest: By partition, the sequence of its first record, if it is not 0.
        """
        for partition, end in ends.items():
            if self.is_producer_partition(partition):
                scanned_until = max(
                    log.index.end_sequence(partition.address), self._producer_start(partition, earliest)
                )
                if end > scanned_until:
                    log.backfill[partition.address] = scanned_until

    def _producer_start(self, partition: Partition, earliest: Mapping[Partition, int]) -> int:
        return max(earliest.get(partition, 0), self.producer_starts.get(partition, 0))

    def _close_run(self, log: Log) -> None:
        """Close an open run, so that other brokers know its records."""
        entry = log.index.close_run()
        self._write_later(log, [] if entry is None else [entry])

    def _extend_open_run(self, log: Log, ends: Mapping[Partition, int]) -> None:
        last = log.index.open_run()
        if last is not None:
            end = ends.get(log.partition_of(last[0]), 0)
            log.index.extend_open_run(max(end - last[1], 0))
        if not log.is_replicated:
            log.high_watermark = log.index.end_offset

    def ordered_end(self, partition: Partition) -> int:
        """Return the sequence after a partition's last record that is in a log."""
        logs = self._logs_with(partition)
        return max((log.index.end_sequence(log.address_of(partition)) for log in logs), default=0)

    def _logs_with(self, partition: Partition) -> Sequence[Log]:
        """Return the logs that can have records of a partition. The address of a broker's partition names its log."""
        logs = self._logs.get(partition.topic, ())
        found = parse_address(partition.address)
        return logs if found is None else logs[found.log : found.log + 1]

    def leads(self, log: Log) -> bool:
        """Return whether this broker leads a log, so that it assigns offsets in it."""
        return self._led.get(log.leader_partition) is log

    def plan(
        self,
        batches: Iterable[RecordBatch],
        now_ms: int,
        earlier: Iterable[tuple[Log, RecordBatch]] = (),
    ) -> OffsetPlan:
        """Assign offsets to records.

        Args:
            batches: The records of one append. Records of other topics are ignored.
            now_ms: The time.
            earlier: Records that are already durable, each with a log that does not have them yet.

        Returns:
            The plan, for `commit` or `undo`. The caller must not make another plan before.
        """
        plans: dict[Log, LogOffsetPlan] = {}
        for log in self._unwritten:
            plan = self._plan_of(log, plans)
            plan.added.extend(log.unwritten)
            self._assign_markers(plan, log.index.end_sequence(LEADER))
            self._assign_divergent(plan)
        for log, batch in earlier:
            if self.leads(log):
                self._assign_producer_partition(batch, [log], plans)
        for batch in batches:
            led_log = self._led.get(batch.partition)
            if led_log is not None:
                if len(batch):
                    entries = _producer_entries(batch, now_ms)
                    for first, end in _without(led_log.withdrawn, batch.first_sequence, batch.end_sequence):
                        self._assign_leader_partition(self._plan_of(led_log, plans), first, end, entries)
                    self._assign_markers(self._plan_of(led_log, plans), batch.end_sequence)
            elif len(batch) and self.is_producer_partition(batch.partition):
                led = [log for log in self._logs[batch.partition.topic] if self.leads(log)]
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
                self._unwritten.pop(log, None)
            for entry in each.added:
                log.add_producer_entry(entry, keeps_record_batches=self._keeps_record_batches)
            if each.is_rewrite:
                log.index_first, log.entry_count, log.epoch_count = log.index_end, 0, 1
            log.entry_count += len(each.written)
            log.index_end += _record_count(each.written)
            if not log.is_replicated:
                log.high_watermark = log.index.end_offset

    def undo(self, plan: OffsetPlan) -> None:
        """Undo a plan whose append has failed. Nothing of it is durable."""
        for each in plan.plans:
            each.log.index.undo_to(each.mark)

    def append_marker(self, log: Log, marker: MarkerEntry) -> None:
        """Append a transaction marker. It gets its offset with the next append, after the records before its position.

        Args:
            log: The log.
            marker: The marker. Its offset does not matter yet.
        """
        log.markers.append(marker)
        self._unwritten[log] = None

    def first_needed(self, partition: Partition) -> int:
        """Return the sequence of a partition's first record that a log still has, or its end in the logs."""
        logs = self._logs_with(partition)
        found = [log.index.sequence_from(log.address_of(partition), log.index.start_offset) for log in logs]
        return min((each for each in found if each is not None), default=self.ordered_end(partition))

    def delete_before(self, log: Log, offset: int) -> None:
        """Delete the records of a log before an offset. The new start is written with the next records."""
        log.index.drop_before(min(offset, log.high_watermark))
        log.transactions.drop_before(log.index.start_offset)
        self._write_later(log, [LogStartEntry(log.index.start_offset)])

    def skip_dropped(self, log: Log, earliest: Mapping[Partition, int]) -> None:
        """Advance the start of a log past the records that the storage has dropped.

        Args:
            log: The log.
            earliest: By partition, the sequence of the first record in the storage, if it is not 0.
        """
        start = log.index.start_offset
        while start < log.high_watermark and (location := log.index.locate(start)) is not None:
            missing = location.record_count
            if location.address != CONTROL:
                missing = earliest.get(log.partition_of(location.address), 0) - location.sequence
            start += min(max(missing, 0), location.record_count)
            if missing < location.record_count:
                break
        if start > log.index.start_offset:
            log.index.drop_before(start)
        ends = log.index.dropped_ends
        for address, end in list(ends.items()):
            if address != LEADER and earliest.get(log.partition_of(address), 0) >= end:
                del ends[address]
        log.transactions.drop_before(log.index.start_offset)
        log.transaction_runs.drop_before(log.index.start_offset)

    def _close_runs(self, logs: list[Log]) -> None:
        """Close the open runs of producer partitions, whose next records can belong to other logs."""
        for log in logs:
            last = log.index.open_run()
            entry = log.index.close_run() if last is not None and last[0] != LEADER else None
            self._write_later(log, [] if entry is None else [entry])

    def _plan_of(self, log: Log, plans: dict[Log, LogOffsetPlan]) -> LogOffsetPlan:
        plan = plans.get(log)
        if plan is None:
            plan = plans[log] = LogOffsetPlan(log, log.index.mark(), len(log.unwritten), 0, 0, [], [], False)
        return plan

    def is_producer_partition(self, partition: Partition) -> bool:
        """Return whether a partition is a producer partition: its records come without an assignment to a log."""
        if partition.topic not in self.topics or is_internal_topic(partition.topic):
            return False
        return parse_address(partition.address) is None

    def _assign_producer_partition(
        self, batch: RecordBatch, led: Sequence[Log], plans: dict[Log, LogOffsetPlan]
    ) -> None:
        """Assign offsets to records of a producer partition in some logs that this broker leads."""
        if not led:
            return
        address, log_count = batch.partition.address, len(self._logs[batch.partition.topic])
        by_number = {log.number: log for log in led}
        for number, first_sequence, count in place_records(batch, log_count):
            log = by_number.get(number)
            if log is None:
                continue
            plan = self._plan_of(log, plans)
            if batch.first_sequence > plan.scanned_until.get(address, log.backfill.get(address, batch.first_sequence)):
                continue  # earlier records come first
            known = log.index.end_sequence(address) if log.is_replicated else 0
            known = max(known, self.producer_starts.get(batch.partition, 0))
            first, end = max(first_sequence, known), first_sequence + count
            if end > first:
                self._assign(plan, address, first, end - first, is_open=log_count == 1)
        for log in led:
            if address in log.backfill:
                plan = self._plan_of(log, plans)
                scanned_until = plan.scanned_until.get(address, log.backfill[address])
                if batch.first_sequence <= scanned_until:
                    plan.scanned_until[address] = max(scanned_until, batch.end_sequence)

    def _assign_divergent(self, plan: LogOffsetPlan) -> None:
        """Assign offsets to the records of divergent epochs that the log does not have, with their batches."""
        log, offset, first = plan.log, 0, 0
        for entry in log.divergent[plan.merged :]:
            if isinstance(entry, RunEntry):
                end = entry.first_sequence + entry.record_count
                first, offset = max(entry.first_sequence, log.index.end_sequence(entry.address)), log.index.end_offset
                if end > first:
                    self._assign(plan, entry.address, first, end - first, is_open=False)
            elif entry.sequence >= first:
                position = position_of(offset + entry.sequence - first)
                plan.added.append(entry._replace(sequence=position, flags=0))  # its markers stay in the other epoch
            plan.merged += 1

    def _assign(self, plan: LogOffsetPlan, address: str, first_sequence: int, count: int, *, is_open: bool) -> None:
        is_open = is_open and not plan.log.is_replicated
        entry = plan.log.index.append(address, first_sequence, count, is_open=is_open)
        if entry is not None:
            plan.added.append(entry)

    def _assign_leader_partition(
        self, plan: LogOffsetPlan, first_sequence: int, end_sequence: int, entries: Sequence[BatchEntry]
    ) -> None:
        """Assign offsets to records of the leader partition, and to the markers of transactions that end there."""
        self._assign_markers(plan, first_sequence)
        while first_sequence < end_sequence:
            waiting = plan.log.markers[plan.markers :]
            end = min(waiting[0].position, end_sequence) if waiting else end_sequence
            self._assign(plan, LEADER, first_sequence, end - first_sequence, is_open=True)
            plan.added.extend(entry for entry in entries if first_sequence <= entry.sequence < end)
            self._assign_markers(plan, end)
            first_sequence = end

    def _assign_markers(self, plan: LogOffsetPlan, end_sequence: int) -> None:
        """Assign offsets to transaction markers up to a sequence of the leader partition."""
        for marker in plan.log.markers[plan.markers :]:
            if marker.position > end_sequence:
                break
            plan.added.append(plan.log.index.append_marker(marker))
            plan.markers += 1

    def _finish_plan(self, plan: LogOffsetPlan, now_ms: int) -> LogOffsetPlan:
        """Decide which entries to write."""
        log = plan.log
        needed = log.needed_entries()
        is_small = log.entry_count <= 2 * needed + self._rewrite_entries and log.epoch_count <= REWRITE_EPOCHS
        if not plan.added or not log.index_end or is_small:  # an index first names the start of its epoch
            return attrs.evolve(plan, written=plan.added)
        added = [each for each in plan.added if isinstance(each, BatchEntry)]
        return attrs.evolve(plan, written=log.rewrite(added, now_ms), is_rewrite=True)

    def _write_later(self, log: Log, entries: Sequence[Entry]) -> None:
        if entries:
            log.unwritten += entries
            self._unwritten[log] = None


def _without(withdrawn: Sequence[tuple[int, int]], first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range of sequences that are not withdrawn."""
    for gone, gone_end in sorted(withdrawn):
        if first < gone < end:
            yield first, gone
        if gone < end:
            first = max(first, gone_end)
    if first < end:
        yield first, end


def _producer_entries(batch: RecordBatch, now_ms: int) -> list[BatchEntry]:
    """Return the entries about producers that are needed after a restart."""
    headers = map(read_header, batch.encoded)
    return [
        BatchEntry(
            header.base_offset,
            header.count,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            TRANSACTIONAL if header.is_transactional else 0,
            now_ms,
        )
        for header in headers
        if header.producer_id >= 0
    ]


def _record_count(entries: Sequence[Entry]) -> int:
    return -(-len(entries) // RECORD_ENTRIES)


def _split_entries(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    for first in range(0, len(entries), RECORD_ENTRIES):
        yield entries[first : first + RECORD_ENTRIES]
