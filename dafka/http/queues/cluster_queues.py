"""Queues in all logs of a topic, whichever brokers lead them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import count

import attrs
import trio

from dafka.broker.core.log.log import Log
from dafka.exceptions import unwrap_group
from dafka.http.forwarding.remote_queues import RemoteQueues
from dafka.http.logs.log_access import LEADER_WAIT_S
from dafka.http.queues.local_queues import LocalQueues
from dafka.http.queues.queue_access import (
    Acknowledgements,
    LockedRecords,
    Queue,
    QueueAccess,
    QueueState,
    ReceiveLimits,
    RefusedRecords,
    group_by_leader,
)
from dafka.http.server.errors import LeaderMovedError, WebError

RETRY_S = 0.1


@attrs.frozen(eq=False)
class ClusterQueues:
    """Implements `QueueAccess` for all logs: passes each call on to where the log is led."""

    _local: LocalQueues
    _remote: RemoteQueues
    _turns: count[int] = attrs.field(factory=count, init=False)

    async def known_states(self, queue: Queue, logs: Sequence[Log]) -> dict[Log, QueueState]:
        """Return the states of logs, without those whose leaders do not answer promptly."""
        here, others = _split(logs)
        found: dict[Log, QueueState] = {}
        for log in here:
            with suppress(LeaderMovedError):  # it is not known at present
                found |= await self._local.known_states(queue, [log])
        return found | await self._remote.known_states(queue, others)

    async def wait_available(self, queue: Queue, logs: Sequence[Log]) -> None:
        """Wait until one of these logs has available records, or possibly has."""
        here, others = _split(logs)

        async def wait(access: QueueAccess, some: Sequence[Log]) -> None:
            try:
                await access.wait_available(queue, some)
            except LeaderMovedError:
                await trio.sleep(RETRY_S)
            except WebError as error:
                problems.append(error)
            nursery.cancel_scope.cancel()

        problems: list[WebError] = []
        with unwrap_group():
            async with trio.open_nursery() as nursery:
                for access, some in ((self._local, here), (self._remote, others)):
                    if some:
                        nursery.start_soon(wait, access, some)
        if problems:
            raise problems[0]

    async def lock(
        self, queue: Queue, logs: Sequence[Log], receipt: str, limits: ReceiveLimits, source: str
    ) -> list[LockedRecords]:
        """Lock available records for a receipt. Logs take turns at being the first."""
        states, deadline = await self.known_states(queue, logs), trio.current_time() + LEADER_WAIT_S
        while not states:
            if trio.current_time() > deadline:
                raise WebError("leader_unavailable", f"no leader of a log of the topic {queue.topic!r} answers")
            await trio.sleep(RETRY_S)
            states = await self.known_states(queue, logs)
        ready = [log for log, state in states.items() if state.available_count]
        turn = next(self._turns) % len(ready) if ready else 0
        found: list[LockedRecords] = []
        for some in group_by_leader([*ready[turn:], *ready[:turn]]):
            left = limits.without(found)
            if left.are_reached:
                break
            access: QueueAccess = self._local if some[0].leadership.is_led else self._remote
            try:
                found += await access.lock(queue, some, receipt, left, source)
            except LeaderMovedError:
                pass  # the next request asks the new leader
            except WebError:
                if not found:
                    raise
        return found

    async def acknowledge(
        self, queue: Queue, logs: Sequence[Log], acknowledgements: Acknowledgements
    ) -> list[RefusedRecords]:
        """Acknowledge records durably, at the next leader of a log if that has changed. Return what is refused.

        Raises `WebError` if a leader does not answer about records that the acknowledgements do not name.
        """
        refused: list[RefusedRecords] = []
        problems: list[WebError] = []
        deadline = trio.current_time() + LEADER_WAIT_S

        async def acknowledge(some: Sequence[Log]) -> None:
            said = acknowledgements.of_logs(log.number for log in some)
            access: QueueAccess = self._local if some[0].leadership.is_led else self._remote
            try:
                refused.extend(await access.acknowledge(queue, some, said))
            except LeaderMovedError:
                if trio.current_time() <= deadline:
                    await trio.sleep(RETRY_S)
                    begin(some)
                else:
                    fail(said, WebError("leader_unavailable", f"a log of the topic {queue.topic!r} has no leader yet"))
            except WebError as error:
                fail(said, error)

        def fail(said: Acknowledgements, error: WebError) -> None:
            problems.append(error)
            refused.extend(said.refuse(error))

        def begin(some: Sequence[Log]) -> None:
            for each in group_by_leader(some):
                nursery.start_soon(acknowledge, each)

        with unwrap_group():
            async with trio.open_nursery() as nursery:
                begin(logs)
        if problems and acknowledgements.others is not None:
            raise problems[0]
        return sorted(refused, key=lambda each: (each.log, each.offset))

    def release(self, queue: Queue, logs: Sequence[Log], receipt: str) -> None:
        """Begin to release all records that a receipt locks."""
        here, others = _split(logs)
        self._local.release(queue, here, receipt)
        self._remote.release(queue, others, receipt)


def _split(logs: Sequence[Log]) -> tuple[list[Log], list[Log]]:
    """Return the logs that this broker leads, and the others."""
    return [log for log in logs if log.leadership.is_led], [log for log in logs if not log.leadership.is_led]
