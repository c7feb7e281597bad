"""Records that a client has appended to a log, until they are durable."""

from __future__ import annotations

import attrs
import trio

from dafka.broker.core.log.log import LEADER, Log
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.log.waiters import LogWaiters
from dafka.errors import NotLeaderError, TopicDeletedError
from dafka.records import Partition


@attrs.frozen(eq=False)
class PendingAppend:
    """Records that a client has appended.

    Attributes:
        watchers: Those who wait for the broker's logs to get further.
        order: The broker's logs.
        log: The log.
        own: The broker's own partition of the log that the records are in: that of the branch it led then.
        first_sequence: The sequence of the first record in that partition.
        count: The number of records.
        epoch: The leader epoch of the log.
        durable: Set when they are durable here.
    """

    watchers: LogWaiters
    order: OffsetAssigner
    log: Log
    own: Partition
    first_sequence: int
    count: int
    epoch: int
    durable: trio.Event

    async def wait_offset(self, *, all_replicas: bool = True) -> int:
        """Wait until the records are durable, and return the offset of the first one.

        Args:
            all_replicas: Whether as many replicas must hold the records as the log's `availability` asks for. Without,
                this broker is enough.

        Returns:
            The offset; -1 if the records were deleted meanwhile.

        Raises:
            TopicDeletedError: The topic was deleted meanwhile.
            NotLeaderError: Another broker leads the log now, which may have the records or not.
        """
        log = self.log
        while log.is_replicated and not self.durable.is_set():
            with self.watchers.watching([log]) as advanced:
                self._check_log()  # a broker that cannot write no longer leads where others can
                await advanced.wait()
        await self.durable.wait()
        offset = self.find_offset()
        if not log.is_replicated or not all_replicas or offset is None:
            return -1 if offset is None else offset
        while log.high_watermark < offset + self.count:
            with self.watchers.watching([log]) as advanced:
                await advanced.wait()
            self.find_offset()
        return offset

    def find_offset(self) -> int | None:
        """Return the offset of the first record; None if it has none. Raises what `wait_offset` raises."""
        self._check_log()
        return self.log.index.find(LEADER, self.first_sequence)

    def withdraw(self) -> bool:
        """Return whether the records never become part of the log: they have no offset there, and get none."""
        return self.order.withdraw(self.log, self.own, self.first_sequence, self.first_sequence + self.count)

    def find_committed(self, *, all_replicas: bool = True) -> int | None:
        """Return the offset of the first record, in whichever branch of the log this broker leads or has led last.

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
