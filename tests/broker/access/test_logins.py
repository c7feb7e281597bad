"""Logins share the processor fairly, and wrong passwords delay only those who try them."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial

import pytest
import trio
import trio.lowlevel
import trio.testing

from dafka.broker.access.login import LoginError
from dafka.broker.access.logins import (
    BACKOFF_MAX_S,
    FAILURES_FREE,
    HASHING_MAX,
    WAITING_MAX,
    Logins,
    TooManyLoginsError,
    Turns,
)


async def fail(logins: Logins, host: str, user: str) -> None:
    def answer() -> bytes:
        raise LoginError("wrong password")

    with pytest.raises(LoginError):
        await logins.verify(host, user, answer, is_last=lambda: False)


async def succeed(logins: Logins, host: str, user: str) -> None:
    assert await logins.verify(host, user, lambda: b"ok", is_last=lambda: True) == b"ok"


async def test_sources_and_users_take_turns() -> None:
    turns, order = Turns(1, 100), list[tuple[str, str]]()

    async def run(source: str, user: str) -> None:
        async with turns.take(source, user):
            order.append((source, user))
            await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery, turns.take("c", "dora"):
        for source, user in (*[("a", "anne")] * 50, ("b", "bob"), ("a", "carl")):
            nursery.start_soon(run, source, user)
            await trio.testing.wait_all_tasks_blocked()
    assert order[:4] == [("a", "anne"), ("b", "bob"), ("a", "carl"), ("a", "anne")]
    assert len(order) == 52


async def test_those_who_wait_are_few_for_each_source_and_user() -> None:
    turns = Turns(1, WAITING_MAX)

    async def wait(source: str, user: str) -> None:
        async with turns.take(source, user):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for _ in range(WAITING_MAX + 1):
            nursery.start_soon(wait, "a", "anne")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(TooManyLoginsError):
            await wait("a", "anne")
        nursery.start_soon(wait, "a", "bob")
        nursery.start_soon(wait, "b", "anne")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:  # logins that were cancelled take no places
        for _ in range(WAITING_MAX + 1):
            nursery.start_soon(wait, "a", "anne")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


TICK_S = 2**-10
WAITS_S = [0, 0, 0, 0, 0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]
"""How long an address waits after so many wrong passwords in a row for a user."""


async def test_wrong_passwords_delay_the_same_source_and_user_and_nobody_else() -> None:
    clock = trio.testing.MockClock()
    logins = Logins()

    async def fail_repeatedly() -> None:
        for wait_s in WAITS_S:
            logins.check("a", "anne")
            await fail(logins, "a", "anne")
            if wait_s:
                with pytest.raises(TooManyLoginsError, match=f"try again in {max(wait_s, 1):.0f} s") as refused:
                    logins.check("a", "anne")
                assert refused.value.wait_s == wait_s
                clock.jump(wait_s - TICK_S)
                called: list[str] = []
                with pytest.raises(TooManyLoginsError):
                    await logins.verify("a", "anne", partial(called.append, "hashed"), is_last=lambda: True)
                assert not called, "a refused attempt takes no processor time"
                clock.jump(TICK_S)
            for host, user in (("a", "bob"), ("b", "anne"), ("a", "")):
                logins.check(host, user)

    await in_time(clock, fail_repeatedly)


@pytest.mark.parametrize(("idle_s", "is_forgotten"), [(BACKOFF_MAX_S, False), (BACKOFF_MAX_S + TICK_S, True)])
async def test_failures_are_forgotten_after_the_longest_wait(idle_s: float, is_forgotten: bool) -> None:
    clock = trio.testing.MockClock()
    logins = Logins()

    async def fail_again() -> None:
        for _ in range(FAILURES_FREE):
            await fail(logins, "a", "anne")
        clock.jump(0.5 + idle_s)
        await fail(logins, "a", "anne")
        with nullcontext() if is_forgotten else pytest.raises(TooManyLoginsError):
            logins.check("a", "anne")

    await in_time(clock, fail_again)


async def in_time(clock: trio.testing.MockClock, function: Callable[[], Awaitable[None]]) -> None:
    """Run a function on a clock that the test moves. Threads work meanwhile."""
    await trio.to_thread.run_sync(partial(trio.run, function, clock=clock))


async def test_only_so_many_failures_are_remembered() -> None:
    logins = Logins(remembered_max=2)
    for user in ("anne", "bob", "carl"):
        for _ in range(FAILURES_FREE):
            await fail(logins, "a", user)
    logins.check("a", "anne")
    for user in ("bob", "carl"):
        with pytest.raises(TooManyLoginsError):
            logins.check("a", user)


async def test_few_passwords_are_hashed_at_the_same_time() -> None:
    logins, release, running = Logins(), threading.Event(), list[int]()

    def answer() -> bytes:
        running.append(len(running))
        assert release.wait(60)
        return b"ok"

    async with trio.open_nursery() as nursery:
        for number in range(HASHING_MAX + 3):
            nursery.start_soon(partial(logins.verify, str(number), "anne", answer, is_last=lambda: True))
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(60):
            while len(running) < HASHING_MAX:
                await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        assert len(running) == HASHING_MAX
        release.set()
    assert len(running) == HASHING_MAX + 3


async def test_failures_are_forgotten_after_a_right_password_and_not_within_a_login_nor_of_unknown_users() -> None:
    """A malformed message names no user. It must not lock the others of its address out."""
    logins = Logins()
    for _ in range(3):
        for _ in range(FAILURES_FREE - 1):
            await fail(logins, "a", "anne")
        await succeed(logins, "a", "anne")
    for _ in range(3 * FAILURES_FREE):
        await fail(logins, "a", "")
    await succeed(logins, "a", "")
    for _ in range(FAILURES_FREE - 1):
        await fail(logins, "a", "anne")
        assert await logins.verify("a", "anne", lambda: b"continue", is_last=lambda: False) == b"continue"
    await fail(logins, "a", "anne")
    with pytest.raises(TooManyLoginsError):
        logins.check("a", "anne")
