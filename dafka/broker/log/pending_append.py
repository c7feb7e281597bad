"""Records appended by a client that are not known to be committed yet."""

from __future__ import annotations

import attrs
import trio

from dafka.broker.core.log.log import LEADER, Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.positions import UNKNOWN_OFFSET, Offset, RecordSequence
from dafka.broker.log.waiters import LogWaiters
from dafka.errors import NotLeaderError, TopicDeletedError
from dafka.records import Partition


@attrs.frozen(eq=False)
class PendingAppend:
    """Records that a client has appended to a log.

    Attributes:
        watchers: The tasks that wait for the broker's logs to advance.
        log_table: The broker's logs.
        log: The log.
        own: The leader partition that contains the records: that of the epoch in which they were appended.
        first_sequence: The sequence of the first record in that partition.
        count: The number of records.
        epoch: The leader epoch of the log.
        durable: Set when the records are durable on this broker.
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
        """Wait until the records are durable, and return the offset of the first one.

        Args:
            all_replicas: Whether as many replicas must hold the records as the log's `availability` asks for. If not,
                this broker is enough.

        Returns:
            The offset; -1 if the records were deleted meanwhile.

        Raises:
            TopicDeletedError: The topic was deleted meanwhile.
            NotLeaderError: Another broker leads the log now. It is unknown whether the log has the records.
        """
        log = self.log
        while log.is_replicated and not self.durable.is_set():
            with self.watchers.watching([log]) as advanced:
                self._check_log()  # a leader that cannot write steps down if another broker can lead
                await advanced.wait()
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

        Args:
            all_replicas: Whether enough replicas must hold the records.

        Returns:
            The offset; None if this broker does not know that the log has the records.
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
