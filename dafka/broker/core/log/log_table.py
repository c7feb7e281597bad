"""The topics and logs of a broker. It is sans-I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dafka.broker.core.log.entries import (
    CONTROL,
    DivergentEntry,
    Entry,
    EpochStartEntry,
    LogStartEntry,
    MarkerEntry,
    NextStartEntry,
)
from dafka.broker.core.log.log import LEADER, Log
from dafka.broker.core.metadata.topic_settings import MAJORITY, availability_of
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import INDEX_TOPIC, EpochAddress, parse_address
from dafka.broker.core.positions import FIRST_SEQUENCE, Offset, RecordSequence
from dafka.internal_topics import is_internal_topic
from dafka.records import Partition


def leader_partition(identity: str, topic: Topic, log: int, epoch: int = 0) -> Partition:
    """Return the partition of the records that a broker's clients append to a log in a leader epoch."""
    return Partition(topic.name, str(EpochAddress(identity, topic.topic_id, log, epoch)))


class LogTable:
    """The topics and logs of a broker, whose storage has the address `identity`.

    To restart: `add_topic` every topic, `restore` every index record in its order, then `finish_restoring`.

    `led` has the logs in which this broker assigns offsets, by leader partition; `unwritten` the logs with entries to
    write without new records; `producer_starts` the sequence of the first record of a producer partition that belongs
    to no deleted topic, if it is not 0. `revision` is the number of changes of topics.

    Where methods get `ends` and `earliest`, these are the sequences after the last stored record of partitions, and of
    their first one if it is not 0.
    """

    def __init__(self, identity: str) -> None:
        self.topics: dict[str, Topic] = {}
        self.producer_starts: Mapping[Partition, int] = {}
        self.led: dict[Partition, Log] = {}
        self.unwritten: dict[Log, None] = {}
        self.revision = 0
        self._identity = identity
        self._logs: dict[str, list[Log]] = {}
        self._names: dict[str, str] = {}

    def all_logs(self) -> list[Log]:
        """Return the logs of all topics."""
        return [log for logs in self._logs.values() for log in logs]

    def has_unwritten(self) -> bool:
        """Return whether there are entries to write without new records."""
        return bool(self.unwritten)

    def logs(self, topic: str) -> Sequence[Log]:
        """Return the logs of a topic; none if there is no such topic."""
        return self._logs.get(topic, ())

    def find_log(self, topic: str, number: int, topic_id: str | None = None) -> Log | None:
        """Return a log of the topic with an id, or with this name at present; None if there is none."""
        logs = self._logs.get(topic, ())
        is_other = topic_id is not None and logs and self.topics[topic].topic_id != topic_id
        return None if is_other or not 0 <= number < len(logs) else logs[number]

    def find_client_topic(self, name: str) -> Topic | None:
        """Return a topic that clients may use; None if there is none."""
        return None if is_internal_topic(name) else self.topics.get(name)

    def client_topics(self) -> dict[str, Topic]:
        """Return the topics that clients may use, by name."""
        return {name: topic for name, topic in self.topics.items() if not is_internal_topic(name)}

    def find_client_topic_by_id(self, topic_id: str) -> Topic | None:
        """Return the topic with an id, if clients may use it; None if there is none."""
        return self.find_client_topic(self._names.get(topic_id, ""))

    def find_client_log(self, topic: str, number: int, topic_id: str | None = None) -> Log | None:
        """Return a log that clients may use; see `find_log`."""
        return None if is_internal_topic(topic) else self.find_log(topic, number, topic_id)

    def is_leader_partition(self, partition: Partition) -> bool:
        """Return whether a partition is the leader partition of one of the broker's logs."""
        return partition in self.led

    def add_topic(self, topic: Topic) -> None:
        """Add a topic, or change one: it can get more logs and other settings."""
        self.topics[topic.name] = topic
        self._names[topic.topic_id] = topic.name
        self.revision += 1
        logs = self._logs.setdefault(topic.name, [])
        if 0 < len(logs) < topic.log_count:
            self._close_runs(logs)
        for number in range(len(logs), topic.log_count):
            own = leader_partition(self._identity, topic, number)
            index = Partition(INDEX_TOPIC, own.address)
            logs.append(Log(topic.name, number, own, index, can_diverge=availability_of(topic) != MAJORITY))
            self.led[own] = logs[-1]

    def begin_epoch(self, log: Log, epoch: int) -> None:
        """Begin to lead a log in a leader epoch, or to read it. The caller must restore its index next."""
        topic = self.topics[log.topic]
        self.led.pop(log.leader_partition, None)
        self.unwritten.pop(log, None)
        own = leader_partition(self._identity, topic, log.number, epoch)
        log.begin_epoch(own, Partition(INDEX_TOPIC, own.address))

    def end_epoch(self, log: Log) -> None:
        """Stop assigning offsets in a log: another broker leads it."""
        self.led.pop(log.leader_partition, None)
        self.unwritten.pop(log, None)
        log.forget_waiting()

    def replicate(self, log: Log) -> None:
        """Make each append to a log write an index record, for its other replicas."""
        if not log.is_replicated:
            log.is_replicated = True
            self._close_run(log)

    def withdraw(
        self, log: Log, leader_partition: Partition, first_sequence: RecordSequence, end_sequence: RecordSequence
    ) -> bool:
        """Withdraw records that clients of this broker have appended, unless they have offsets.

        Return whether they are withdrawn: they never become part of the log.
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

    def merge_divergent(self, log: Log, entries: Iterable[DivergentEntry]) -> None:
        """Merge the missing records of a divergent epoch: they are appended together with the next records.

        The entries are runs with their addresses, each followed by its batches, and the end of them all.
        """
        log.divergent += entries
        if log.divergent:
            self.unwritten[log] = None

    def remove_topic(self, name: str) -> list[Log]:
        """Remove a topic. Return its logs, whose partitions the caller deletes."""
        del self._names[self.topics.pop(name).topic_id]
        self.revision += 1
        logs = self._logs.pop(name)
        for log in logs:
            self.led.pop(log.leader_partition, None)
            self.unwritten.pop(log, None)
            log.is_gone = True
        return logs

    def restore(self, log: Log, sequence: RecordSequence, value: bytes) -> None:
        """Restore an index record. Raise `StorageFormatError` if it is malformed, or a newer dafka has written it."""
        log.restore(sequence, value)

    def finish_restoring(
        self, ends: Mapping[Partition, int], earliest: Mapping[Partition, int]
    ) -> list[tuple[Partition, int]]:
        """Set the ends of the stored partitions, in all logs that are not replicated.

        Return the partitions with records that are in no log yet, and the first sequence of these. Plan them now.
        """
        for logs in self._logs.values():
            for log in logs:
                if self.leads(log) and not log.is_replicated:
                    self._extend_open_run(log, ends)
            if len(logs) > 1:
                self._close_runs(logs)
        rest: list[tuple[Partition, int]] = []
        for partition, end in ends.items():
            if partition in self.led or self.is_producer_partition(partition):
                ordered = max(self.ordered_end(partition), self._producer_start(partition, earliest))
                if end > ordered:
                    rest.append((partition, ordered))
        return rest

    def finish_epoch(self, log: Log, ends: Mapping[Partition, int], earliest: Mapping[Partition, int]) -> None:
        """Begin to assign offsets in a log whose index was restored."""
        self._extend_open_run(log, ends)
        self._close_run(log)
        epoch, start_offset = log.epochs[-1]
        if epoch and not log.index_end:
            # A vote for a later epoch includes the start of the log because it is in the first index record.
            start = [NextStartEntry(log.next_start)] if log.next_start else []
            self._write_later(log, [EpochStartEntry(start_offset, epoch), *start])
        self.catch_up(log, ends, earliest)
        log.rewritable_from = log.index.end_offset
        self.led[log.leader_partition] = log

    def catch_up(self, log: Log, ends: Mapping[Partition, int], earliest: Mapping[Partition, int]) -> None:
        """Find the stored records of producer partitions that have no offset in a log yet: they get theirs first."""
        for partition, end in ends.items():
            if self.is_producer_partition(partition):
                scanned_until = max(
                    log.index.end_sequence(partition.address), self._producer_start(partition, earliest)
                )
                if end > scanned_until:
                    log.backfill[partition.address] = scanned_until

    def _producer_start(self, partition: Partition, earliest: Mapping[Partition, int]) -> RecordSequence:
        return RecordSequence(max(earliest.get(partition, 0), self.producer_starts.get(partition, 0)))

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

    def ordered_end(self, partition: Partition) -> RecordSequence:
        """Return the sequence after a partition's last record that is in a log."""
        logs = self._logs_with(partition)
        return max((log.index.end_sequence(log.address_of(partition)) for log in logs), default=FIRST_SEQUENCE)

    def _logs_with(self, partition: Partition) -> Sequence[Log]:
        """Return the logs that can have records of a partition. The address of a broker's partition names its log."""
        logs = self._logs.get(partition.topic, ())
        found = parse_address(partition.address)
        return logs if found is None else logs[found.log : found.log + 1]

    def leads(self, log: Log) -> bool:
        """Return whether this broker leads a log, so that it assigns offsets in it."""
        return self.led.get(log.leader_partition) is log

    def append_marker(self, log: Log, marker: MarkerEntry) -> None:
        """Append a transaction marker. It gets its offset with the next append, after the records before it."""
        log.markers.append(marker)
        self.unwritten[log] = None

    def find_needed(
        self, topic: str, followed: Mapping[Log, Mapping[Partition, RecordSequence] | None]
    ) -> dict[Partition, RecordSequence]:
        """Return the sequences from which on the logs of a topic need their partitions, as far as these are known.

        `followed` has what the logs need that this broker stores and another one leads; None if that is not known.
        Several logs can need a producer partition, each of them other records.
        """
        led = [log for log in self.logs(topic) if self.leads(log)]
        known = [log.needed_from() for log in led] + [each for each in followed.values() if each is not None]
        found: dict[Partition, RecordSequence] = {}
        for needed in known:
            for partition, sequence in needed.items():
                if not self.is_producer_partition(partition):
                    found[partition] = sequence
                elif all(each is not None and partition in each for each in followed.values()) and not any(
                    partition.address in log.backfill for log in led
                ):
                    # Logs that this broker leads have looked at all stored records.
                    starts = [each.index.sequence_from(partition.address, each.index.start_offset) for each in led]
                    starts += [each[partition] for each in followed.values() if each is not None]
                    ordered = self.ordered_end(partition)
                    found[partition] = min((each for each in starts if each is not None), default=ordered)
        return found

    def decide_start(self, log: Log, offset: Offset) -> None:
        """Decide that a log will start at an offset. The decision is written with the next records."""
        log.next_start = max(log.next_start, min(offset, log.high_watermark))
        self._write_later(log, [NextStartEntry(log.next_start)])

    def move_start(self, log: Log, offset: Offset) -> None:
        """Move the start of a log to an offset that was decided. It is written with the next records."""
        log.next_start = max(log.next_start, offset)
        log.index.drop_before(offset)
        self._drop_transactions(log)
        self._write_later(log, [LogStartEntry(log.index.start_offset)])

    def _drop_transactions(self, log: Log) -> None:
        log.transactions.drop_before(log.index.start_offset)
        log.transaction_runs.drop_before(log.index.start_offset)

    def skip_dropped(self, log: Log, earliest: Mapping[Partition, int]) -> None:
        """Advance the start of a log that has no replicas past the records that the storage has dropped."""
        start = log.index.start_offset
        while start < log.high_watermark and (location := log.index.locate(start)) is not None:
            missing = location.record_count
            if location.address != CONTROL:
                missing = earliest.get(log.partition_of(location.address), 0) - location.sequence
            start = Offset(start + min(max(missing, 0), location.record_count))
            if missing < location.record_count:
                break
        if start > log.index.start_offset:
            log.index.drop_before(min(start, log.high_watermark))
            self._drop_transactions(log)

    def forget_dropped(self, log: Log, earliest: Mapping[Partition, int]) -> None:
        """Forget the partitions without remaining records in a log whose records the storage has dropped."""
        ends = log.index.dropped_ends
        for address, end in list(ends.items()):
            if address != LEADER and earliest.get(log.partition_of(address), 0) >= end:
                del ends[address]
        merged = log.index.merged_ends
        for address, entry in list(merged.items()):
            if earliest.get(log.partition_of(address), 0) >= entry.sequence:
                del merged[address]

    def _close_runs(self, logs: list[Log]) -> None:
        """Close the open runs of producer partitions, whose next records can belong to other logs."""
        for log in logs:
            last = log.index.open_run()
            entry = log.index.close_run() if last is not None and last[0] != LEADER else None
            self._write_later(log, [] if entry is None else [entry])

    def is_producer_partition(self, partition: Partition) -> bool:
        """Return whether a partition is a producer partition: its records come without an assignment to a log."""
        if partition.topic not in self.topics or is_internal_topic(partition.topic):
            return False
        return parse_address(partition.address) is None

    def _write_later(self, log: Log, entries: Sequence[Entry]) -> None:
        if entries:
            log.unwritten += entries
            self.unwritten[log] = None
