"""The logs that this broker leads, for clients of HTTP and WebSocket.

Clients get no records of open or aborted transactions, and no transaction markers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs
import trio

from dafka.batches import read_header
from dafka.broker.broker import Broker
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.positions import Offset
from dafka.broker.log.appending import AppendedBatches, AppendRefusedError, Batch
from dafka.broker.log.reader import split_committed
from dafka.errors import BatchError, NotLeaderError, OutcomeUnknownError, StorageError, TopicDeletedError
from dafka.http.logs.log_access import LEADER_WAIT_S, READ_BYTES, LogOffsets, PendingBatches, ReadRecords
from dafka.http.server.errors import LeaderMovedError, WebError, leader_changed, topic_not_found
from dafka.records import RecordBatch

UNPACKED_BYTES = 2**20
"""The size of the records of one read, uncompressed, unless a single record is larger."""

_SEQUENCE_ERRORS = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "records before these are missing: publish them first, in order",
    ErrorCode.INVALID_PRODUCER_EPOCH: "the producer has a later epoch",
    ErrorCode.INVALID_TXN_STATE: "the producer has an open transaction",
}

Resend = Callable[[Log, Sequence[Batch]], PendingBatches]


class LocalLogs:
    """Implements `LogAccess` for the logs that this broker leads."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._node = broker.node

    async def bounds(self, logs: Iterable[Log]) -> dict[Log, LogOffsets]:
        """Return the offsets of logs, in their order."""
        found: dict[Log, LogOffsets] = {}
        for log in logs:
            while log not in found:
                await self._wait_lease(log)
                offsets = self._offsets(log)
                if self._node.leases.holds_lease(log):
                    found[log] = offsets
        return found

    async def known_bounds(self, logs: Iterable[Log]) -> dict[Log, LogOffsets]:
        """Return the offsets of logs, as far as this broker knows them."""
        return {log: self._offsets(log) for log in logs}

    async def find_offset_by_time(self, log: Log, timestamp_ms: int) -> int:
        """Return the offset of the first committed record at a time or later; else the end of the log."""
        while True:
            _check_led(log)
            end = log.last_stable_offset
            try:
                at = await self._node.reader.find_offset_by_time(log, timestamp_ms)
            except StorageError as error:
                raise WebError("storage_failed", f"the storage fails: {error}") from None
            if self._node.leases.holds_lease(log):
                return end if at is None else min(at[0], end)
            await self._wait_lease(log)

    async def read(
        self, log: Log, offset: int, *, bytes_max: int = READ_BYTES, end_offset: int | None = None
    ) -> ReadRecords:
        """Return the committed records of a log from an offset on, up to about a size."""
        while True:
            _check_led(log)
            read = await self._read(log, max(Offset(offset), log.index.start_offset), bytes_max, end_offset)
            if read.batches or read.next_offset > offset or self._node.leases.holds_lease(log):
                return read
            await self._wait_lease(log)

    async def _read(self, log: Log, offset: Offset, bytes_max: int, end_offset: int | None) -> ReadRecords:
        stable = log.last_stable_offset
        end = stable if end_offset is None else min(stable, Offset(end_offset))
        if offset >= end:
            return ReadRecords(offset, offset, ())
        try:
            read, unpacked_bytes = await self._node.reader.read_measured(log, offset, end, bytes_max, UNPACKED_BYTES)
            batches = [(read_header(data), data) for data in read]
        except (StorageError, BatchError) as error:
            if log.is_gone:
                raise topic_not_found(log.topic) from None
            raise WebError("storage_failed", f"the storage fails: {error}") from None
        next_offset = Offset(batches[-1][0].end_offset) if batches else end
        split = split_committed(batches, log.aborted_between(offset, next_offset))
        return ReadRecords(offset, next_offset, [each for each, is_committed in split if is_committed], unpacked_bytes)

    def has_records(self, log: Log, offset: int) -> bool:
        """Return whether a log has committed records at an offset or later, or was deleted."""
        return log.last_stable_offset > offset or log.is_gone

    async def wait_records(self, offsets: Mapping[Log, int]) -> None:
        """Wait until one of these logs has records at its offset or later, or is deleted."""
        for log in offsets:
            if not log.leadership.is_led:
                raise LeaderMovedError(log)
        while not any(self.has_records(log, offset) for log, offset in offsets.items()):
            with self._node.watchers.watching(offsets) as advanced:
                await advanced.wait()
        await trio.lowlevel.checkpoint()

    async def wait_capacity(self) -> None:
        """Wait until records that are not yet durable take less than `[store] pending_bytes_max`."""
        await self._node.storage.wait_capacity()

    def append(
        self,
        log: Log,
        batches: Sequence[Batch],
        records: RecordBatch | None = None,
        *,
        resend: Resend | None = None,
    ) -> PendingBatches:
        """Append record batches of a client to a log.

        `resend` sends records to the next leader if it is certain that no leader then appends them twice; without it,
        waiting for them raises `LeaderMovedError`.
        """
        try:
            appended = self._broker.appender.append(log, batches, records=records)
        except NotLeaderError:
            raise LeaderMovedError(log) from None
        except AppendRefusedError as refused:
            if refused.error_code is not ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                raise refused_append(log, refused) from None
            appended = None
        return _LocalAppend(log, batches, appended, resend)

    async def delete_before(self, log: Log, offset: int) -> int:
        """Delete the records of a log before an offset. Return the log's new start offset."""
        _check_led(log)
        if offset > log.index.start_offset:
            try:
                await self._node.deletion.delete_before(log, Offset(offset))
            except TopicDeletedError:
                raise topic_not_found(log.topic) from None
            except NotLeaderError:
                raise LeaderMovedError(log) from None
        return log.index.start_offset

    def _offsets(self, log: Log) -> LogOffsets:
        offset_max = max(log.high_watermark, log.index.end_offset)
        return LogOffsets(log.index.start_offset, log.last_stable_offset, log.high_watermark, offset_max)

    async def _wait_lease(self, log: Log) -> None:
        """Wait until this broker has the leader lease of a log, so that no other broker can have appended to it."""
        with trio.move_on_after(LEADER_WAIT_S) as scope:
            await self._node.leases.wait_lease(log)
        if scope.cancelled_caught:
            raise WebError(
                "leader_unavailable",
                f"too few replicas of log {log.number} of the topic {log.topic!r} answer its leader",
            )
        _check_led(log)


def _check_led(log: Log) -> None:
    if log.is_gone:
        raise topic_not_found(log.topic)
    if not log.leadership.is_led:
        raise LeaderMovedError(log)


@attrs.frozen(eq=False)
class _LocalAppend:
    """Record batches in a log that this broker leads; `appended` is None for old duplicates of an unknown offset."""

    log: Log
    _batches: Sequence[Batch]
    _appended: AppendedBatches | None
    _resend: Resend | None

    @property
    def record_count(self) -> int:
        """The number of their records."""
        return sum(header.count for header, _ in self._batches)

    @property
    def is_durable(self) -> bool:
        """Whether they are durable."""
        return self._appended is None or self._appended.is_durable()

    async def wait_offset(self) -> int | None:
        """Wait until they are durable, and return the offset of the first record; None if it is not known."""
        if self._appended is None:
            return None
        try:
            offset = await self._appended.wait_offset()
        except TopicDeletedError:
            raise topic_not_found(self.log.topic) from None
        except OutcomeUnknownError:
            raise leader_changed(self.log) from None
        except NotLeaderError:  # they are not in the log, or have a producer id
            if self._resend is None:
                raise LeaderMovedError(self.log) from None
            return await self._resend(self.log, self._batches).wait_offset()
        return None if offset < 0 else offset


def refused_append(log: Log, refused: AppendRefusedError) -> WebError:
    """Return a client's error for refused records."""
    where = f"log {log.number} of the topic {log.topic!r}"
    match refused.error_code:
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return topic_not_found(log.topic)
        case ErrorCode.KAFKA_STORAGE_ERROR:
            return WebError("storage_failed", f"{where}: {refused.message}")
        case ErrorCode.NOT_ENOUGH_REPLICAS:
            return WebError("leader_unavailable", f"{where}: {refused.message}")
        case ErrorCode.MESSAGE_TOO_LARGE:
            return WebError("too_large", f"the topic {log.topic!r}: {refused.message}")
        case error_code if error_code in _SEQUENCE_ERRORS:
            return WebError("conflict", f"{where}: {_SEQUENCE_ERRORS[error_code]}")
    return WebError("bad_request", f"the records are refused: {refused.message or refused.error_code.name}")
