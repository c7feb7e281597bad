"""A test that hangs fails, and says where every thread and every task stands. A plugin of pytest-timeout."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest
import pytest_timeout
import trio

CANCEL_S = 10.0
"""Seconds that a test that hangs may take to end after it was interrupted or its tasks were cancelled."""


@pytest.hookimpl
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Fail the test when its time is over. Off the main thread, pytest-timeout does what it can."""
    if settings.method != "signal" or threading.current_thread() is not threading.main_thread():
        return None

    def end(number: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True
        if not settings.disable_debugger_detection and pytest_timeout.is_debugging():
            return
        failure = pytest.fail.Exception(f"the test did not end within {settings.timeout:g} s\n\n{describe_hang()}")
        # If the test does not end then, it is interrupted again and again.
        signal.signal(signal.SIGALRM, partial(_interrupt, failure))
        signal.setitimer(signal.ITIMER_REAL, CANCEL_S, CANCEL_S)
        if not trio.lowlevel.in_trio_run():
            raise failure
        # All tasks are cancelled, and end as they should.
        trio.lowlevel.current_trio_token().run_sync_soon(trio.lowlevel.spawn_system_task, _fail, failure)

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    item.cancel_timeout = cancel  # type: ignore[attr-defined]
    return True


async def _fail(failure: BaseException) -> None:
    """As a task of Trio's own: what it raises cancels all others, and then comes out of `trio.run`."""
    raise failure


def _interrupt(failure: BaseException, number: int, frame: FrameType | None) -> None:
    raise failure


def describe_hang() -> str:
    """Return where every thread, every task of Trio and every task of asyncio of this process stands."""
    return "\n".join([*_threads(), *_trio_tasks(), *_asyncio_tasks()])


def _threads() -> Iterator[str]:
    names = {each.ident: each.name for each in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f"thread {names.get(ident, ident)}"
        yield from _lines(traceback.extract_stack(frame), "  ")


def _trio_tasks() -> Iterator[str]:
    """Yield the trees of tasks of all runs of Trio, in all threads."""
    for each in gc.get_objects():
        if isinstance(each, trio.lowlevel.Task) and each.parent_nursery is None and each.coro.cr_frame is not None:
            yield from _tree(each, "")


def _tree(task: trio.lowlevel.Task, indent: str) -> Iterator[str]:
    yield f"{indent}trio task {task.name}"
    frames = ((frame, line) for frame, line in task.iter_await_frames())
    yield from _lines(traceback.StackSummary.extract(frames), f"{indent}  ")
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _tree(child, f"{indent}    ")


def _asyncio_tasks() -> Iterator[str]:
    for each in gc.get_objects():
        if isinstance(each, asyncio.Task) and not each.done():
            yield f"asyncio task {each.get_name()}"
            frames = ((frame, frame.f_lineno) for frame in each.get_stack())
            yield from _lines(traceback.StackSummary.extract(frames), "  ")


def _lines(stack: traceback.StackSummary, indent: str) -> Iterator[str]:
    for each in stack:
        yield f"{indent}{each.filename}:{each.lineno} {each.name}: {each.line}"
