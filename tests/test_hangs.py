"""A test that hangs says where every task and every thread stands."""

from __future__ import annotations

import asyncio
import signal
import threading
import traceback
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from tests.hangs import describe_hang, pytest_timeout_set_timer


async def waits_for_ever() -> None:
    await trio.sleep_forever()


async def opens_a_nursery() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waits_for_ever)


async def test_every_task_of_trio_is_shown_below_its_parent() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(opens_a_nursery)
        await trio.testing.wait_all_tasks_blocked()
        described = describe_hang()
        nursery.cancel_scope.cancel()
    parent, child = (
        described.index("trio task tests.test_hangs.opens"),
        described.index("trio task tests.test_hangs.waits"),
    )
    assert parent < child
    assert "await trio.sleep_forever()" in described[child:]


async def test_the_tasks_of_another_thread_are_shown() -> None:
    started = threading.Event()
    ends: list[tuple[trio.lowlevel.TrioToken, trio.Event]] = []

    async def wait() -> None:
        ends.append((trio.lowlevel.current_trio_token(), end := trio.Event()))
        started.set()
        await end.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, trio.run, wait)
        await trio.to_thread.run_sync(started.wait)
        described = describe_hang()
        ((token, end),) = ends
        token.run_sync_soon(end.set)
    assert "test_the_tasks_of_another_thread_are_shown.<locals>.wait" in described


def test_tasks_of_asyncio_are_shown() -> None:
    async def sleeper() -> None:
        await asyncio.sleep(60)

    async def main() -> str:
        task = asyncio.create_task(sleeper(), name="the sleeper")
        await asyncio.sleep(0)
        described = describe_hang()
        task.cancel()
        return described

    described = asyncio.run(main())
    assert "asyncio task the sleeper" in described
    assert "await asyncio.sleep(60)" in described


@pytest.fixture
def timer_of_this_test() -> Iterator[None]:
    """Put back the timer that ends this test if it hangs."""
    handler, (left, _) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, left)


async def hangs_until_its_time_is_over() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(opens_a_nursery)
        await trio.testing.wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGALRM)


def test_a_test_that_takes_too_long_fails_with_what_it_waits_for(timer_of_this_test: None) -> None:
    settings = SimpleNamespace(method="signal", timeout=100, disable_debugger_detection=True)
    item = SimpleNamespace()
    assert pytest_timeout_set_timer(item, settings)  # type: ignore[arg-type]
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    with pytest.raises(trio.TrioInternalError) as caught:
        trio.run(hangs_until_its_time_is_over)
    text = "".join(traceback.format_exception(caught.value))
    assert "the test did not end within 100 s" in text
    assert "trio task tests.test_hangs.waits_for_ever" in text
    item.cancel_timeout()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
