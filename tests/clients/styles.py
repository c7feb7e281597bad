"""The three styles of the API behind one interface, so that one test holds for all of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import attrs
import trio

import dafka
import dafka.asyncio
from dafka import blocking

DEADLINE_S = 60


@attrs.frozen
class Style:
    """A style of the API.

    Attributes:
        module: Its module.
        run: Runs a program, which is an asynchronous function in each style.
    """

    module: ModuleType
    run: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]

    @asynccontextmanager
    async def opened(self, name: str, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Open a node with a function such as `open_consumer`."""
        opening = getattr(self.module, name)(*args, **kwargs)
        if self.module is blocking:
            with opening as node:
                yield node
        else:
            async with opening as node:
                yield node

    async def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of a node, whether it waits in this style or not."""
        limit = inspect.signature(method).parameters.get("timeout_s") if self.module is blocking else None
        if limit is not None and limit.kind is limit.KEYWORD_ONLY:
            kwargs.setdefault("timeout_s", DEADLINE_S)
        result = method(*args, **kwargs)
        return await result if isinstance(result, Awaitable) else result

    async def each(self, iterable: Any) -> AsyncGenerator[Any, None]:
        """Yield what an iterable of this style has."""
        if self.module is blocking:
            for each in iterable:
                yield each
        else:
            async for each in iterable:
                yield each


def _run_trio(program: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        with trio.fail_after(DEADLINE_S):
            await program()

    trio.run(limited)


def _run_steps(program: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a program that waits for nothing but calls that block."""
    try:
        program().send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


TRIO = Style(dafka, _run_trio)
ASYNCIO = Style(dafka.asyncio, lambda program: asyncio.run(asyncio.wait_for(program(), DEADLINE_S), debug=True))
BLOCKING = Style(blocking, _run_steps)
