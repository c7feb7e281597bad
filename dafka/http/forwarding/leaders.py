"""Finds the leaders of logs and connects to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import trio

from dafka.broker.broker import Broker
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.exceptions import unwrap_group
from dafka.http.forwarding.broker_client import BrokerClient, BrokerError
from dafka.http.forwarding.broker_link import BrokerLink
from dafka.http.logs.log_access import LEADER_WAIT_S
from dafka.http.server.errors import LeaderMovedError, WebError, topic_not_found

RETRY_S = 0.1
"""How long after a failure the request is repeated."""

RETRIED = {"not_leader", "topic_not_found", "log_not_found"}
"""Errors of a broker that does not know yet that it leads a log, or that the log exists."""

_T = TypeVar("_T")


class StartSoon(Protocol):
    """Starts a task, as a nursery does."""

    def __call__(self, run: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Start `run(*arguments)`."""


class Leaders:
    """Connects to the leaders of logs, over connections that `start_soon` runs."""

    def __init__(self, broker: Broker, client: BrokerClient, start_soon: StartSoon) -> None:
        self._broker = broker.node
        self._client = client
        self._start_soon = start_soon
        self._links: dict[str, BrokerLink] = {}

    def find(self, log: Log) -> BrokerRegistration | None:
        """Return the leader of a log; None if there is none, it is this broker, or it is not known."""
        leader = log.leadership.leader
        if log.leadership.is_led or not leader or leader == self._broker.address:
            return None
        return self._broker.brokers.find(leader)

    def link(self, log: Log) -> BrokerLink:
        """Return the connection to the leader of a log. Raises `BrokerError` if none is known."""
        leader = self.find(log)
        if leader is None:
            raise BrokerError("has no leader at present")
        found = self._links.get(leader.address)
        if found is None or found.is_closed or found.broker.http_url != leader.http_url:
            found = self._links[leader.address] = BrokerLink(self._client, leader)
            self._start_soon(found.run)
        return found

    async def ask(self, log: Log, call: Callable[[BrokerLink], Awaitable[_T]], *, wait_s: float = LEADER_WAIT_S) -> _T:
        """Send a request to the leader of a log, and repeat it if another broker becomes the leader.

        Return the reply. Raises `LeaderMovedError` if this broker becomes the leader, and `WebError` if the topic was
        deleted, the leader refuses the request, or it cannot be reached within `wait_s` seconds.
        """
        deadline, problem = trio.current_time() + wait_s, "does not answer"
        while not log.leadership.is_led:
            if log.is_gone:
                raise topic_not_found(log.topic)
            try:
                answers = await self.retry_on_leader_change(log, call, deadline)
                if answers:
                    return answers[0]
            except BrokerError as error:
                problem = str(error)
            except WebError as error:
                if error.code not in RETRIED:
                    raise
                problem = "does not lead it yet"
            if trio.current_time() + RETRY_S >= deadline:
                raise self.unavailable(log, problem)
            await self.wait_leader_change(log, RETRY_S)
        raise LeaderMovedError(log)

    async def retry_on_leader_change(
        self, log: Log, call: Callable[[BrokerLink], Awaitable[_T]], deadline: float
    ) -> list[_T]:
        """Send a request to the leader of a log until the leader changes or the deadline, by Trio's clock, passes.

        Return the reply; nothing if there is none. Raises `BrokerError` if the leader is not known or does not answer,
        and `WebError` if it refuses the request.
        """
        link, leadership, found = self.link(log), log.leadership, list[_T]()
        failure: BrokerError | WebError | None = None
        with unwrap_group():
            async with trio.open_nursery() as nursery:
                nursery.cancel_scope.deadline = deadline
                nursery.start_soon(self._cancel_when_moved, log, leadership, nursery.cancel_scope)
                try:
                    found.append(await call(link))
                except (BrokerError, WebError) as error:
                    failure = error  # raised below: beside a cancellation it would be in a group
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return found

    async def wait_leader_change(self, log: Log, wait_s: float) -> None:
        """Wait until the leader of a log changes, with a timeout."""
        with trio.move_on_after(wait_s) as scope:
            await self._cancel_when_moved(log, log.leadership, scope)

    def unavailable(self, log: Log, problem: str) -> WebError:
        """Return the error for a client if the leader of a log cannot be reached. The problem is a clause."""
        where = f"log {log.number} of the topic {log.topic!r}"
        leader = self.find(log)
        if leader is None:
            return WebError(
                "leader_unavailable", f"{where} has no leader at present: too few of its replicas are alive"
            )
        return WebError("leader_unavailable", f"broker {leader.number}, which leads {where}, {problem}")

    async def _cancel_when_moved(self, log: Log, before: LeaderAndIsr, scope: trio.CancelScope) -> None:
        while (log.leadership.leader, log.leadership.epoch) == (before.leader, before.epoch):
            if log.leadership.is_led != before.is_led or log.is_gone:
                break
            await self._broker.replicator.led_logs.wait_leadership(log)
        scope.cancel()
