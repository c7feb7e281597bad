"""Moves the starts of logs: decides which records a log no longer has, and tells its replicas."""

from __future__ import annotations

import attrs

from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.core.replication.replicated_logs import ReplicatedLogs
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.log.waiters import LogWaiters
from dafka.errors import NotLeaderError, TopicDeletedError


@attrs.define(eq=False, slots=False)
class LogStarts:
    """The starts of the logs that a broker leads.

    A start moves in two steps. The leader writes its decision to the index. When enough replicas store that, each vote
    for a later epoch includes it, so that no other leader begins the log earlier. Then the leader writes that the
    records are deleted, and each replica drops them.
    """

    _log_table: LogTable
    _logs: ReplicatedLogs
    _storage: BrokerStorage
    _watchers: LogWaiters

    async def move(self, log: Log, offset: Offset) -> None:
        """Move the start of a log to an offset, at most its high watermark, and wait until replicas may drop records.

        Raise `NotLeaderError` if another broker leads the log, so that the start may move later or never. Raise
        `TopicDeletedError`, or `StorageError` if the storage fails or the replicas do not answer.
        """
        _check_led(log)
        epoch = log.leadership.epoch
        self._storage.waits.check()
        self._log_table.decide_start(log, offset)
        decided = log.next_start
        with self._storage.waits.bounded():
            await self._storage.write().wait()
            _check_led(log, epoch)
            if log.is_replicated:
                await self._wait_committed(log, epoch, log.index_end)
            if decided > log.index.start_offset:
                self._log_table.move_start(log, decided)
                await self._storage.write().wait()
                _check_led(log, epoch)

    async def _wait_committed(self, log: Log, epoch: int, index_end: RecordSequence) -> None:
        """Wait until enough replicas store the index of a log up to a sequence."""
        name = name_log(self._log_table.topics[log.topic].topic_id, log.number)
        while (found := self._logs.find(name)) is not None and not self._logs.has_committed_index(found, index_end):
            with self._watchers.watching([log]) as advanced:
                await advanced.wait()
            _check_led(log, epoch)


def _check_led(log: Log, epoch: int | None = None) -> None:
    if log.is_gone:
        raise TopicDeletedError(log.topic)
    if not log.leadership.is_led or epoch not in {None, log.leadership.epoch}:
        raise NotLeaderError(f"this broker does not lead the log {log.number} of {log.topic}", log.leadership.leader)
