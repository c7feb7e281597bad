"""Blocks and iterators of nodes, and checks that nodes are used in Trio and not after a fork.

The errors name the alternative.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

import trio

from dafka.errors import WrongContextError

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_P = ParamSpec("_P")


class TrioBlock(AbstractAsyncContextManager[_T_co]):
    """An async context manager that can only be entered in Trio."""

    def __init__(self, block: AbstractAsyncContextManager[_T_co], name: str) -> None:
        self._block = block
        self._name = name

    async def __aenter__(self) -> _T_co:
        check_in_trio(self._name)
        return await self._block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._block.__aexit__(kind, error, traceback)

    if not TYPE_CHECKING:  # type checkers report a plain `with`

        def __enter__(self) -> NoReturn:
            raise WrongContextError(
                f"`with` needs dafka.blocking.{self._name}; dafka.{self._name} is for `async with` in Trio"
            )

        def __exit__(self, *_: object) -> None:
            pass  # Python looks for this method before it calls `__enter__`


class Iteration(Generic[_T]):
    """An iterator that can be used again after a task was cancelled while it waited, unlike a generator."""

    def __init__(self, take: Callable[[], Awaitable[_T]]) -> None:
        """Create an iterator over what `take` returns until it raises `StopAsyncIteration`."""
        self._take = take

    def __aiter__(self) -> Iteration[_T]:
        return self

    async def __anext__(self) -> _T:
        return await self._take()


def trio_block(function: Callable[_P, AsyncIterator[_T_co]]) -> Callable[_P, TrioBlock[_T_co]]:
    """Turn an async generator function into one that returns a `TrioBlock`, as `asynccontextmanager` does.

    `dafka.asyncio` and `dafka.blocking` have functions of the same name.
    """
    make_block = asynccontextmanager(function)

    @functools.wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> TrioBlock[_T_co]:
        return TrioBlock(make_block(*args, **kwargs), function.__name__)

    return wrapper


def check_in_trio(name: str) -> None:
    """Raise `WrongContextError` if Trio does not run. The error says what to use instead of this function."""
    if trio.lowlevel.in_trio_run():
        return
    if _is_in_asyncio():
        raise WrongContextError(f"asyncio needs dafka.asyncio.{name}; dafka.{name} is for programs on Trio")
    raise WrongContextError(
        f"dafka.{name} is for programs on Trio: run this with trio.run, or use dafka.asyncio.{name} or "
        f"dafka.blocking.{name}"
    )


def bind_to_process(opened: object) -> None:
    """Make every use of a node or a part of it raise `WrongContextError` in processes that are forked from this one.

    Its class has no `__slots__`.
    """
    _of_this_process.add(opened)


def forked_error(opener: int) -> WrongContextError:
    """Return the error for the use of a node in a process that was forked after another one, the opener, opened it."""
    return WrongContextError(
        f"this node was opened in process {opener}, which has forked: open another one in process {os.getpid()}"
    )


class _Forked:
    """The class of a node in a forked process. It shares nothing with the process that opened it."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise forked_error(self.__dict__["__opener__"])

    def __iter__(self) -> NoReturn:
        raise forked_error(self.__dict__["__opener__"])

    __aiter__ = __anext__ = __iter__


_of_this_process: weakref.WeakSet[object] = weakref.WeakSet()


def _forget_after_fork() -> None:
    """Replace the class of the parent's open nodes, so that no method needs a check of its own."""
    for opened in _of_this_process:
        opened.__dict__["__opener__"] = os.getppid()
        opened.__class__ = _Forked
    _of_this_process.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def _is_in_asyncio() -> bool:
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
