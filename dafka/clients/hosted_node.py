"""A node that is open in the Trio thread, and calls of its methods from other threads."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, ParamSpec, TypeVar

import trio

from dafka.clients.trio_thread import TrioThread, join_thread
from dafka.roles import Producer

_T = TypeVar("_T")
_P = ParamSpec("_P")
_NodeT = TypeVar("_NodeT")


class CallCancelledError(Exception):
    """A call was cancelled, and has ended before it had a result."""


class Call(Generic[_T]):
    """An asynchronous function that runs in the Trio thread. Its `future` gets a result even if it is cancelled."""

    def __init__(self, thread: TrioThread) -> None:
        self.future: Future[_T] = Future()
        self._thread = thread
        self._scope: trio.CancelScope | None = None

    def cancel(self) -> None:
        """Cancel the call soon. Its `future` shows when it has ended, and whether it had a result before."""
        self._thread.submit(self._cancel_scope)

    def begin(
        self, nursery: trio.Nursery, function: Callable[[], Awaitable[_T]], attempt: Callable[[], _T | None]
    ) -> None:
        """Run the function in the Trio thread, in a task if `attempt` does not return the result at once."""
        try:
            result = attempt()
        except Exception as error:
            self.future.set_exception(error)
            return
        if result is not None:
            self.future.set_result(result)
            return
        self._scope = trio.CancelScope()
        nursery.start_soon(self._run, function, self._scope)

    def _cancel_scope(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    async def _run(self, function: Callable[[], Awaitable[_T]], scope: trio.CancelScope) -> None:
        try:
            with scope:
                result = await function()
            if scope.cancelled_caught:
                raise CallCancelledError
        except BaseException as error:
            self.future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            self.future.set_result(result)


class HostedNode(Generic[_NodeT]):
    """A node that is being opened, is open, or is closed. Its noun is for messages: "consumer".

    `closed` has the exception of closing, or the one that ended the node. `warning` returns the method that warns that
    the program has not closed the node, or None if the method no longer exists.
    """

    def __init__(self, block: Callable[[], AbstractAsyncContextManager[_NodeT]], noun: str) -> None:
        self.opened: Future[_NodeT] = Future()
        self.closed: Future[None] = Future()
        self._block = block
        self._noun = noun
        self._closing = trio.Event()
        self._is_left = False
        self._scope = trio.CancelScope()
        self._calls: trio.Nursery | None = None
        self._accepting: trio.Nursery | None = None
        self._accepted: Future[Any] | None = None
        self.warning: Callable[[], Callable[[], None] | None] = lambda: None
        self.thread = join_thread()
        self.thread.start_node(self)

    @property
    def is_closed(self) -> bool:
        """Whether the node is closed."""
        return self.closed.done()

    def close(self) -> None:
        """Leave the node's block soon, as a program leaves it normally. `closed` shows when that is done."""
        self.thread.submit(self._closing.set)

    def abandon(self) -> None:
        """Leave the node's block soon, as a cancelled program leaves it. `closed` shows when that is done.

        A message on stderr counts the records of a producer that are not stored yet.
        """
        self.thread.submit(self._scope.cancel)

    def leave(self) -> bool:
        """Close the node without waiting, such as after an exception.

        Return whether a producer continues to store accepted records. A message on stderr counts the records that it
        cannot store.
        """
        producer = self._producer()
        is_owing = producer is not None and (
            producer._machine.unacknowledged > 0 or (self._accepted is not None and not self._accepted.done())
        )
        if not is_owing:
            self.abandon()
            return False
        self._is_left = True
        self.close()
        return True

    def finish(self) -> float | None:
        """Close a producer because the process ends. Return for how many seconds it may wait for its records."""
        producer = self._producer()
        if producer is None:
            return None
        self._is_left = True
        self.close()
        return producer._config.close_timeout_ms / 1000

    def warn_unclosed(self) -> None:
        """Warn that the program has not closed the node, if it has not."""
        warn = self.warning()
        if warn is not None:
            warn()

    def ask(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Call a synchronous function in the Trio thread, and return its result."""
        future: Future[_T] = Future()

        def call() -> None:
            if self._calls is None:
                self._refuse(future)
                return
            try:
                future.set_result(function(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)

        self._check_open()
        self.thread.submit(call)
        return future

    def start(
        self,
        function: Callable[[], Awaitable[_T]],
        attempt: Callable[[], _T | None] = lambda: None,
        *,
        must_finish: bool = False,
    ) -> Call[_T]:
        """Start an asynchronous function in the Trio thread. Closing the node cancels it, or waits if it must finish.

        To save starting a task, `attempt` returns the result without waiting, or None if that is not possible.
        """
        call = Call[_T](self.thread)

        def start() -> None:
            nursery = self._accepting if must_finish else self._calls
            if nursery is None:
                self._refuse(call.future)
            else:
                call.begin(nursery, function, attempt)

        self._check_open()
        self.thread.submit(start)
        if must_finish:
            self._accepted = call.future
        return call

    def ended_error(self) -> BaseException:
        """Return the exception of calls of a node that is closed: the one that ended it, if any."""
        error = self.closed.exception() if self.closed.done() else None
        return error or trio.ClosedResourceError(f"this {self._noun} is closed")

    def _refuse(self, future: Future[_T]) -> None:
        """Fail a call that came too late with the error that ends the node, once that is known."""
        if self._closing.is_set():
            future.set_exception(self.ended_error())
        else:
            self.closed.add_done_callback(lambda _: future.set_exception(self.ended_error()))

    def _producer(self) -> Producer | None:
        """Return the node if it is an open producer."""
        node = self.opened.result() if self.opened.done() and self.opened.exception() is None else None
        return node if isinstance(node, Producer) else None

    def _check_open(self) -> None:
        self.thread.check_here()
        if self.is_closed:
            raise self.ended_error()

    async def run(self) -> None:
        """Run the node in the Trio thread until it is closed."""
        error: BaseException | None = None
        try:
            with self._scope:
                async with self._block() as node, trio.open_nursery() as accepting, trio.open_nursery() as calls:
                    self._accepting, self._calls = accepting, calls
                    self.opened.set_result(node)
                    try:
                        await self._closing.wait()
                    finally:
                        self._accepting = self._calls = None
                        calls.cancel_scope.cancel()
        except Exception as caught:
            error = caught
        finally:
            if self._is_left or self._scope.cancel_called:
                self._report_unstored()
            self.thread.end_node(self)
            self.end(error)

    def _report_unstored(self) -> None:
        """Report on stderr the number of records that a producer has accepted and could not store."""
        producer = self._producer()
        if producer is not None and producer._machine.unacknowledged and sys.stderr is not None:
            with suppress(OSError, ValueError):  # stderr is closed
                print(f"dafka: {producer._describe_unstored()}", file=sys.stderr, flush=True)

    def end(self, error: BaseException | None) -> None:
        """Record that the node is closed, or that Trio has ended without closing it."""
        if not self.opened.done():
            self.opened.set_exception(error or self.ended_error())
        if error is None:
            self.closed.set_result(None)
        else:
            self.closed.set_exception(error)
