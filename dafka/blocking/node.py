"""What all nodes have in common for plain threads: opening, calling, waiting, closing."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import attrs
import trio

from dafka.clients.hosted_node import Call, CallCancelledError, HostedNode
from dafka.clients.hosted_role import HostedNodeRole, HostedRole, host, show_as
from dafka.errors import WrongContextError
from dafka.protocol import Event
from dafka.roles import EventFeed as TrioEventFeed
from dafka.roles.role import NodeRole

_T = TypeVar("_T")
_P = ParamSpec("_P")
_RoleT = TypeVar("_RoleT")
_HostedT = TypeVar("_HostedT", bound="Hosted[Any]")
_NodeRoleT = TypeVar("_NodeRoleT", bound=NodeRole)


class Hosted(HostedRole[_RoleT]):
    """An open role, which runs in the Trio thread."""

    _HOW_TO_CLOSE = "use `with`, or call its close()"

    def close(self) -> None:
        """Leave the block, as its normal end does. May be called again.

        Raises:
            UnacknowledgedError: A producer got no ACK for `[producer] close_timeout_ms`, and some are outstanding.
        """
        if not self._begin_closing():
            return
        self._hosted.thread.check_here()
        self._hosted.close()
        try:
            error = self._hosted.closed.exception()
        except BaseException:
            self._hosted.abandon()
            raise
        finally:
            _wait_closed(self._hosted)
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif self._begin_closing() and not self._hosted.leave():
            _wait_closed(self._hosted)

    def _ask(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a synchronous function in the Trio thread."""
        return self._hosted.ask(function, *args, **kwargs).result()

    def _wait(
        self,
        timeout: float | Deadline | None,
        function: Callable[[], Awaitable[_T]],
        attempt: Callable[[], _T | None] = lambda: None,
    ) -> _T:
        """Run an asynchronous function in the Trio thread. It is cancelled if the time is over, and by Ctrl-C."""
        deadline = timeout if isinstance(timeout, Deadline) else Deadline.after(timeout)
        call = self._hosted.start(function, attempt)
        try:
            call.future.exception(deadline.left_s())
        except TimeoutError:
            call.cancel()
            if isinstance(call.future.exception(), CallCancelledError):
                raise deadline.error() from None
        except BaseException:
            call.cancel()
            call.future.exception()  # so that it does nothing beside the next call
            raise
        return self._result(call)

    def _result(self, call: Call[_T]) -> _T:
        """Wait for the result of a call that was started."""
        if isinstance(call.future.exception(), trio.Cancelled):
            self._hosted.closed.exception()
            raise self._hosted.ended_error()
        return call.future.result()


@attrs.frozen
class Deadline:
    """When a call must have ended that waits several times. `timeout_s` is the limit of the whole call, if any."""

    timeout_s: float | None
    _end: float

    @classmethod
    def after(cls, timeout_s: float | None) -> Deadline:
        """Return the deadline of a call that has just begun."""
        return cls(timeout_s, time.monotonic() + (timeout_s or 0.0))

    def left_s(self) -> float | None:
        """Return how many seconds are left; None without a limit."""
        return None if self.timeout_s is None else max(self._end - time.monotonic(), 0.0)

    def error(self) -> TimeoutError:
        """Return the error for a call that has not ended in time. It names the time that the program has given."""
        return TimeoutError(f"this has not ended within {self.timeout_s:g} s")


def _wait_closed(hosted: HostedNode[_RoleT]) -> None:
    """Wait until a node that is being closed is closed, and the thread has ended if it was the last one."""
    hosted.closed.exception()
    if hosted.thread.is_ending():
        hosted.thread.join()


def asks(method: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], _T]:
    """Return a method that calls a synchronous one of a role in the Trio thread, for the body of its class."""

    def ask(self: Hosted[Any], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._ask(self._bind(method), *args, **kwargs)

    return show_as(method, ask)


def waits(method: Callable[Concatenate[Any, _P], Awaitable[_T]]) -> Callable[Concatenate[Any, _P], _T]:
    """Return a method that runs an asynchronous one of a role in the Trio thread, without a limit of its own."""

    def wait(self: Hosted[Any], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._wait(None, partial(self._bind(method), *args, **kwargs))

    return show_as(method, wait)


def opens(
    kind: Callable[[HostedNode[_RoleT]], _HostedT], block: Callable[_P, AbstractAsyncContextManager[_RoleT]]
) -> Callable[_P, _HostedT]:
    """Return a function that opens a role with the arguments and exceptions of `block`, a function for Trio."""

    def open_role(*args: _P.args, **kwargs: _P.kwargs) -> _HostedT:
        hosted = host(kind, partial(block, *args, **kwargs))
        try:
            error = hosted.opened.exception()
        except BaseException:
            hosted.abandon()
            _wait_closed(hosted)
            raise
        if error is not None:
            _wait_closed(hosted)
            raise error
        return kind(hosted)

    return show_as(block, open_role, kind)


class Node(HostedNodeRole[_NodeRoleT], Hosted[_NodeRoleT]):
    """A role that is a node of the mesh."""

    @property
    def events(self) -> EventFeed:
        """The events of the node since it was opened; an iterable, which ends when the node is closed."""
        return EventFeed(self)

    def wait_settled(self, *, timeout_s: float | None = None) -> None:
        """Wait until the node has found the nodes of a running cluster, and is connected to them."""
        self._wait(timeout_s, self._role.wait_settled)

    unheard_towers = asks(NodeRole.unheard_towers)
    health = asks(NodeRole.health)
    discarded = asks(NodeRole.discarded)


class EventFeed:
    """The events of one node. Each iteration begins with the oldest event kept, and ends when the node is closed."""

    def __init__(self, node: Node[Any]) -> None:
        """Show the events of a node. Programs use its `events` instead."""
        self._node = node
        self._feed: TrioEventFeed = node._role.events

    def __iter__(self) -> Iterator[Event]:
        seen = 0
        while (found := self._next_event(seen)) is not None:
            event, seen = found
            yield event

    def _next_event(self, seen: int) -> tuple[Event, int] | None:
        """Wait for an event. Once the node is closed, return those that are left, and then None."""
        try:
            return self._node._wait(None, partial(self._feed.wait_event, seen))
        except WrongContextError:
            raise
        except Exception as error:
            self._node._hosted.closed.exception()
            return self._node._left_event(seen, error)
