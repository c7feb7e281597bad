"""A node that is open in the Trio thread, and calls of its methods from other threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Generic, ParamSpec, TypeVar

import trio

from dafka.clients.trio_thread import TrioThread, join_thread

_T = TypeVar("_T")
_P = ParamSpec("_P")
_NodeT = TypeVar("_NodeT")


class CallCancelledError(Exception):
    """A call was cancelled, and has ended before it had a result."""


class Call(Generic[_T]):
    """An asynchronous function that runs in the Trio thread.

    Args:
        thread: The Trio thread.

    Attributes:
        future: Its result. It gets one even if the call is cancelled.
    """

    def __init__(self, thread: TrioThread) -> None:
        self.future: Future[_T] = Future()
        self._thread = thread
        self._scope: trio.CancelScope | None = None

    def cancel(self) -> None:
        """Cancel the call soon. Its `future` says when it has ended, and whether it had a result before."""
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
    """A node that is being opened, is open, or is closed.

    Args:
        block: Opens the node in the Trio thread.
        noun: What the node is, for messages: "consumer".

    Attributes:
        opened: The node, once it is open.
        closed: Done when the node is closed. It has the exception of closing, or that which ended the node.
        thread: The Trio thread.
    """

    def __init__(self, block: Callable[[], AbstractAsyncContextManager[_NodeT]], noun: str) -> None:
        self.opened: Future[_NodeT] = Future()
        self.closed: Future[None] = Future()
        self._block = block
        self._noun = noun
        self._closing = trio.Event()
        self._scope = trio.CancelScope()
        self._calls: trio.Nursery | None = None
        self.thread = join_thread()
        self.thread.start_node(self._run, self._end)

    @property
    def is_closed(self) -> bool:
        """Whether the node is closed."""
        return self.closed.done()

    def close(self) -> None:
        """Leave the node's block soon, as a program leaves it normally. `closed` says when that is done."""
        self.thread.submit(self._closing.set)

    def abandon(self) -> None:
        """Leave the node's block soon, as a cancelled program leaves it. `closed` says when that is done."""
        self.thread.submit(self._scope.cancel)

    def ask(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Call a synchronous function in the Trio thread, and return its result."""
        future: Future[_T] = Future()

        def call() -> None:
            if self._calls is None:
                future.set_exception(self.ended_error())
                return
            try:
                future.set_result(function(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)

        self._check_open()
        self.thread.submit(call)
        return future

    def start(self, function: Callable[[], Awaitable[_T]], attempt: Callable[[], _T | None] = lambda: None) -> Call[_T]:
        """Start an asynchronous function in the Trio thread. It is cancelled when the node is closed.

        Args:
            function: The function.
            attempt: Returns the result without waiting, or None if that is not possible. It saves starting a task.

        Returns:
            The call.
        """
        call = Call[_T](self.thread)

        def start() -> None:
            if self._calls is None:
                call.future.set_exception(self.ended_error())
            else:
                call.begin(self._calls, function, attempt)

        self._check_open()
        self.thread.submit(start)
        return call

    def ended_error(self) -> BaseException:
        """Return the exception of calls of a node that is closed: the one that ended it, if any."""
        error = self.closed.exception() if self.closed.done() else None
        return error or trio.ClosedResourceError(f"this {self._noun} is closed")

    def _check_open(self) -> None:
        self.thread.check_here()
        if self.is_closed:
            raise self.ended_error()

    async def _run(self) -> None:
        error: BaseException | None = None
        try:
            with self._scope:
                async with self._block() as node, trio.open_nursery() as calls:
                    self._calls = calls
                    self.opened.set_result(node)
                    try:
                        await self._closing.wait()
                    finally:
                        self._calls = None
                        calls.cancel_scope.cancel()
        except Exception as caught:
            error = caught
        finally:
            self.thread.end_node(self._run)
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(error or self.ended_error())
        if error is None:
            self.closed.set_result(None)
        else:
            self.closed.set_exception(error)
