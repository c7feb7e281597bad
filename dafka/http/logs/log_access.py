"""Gives clients of HTTP and WebSocket access to the records of logs, whichever broker leads them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import attrs
import trio

from dafka.broker.broker import Broker
from dafka.broker.core.log.log import Log
from dafka.broker.core.positions import Offset
from dafka.broker.log.appending import Batch
from dafka.errors import NotLeaderError, OutcomeUnknownError, TopicDeletedError
from dafka.exceptions import unwrap_group
from dafka.http.forwarding.broker_client import BrokerClient
from dafka.http.forwarding.broker_link import LogOffsets
from dafka.http.forwarding.leaders import LEADER_WAIT_S
from dafka.http.forwarding.remote_appends import leader_changed
from dafka.http.forwarding.remote_logs import RemoteLogs
from dafka.http.forwarding.remote_reads import RemoteRead
from dafka.http.logs.group_access import GroupAccess
from dafka.http.logs.reading import (
    READ_BYTES,
    ReadRecords,
    find_offset_by_time,
    has_records,
    read_committed,
    wait_records,
)
from dafka.http.server.errors import WebError, topic_not_found
from dafka.records import RecordBatch


@attrs.frozen(eq=False)
class PendingBatches:
    """Record batches that are being appended.

    Attributes:
        log: The log.
        record_count: The number of their records.
        is_durable: Returns whether they are durable.
        wait_offset: Waits until they are durable, and returns the offset of the first record; None if it is not known.
            Raises `WebError` if they are refused or possibly lost, or the topic was deleted.
    """

    log: Log
    record_count: int
    is_durable: Callable[[], bool]
    wait_offset: Callable[[], Awaitable[int | None]]


class LogAccess:
    """Access to the records of logs, on this broker or on their leader.

    Args:
        broker: The broker and its coordinators.
        remote: The logs that other brokers lead; None for requests that another broker has forwarded: they are not
            forwarded again.
        client: Connects to other brokers; None likewise.

    Attributes:
        broker: The broker and its coordinators.
        groups: Access to the groups.
    """

    def __init__(self, broker: Broker, remote: RemoteLogs | None = None, client: BrokerClient | None = None) -> None:
        self.broker = broker
        self.groups = GroupAccess(broker, client)
        self._remote = remote

    def check(self, log: Log) -> None:
        """Raise `WebError` if another broker leads a log and the request must not be forwarded."""
        if not log.leadership.is_led:
            self._forward(log)

    # Reading

    async def bounds(self, logs: Iterable[Log]) -> dict[Log, LogOffsets]:
        """Return the offsets of logs, in their order.

        Raises `WebError` if a topic was deleted, or the leader of a log cannot be reached or has no quorum.
        """
        found: dict[Log, LogOffsets] = {}
        asked = list(logs)
        while missing := [log for log in asked if log not in found]:
            others = [log for log in missing if not log.leadership.is_led]
            if others:
                found |= await self._forward(others[0]).bounds(others)
            for log in missing:
                await self._wait_lease(log)
            here = {log: self._bounds_here(log) for log in missing if log not in found}
            found |= {log: each for log, each in here.items() if self.broker.node.leases.holds_lease(log)}
        return {log: found[log] for log in asked}

    async def known_bounds(self, logs: Iterable[Log]) -> dict[Log, LogOffsets]:
        """Return the offsets of the logs that can be reached promptly, for display."""
        asked = list(logs)
        here = {log: self._bounds_here(log) for log in asked if log.leadership.is_led or self._remote is None}
        others = [log for log in asked if log not in here]
        if not others or self._remote is None:
            return here
        return here | await self._remote.known_bounds(others)

    async def _wait_lease(self, log: Log) -> None:
        """Wait until this broker has the leader lease of a log, or does not lead it. Raises `WebError`."""
        with trio.move_on_after(LEADER_WAIT_S) as scope:
            await self.broker.node.leases.wait_lease(log)
        if scope.cancelled_caught:
            raise WebError(
                "leader_unavailable",
                f"too few replicas of log {log.number} of the topic {log.topic!r} answer its leader",
            )

    def _bounds_here(self, log: Log) -> LogOffsets:
        end = log.last_stable_offset
        offset_max = max(log.high_watermark, log.index.end_offset)
        return LogOffsets(log.index.start_offset, end, log.high_watermark, offset_max)

    async def find_offset_by_time(self, log: Log, timestamp_ms: int) -> int:
        """Return the offset of the first committed record at a time or later; else the end of the log.

        The time is in milliseconds since 1970. Raises `WebError` if the storage fails or the leader cannot be reached.
        """
        while True:
            if log.leadership.is_led:
                at = await find_offset_by_time(self.broker, log, timestamp_ms)
                if self.broker.node.leases.holds_lease(log):
                    return at
                await self._wait_lease(log)
            else:
                leaders = self._forward(log).leaders
                found = await leaders.ask(
                    log, lambda link: link.find_offset_by_time(log.topic, log.number, timestamp_ms)
                )
                if found is not None:
                    return found

    async def read(
        self, log: Log, offset: int, *, bytes_max: int = READ_BYTES, end_offset: int | None = None
    ) -> ReadRecords:
        """Return the committed records of a log from an offset on, up to a size.

        Args:
            log: The log.
            offset: The offset of the first record. If it was dropped, the records begin after it.
            bytes_max: The approximate maximum size. One batch is returned even if it is larger.
            end_offset: The offset after the last record that is needed; None for no limit. A remote leader can return
                more.

        Returns:
            The records. If this broker leads the log and there are none, `next_offset` is `offset`.

        Raises:
            WebError: The topic was deleted, the storage fails, or the leader does not answer in time.
        """
        deadline = trio.current_time() + LEADER_WAIT_S
        while True:
            if log.leadership.is_led:
                read = await read_committed(self.broker, log, offset, bytes_max=bytes_max, end_offset=end_offset)
                if read.batches or read.next_offset > offset or self.broker.node.leases.holds_lease(log):
                    return read
                await self._wait_lease(log)
                continue
            remote = self._forward(log)
            reading = remote.reads.begin(log, offset)
            with trio.move_on_at(deadline):
                await reading.wait()
            if reading.records is not None:
                return reading.records
            if trio.current_time() >= deadline:
                raise remote.leaders.unavailable(log, "does not answer")

    def has_records(self, log: Log, offset: int) -> bool:
        """Return whether there are committed records at an offset or later, or the topic was deleted.

        For a log that another broker leads, `wait_records` must have fetched them.
        """
        if log.leadership.is_led or self._remote is None:
            return has_records(self.broker, log, offset)
        return self._remote.reads.has_records(log, offset)

    async def wait_records(self, offsets: Mapping[Log, int]) -> None:
        """Wait until one of these logs has records at its offset or later, is deleted, or gets another leader.

        Raises `WebError` if a log cannot be read, or another broker leads it and the request must not be forwarded.
        """
        here = {log: offset for log, offset in offsets.items() if log.leadership.is_led}
        if len(here) == len(offsets):
            await wait_records(self.broker, here)
            return
        others = {log: offset for log, offset in offsets.items() if log not in here}
        reads = [self._forward(log).reads.begin(log, offset) for log, offset in others.items()]
        if here and any(self.has_records(*each) for each in here.items()):
            await trio.lowlevel.checkpoint()
            return
        with unwrap_group():
            async with trio.open_nursery() as nursery:

                async def wait(read: RemoteRead) -> None:
                    await read.wait()
                    nursery.cancel_scope.cancel()

                for each in reads:
                    nursery.start_soon(wait, each)
                await wait_records(self.broker, here) if here else await trio.sleep_forever()
                nursery.cancel_scope.cancel()

    # Writing

    async def wait_capacity(self) -> None:
        """Wait until records that are not yet durable take less than `[store] pending_bytes_max`."""
        await self.broker.node.storage.wait_capacity()
        if self._remote is not None:
            await self._remote.wait_capacity()

    def append(self, log: Log, batches: Sequence[Batch], records: RecordBatch | None = None) -> PendingBatches:
        """Append record batches of a client to a log.

        Args:
            log: The log.
            batches: The batches, with checked CRCs. A batch with a producer id comes alone.
            records: The result of `dafka.broker.log.appending.unpacked`.

        Returns:
            The pending append.

        Raises:
            AppendRefusedError: They are malformed, too large, or out of the producer's sequence.
            WebError: Another broker leads the log, and the request must not be forwarded.
        """
        is_next = self._remote is None or not self._remote.is_appending(log)
        if log.leadership.is_led and is_next:
            try:
                return self._append_here(log, batches, records)
            except NotLeaderError:
                pass  # this broker has just stopped leading it
        sent = self._forward(log).append(log, batches)
        return PendingBatches(log, sent.record_count, sent.ended.is_set, sent.wait_offset)

    def _append_here(self, log: Log, batches: Sequence[Batch], records: RecordBatch | None) -> PendingBatches:
        appended = self.broker.appender.append(log, batches, records=records)

        async def wait_offset() -> int | None:
            try:
                offset = await appended.wait_offset()
            except TopicDeletedError:
                raise topic_not_found(log.topic) from None
            except OutcomeUnknownError:
                raise leader_changed(log) from None
            except NotLeaderError:  # they are not in the log, or have a producer id
                return await self._forward(log).append(log, batches).wait_offset()
            return None if offset < 0 else offset

        return PendingBatches(log, appended.record_count, appended.is_durable, wait_offset)

    async def delete_before(self, log: Log, offset: int) -> int:
        """Delete the records of a log before an offset. Return the log's new start offset."""
        while not log.leadership.is_led:
            found = await self._forward(log).delete_before(log, offset)
            if found is not None:
                return found
        if offset > log.index.start_offset:
            try:
                await self.broker.node.deletion.delete_before(log, Offset(offset))
            except TopicDeletedError:
                raise topic_not_found(log.topic) from None
        return log.index.start_offset

    def _forward(self, log: Log) -> RemoteLogs:
        """Return the access to remote logs. Raises `WebError` if the request must not be forwarded."""
        if self._remote is None:
            raise WebError("not_leader", f"this broker does not lead log {log.number} of the topic {log.topic!r}")
        return self._remote
