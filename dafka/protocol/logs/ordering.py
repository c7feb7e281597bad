"""The order of all logs of a broker: a sans-I/O machine between what arrives and what is stored.

The records of one append to the storage get their offsets by `plan`, which returns the index records to append with
them. `commit` or `undo` says what became of the append. So a record is durable exactly when its offset is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import attrs

from dafka.batches import decode_batch, read_header
from dafka.protocol.logs.entries import (
    BatchEntry,
    EndEntry,
    Entry,
    RunEntry,
    StartEntry,
    decode_entries,
    encode_entries,
)
from dafka.protocol.logs.log_index import LogIndex
from dafka.protocol.logs.placement import place_records
from dafka.protocol.logs.topics import Topic
from dafka.records import Partition, RecordBatch

INDEX_TOPIC = "$logs"
"""Where the indexes of logs are kept, a partition for each."""

OWN = ""
"""The address that stands for the broker's own partition in the index of a log."""

TRANSACTIONAL, ABORTS, COMMITS = 1, 2, 4
"""The flags of a `BatchEntry`."""

_CONTROL_BYTES_MAX = 4096


def own_partition(identity: str, topic: Topic, log: int) -> Partition:
    """Return the partition of the records that a broker's clients append to a log."""
    return Partition(topic.name, f"{identity}/{topic.topic_id}/{log}")


def index_partition(identity: str, topic: Topic, log: int) -> Partition:
    """Return the partition in which the index of a log is kept."""
    return Partition(INDEX_TOPIC, f"{identity}/{topic.topic_id}/{log}")


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
        index_end: The sequence of the next index record.
        unwritten: Entries that are written with the next records.
        index_records: The offset at which each index record begins, and its sequence.
    """

    topic: str
    number: int
    own: Partition
    index_partition: Partition
    index: LogIndex = attrs.field(factory=LogIndex)
    high_watermark: int = 0
    index_end: int = 0
    unwritten: list[Entry] = attrs.field(factory=list)
    index_records: deque[tuple[int, int]] = attrs.field(factory=deque)

    def address_of(self, partition: Partition) -> str:
        """Return the address of a partition in the index."""
        return OWN if partition == self.own else partition.address

    def partition_of(self, address: str) -> Partition:
        """Return the partition that has an address in the index."""
        return self.own if address == OWN else Partition(self.topic, address)


@attrs.frozen(eq=False)
class OrderPlan:
    """The offsets of the records of one append.

    Attributes:
        index_records: What is to be appended with them.
        logs: The logs that change.
    """

    index_records: list[RecordBatch]
    logs: list[LogState]
    _marks: list[tuple[int, bool]]
    _written: list[int]
    _run_offsets: dict[Partition, int]


class LogOrder:
    """The logs of a broker.

    To restart: `add_topic` every topic, `restore` every index record in its order, then `finish_restoring`.

    Args:
        identity: The address of the broker's storage.

    Attributes:
        topics: The topics by name.
    """

    def __init__(self, identity: str) -> None:
        self.topics: dict[str, Topic] = {}
        self._identity = identity
        self._logs: dict[str, list[LogState]] = {}
        self._own: dict[Partition, LogState] = {}
        self._unwritten: dict[LogState, None] = {}

    def all_logs(self) -> list[LogState]:
        """Return the logs of all topics."""
        return [log for logs in self._logs.values() for log in logs]

    def has_unwritten(self) -> bool:
        """Return whether there is something to write without further records."""
        return bool(self._unwritten)

    def logs(self, topic: str) -> Sequence[LogState]:
        """Return the logs of a topic; none if there is no such topic."""
        return self._logs.get(topic, ())

    def find_log(self, topic: str, number: int) -> LogState | None:
        """Return a log; None if there is no such log."""
        logs = self._logs.get(topic, ())
        return logs[number] if 0 <= number < len(logs) else None

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
            logs.append(LogState(topic.name, number, own, index_partition(self._identity, topic, number)))
            self._own[own] = logs[-1]

    def remove_topic(self, name: str) -> list[LogState]:
        """Remove a topic. Return its logs, whose partitions the owner deletes."""
        del self.topics[name]
        logs = self._logs.pop(name)
        for log in logs:
            del self._own[log.own]
            self._unwritten.pop(log, None)
        return logs

    def restore(self, log: LogState, sequence: int, value: bytes) -> list[BatchEntry]:
        """Take over an index record.

        Args:
            log: The log.
            sequence: The sequence of the record in the index.
            value: The value of the record.

        Returns:
            The batches of producers with an id that the record names.

        Raises:
            StorageFormatError: The record is malformed, or a newer version of dafka has written it.
        """
        batches = []
        for entry in decode_entries(value):
            if isinstance(entry, RunEntry):
                log.index.restore(entry)
                if not log.index_records or log.index_records[-1][1] != sequence:
                    log.index_records.append((entry.offset, sequence))
            elif isinstance(entry, StartEntry):
                log.index.start_offset = max(log.index.start_offset, entry.offset)
            elif isinstance(entry, EndEntry):
                log.index.dropped_ends[entry.address] = entry.sequence
            else:
                batches.append(entry)
        log.index_end = sequence + 1
        return batches

    def finish_restoring(
        self, ends: Mapping[Partition, int], earliest: Mapping[Partition, int]
    ) -> list[tuple[Partition, int]]:
        """Note the ends of the stored partitions.

        Args:
            ends: By partition, the sequence after its last record.
            earliest: By partition, the sequence of its first record, if it is not 0.

        Returns:
            The partitions with records that are in no log yet, and the first sequence of these. Plan them now.
        """
        for logs in self._logs.values():
            for log in logs:
                last = log.index.open_run()
                if last is not None:
                    end = ends.get(log.partition_of(last[0]), 0)
                    log.index.extend_open_run(max(end - last[1], 0))
                log.high_watermark = log.index.end_offset
            if len(logs) > 1:
                self._close_runs(logs)
        rest = []
        for partition, end in ends.items():
            ordered = max(self.ordered_end(partition), earliest.get(partition, 0))
            if partition.topic in self.topics and end > ordered:
                rest.append((partition, ordered))
        return rest

    def ordered_end(self, partition: Partition) -> int:
        """Return the sequence after a partition's last record that is in a log."""
        logs = self._logs.get(partition.topic, ())
        return max((log.index.end_sequence(log.address_of(partition)) for log in logs), default=0)

    def plan(self, batches: Iterable[RecordBatch], now_ms: int) -> OrderPlan:
        """Give records their offsets.

        Args:
            batches: The records of one append. Those of other topics are ignored.
            now_ms: The time.

        Returns:
            The plan, for `commit` or `undo`. No other plan may be made before.
        """
        entries: dict[LogState, list[Entry]] = {}
        marks: dict[LogState, tuple[int, bool]] = {}
        for log in self._unwritten:
            marks[log], entries[log] = log.index.mark(), list(log.unwritten)
        for batch in batches:
            own = self._own.get(batch.partition)
            logs = self._logs.get(batch.partition.topic, []) if own is None else [own]
            if not logs or not len(batch):
                continue
            for number, first_sequence, count in place_records(batch, len(logs)):
                log = logs[number]
                if log not in marks:
                    marks[log], entries[log] = log.index.mark(), []
                address = log.address_of(batch.partition)
                entry = log.index.append(address, first_sequence, count, is_open=len(logs) == 1)
                entries[log] += [] if entry is None else [entry]
            if own is not None:
                entries[own] += _producer_entries(batch, now_ms)
        records = [
            RecordBatch(log.index_partition, log.index_end, [encode_entries(each)], timestamps=[now_ms])
            for log, each in entries.items()
            if each
        ]
        run_offsets = {
            log.index_partition: offset
            for log, each in entries.items()
            if (offset := min((entry.offset for entry in each if isinstance(entry, RunEntry)), default=-1)) >= 0
        }
        written = [len(log.unwritten) for log in marks]
        return OrderPlan(records, list(marks), list(marks.values()), written, run_offsets)

    def commit(self, plan: OrderPlan) -> None:
        """Note that the records of a plan, and its index records, are durable."""
        written = {record.partition for record in plan.index_records}
        for log, count in zip(plan.logs, plan._written, strict=True):
            del log.unwritten[:count]
            if not log.unwritten:
                self._unwritten.pop(log, None)
            if log.index_partition in written:
                if log.index_partition in plan._run_offsets:
                    log.index_records.append((plan._run_offsets[log.index_partition], log.index_end))
                log.index_end += 1
            log.high_watermark = log.index.end_offset

    def undo(self, plan: OrderPlan) -> None:
        """Note that the append of a plan has failed, and that nothing of it is durable."""
        for log, mark in zip(plan.logs, plan._marks, strict=True):
            log.index.undo_to(mark)

    def delete_before(self, log: LogState, offset: int) -> None:
        """Delete the records of a log before an offset. What remains of it is written with the next records."""
        log.index.drop_before(min(offset, log.high_watermark))
        self._write_later(log, [StartEntry(log.index.start_offset)])

    def skip_dropped(self, log: LogState, earliest: Mapping[Partition, int]) -> None:
        """Advance the start of a log past the records that the storage has dropped.

        Args:
            log: The log.
            earliest: By partition, the sequence of the first record in the storage, if it is not 0.
        """
        start = log.index.start_offset
        while start < log.high_watermark and (location := log.index.locate(start)) is not None:
            missing = earliest.get(log.partition_of(location.address), 0) - location.sequence
            start += min(max(missing, 0), location.record_count)
            if missing < location.record_count:
                break
        if start > log.index.start_offset:
            log.index.drop_before(start)

    def trim_index(self, log: LogState, earliest: Mapping[Partition, int]) -> int:
        """Return the sequence of the first index record that is still needed.

        Args:
            log: The log.
            earliest: See `skip_dropped`.

        Returns:
            The sequence. Drop the index records before it when the next append has succeeded.
        """
        records = log.index_records
        first = records[0][1] if records else 0
        while len(records) > 1 and records[1][0] <= log.index.start_offset:
            records.popleft()
        if records and records[0][1] != first:
            ends = log.index.dropped_ends
            for address, end in list(ends.items()):
                if earliest.get(log.partition_of(address), 0) >= end:
                    del ends[address]
            kept = [EndEntry(address, end) for address, end in ends.items()]
            self._write_later(log, [StartEntry(log.index.start_offset), *kept])
        return records[0][1] if records else 0

    def _close_runs(self, logs: list[LogState]) -> None:
        """End the open runs of native partitions, whose further records may belong to other logs."""
        for log in logs:
            last = log.index.open_run()
            entry = log.index.close_run() if last is not None and last[0] != OWN else None
            self._write_later(log, [] if entry is None else [entry])

    def _write_later(self, log: LogState, entries: Sequence[Entry]) -> None:
        if entries:
            log.unwritten += entries
            self._unwritten[log] = None


def _producer_entries(batch: RecordBatch, now_ms: int) -> list[Entry]:
    """Return what must be known of the producers of batches after a restart."""
    entries: list[Entry] = []
    for data in batch.encoded:
        header = read_header(data)
        if header.producer_id < 0:
            continue
        flags = TRANSACTIONAL if header.is_transactional else 0
        if header.is_control:
            keys = decode_batch(data, bytes_max=_CONTROL_BYTES_MAX, header=header).keys
            key = keys[0] if keys else None
            flags |= COMMITS if key is not None and int.from_bytes(key[2:4], "big") == 1 else ABORTS
        entries.append(
            BatchEntry(
                header.base_offset,
                header.count,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                flags,
                now_ms,
            )
        )
    return entries
