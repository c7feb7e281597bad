"""The order of all logs of a broker: a sans-I/O machine between what arrives and what is stored.

The records of one append to the storage get their offsets by `plan`, which returns the index records to append with
them. `commit` or `undo` says what became of the append. So a record is durable exactly when its offset is.
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
    ProducerEntry,
    RunEntry,
    encode_entries,
    position_of,
)
from dafka.broker.core.log.log import LEADER, Log
from dafka.broker.core.log.partitioner import place_records
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import INDEX_TOPIC, BranchAddress, parse_address
from dafka.internal_topics import is_internal_topic
from dafka.records import Partition, RecordBatch

REWRITE_ENTRIES = 2000
"""Entries of no use that an index may have, besides as many as there are of use, until it is rewritten."""

REWRITE_BRANCHES = 8
"""Branches over which an index may be spread until it is rewritten: a new leader reads a partition for each."""

RECORD_ENTRIES = 10_000
"""The entries in one index record, if there are that many."""


def own_partition(identity: str, topic: Topic, log: int, epoch: int = 0) -> Partition:
    """Return the partition of the records that a broker's clients append to a log in a leader epoch."""
    return Partition(topic.name, str(BranchAddress(identity, topic.topic_id, log, epoch)))


def index_partition(identity: str, topic: Topic, log: int, epoch: int = 0) -> Partition:
    """Return the partition in which a broker keeps the index of a log in a leader epoch."""
    return Partition(INDEX_TOPIC, str(BranchAddress(identity, topic.topic_id, log, epoch)))


@attrs.define(eq=False)
class LogOffsetPlan:
    """What one append changes in one log.

    Attributes:
        log: The log.
        mark: The state of its index before.
        unwritten: The number of entries that waited to be written.
        markers: The number of ends of transactions that have their offsets.
        healed: The number of runs and batches of other branches that have their offsets.
        scanned_until: What changes in `behind`.
        added: Its new entries.
        written: The entries to write; others than `added` if the index is rewritten.
        is_rewrite: Whether they replace all before them.
    """

    log: Log
    mark: tuple[int, bool]
    unwritten: int
    markers: int
    healed: int
    added: list[Entry]
    written: list[Entry]
    is_rewrite: bool
    scanned_until: dict[str, int] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class OffsetPlan:
    """The offsets of the records of one append.

    Attributes:
        index_records: What is to be appended with them.
        logs: The logs that change.
        plans: How they change.
    """

    index_records: list[RecordBatch]
    logs: list[Log]
    plans: list[LogOffsetPlan]


class OffsetAssigner:
    """The logs of a broker.

    To restart: `add_topic` every topic, `restore` every index record in its order, then `finish_restoring`.

    Args:
        identity: The address of the broker's storage.
        keeps_record_batches: Whether the storage keeps record batches as they came.
        rewrite_entries: Entries of no use that an index may have, besides as many as there are of use.

    Attributes:
        topics: The topics by name.
        producer_starts: By producer partition, the sequence of the first record that belongs to no deleted topic.
            It is 0 for all others.
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
        self._own: dict[Partition, Log] = {}
        self._unwritten: dict[Log, None] = {}

    def all_logs(self) -> list[Log]:
        """Return the logs of all topics."""
        return [log for logs in self._logs.values() for log in logs]

    def has_unwritten(self) -> bool:
        """Return whether there is something to write without further records."""
        return bool(self._unwritten)

    def logs(self, topic: str) -> Sequence[Log]:
        """Return the logs of a topic; none if there is no such topic."""
        return self._logs.get(topic, ())

    def find_log(self, topic: str, number: int, topic_id: str | None = None) -> Log | None:
        """Return a log.

        Args:
            topic: The name of its topic.
            number: The number of the log.
            topic_id: The id of the topic; None for whichever has the name at present.

        Returns:
            The log; None if there is no such log.
        """
        logs = self._logs.get(topic, ())
        is_other = topic_id is not None and logs and self.topics[topic].topic_id != topic_id
        return None if is_other or not 0 <= number < len(logs) else logs[number]

    def is_own(self, partition: Partition) -> bool:
        """Return whether a partition is the broker's own in one of its logs."""
        return partition in self._own

    def add_topic(self, topic: Topic) -> None:
        """Add a topic, or change one: it may get further logs and other settings."""
        self.topics[topic.name] = topic
        logs = self._logs.setdefault(topic.name, [])
        if 0 < len(logs) < topic.log_count:
            self._close_runs(logs)
        for number in range(len(logs), topic.log_count):
            own = own_partition(self._identity, topic, number)
            logs.append(Log(topic.name, number, own, index_partition(self._identity, topic, number)))
            self._own[own] = logs[-1]

    def begin_branch(self, log: Log, epoch: int) -> None:
        """Begin to lead a log in a leader epoch, or to read it; restore its index afterward.

        Args:
            log: The log.
            epoch: The leader epoch.
        """
        topic = self.topics[log.topic]
        self._own.pop(log.own, None)
        self._unwritten.pop(log, None)
        own = own_partition(self._identity, topic, log.number, epoch)
        log.begin_branch(own, index_partition(self._identity, topic, log.number, epoch))

    def end_branch(self, log: Log) -> None:
        """Give no more records their offsets in a log: another broker leads it."""
        self._own.pop(log.own, None)
        self._unwritten.pop(log, None)
        log.unwritten, log.markers, log.healing, log.behind = [], [], [], {}

    def replicate(self, log: Log) -> None:
        """Have each append write what other brokers must know of it."""
        if not log.is_replicated:
            log.is_replicated = True
            self._close_run(log)

    def withdraw(self, log: Log, own: Partition, first_sequence: int, end_sequence: int) -> bool:
        """Give no offsets to records that clients of this broker have appended, unless they have them.

        Args:
            log: The log.
            own: The broker's own partition of the log that the records are in.
            first_sequence: The sequence of the first record.
            end_sequence: The sequence after the last one.

        Returns:
            Whether they get none: they never become part of the log.
        """
        if log.own != own:
            end = log.former_ends.get(own.address)
            return end is not None and first_sequence >= end
        if (first_sequence, end_sequence) in log.withdrawn:
            return True
        if first_sequence < log.index.end_sequence(LEADER):
            return False
        log.withdrawn.append((first_sequence, end_sequence))
        return True

    def merge_divergent(self, log: Log, entries: Iterable[RunEntry | BatchEntry]) -> None:
        """Append what another branch has, and this one lacks, with the next records.

        Args:
            log: The log.
            entries: Runs with their addresses, each followed by its batches.
        """
        log.healing += entries
        if log.healing:
            self._unwritten[log] = None

    def remove_topic(self, name: str) -> list[Log]:
        """Remove a topic. Return its logs, whose partitions the owner deletes."""
        del self.topics[name]
        logs = self._logs.pop(name)
        for log in logs:
            self._own.pop(log.own, None)
            self._unwritten.pop(log, None)
            log.is_gone = True
        return logs

    def restore(self, log: Log, sequence: int, value: bytes) -> list[ProducerEntry]:
        """Take over an index record.

        Args:
            log: The log.
            sequence: The sequence of the record in the index.
            value: The value of the record.

        Returns:
            What the record says of producers with an id. A `RestartEntry` undoes all before.

        Raises:
            StorageFormatError: The record is malformed, or a newer version of dafka has written it.
        """
        return log.restore(sequence, value, keeps_record_batches=self._keeps_record_batches)

    def finish_restoring(
        self, ends: Mapping[Partition, int], earliest: Mapping[Partition, int]
    ) -> list[tuple[Partition, int]]:
        """Note the ends of the stored partitions, in all logs that are not replicated.

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
            if partition in self._own or self.is_producer_partition(partition):
                ordered = max(self.ordered_end(partition), self._first_native(partition, earliest))
                if end > ordered:
                    rest.append((partition, ordered))
        return rest

    def finish_branch(self, log: Log, ends: Mapping[Partition, int], earliest: Mapping[Partition, int]) -> None:
        """Begin to give records their offsets in a log whose index was restored.

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
        self._own[log.own] = log

    def catch_up(self, log: Log, ends: Mapping[Partition, int], earliest: Mapping[Partition, int]) -> None:
        """Note the stored records of producers that have no offset in a log yet, so that they get theirs first.

        Args:
            log: The log.
            ends: By partition of its topic, the sequence after its last record.
            earliest: By partition, the sequence of its first record, if it is not 0.
        """
        for partition, end in ends.items():
            if self.is_producer_partition(partition):
                scanned_until = max(log.index.end_sequence(partition.address), self._first_native(partition, earliest))
                if end > scanned_until:
                    log.behind[partition.address] = scanned_until

    def _first_native(self, partition: Partition, earliest: Mapping[Partition, int]) -> int:
        return max(earliest.get(partition, 0), self.producer_starts.get(partition, 0))

    def _close_run(self, log: Log) -> None:
        """End an open run, so that other brokers know its records."""
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
        """Return the logs that can have records of a partition: the log of a broker's partition is in its address."""
        logs = self._logs.get(partition.topic, ())
        found = parse_address(partition.address)
        return logs if found is None else logs[found.log : found.log + 1]

    def leads(self, log: Log) -> bool:
        """Return whether records get their offsets in a log: this broker leads it."""
        return self._own.get(log.own) is log

    def plan(
        self,
        batches: Iterable[RecordBatch],
        now_ms: int,
        earlier: Iterable[tuple[Log, RecordBatch]] = (),
    ) -> OffsetPlan:
        """Give records their offsets.

        Args:
            batches: The records of one append. Those of other topics are ignored.
            now_ms: The time.
            earlier: Records that are durable already, each with a log that lacks them.

        Returns:
            The plan, for `commit` or `undo`. No other plan may be made before.
        """
        plans: dict[Log, LogOffsetPlan] = {}
        for log in self._unwritten:
            plan = self._plan_of(log, plans)
            plan.added.extend(log.unwritten)
            self._place_markers(plan, log.index.end_sequence(LEADER))
            self._place_healed(plan)
        for log, batch in earlier:
            if self.leads(log):
                self._place_native(batch, [log], plans)
        for batch in batches:
            own = self._own.get(batch.partition)
            if own is not None:
                if len(batch):
                    entries = _producer_entries(batch, now_ms)
                    for first, end in _without(own.withdrawn, batch.first_sequence, batch.end_sequence):
                        self._place_own(self._plan_of(own, plans), first, end, entries)
                    self._place_markers(self._plan_of(own, plans), batch.end_sequence)
            elif len(batch) and self.is_producer_partition(batch.partition):
                led = [log for log in self._logs[batch.partition.topic] if self.leads(log)]
                self._place_native(batch, led, plans)
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
        """Note that the records of a plan, and its index records, are durable."""
        for each in plan.plans:
            log = each.log
            del log.unwritten[: each.unwritten]
            del log.markers[: each.markers]
            del log.healing[: each.healed]
            log.behind.update((address, end) for address, end in each.scanned_until.items() if address in log.behind)
            if not log.unwritten and not log.markers and not log.healing:
                self._unwritten.pop(log, None)
            for entry in each.added:
                log.add_producer_entry(entry, keeps_record_batches=self._keeps_record_batches)
            if each.is_rewrite:
                log.index_first, log.entry_count, log.branch_count = log.index_end, 0, 1
            log.entry_count += len(each.written)
            log.index_end += _record_count(each.written)
            if not log.is_replicated:
                log.high_watermark = log.index.end_offset

    def undo(self, plan: OffsetPlan) -> None:
        """Note that the append of a plan has failed, and that nothing of it is durable."""
        for each in plan.plans:
            each.log.index.undo_to(each.mark)

    def append_marker(self, log: Log, marker: MarkerEntry) -> None:
        """End a transaction in a log. It gets its offset with the next append, behind the records before its position.

        Args:
            log: The log.
            marker: The end. Its offset does not matter yet.
        """
        log.markers.append(marker)
        self._unwritten[log] = None

    def first_needed(self, partition: Partition) -> int:
        """Return the sequence of a partition's first record that a log still has; its end in the logs if none has."""
        logs = self._logs_with(partition)
        found = [log.index.sequence_from(log.address_of(partition), log.index.start_offset) for log in logs]
        return min((each for each in found if each is not None), default=self.ordered_end(partition))

    def delete_before(self, log: Log, offset: int) -> None:
        """Delete the records of a log before an offset. What remains of it is written with the next records."""
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
        """End the open runs of native partitions, whose further records may belong to other logs."""
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
        """Return whether a partition's records are given offsets as they come: no broker has written them for a log."""
        if partition.topic not in self.topics or is_internal_topic(partition.topic):
            return False
        return parse_address(partition.address) is None

    def _place_native(self, batch: RecordBatch, led: Sequence[Log], plans: dict[Log, LogOffsetPlan]) -> None:
        """Place records of a producer's partition that belong to some logs, which this broker leads."""
        if not led:
            return
        address, log_count = batch.partition.address, len(self._logs[batch.partition.topic])
        by_number = {log.number: log for log in led}
        for number, first_sequence, count in place_records(batch, log_count):
            log = by_number.get(number)
            if log is None:
                continue
            plan = self._plan_of(log, plans)
            if batch.first_sequence > plan.scanned_until.get(address, log.behind.get(address, batch.first_sequence)):
                continue  # those before come first
            known = log.index.end_sequence(address) if log.is_replicated else 0
            known = max(known, self.producer_starts.get(batch.partition, 0))
            first, end = max(first_sequence, known), first_sequence + count
            if end > first:
                self._place(plan, address, first, end - first, is_open=log_count == 1)
        for log in led:
            if address in log.behind:
                plan = self._plan_of(log, plans)
                scanned_until = plan.scanned_until.get(address, log.behind[address])
                if batch.first_sequence <= scanned_until:
                    plan.scanned_until[address] = max(scanned_until, batch.end_sequence)

    def _place_healed(self, plan: LogOffsetPlan) -> None:
        """Place what another branch has: of its runs the records that the log lacks, with their batches."""
        log, offset, first = plan.log, 0, 0
        for entry in log.healing[plan.healed :]:
            if isinstance(entry, RunEntry):
                end = entry.first_sequence + entry.record_count
                first, offset = max(entry.first_sequence, log.index.end_sequence(entry.address)), log.index.end_offset
                if end > first:
                    self._place(plan, entry.address, first, end - first, is_open=False)
            elif entry.sequence >= first:
                position = position_of(offset + entry.sequence - first)
                plan.added.append(entry._replace(sequence=position, flags=0))  # its markers are in the other branch
            plan.healed += 1

    def _place(self, plan: LogOffsetPlan, address: str, first_sequence: int, count: int, *, is_open: bool) -> None:
        is_open = is_open and not plan.log.is_replicated
        entry = plan.log.index.append(address, first_sequence, count, is_open=is_open)
        if entry is not None:
            plan.added.append(entry)

    def _place_own(
        self, plan: LogOffsetPlan, first_sequence: int, end_sequence: int, entries: Sequence[BatchEntry]
    ) -> None:
        """Place records of a broker's own partition, and the ends of transactions behind the batches that they end."""
        self._place_markers(plan, first_sequence)
        while first_sequence < end_sequence:
            waiting = plan.log.markers[plan.markers :]
            end = min(waiting[0].position, end_sequence) if waiting else end_sequence
            self._place(plan, LEADER, first_sequence, end - first_sequence, is_open=True)
            plan.added.extend(entry for entry in entries if first_sequence <= entry.sequence < end)
            self._place_markers(plan, end)
            first_sequence = end

    def _place_markers(self, plan: LogOffsetPlan, end_sequence: int) -> None:
        """Place the ends of transactions up to a sequence of the broker's own partition."""
        for marker in plan.log.markers[plan.markers :]:
            if marker.position > end_sequence:
                break
            plan.added.append(plan.log.index.append_marker(marker))
            plan.markers += 1

    def _finish_plan(self, plan: LogOffsetPlan, now_ms: int) -> LogOffsetPlan:
        """Decide what to write."""
        log = plan.log
        needed = log.needed_entries()
        is_small = log.entry_count <= 2 * needed + self._rewrite_entries and log.branch_count <= REWRITE_BRANCHES
        if not plan.added or not log.index_end or is_small:  # an index says first where its branch begins
            return attrs.evolve(plan, written=plan.added)
        added = [each for each in plan.added if isinstance(each, BatchEntry)]
        return attrs.evolve(plan, written=log.rewrite(added, now_ms), is_rewrite=True)

    def _write_later(self, log: Log, entries: Sequence[Entry]) -> None:
        if entries:
            log.unwritten += entries
            self._unwritten[log] = None


def _without(withdrawn: Sequence[tuple[int, int]], first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield what is left of a range of sequences without those that are withdrawn."""
    for gone, gone_end in sorted(withdrawn):
        if first < gone < end:
            yield first, gone
        if gone < end:
            first = max(first, gone_end)
    if first < end:
        yield first, end


def _producer_entries(batch: RecordBatch, now_ms: int) -> list[BatchEntry]:
    """Return what must be known of the producers of batches after a restart."""
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
