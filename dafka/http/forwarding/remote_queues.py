"""Queues in the logs that other brokers lead."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import attrs
import trio

from dafka.broker.core.log.log import Log
from dafka.exceptions import unwrap_group
from dafka.http.forwarding.broker_client import SHOWN_WAIT_S, BrokerError
from dafka.http.forwarding.broker_link import UnsentError
from dafka.http.forwarding.leaders import RETRIED, Leaders, StartSoon
from dafka.http.logs.log_access import LEADER_WAIT_S
from dafka.http.queues.queue_access import (
    Acknowledgements,
    LockedRecords,
    Queue,
    QueueState,
    ReceiveLimits,
    RefusedRecords,
    group_by_leader,
)
from dafka.http.server.errors import LeaderMovedError, WebError

WAIT_S = 10.0
"""How long another broker is asked to wait for available records at a time."""

RETRY_S = 0.5


@attrs.frozen
class _Place:
    """A queue in some logs of one leader."""

    queue: Queue
    leader: str
    logs: tuple[Log, ...]


class RemoteQueues:
    """Implements `QueueAccess` for the logs that other brokers lead. Clients that wait for a queue share a request."""

    def __init__(self, leaders: Leaders, start_soon: StartSoon) -> None:
        self._leaders = leaders
        self._start_soon = start_soon
        self._waits: dict[_Place, trio.Event] = {}

    async def known_states(self, queue: Queue, logs: Sequence[Log]) -> dict[Log, QueueState]:
        """Return the states of the logs whose leaders answer promptly."""
        found: dict[Log, QueueState] = {}
        problems: list[WebError] = []
        deadline = trio.current_time() + SHOWN_WAIT_S

        async def ask(some: Sequence[Log]) -> None:
            numbers = [log.number for log in some]
            try:
                for states in await self._leaders.retry_on_leader_change(
                    some[0], lambda link: link.describe_queue(queue, numbers), deadline
                ):
                    found.update({log: states[log.number] for log in some if log.number in states})
            except BrokerError:
                pass
            except WebError as error:
                if error.code not in RETRIED:
                    problems.append(error)

        async with trio.open_nursery() as nursery:
            for place in _places(queue, logs):
                nursery.start_soon(ask, place.logs)
        if problems:
            raise problems[0]
        return found

    async def wait_available(self, queue: Queue, logs: Sequence[Log]) -> None:
        """Wait until one of these logs has available records, or possibly has."""

        async def wait(ended: trio.Event) -> None:
            await ended.wait()
            nursery.cancel_scope.cancel()

        with unwrap_group():
            async with trio.open_nursery() as nursery:
                for place in _places(queue, logs):
                    ended = self._waits.get(place)
                    if ended is None:
                        ended = self._waits[place] = trio.Event()
                        self._start_soon(self._wait_at_leader, place, ended)
                    nursery.start_soon(wait, ended)

    async def _wait_at_leader(self, place: _Place, ended: trio.Event) -> None:
        """Wait for available records on behalf of all clients here."""
        numbers, wait_ms = [log.number for log in place.logs], int(WAIT_S * 1000)
        try:
            await self._leaders.retry_on_leader_change(
                place.logs[0], lambda link: link.describe_queue(place.queue, numbers, wait_ms), float("inf")
            )
        except (BrokerError, WebError):
            await trio.sleep(RETRY_S)
        finally:
            del self._waits[place]
            ended.set()

    async def lock(
        self,
        queue: Queue,
        logs: Sequence[Log],
        receipt: str,
        limits: ReceiveLimits,
        source: str,
    ) -> list[LockedRecords]:
        """Lock available records of logs with the same leader. It is asked once: it can have locked them already."""
        numbers = [log.number for log in logs]
        deadline = trio.current_time() + LEADER_WAIT_S
        try:
            answers = await self._leaders.retry_on_leader_change(
                logs[0], lambda link: link.receive(queue, numbers, receipt, limits), deadline
            )
        except BrokerError:
            return []  # if it has locked records, the locks expire
        except WebError as error:
            if error.code in RETRIED:
                raise LeaderMovedError(logs[0]) from None
            raise
        return answers[0] if answers else []

    async def acknowledge(
        self, queue: Queue, logs: Sequence[Log], acknowledgements: Acknowledgements
    ) -> list[RefusedRecords]:
        """Acknowledge records durably at the leader of their logs. Return what is refused."""
        numbers = [log.number for log in logs]
        deadline = trio.current_time() + LEADER_WAIT_S
        if self._leaders.find(logs[0]) is None:
            raise LeaderMovedError(logs[0])
        try:
            answers = await self._leaders.retry_on_leader_change(
                logs[0], lambda link: link.acknowledge(queue, numbers, acknowledgements), deadline
            )
        except UnsentError:
            raise LeaderMovedError(logs[0]) from None
        except BrokerError as error:
            raise self._leaders.unavailable(logs[0], str(error)) from None
        except WebError as error:
            if error.code in RETRIED:
                raise LeaderMovedError(logs[0]) from None
            raise
        if answers:
            return answers[0]
        where = f"log {logs[0].number} of the topic {queue.topic!r}"
        raise WebError("leader_changed", f"{where} got another leader, or does not answer")

    def release(self, queue: Queue, logs: Sequence[Log], receipt: str) -> None:
        """Begin to release all records that a receipt locks. If that fails, their locks expire."""
        for place in _places(queue, logs):
            with suppress(BrokerError):
                self._leaders.link(place.logs[0]).release(queue, [log.number for log in place.logs], receipt)


def _places(queue: Queue, logs: Sequence[Log]) -> list[_Place]:
    """Return the queue at each leader of some logs."""
    return [_Place(queue, some[0].leadership.leader, tuple(some)) for some in group_by_leader(logs)]
