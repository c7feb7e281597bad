"""Queues in the logs of other brokers, whatever these answer, and however many clients wait for the same ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.topics import Topic
from dafka.http.forwarding import remote_queues
from dafka.http.forwarding.broker_client import SHOWN_WAIT_S, BrokerError
from dafka.http.forwarding.broker_link import UnsentError
from dafka.http.forwarding.leaders import RETRIED
from dafka.http.forwarding.remote_queues import RETRY_S, RemoteQueues
from dafka.http.logs.log_access import LEADER_WAIT_S
from dafka.http.queues.queue_access import Acknowledgements, Queue, QueueState, ReceiveLimits
from dafka.http.server.errors import LeaderMovedError, WebError

QUEUE, LIMITS, SAID = Queue("q", "orders"), ReceiveLimits(5, 1000), Acknowledgements("receipt", {})
LEADERS = "ABAC"
ASKED = [("describe", "A", QUEUE, [0, 2]), ("describe", "B", QUEUE, [1]), ("describe", "C", QUEUE, [3])]


class Others:
    """The other brokers. They keep what they are asked, and give the answers that a test has set."""

    def __init__(self, start_soon: Any) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[Any, ...]] = []
        self.waiting: dict[tuple[str, tuple[int, ...]], trio.Event] = {}
        table = LogTable("here")
        table.add_topic(Topic("orders", "T", len(LEADERS)))
        self.logs = table.logs("orders")
        for log, leader in zip(self.logs, LEADERS, strict=True):
            log.leadership = LeaderAndIsr(leader, 0)
        leaders: Any = self
        self.queues = RemoteQueues(leaders, start_soon)

    def link(self, log: Any) -> Any:
        leader = log.leadership.leader
        answer = self.answers.get(leader)
        if isinstance(answer, BrokerError):
            raise answer

        def note(kind: str) -> Callable[..., None]:
            return lambda *given: self.asked.append((kind, leader, *given))

        return SimpleNamespace(release=note("release"))

    def find(self, log: Any) -> object | None:
        return None if self.answers.get(log.leadership.leader) is None else object()

    def unavailable(self, log: Any, problem: str) -> WebError:
        return WebError("leader_unavailable", f"{log.number}: {problem}")

    async def retry_on_leader_change(
        self, log: Any, call: Callable[[Any], Awaitable[Any]], deadline: float
    ) -> Sequence[Any]:
        await trio.lowlevel.checkpoint()
        leader, begun = log.leadership.leader, trio.current_time()

        def ask(kind: str) -> Callable[..., Awaitable[Any]]:
            async def asked(*given: Any) -> Any:
                self.asked.append((kind, leader, *given, deadline - begun))
                if len(given) == 3 and kind == "describe":
                    event = self.waiting[leader, tuple(given[1])] = trio.Event()
                    await event.wait()
                answer = self.answers[leader]
                if isinstance(answer, Exception):
                    raise answer
                return answer

            return asked

        link = SimpleNamespace(describe_queue=ask("describe"), receive=ask("receive"), acknowledge=ask("acknowledge"))
        found = await call(link)
        return [] if found == "moved" else [found]


@asynccontextmanager
async def open_others() -> AsyncIterator[Others]:
    async with trio.open_nursery() as nursery:
        yield Others(nursery.start_soon)
        nursery.cancel_scope.cancel()


def refusal(code: str) -> WebError:
    return WebError(code, "refused")


FAILURES = [
    BrokerError("is silent"),
    UnsentError("was not reached"),
    "moved",
    *map(refusal, sorted(RETRIED)),
    refusal("forbidden"),
]


async def test_the_states_of_logs_are_those_of_the_leaders_that_answer(autojump_clock: MockClock) -> None:
    states = {number: QueueState(number, 1, 2) for number in range(9)}
    async with open_others() as others:
        logs = others.logs
        for failure in [None, *FAILURES]:
            others.answers = {"A": states, "B": states, "C": states if failure is None else failure}
            others.asked.clear()
            answering = [log for log in logs if failure is None or log.leadership.leader != "C"]
            try:
                found = await others.queues.known_states(QUEUE, logs)
            except WebError:
                assert failure is FAILURES[-1]
            else:
                assert failure is not FAILURES[-1]
                assert list(found.values()) == [states[log.number] for log in found]
                assert {log.number for log in found} == {log.number for log in answering}
            assert sorted(others.asked, key=str) == [(*each, SHOWN_WAIT_S) for each in ASKED]
        others.answers = {"A": {0: states[0]}, "B": {}, "C": {}}
        assert [log.number for log in await others.queues.known_states(QUEUE, logs)] == [0]


async def test_records_are_locked_and_acknowledged_once_at_the_leader_of_their_logs(autojump_clock: MockClock) -> None:
    """A client may repeat what has certainly not been done; what is uncertain is no error when it locks records."""
    async with open_others() as others:
        logs = [log for log in others.logs if log.leadership.leader == "A"]

        async def lock() -> object:
            return await others.queues.lock(QUEUE, logs, "receipt", LIMITS, "client")

        async def acknowledge() -> object:
            return await others.queues.acknowledge(QUEUE, logs, SAID)

        asked = {
            lock: ("receive", "A", QUEUE, [0, 2], "receipt", LIMITS),
            acknowledge: ("acknowledge", "A", QUEUE, [0, 2], SAID),
        }
        for call, request in asked.items():
            for answer in ([], ["x"], *FAILURES):
                others.answers, found = {"A": answer}, None
                others.asked.clear()
                try:
                    found = await call()
                except WebError as error:
                    found = "moved" if isinstance(error, LeaderMovedError) else error.code
                expected: Any = answer
                if isinstance(answer, WebError):
                    expected = "moved" if answer.code in RETRIED else answer.code
                elif call is lock:
                    expected = answer if isinstance(answer, list) else []
                elif isinstance(answer, BrokerError):
                    expected = "moved" if isinstance(answer, UnsentError) else "leader_unavailable"
                elif answer == "moved":
                    expected = "leader_changed"
                assert found == expected, (call, answer)
                assert others.asked == [(*request, LEADER_WAIT_S)]
        others.answers = {}
        others.asked.clear()
        with pytest.raises(LeaderMovedError):
            await acknowledge()
        assert others.asked == []


async def test_records_are_released_at_every_leader_that_is_reached(autojump_clock: MockClock) -> None:
    async with open_others() as others:
        others.answers = {"A": BrokerError("has no leader")}
        others.queues.release(QUEUE, others.logs, "receipt")
        assert others.asked == [("release", "B", QUEUE, [1], "receipt"), ("release", "C", QUEUE, [3], "receipt")]


async def test_clients_that_wait_for_the_same_logs_share_a_request_and_all_go_on(autojump_clock: MockClock) -> None:
    async with open_others() as others:
        for answer in ({}, *FAILURES):
            for answering in "ABC":
                others.answers = dict.fromkeys("ABC", answer)
                others.asked.clear()
                ended = list[float]()

                async def wait(scope: trio.CancelScope, ended: list[float] = ended) -> None:
                    with scope:
                        await others.queues.wait_available(QUEUE, others.logs)
                        ended.append(trio.current_time())

                async with trio.open_nursery() as nursery:
                    scopes = [trio.CancelScope() for _ in range(3)]
                    for scope in scopes:
                        nursery.start_soon(wait, scope)
                        await wait_all_tasks_blocked()
                    scopes[0].cancel()
                    await wait_all_tasks_blocked()
                    wait_ms = int(remote_queues.WAIT_S * 1000)
                    assert sorted(others.asked, key=str) == [(*each, wait_ms, float("inf")) for each in ASKED]
                    assert ended == []
                    begun = trio.current_time()
                    next(event for (leader, _), event in others.waiting.items() if leader == answering).set()
                has_failed = isinstance(answer, Exception)
                assert ended == [begun + (RETRY_S if has_failed else 0)] * 2
                for event in others.waiting.values():
                    event.set()
                await trio.sleep(1)
                others.waiting.clear()
                assert others.queues._waits == {}, "the next client asks anew"
