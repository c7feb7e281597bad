"""Queues in the logs that this broker leads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
import trio

from dafka.batches import read_header
from dafka.broker.broker import Broker
from dafka.broker.connections.memory import MemoryPool
from dafka.broker.coordinator.led_share_partition import LedSharePartition
from dafka.broker.coordinator.share_reads import AcquiredRecords, ShareRead
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.share_partition import Acknowledgement, AcknowledgeType, AcquiredRange, add_range
from dafka.broker.core.log.log import Log
from dafka.errors import BatchError, StorageError
from dafka.http.logs.log_access import LEADER_WAIT_S, ReadRecords
from dafka.http.logs.unpacking import unpack
from dafka.http.queues.queue_access import (
    Acknowledgements,
    LockedRecords,
    Queue,
    QueueState,
    ReceiveLimits,
    RefusedRecords,
)
from dafka.http.server.errors import LeaderMovedError, WebError, queue_not_found, topic_not_found
from dafka.http.websocket.shared_reads import RECORD_BYTES

VERIFIED_S = 1.0
"""How long a queue is used before it is compared with its coordinator again.

That it was deleted or moved is known at once, unless the coordinator's message was lost.
"""

RETRY_S = 0.1

UNPACKING_FACTOR = 2
"""The number of copies during unpacking: the batch, and its records."""


class LocalQueues:
    """Implements `QueueAccess` for the logs that this broker leads. The memory is for unpacked records."""

    def __init__(self, broker: Broker, memory: MemoryPool) -> None:
        self._broker = broker
        self._shares = broker.shares
        self._watchers = broker.node.watchers
        self._memory = memory

    async def known_states(self, queue: Queue, logs: Sequence[Log]) -> dict[Log, QueueState]:
        """Return the states of logs."""
        return {log: self._state(await self._open(queue, log)) for log in logs}

    async def wait_available(self, queue: Queue, logs: Sequence[Log]) -> None:
        """Wait until one of these logs has available records."""
        while True:
            opened = [await self._open(queue, log) for log in logs]
            with self._watchers.watching(logs) as advanced:
                if not all(each.is_current for each in opened):
                    continue  # a queue was deleted, or a leader has changed, while another log was opened
                for each in opened:
                    each.is_wanted |= each.is_reading
                if any(self._state(each).available_count for each in opened if not each.is_reading):
                    await trio.lowlevel.checkpoint()
                    return
                with trio.move_on_after(VERIFIED_S):
                    await advanced.wait()

    async def lock(
        self, queue: Queue, logs: Sequence[Log], receipt: str, limits: ReceiveLimits, source: str
    ) -> list[LockedRecords]:
        """Lock available records for a receipt."""
        found: list[LockedRecords] = []
        with self._shares.delivering(receipt) as acquired:
            for log in logs:
                left = limits.without(found)
                if left.are_reached:
                    break
                served = await self._open(queue, log)
                found += await self._lock(served, receipt, left, source, acquired)
        return found

    async def acknowledge(
        self, queue: Queue, logs: Sequence[Log], acknowledgements: Acknowledgements
    ) -> list[RefusedRecords]:
        """Acknowledge records durably. Return what is refused."""
        refused: list[RefusedRecords] = []
        changed: dict[Log, tuple[LedSharePartition, Sequence[Acknowledgement]]] = {}
        for log in logs:
            _check_led(log)  # before anything is acknowledged: the request is repeated at the new leaders
        for log in logs:
            asked, found = acknowledgements.ranges.get(log.number, ()), list[Acknowledgement]()
            served = self._shares.served(queue.name, self._topic_id(log), log.number)
            if served is not None:
                receipt, others = acknowledgements.receipt, acknowledgements.others
                found = self._shares.acknowledge_acquired(served, receipt, asked, others)
                changed[log] = served, found
            lost = [
                RefusedRecords(log.number, first, end - 1, "lock_lost", "the receipt does not lock them any more")
                for first, end in find_missing(asked, found)
            ]
            refused += lost
        uncertain = await self._shares.wait_written([served for served, _ in changed.values()])
        for log, (served, acquired) in changed.items():
            if served in uncertain:
                code = "storage_failed" if uncertain[served] is ErrorCode.KAFKA_STORAGE_ERROR else "leader_changed"
                message = "it is not known whether they were acknowledged"
                named = acknowledgements.of_logs([log.number])
                refused = [each for each in refused if each.log != log.number]
                refused += named.refuse(WebError(code, message))
                rest = find_missing(acquired, named.ranges.get(log.number, ()))
                refused += [RefusedRecords(log.number, first, end - 1, code, message) for first, end in rest]
        return refused

    def release(self, queue: Queue, logs: Sequence[Log], receipt: str) -> None:
        """Release all records that a receipt locks."""
        self._shares.release(queue.name, receipt)

    async def _open(self, queue: Queue, log: Log) -> LedSharePartition:
        """Return the share partition of a queue and a log, when it is loaded and known to be current."""
        with trio.move_on_after(LEADER_WAIT_S):
            while True:
                _check_led(log)
                served = self._shares.find(queue.name, log, self._topic_id(log))
                while served.partition is None and not served.error:
                    await served.changed.wait()
                if served.is_current and trio.current_time() - served.verified_at > VERIFIED_S:
                    await self._shares.verify(served)
                if served.error is ErrorCode.GROUP_ID_NOT_FOUND:
                    raise queue_not_found(queue.name)
                if served.is_current:
                    return served
                await trio.sleep(RETRY_S)
        if problem := self._broker.node.storage.waits.problem:
            raise WebError("storage_failed", f"the group {queue.name!r}: {problem}")
        raise WebError("leader_unavailable", f"the coordinator of the group {queue.name!r} does not answer")

    def _topic_id(self, log: Log) -> str:
        topic = self._broker.node.find_topic(log.topic)
        if topic is None:
            raise topic_not_found(log.topic)
        return topic.topic_id

    def _state(self, served: LedSharePartition) -> QueueState:
        partition, unread = served.partition, self._broker.share_reader.find_next(served)
        assert partition is not None
        available_count = 0
        if unread is not None and self._shares.holds_lease(served):
            available_count = partition.count_available(unread[1])
        return QueueState(partition.start_offset, available_count, partition.count_acquired())

    async def _lock(
        self,
        served: LedSharePartition,
        receipt: str,
        limits: ReceiveLimits,
        source: str,
        acquired: dict[LedSharePartition, Sequence[AcquiredRange]],
    ) -> list[LockedRecords]:
        """Lock available records of a log, if there are any. What is `acquired` is withdrawn if this fails."""
        records_max, bytes_max = limits
        wanted = ShareRead(member_id=receipt, records_max=records_max, range_max=records_max, is_exact=True)
        while True:
            try:
                async with self._broker.reads_of(source):
                    read = await self._broker.share_reader.read(served, wanted, bytes_max)
                if not read.ranges:
                    return []
                acquired[served] = read.ranges
                locked = await self._look_into(served, receipt, read, bytes_max, source)
            except (StorageError, BatchError) as error:
                raise WebError("storage_failed", f"the storage fails: {error}") from None
            if locked.ranges:  # else compaction has removed all of them
                return [locked]

    async def _look_into(
        self, served: LedSharePartition, receipt: str, acquired: AcquiredRecords, bytes_max: int, source: str
    ) -> LockedRecords:
        """Return the acquired records that exist, up to a size."""
        batches = [(read_header(data), data) for data in acquired.batches]
        read = ReadRecords(acquired.ranges[0].first, acquired.ranges[-1].end, batches)
        locked = LockedRecords(served.log.number, read, acquired.ranges)
        sizes = await self._measure(locked, bytes_max, source)
        if not self._shares.holds_lease(served):  # another broker could have delivered them, too
            raise LeaderMovedError(served.log)
        return locked if sizes is None else self._keep(served, receipt, locked, sizes, bytes_max)

    async def _measure(self, locked: LockedRecords, bytes_max: int, source: str) -> Mapping[int, int] | None:
        """Return the sizes of the records by offset; None if all records exist and are small enough together."""
        read = locked.read
        if read.unpacked_bytes_max <= bytes_max and not any(header.is_compacted for header, _ in read.batches):
            return None
        return await unpack(
            read, locked.log, lambda: dict(_sizes(read)), memory=self._memory, source=source, copies=UNPACKING_FACTOR
        )

    def _keep(
        self, served: LedSharePartition, receipt: str, locked: LockedRecords, sizes: Mapping[int, int], bytes_max: int
    ) -> LockedRecords:
        """Return the records up to a size, at least one. Take back the others, and archive offsets without records."""
        kept, rest, gaps, left = list[AcquiredRange](), list[AcquiredRange](), list[AcquiredRange](), bytes_max
        for first, end, count in locked.ranges:
            for offset in range(first, end):
                ranges = gaps if offset not in sizes else kept if left > 0 else rest
                add_range(ranges, AcquiredRange(offset, offset + 1, count))
                left -= sizes.get(offset, 0)
        if rest:
            self._shares.withdraw(served, receipt, rest)
        if gaps:
            said = [Acknowledgement(first, end, AcknowledgeType.GAP) for first, end, _ in gaps]
            self._shares.acknowledge_acquired(served, receipt, said)
        return attrs.evolve(locked, ranges=kept)


def _sizes(read: ReadRecords) -> Iterator[tuple[int, int]]:
    """Yield the offset of each record, and the size of its key, its value and its headers."""
    for base_offset, columns in read.columns():
        for number, value in enumerate(columns.values):
            size = len(value or b"") + RECORD_BYTES
            if columns.keys is not None:
                size += len(columns.keys[number] or b"")
            if columns.headers is not None:
                size += sum(len(name) + len(content or b"") for name, content in columns.headers[number])
            yield base_offset + number, size


def find_missing(asked: Iterable[Acknowledgement], found: Iterable[Acknowledgement]) -> Iterator[tuple[int, int]]:
    """Yield the parts of the asked ranges that are not among the found ones. Both are in order."""
    rest = iter(found)
    following = next(rest, None)
    for first, end, _ in asked:
        position = first
        while following is not None and following.first < end:
            if following.end > position:
                if following.first > position:
                    yield position, following.first
                position = following.end
            if following.end > end:
                break
            following = next(rest, None)
        if position < end:
            yield position, end


def _check_led(log: Log) -> None:
    if log.is_gone:
        raise topic_not_found(log.topic)
    if not log.leadership.is_led:
        raise LeaderMovedError(log)
