"""The logs that other brokers lead, for clients of HTTP and WebSocket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from urllib.parse import quote
from weakref import WeakKeyDictionary

import trio

from dafka.broker.broker import Broker
from dafka.broker.core.log.log import Log
from dafka.broker.log.appending import Batch
from dafka.exceptions import unwrap_group
from dafka.http.forwarding.broker_client import SHOWN_WAIT_S, BrokerClient, BrokerError
from dafka.http.forwarding.broker_link import BrokerLink
from dafka.http.forwarding.leaders import RETRY_S, Leaders
from dafka.http.forwarding.remote_appends import AppendHere, Lanes, RemoteAppend, RemoteAppends
from dafka.http.forwarding.remote_queues import RemoteQueues
from dafka.http.forwarding.remote_reads import RemoteRead, RemoteReads
from dafka.http.logs.log_access import LEADER_WAIT_S, READ_BYTES, LogOffsets, ReadRecords
from dafka.http.server.errors import LeaderMovedError, WebError
from dafka.records import RecordBatch


class RemoteLogs:
    """Implements `LogAccess` for the logs that other brokers lead."""

    def __init__(self, broker: Broker, client: BrokerClient, append_here: AppendHere) -> None:
        self._client = client
        self._leaders = Leaders(broker, client, self._start_soon)
        self._reads = RemoteReads(self._leaders, self._start_soon)
        self.queues = RemoteQueues(self._leaders, self._start_soon)
        """The queues in these logs."""
        self._append_here = append_here
        self._pending_bytes_max = broker.config.store.pending_bytes_max
        self._pending_bytes = 0
        self._capacity = trio.lowlevel.ParkingLot()
        self._appends: dict[Log, RemoteAppends] = {}
        self._lanes: WeakKeyDictionary[Log, Lanes] = WeakKeyDictionary()
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Forward requests to other brokers until cancelled."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._reads.run)
            task_status.started()

    def _start_soon(self, run: Callable[..., Awaitable[object]], *arguments: object) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(run, *arguments)

    # Reading

    async def bounds(self, logs: Iterable[Log]) -> dict[Log, LogOffsets]:
        """Return the offsets of logs."""
        found: dict[Log, LogOffsets] = {}
        problems: list[WebError] = []

        async def ask(some: Sequence[Log]) -> None:
            try:
                for log in some:
                    if log not in found:
                        found.update(await self._ask_bounds(log, some))
            except WebError as error:
                problems.append(error)

        await _for_each_group(logs, lambda log: log.leadership.leader, ask)
        if problems:
            raise problems[0]
        return found

    async def _ask_bounds(self, log: Log, some: Sequence[Log]) -> dict[Log, LogOffsets]:
        deadline = trio.current_time() + LEADER_WAIT_S
        while True:
            answer = await self._leaders.ask(log, lambda link: link.describe(log.topic))
            if log.number in answer:
                return {each: answer[each.number] for each in some if each.number in answer}
            if trio.current_time() >= deadline:
                raise self._leaders.unavailable(log, "does not lead it yet")
            await self._leaders.wait_leader_change(log, RETRY_S)

    async def known_bounds(self, logs: Iterable[Log]) -> dict[Log, LogOffsets]:
        """Return the offsets of the logs whose leaders answer promptly."""
        found: dict[Log, LogOffsets] = {}

        async def ask(some: Sequence[Log]) -> None:
            try:
                answers = await self._leaders.retry_on_leader_change(
                    some[0], lambda link: link.describe(some[0].topic), trio.current_time() + SHOWN_WAIT_S
                )
            except (BrokerError, WebError):
                return
            for answer in answers:
                found.update({log: answer[log.number] for log in some if log.number in answer})

        await _for_each_group(logs, lambda log: (log.leadership.leader, log.topic), ask)
        return found

    async def find_offset_by_time(self, log: Log, timestamp_ms: int) -> int:
        """Return the offset of the first committed record at a time or later; else the end of the log."""
        return await self._leaders.ask(log, lambda link: link.find_offset_by_time(log.topic, log.number, timestamp_ms))

    async def read(
        self, log: Log, offset: int, *, bytes_max: int = READ_BYTES, end_offset: int | None = None
    ) -> ReadRecords:
        """Wait for committed records of a log from an offset on. Their leader chooses how many it sends."""
        deadline = trio.current_time() + LEADER_WAIT_S
        while not log.leadership.is_led:
            reading = self._reads.begin(log, offset)
            with trio.move_on_at(deadline):
                await reading.wait()
            if reading.records is not None:
                return reading.records
            if trio.current_time() >= deadline:
                raise self._leaders.unavailable(log, "does not answer")
        raise LeaderMovedError(log)

    def has_records(self, log: Log, offset: int) -> bool:
        """Return whether records from an offset on have arrived."""
        return self._reads.has_records(log, offset)

    async def wait_records(self, offsets: Mapping[Log, int]) -> None:
        """Wait until one of these logs has records at its offset or later, is deleted, or gets another leader."""
        reads = [self._reads.begin(log, offset) for log, offset in offsets.items()]

        async def wait(read: RemoteRead) -> None:
            await read.wait()
            nursery.cancel_scope.cancel()

        with unwrap_group():
            async with trio.open_nursery() as nursery:
                for each in reads:
                    nursery.start_soon(wait, each)

    # Writing

    async def wait_capacity(self) -> None:
        """Wait until records in flight to other brokers take less than `[store] pending_bytes_max`."""
        while self._pending_bytes >= self._pending_bytes_max:
            await self._capacity.park()

    def is_appending(self, log: Log) -> bool:
        """Return whether records for a log are in flight. Later records must wait for them."""
        return log in self._appends

    def append(self, log: Log, batches: Sequence[Batch], records: RecordBatch | None = None) -> RemoteAppend:
        """Send record batches to the leader of a log, after those in flight."""
        found = self._appends.get(log)
        if found is None:
            lanes = self._lanes.setdefault(log, Lanes())
            found = RemoteAppends(log, self._leaders, self._append_here, self._on_append_ended, lanes)
            self._appends[log] = found
            self._start_soon(self._run_appends, log, found)
        added = found.add(batches)
        self._pending_bytes += added.size
        return added

    async def delete_before(self, log: Log, offset: int) -> int:
        """Delete the records of a log before an offset. Return the log's new start offset."""
        target = f"/topics/{quote(log.topic, safe='')}/records?log={log.number}&before={offset}"

        async def delete(link: BrokerLink) -> int:
            answer = await self._client.request(link.broker, "DELETE", target)
            return int(answer["start_offset"])

        return await self._leaders.ask(log, delete)

    async def _run_appends(self, log: Log, appends: RemoteAppends) -> None:
        await appends.run()
        del self._appends[log]

    def _on_append_ended(self, append: RemoteAppend) -> None:
        self._pending_bytes -= append.size
        self._capacity.unpark_all()


async def _for_each_group(
    logs: Iterable[Log], key: Callable[[Log], Hashable], ask: Callable[[Sequence[Log]], Awaitable[None]]
) -> None:
    """Call a function at the same time for each group of logs with the same key."""
    groups: dict[Hashable, list[Log]] = {}
    for log in logs:
        groups.setdefault(key(log), []).append(log)
    async with trio.open_nursery() as nursery:
        for group in groups.values():
            nursery.start_soon(ask, group)
