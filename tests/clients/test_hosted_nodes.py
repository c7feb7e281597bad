"""Nodes in the Trio thread: what becomes of calls while a node is closed, or fails."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio

from dafka.clients.hosted_node import CallCancelledError, HostedNode
from dafka.exceptions import unwrap_group
from tests.clients.styles import DEADLINE_S

NODE = object()


class Steps:
    """The block of a node that goes on when a test says so: it fails, and it takes time to leave."""

    def __init__(self) -> None:
        self.may_fail = trio.Event()
        self.may_leave = trio.Event()
        self.is_leaving = threading.Event()
        self.hosted: HostedNode[object] = HostedNode(self.block, "consumer")
        assert self.hosted.opened.result(DEADLINE_S) is NODE

    @asynccontextmanager
    async def block(self) -> AsyncIterator[object]:
        try:
            with unwrap_group():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._fail)
                    yield NODE
                    nursery.cancel_scope.cancel()
        finally:
            self.is_leaving.set()
            with trio.CancelScope(shield=True):
                await self.may_leave.wait()

    async def _fail(self) -> None:
        await self.may_fail.wait()
        raise KeyError

    def set(self, event: trio.Event) -> None:
        self.hosted.thread.submit(event.set)

    def end(self, how: str) -> None:
        """Begin to end the node, by its program or by itself, and wait until it no longer takes calls."""
        self.hosted.close() if how == "closed" else self.set(self.may_fail)
        assert self.is_leaving.wait(DEADLINE_S)

    def calls(self) -> list[Future[Any]]:
        """Make a call of each kind."""
        start = self.hosted.start
        return [
            self.hosted.ask(lambda: 1),
            start(trio.lowlevel.checkpoint).future,
            start(trio.lowlevel.checkpoint, must_finish=True).future,
        ]

    def synchronize(self) -> None:
        """Wait until the Trio thread has done what was submitted."""
        done = threading.Event()
        self.hosted.thread.submit(done.set)
        assert done.wait(DEADLINE_S)


@contextmanager
def opened() -> Iterator[Steps]:
    steps = Steps()
    try:
        yield steps
    finally:
        steps.hosted.abandon()
        steps.set(steps.may_leave)
        steps.hosted.closed.exception(DEADLINE_S)
        steps.hosted.thread.join()


def fail() -> int:
    raise KeyError


def error_of(future: Future[Any]) -> str:
    return repr(future.exception(DEADLINE_S))


def test_calls_return_what_functions_return_and_raise_what_they_raise() -> None:
    with opened() as steps:
        hosted = steps.hosted

        async def run() -> int:
            await trio.lowlevel.checkpoint()
            return 2

        assert [hosted.ask(lambda: 1).result(), hosted.start(run).future.result()] == [1, 2]
        assert hosted.start(run, lambda: 0).future.result() == 0, "the attempt has a result"
        for failed in (hosted.ask(fail), hosted.start(run, fail).future):
            assert error_of(failed) == "KeyError()"


def test_a_cancelled_call_ends_unless_it_has_a_result() -> None:
    with opened() as steps:
        shielded, may_end = trio.CancelScope(shield=True), trio.Event()

        async def finish() -> str:
            with shielded:
                await may_end.wait()
            return "result"

        cancelled, finished = steps.hosted.start(trio.sleep_forever), steps.hosted.start(finish)
        cancelled.cancel()
        finished.cancel()
        with pytest.raises(CallCancelledError):
            cancelled.future.result(DEADLINE_S)
        steps.set(may_end)
        assert finished.future.result(DEADLINE_S) == "result"


@pytest.mark.parametrize(
    ("how", "error"), [("closed", "ClosedResourceError('this consumer is closed')"), ("failed", "KeyError()")]
)
def test_calls_of_a_node_that_ends_name_the_reason(how: str, error: str) -> None:
    """A node that fails knows the reason only when it has ended."""
    with opened() as steps:
        waiting = steps.hosted.start(trio.sleep_forever).future
        steps.end(how)
        assert isinstance(waiting.exception(DEADLINE_S), trio.Cancelled)
        late = steps.calls()
        steps.synchronize()
        assert [each.done() for each in late] == [how == "closed"] * 3
        steps.set(steps.may_leave)
        assert [error_of(each) for each in late] == [error] * 3
        assert repr(steps.hosted.closed.exception(DEADLINE_S)) == ("None" if how == "closed" else error)
        with pytest.raises((trio.ClosedResourceError, KeyError)) as caught:
            steps.calls()
        assert repr(caught.value) == error


def test_closing_waits_for_a_call_that_must_finish() -> None:
    with opened() as steps:
        may_finish = trio.Event()
        accepted = steps.hosted.start(may_finish.wait, must_finish=True).future
        waiting = steps.hosted.start(trio.sleep_forever).future
        steps.hosted.close()
        assert isinstance(waiting.exception(DEADLINE_S), trio.Cancelled)
        steps.synchronize()
        assert not steps.is_leaving.is_set()
        steps.set(may_finish)
        assert accepted.result(DEADLINE_S) is None
        assert steps.is_leaving.wait(DEADLINE_S)
