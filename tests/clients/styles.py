"""The three styles of the API behind one interface, so that one test holds for all of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, TypeAlias

import attrs
import trio

import dafka
import dafka.asyncio
from dafka import blocking

DEADLINE_S = 60


Program: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


@attrs.frozen
class Style:
    """A style of the API.

    Attributes:
        module: Its module.
        run: Runs a program, which is an asynchronous function in each style.
        together: Runs several such functions at once: in threads where they block.
    """

    module: ModuleType
    run: Callable[[Program], None]
    together: Callable[[Sequence[Program]], Coroutine[Any, Any, None]]

    @asynccontextmanager
    async def opened(self, name: str, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
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

    async def call_within(
        self,
        seconds: float,
        method: Callable[..., Any],
        *args: Any,
        on_timeout: Callable[[], object] = lambda: None,
    ) -> Any:
        """Call a method that waits no longer than this, and then raises `TimeoutError`.

        What cannot be cancelled ends after `on_timeout`, which is called once the time is over.
        """
        if self.module is blocking:
            try:
                return method(*args, timeout_s=seconds)
            except TimeoutError:
                on_timeout()
                raise
        task = asyncio.ensure_future(method(*args))
        if not (await asyncio.wait([task], timeout=seconds))[0]:
            task.cancel()
            on_timeout()
        try:
            return await task
        except asyncio.CancelledError:
            raise TimeoutError from None

    async def close(self, node: Any) -> None:
        await self.call(node.close if self.module is blocking else node.aclose)

    async def each(self, iterable: Any) -> AsyncGenerator[Any, None]:
        """Yield what an iterable of this style has."""
        if self.module is blocking:
            for each in iterable:
                yield each
        else:
            async for each in iterable:
                yield each


def _run_trio(program: Program) -> None:
    async def limited() -> None:
        with trio.fail_after(DEADLINE_S):
            await program()

    trio.run(limited)


async def _run_in_nursery(programs: Sequence[Program]) -> None:
    async with trio.open_nursery() as nursery:
        for program in programs:
            nursery.start_soon(program)


def _run_asyncio(program: Program) -> None:
    asyncio.run(asyncio.wait_for(program(), DEADLINE_S), debug=True)


async def _run_in_tasks(programs: Sequence[Program]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for program in programs:
            tasks.create_task(program())


def _run_steps(program: Program) -> None:
    """Run a program that waits for nothing but calls that block."""
    try:
        program().send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


async def _run_in_threads(programs: Sequence[Program]) -> None:
    with ThreadPoolExecutor(len(programs)) as threads:
        list(threads.map(_run_steps, programs))


TRIO = Style(dafka, _run_trio, _run_in_nursery)
ASYNCIO = Style(dafka.asyncio, _run_asyncio, _run_in_tasks)
BLOCKING = Style(blocking, _run_steps, _run_in_threads)
