"""What all nodes have in common for asyncio: opening, calling, waiting, closing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import trio

from dafka.clients.hosted_node import Call, HostedNode
from dafka.clients.hosted_role import HostedNodeRole, HostedRole, host, show_as
from dafka.errors import WrongContextError
from dafka.protocol import Event
from dafka.roles import EventFeed as TrioEventFeed
from dafka.roles.role import NodeRole
from dafka.roles.trio_context import Iteration

_T = TypeVar("_T")
_P = ParamSpec("_P")
_RoleT = TypeVar("_RoleT")
_NodeRoleT = TypeVar("_NodeRoleT", bound=NodeRole)
_HostedT = TypeVar("_HostedT", bound="Hosted[Any]")
_HostedT_co = TypeVar("_HostedT_co", bound="Hosted[Any]", covariant=True)


class Hosted(HostedRole[_RoleT]):
    """An open role, which runs in the Trio thread."""

    _HOW_TO_CLOSE = "use `async with`, or call its aclose()"

    async def aclose(self) -> None:
        """Leave the block, as its normal end does. May be called again.

        Raises:
            UnacknowledgedError: A producer got no ACK for `[producer] close_timeout_ms`, and some are outstanding.
        """
        if not self._begin_closing():
            return
        self._hosted.thread.check_here()
        self._hosted.close()
        try:
            await _wait_done(self._hosted.closed, self._hosted.leave)
        finally:
            if self._hosted.is_closed:
                await _wait_closed(self._hosted)
        self._hosted.closed.result()

    async def _abandon(self) -> None:
        if self._begin_closing() and not self._hosted.leave():
            await _wait_closed(self._hosted)

    async def _ask(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a synchronous function in the Trio thread."""
        future = self._hosted.ask(function, *args, **kwargs)
        await _wait_done(future, lambda: None)
        return future.result()

    async def _wait(self, function: Callable[[], Awaitable[_T]], attempt: Callable[[], _T | None] = lambda: None) -> _T:
        """Run an asynchronous function in the Trio thread. It is cancelled if the calling task is."""
        call = self._hosted.start(function, attempt)
        return await self._wait_call(call, call.cancel)

    async def _wait_call(self, call: Call[_T], cancel: Callable[[], object]) -> _T:
        """Return the result of a call that was started. If this task is cancelled, call `cancel` and keep waiting."""
        await _wait_done(call.future, cancel)
        if isinstance(call.future.exception(), trio.Cancelled):
            await _wait_done(self._hosted.closed, lambda: None)
            raise self._hosted.ended_error()
        return call.future.result()


def asks(method: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]:
    """Return a method that calls a synchronous one of a role in the Trio thread, for the body of its class."""

    async def ask(self: Hosted[Any], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self._ask(self._bind(method), *args, **kwargs)

    return show_as(method, ask)


def waits(
    method: Callable[Concatenate[Any, _P], Awaitable[_T]],
) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]:
    """Return a method that runs an asynchronous one of a role in the Trio thread, for the body of its class."""

    async def wait(self: Hosted[Any], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self._wait(partial(self._bind(method), *args, **kwargs))

    return show_as(method, wait)


class Opening(Generic[_HostedT_co]):
    """A node that is about to be opened: `async with open_consumer(...)`, or `await open_consumer(...)`."""

    def __init__(
        self, kind: Callable[[HostedNode[Any]], _HostedT_co], block: Callable[[], AbstractAsyncContextManager[Any]]
    ) -> None:
        """Prepare to open a node. Programs call `open_consumer` and its like instead."""
        self._kind = kind
        self._block = block
        self._opened: _HostedT_co | None = None

    def __await__(self) -> Generator[object, None, _HostedT_co]:
        return self._open().__await__()

    async def __aenter__(self) -> _HostedT_co:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._opened is not None
        if error is None:
            await self._opened.aclose()
        else:
            await self._opened._abandon()

    async def _open(self) -> _HostedT_co:
        """Open the node in the Trio thread."""
        _check_in_asyncio()
        hosted = host(self._kind, self._block)
        try:
            await _wait_done(hosted.opened, hosted.abandon)
            hosted.opened.result()
        except BaseException:
            hosted.abandon()
            await _wait_closed(hosted)
            raise
        return self._kind(hosted)


def opens(
    kind: Callable[[HostedNode[_RoleT]], _HostedT], block: Callable[_P, AbstractAsyncContextManager[_RoleT]]
) -> Callable[_P, Opening[_HostedT]]:
    """Return a function that opens a role with the arguments and exceptions of `block`, a function for Trio."""

    def prepare(*args: _P.args, **kwargs: _P.kwargs) -> Opening[_HostedT]:
        return Opening(kind, partial(block, *args, **kwargs))

    return show_as(block, prepare, Opening[kind])  # type: ignore[valid-type]


def _check_in_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise WrongContextError(
            "dafka.asyncio needs a running event loop of asyncio: programs on Trio use dafka, others dafka.blocking"
        ) from None


async def _wait_done(future: Future[_T], cancel: Callable[[], object]) -> None:
    """Wait until a future is done. If this task is cancelled, call `cancel`, as `_wait_called` does."""
    if not future.done():
        await _wait_called(lambda notify: future.add_done_callback(lambda _: notify()), cancel)


async def _wait_closed(hosted: HostedNode[_RoleT]) -> None:
    """Wait until a node that is being closed is closed, and the thread has ended if it was the last one."""
    await _wait_done(hosted.closed, lambda: None)
    if hosted.thread.is_ending():
        await _wait_called(hosted.thread.on_end, lambda: None)
        hosted.thread.join()


async def _wait_called(register: Callable[[Callable[[], None]], object], cancel: Callable[[], object]) -> None:
    """Wait until another thread calls the function that is registered.

    If this task is cancelled, call `cancel` once, to shorten the wait, and keep waiting; if `cancel` returns True, the
    wait ends. Either way, raise `asyncio.CancelledError` at its end.
    """
    loop = asyncio.get_running_loop()
    called = asyncio.Event()

    def notify() -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(called.set)

    register(notify)
    cancelled: asyncio.CancelledError | None = None
    while not called.is_set():
        try:
            await called.wait()
        except asyncio.CancelledError as error:
            if cancelled is None and cancel() is True:
                raise
            cancelled = error
    if cancelled is not None:
        raise cancelled


class Node(HostedNodeRole[_NodeRoleT], Hosted[_NodeRoleT]):
    """A role that is a node of the mesh."""

    @property
    def events(self) -> EventFeed:
        """The events of the node since it was opened; an async iterable, which ends when the node is closed."""
        return EventFeed(self)

    wait_settled = waits(NodeRole.wait_settled)
    unheard_towers = asks(NodeRole.unheard_towers)
    health = asks(NodeRole.health)
    discarded = asks(NodeRole.discarded)


class EventFeed:
    """The events of one node. Each iteration begins with the oldest event kept, and ends when the node is closed."""

    def __init__(self, node: Node[Any]) -> None:
        """Show the events of a node. Programs use its `events` instead."""
        self._node = node
        self._feed: TrioEventFeed = node._role.events

    def __aiter__(self) -> AsyncIterator[Event]:
        seen = 0

        async def wait_next() -> Event:
            nonlocal seen
            event, seen = await self._wait_event(seen)
            return event

        return Iteration(wait_next)

    async def _wait_event(self, seen: int) -> tuple[Event, int]:
        """Wait for an event. Once the node is closed, return those that are left."""
        try:
            return await self._node._wait(partial(self._feed.wait_event, seen))
        except WrongContextError:
            raise
        except Exception as error:
            await _wait_done(self._node._hosted.closed, lambda: None)
            if (left := self._node._left_event(seen, error)) is None:
                raise StopAsyncIteration from None
            return left
