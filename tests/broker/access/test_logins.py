"""Logins share the processor fairly, and wrong passwords delay only those who try them."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from dafka.broker.access.login import LoginError
from dafka.broker.access.logins import BACKOFF_MAX_S, FAILURES_FREE, WAITING_MAX, Logins, TooManyLoginsError, Turns


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

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(run, "a", "anne")
        nursery.start_soon(run, "b", "bob")
        nursery.start_soon(run, "a", "carl")
    assert order.index(("b", "bob")) < 5
    assert order.index(("a", "carl")) < 8
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
    assert not turns._waiting  # nothing is left of those who have gone
    async with turns.take("a", "anne"):
        pass


def add_failures(logins: Logins, count: int) -> None:
    for _ in range(count):
        logins._record_failure(("a", "anne"))


async def test_wrong_passwords_delay_the_same_source_and_user(autojump_clock: trio.testing.MockClock) -> None:
    logins = Logins()
    add_failures(logins, FAILURES_FREE - 1)
    logins.check("a", "anne")
    add_failures(logins, 1)
    with pytest.raises(TooManyLoginsError, match="try again in 1 s") as refused:
        logins.check("a", "anne")
    logins.check("a", "bob")
    logins.check("b", "anne")
    await trio.sleep(refused.value.wait_s)
    logins.check("a", "anne")
    add_failures(logins, 1)
    with pytest.raises(TooManyLoginsError) as again:
        logins.check("a", "anne")
    assert again.value.wait_s > refused.value.wait_s
    add_failures(logins, 40)
    await trio.sleep(BACKOFF_MAX_S)
    logins.check("a", "anne")
    await trio.sleep(2 * BACKOFF_MAX_S)
    add_failures(logins, 1)
    logins.check("a", "anne")  # all is forgotten


async def test_a_right_password_ends_the_delays() -> None:
    logins = Logins()
    for _ in range(3):
        for _ in range(FAILURES_FREE - 1):
            await fail(logins, "a", "anne")
        await succeed(logins, "a", "anne")


async def test_logins_of_unknown_users_are_not_delayed() -> None:
    """A malformed message names no user. It must not lock the others of its address out."""
    logins = Logins()
    for _ in range(3 * FAILURES_FREE):
        await fail(logins, "a", "")
    await succeed(logins, "a", "")
