"""Appends records to the logs that this broker leads, and waits until they are committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs
import trio

from dafka.batches import BatchHeader, decode_run, with_base_offset
from dafka.broker.core.log.entries import MarkerEntry
from dafka.broker.core.log.log import LEADER, Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.producer_state import Marker
from dafka.broker.core.node_machine import BrokerMachine
from dafka.broker.core.positions import FIRST_OFFSET, UNKNOWN_OFFSET, Offset, RecordSequence
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.log.waiters import LogWaiters
from dafka.errors import NotLeaderError, TopicDeletedError
from dafka.protocol.actions import Action
from dafka.records import BATCH_BYTES_LIMIT, Partition, RecordBatch
from dafka.roles.arguments import check_sizes
from dafka.steady_clock import steady_now_ms


@attrs.frozen(eq=False)
class PendingAppend:
    """Records that were appended to a log and are not known to be committed yet.

    They are in `own`, the leader partition of the epoch in which they were appended, from `first_sequence` on.
    `durable` is set when they are durable on this broker.
    """

    watchers: LogWaiters
    log_table: LogTable
    log: Log
    own: Partition
    first_sequence: RecordSequence
    count: int
    epoch: int
    durable: trio.Event

    @property
    def end_sequence(self) -> RecordSequence:
        """The sequence after the last record."""
        return RecordSequence(self.first_sequence + self.count)

    async def wait_offset(self, *, all_replicas: bool = True) -> Offset:
        """Wait until the records are durable. Return the offset of the first one; -1 if they were deleted meanwhile.

        With `all_replicas`, as many replicas must hold the records as the log's `availability` asks for. Otherwise this
        broker is enough. Raise `TopicDeletedError`, or `NotLeaderError` if another broker leads the log now: it is
        unknown whether the log has the records.
        """
        log = self.log
        while log.is_replicated and not self.durable.is_set():
            with self.watchers.watching([log]) as advanced:
                self._check_log()  # a leader that cannot write steps down if another broker can lead
                await advanced.wait()
        if not self.durable.is_set():
            await self.durable.wait()
        offset = self.find_offset()
        if not log.is_replicated or not all_replicas or offset is None:
            return UNKNOWN_OFFSET if offset is None else offset
        while log.high_watermark < offset + self.count:
            with self.watchers.watching([log]) as advanced:
                await advanced.wait()
            self.find_offset()
        return offset

    def find_offset(self) -> Offset | None:
        """Return the offset of the first record; None if it has none. Raises the errors of `wait_offset`."""
        self._check_log()
        return self.log.index.find(LEADER, self.first_sequence)

    def withdraw(self) -> bool:
        """Withdraw the records, and return whether they have no offset in the log and never get one."""
        return self.log_table.withdraw(self.log, self.own, self.first_sequence, self.end_sequence)

    def find_committed(self, *, all_replicas: bool = True) -> Offset | None:
        """Return the offset of the first record, in the leader epoch that this broker leads or led last.

        It is None if this broker does not know that the log has the records, with `all_replicas` on enough replicas.
        """
        log = self.log
        if log.leader_partition == self.own:
            address, is_enough = LEADER, not all_replicas and self.durable.is_set()
        elif log.leadership.is_led:
            address, is_enough = self.own.address, False
        else:
            return None
        offset = log.index.find(address, self.first_sequence)
        if offset is None or not (is_enough or log.high_watermark >= offset + self.count):
            return None
        return offset

    def _check_log(self) -> None:
        log = self.log
        if log.is_gone:
            raise TopicDeletedError(log.topic)
        if log.is_replicated and (log.leadership.epoch != self.epoch or not log.leadership.is_led):
            raise NotLeaderError(f"another broker leads the log {log.number} of {log.topic}", log.leadership.leader)


@attrs.frozen(eq=False)
class LogWriter:
    """Appends to the logs that this broker leads. It is the producer of their leader partitions.

    `act` executes the actions of the machine. Nodes accept records up to `record_bytes_max`.
    """

    _machine: BrokerMachine
    _act: Callable[[Iterable[Action]], None]
    _storage: BrokerStorage
    _log_table: LogTable
    _watchers: LogWaiters
    _record_bytes_max: int

    def append(self, log: Log, batches: Sequence[tuple[BatchHeader, bytes | memoryview]]) -> PendingAppend:
        """Append record batches of this broker to a log. It is complete when `wait_offset` returns.

        Raise `BatchError` if a batch is malformed, and `NotLeaderError` if this broker does not lead the log.
        """
        return self.append_placed(log, self.place(log, batches))

    def place(
        self,
        log: Log,
        batches: Sequence[tuple[BatchHeader, bytes | memoryview]],
        *,
        records: RecordBatch | None = None,
        bytes_max: int | None = None,
    ) -> RecordBatch:
        """Return the records of batches, whose CRCs were checked, with the next sequences of a log.

        `records` are the records in these batches, if they were unpacked already. `bytes_max` is the largest
        decompressed size of the records of a client; None for records of the broker itself.

        Raise `BatchTooLargeError` if the records are larger than `bytes_max`, `BatchError` if a batch is malformed,
        `RecordError` if a record of a client is larger than nodes accept, and `NotLeaderError` if this broker does not
        lead the log.
        """
        _check_led(log)
        first_sequence = self.next_sequence(log)
        sequence: int = first_sequence
        rebased = []
        for header, data in batches:
            rebased.append((attrs.evolve(header, base_offset=sequence), with_base_offset(data, sequence)))
            sequence += header.count
        if records is None:
            records = decode_run(
                log.leader_partition, rebased, bytes_max=BATCH_BYTES_LIMIT if bytes_max is None else bytes_max
            )
        else:
            encoded = tuple([data for _, data in rebased])
            records = attrs.evolve(
                records, partition=log.leader_partition, first_sequence=first_sequence, encoded=encoded
            )
        if bytes_max is not None:
            check_sizes(records, self._record_bytes_max)
        return records

    def append_placed(self, log: Log, records: RecordBatch) -> PendingAppend:
        """Append what `place` has just returned to its log."""
        self._act(self._machine.append_own(records, trio.current_time()))
        return PendingAppend(
            self._watchers,
            self._log_table,
            log,
            log.leader_partition,
            RecordSequence(records.first_sequence),
            len(records),
            log.leadership.epoch,
            self._storage.durable,
        )

    def next_sequence(self, log: Log) -> RecordSequence:
        """Return the next sequence of the leader partition of a log."""
        return RecordSequence(self._machine.next_sequence(log.leader_partition))

    def append_marker(self, log: Log, marker: Marker) -> trio.Event:
        """Append a transaction marker to a log, after the records that were appended before.

        It has no record in a partition, so that nodes other than brokers do not see it. The returned event is set when
        it is durable on this broker. Raise `NotLeaderError` if this broker does not lead the log.
        """
        _check_led(log)
        time_ms, producers = steady_now_ms(), log.producers
        first = producers.open_transactions.get(marker.producer_id)
        position = self.next_sequence(log)
        entry = MarkerEntry(
            FIRST_OFFSET, position, marker.producer_id, marker.producer_epoch, int(marker.is_commit), time_ms, first
        )
        self._log_table.append_marker(log, entry)
        producers.add_marker(marker, time_ms)
        return self._storage.write()


def _check_led(log: Log) -> None:
    if not log.leadership.is_led:
        raise NotLeaderError(f"this broker does not lead the log {log.number} of {log.topic}", log.leadership.leader)
