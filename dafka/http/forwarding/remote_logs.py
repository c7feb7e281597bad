"""Gives this broker's clients access to logs that other brokers lead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from urllib.parse import quote
from weakref import WeakKeyDictionary

import trio

from dafka.broker.broker import Broker
from dafka.broker.core.log.log import Log
from dafka.broker.log.appending import AppendedBatches, Batch
from dafka.http.forwarding.broker_client import BrokerClient, BrokerError
from dafka.http.forwarding.broker_link import BrokerLink, LogOffsets
from dafka.http.forwarding.leaders import LEADER_WAIT_S, RETRY_S, Leaders
from dafka.http.forwarding.remote_appends import Lanes, RemoteAppend, RemoteAppends
from dafka.http.forwarding.remote_reads import RemoteReads
from dafka.http.server.errors import WebError

SHOWN_WAIT_S = 2.0
"""How long a page waits for other brokers."""

AppendHere = Callable[[Log, Sequence[Batch]], AppendedBatches | None]


class RemoteLogs:
    """Access to the logs that other brokers lead.

    Args:
        broker: The broker and its coordinators.
        client: Connects to other brokers.
        append_here: Appends record batches to a log that this broker leads; see `RemoteAppends`.

    Attributes:
        leaders: Connects to the leaders.
        reads: The reads.
    """

    def __init__(self, broker: Broker, client: BrokerClient, append_here: AppendHere) -> None:
        self._client = client
        self.leaders = Leaders(broker, client)
        self.reads = RemoteReads(self.leaders)
        self._append_here = append_here
        self._room_bytes = broker.config.store.pending_bytes_max
        self._pending_bytes = 0
        self._capacity = trio.lowlevel.ParkingLot()
        self._appends: dict[Log, RemoteAppends] = {}
        self._lanes: WeakKeyDictionary[Log, Lanes] = WeakKeyDictionary()
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Forward requests to other brokers until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await self._nursery.start(self.leaders.run)
            await self._nursery.start(self.reads.run)
            task_status.started()

    async def wait_capacity(self) -> None:
        """Wait until records in flight to other brokers take less than `[store] pending_bytes_max`."""
        while self._pending_bytes >= self._room_bytes:
            await self._capacity.park()

    def is_appending(self, log: Log) -> bool:
        """Return whether records for a log are in flight. Later records must wait for them."""
        return log in self._appends

    def append(self, log: Log, batches: Sequence[Batch]) -> RemoteAppend:
        """Send record batches to the leader of a log, after those in flight."""
        found = self._appends.get(log)
        if found is None:
            assert self._nursery is not None
            lanes = self._lanes.setdefault(log, Lanes())
            found = self._appends[log] = RemoteAppends(
                log, self.leaders, self._append_here, self._on_append_ended, lanes
            )
            self._nursery.start_soon(self._run_appends, log, found)
        added = found.add(batches)
        self._pending_bytes += added.size
        return added

    async def bounds(self, logs: Iterable[Log]) -> dict[Log, LogOffsets]:
        """Return the offsets of logs from their leaders, without logs that this broker leads by now.

        Raises `WebError` if a topic was deleted, or a leader cannot be reached.
        """
        found: dict[Log, LogOffsets] = {}
        by_leader: dict[str, list[Log]] = {}
        for log in logs:
            by_leader.setdefault(log.leadership.leader, []).append(log)
        problems: list[WebError] = []

        async def ask(some: Sequence[Log]) -> None:
            try:
                for log in some:
                    if log not in found:
                        found.update(await self._ask_bounds(log, some))
            except WebError as error:
                problems.append(error)

        async with trio.open_nursery() as nursery:
            for some in by_leader.values():
                nursery.start_soon(ask, some)
        if problems:
            raise problems[0]
        return found

    async def known_bounds(self, logs: Iterable[Log]) -> dict[Log, LogOffsets]:
        """Return the offsets of the logs whose leaders answer promptly."""
        found: dict[Log, LogOffsets] = {}
        by_leader: dict[tuple[str, str], list[Log]] = {}
        for log in logs:
            by_leader.setdefault((log.leadership.leader, log.topic), []).append(log)

        async def ask(some: Sequence[Log]) -> None:
            try:
                answers = await self.leaders.retry_on_leader_change(
                    some[0], lambda link: link.describe(some[0].topic), trio.current_time() + SHOWN_WAIT_S
                )
            except (BrokerError, WebError):
                return
            for answer in answers:
                found.update({log: answer[log.number] for log in some if log.number in answer})

        async with trio.open_nursery() as nursery:
            for some in by_leader.values():
                nursery.start_soon(ask, some)
        return found

    async def _ask_bounds(self, log: Log, some: Sequence[Log]) -> dict[Log, LogOffsets]:
        deadline = trio.current_time() + LEADER_WAIT_S
        while True:
            answer = await self.leaders.ask(log, lambda link: link.describe(log.topic))
            if answer is None:
                return {}
            if log.number in answer:
                return {each: answer[each.number] for each in some if each.number in answer}
            if trio.current_time() >= deadline:
                raise self.leaders.unavailable(log, "does not lead it yet")
            await self.leaders.wait_leader_change(log, RETRY_S)

    async def delete_before(self, log: Log, offset: int) -> int | None:
        """Delete the records of a log before an offset. Return its new start; None if this broker leads it now."""
        target = f"/topics/{quote(log.topic, safe='')}/records?log={log.number}&before={offset}"

        async def delete(link: BrokerLink) -> int:
            answer = await self._client.request(link.broker, "DELETE", target)
            return int(answer["start_offset"])

        return await self.leaders.ask(log, delete)

    async def _run_appends(self, log: Log, appends: RemoteAppends) -> None:
        await appends.run()
        del self._appends[log]

    def _on_append_ended(self, append: RemoteAppend) -> None:
        self._pending_bytes -= append.size
        self._capacity.unpark_all()
