"""Logins share the processor fairly, and wrong passwords delay only those who try them."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from random import Random

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


class Model:
    """The model of turns: sources take turns, and within each its users, with their oldest login."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.waiting: dict[str, dict[str, list[int]]] = {}

    def find(self, source: str, user: str) -> list[int]:
        return self.waiting.get(source, {}).get(user, [])

    def add(self, number: int, source: str, user: str) -> None:
        self.waiting.setdefault(source, {}).setdefault(user, []).append(number)

    def remove_empty(self) -> None:
        users = {source: {user: each for user, each in users.items() if each} for source, users in self.waiting.items()}
        self.waiting = {source: each for source, each in users.items() if each}

    def admit(self, running_max: int) -> None:
        self.remove_empty()
        while self.waiting and len(self.running) < running_max:
            source, users = next(iter(self.waiting.items()))
            user, numbers = next(iter(users.items()))
            self.running.add(numbers.pop(0))
            users[user] = users.pop(user)
            self.waiting[source] = self.waiting.pop(source)
            self.remove_empty()


@pytest.mark.parametrize(("running_max", "waiting_max"), [(1, 100), (1, 2), (2, 3), (3, 1)])
async def test_any_history_of_logins_follows_a_model_of_turns(running_max: int, waiting_max: int) -> None:
    """Logins arrive, end and are cancelled while they wait. Only few of a source and user wait."""
    random, turns, model = Random(running_max * 10 + waiting_max), Turns(running_max, waiting_max), Model()
    scopes: dict[int, trio.CancelScope] = {}
    running: set[int] = set()
    refused: list[int] = []

    async def run(number: int, source: str, user: str) -> None:
        with trio.CancelScope() as scopes[number]:
            try:
                async with turns.take(source, user):
                    running.add(number)
                    await trio.sleep_forever()
            except TooManyLoginsError:
                refused.append(number)
        running.discard(number)

    async with trio.open_nursery() as nursery:
        for number in range(150):
            source, user = random.choice("ab"), random.choice("xyz")
            if random.random() < 0.6:
                is_refused = len(model.find(source, user)) >= waiting_max
                if not is_refused:
                    model.add(number, source, user)
                nursery.start_soon(run, number, source, user)
                await trio.testing.wait_all_tasks_blocked()
                assert (number in refused) is is_refused
            elif random.random() < 0.7 and running:
                ended = random.choice(sorted(running))
                model.running.remove(ended)
                scopes[ended].cancel()
            elif waiting := model.find(source, user):
                scopes[waiting.pop(random.randrange(len(waiting)))].cancel()
            model.admit(running_max)
            await trio.testing.wait_all_tasks_blocked()
            assert running == model.running
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
    """The failures of the host and user that failed longest ago are forgotten first."""
    logins = Logins(remembered_max=2)
    for user, count in (("anne", FAILURES_FREE - 1), ("bob", FAILURES_FREE), ("anne", 1), ("carl", FAILURES_FREE)):
        for _ in range(count):
            await fail(logins, "a", user)
    logins.check("a", "bob")
    for user in ("anne", "carl"):
        with pytest.raises(TooManyLoginsError):
            logins.check("a", user)


async def test_few_passwords_are_hashed_at_the_same_time_and_few_wait() -> None:
    logins, release, running = Logins(), threading.Event(), list[int]()

    def answer() -> bytes:
        running.append(len(running))
        assert release.wait(60)
        return b"ok"

    verify = partial(logins.verify, "a", "anne", answer, is_last=lambda: True)
    async with trio.open_nursery() as nursery:
        for _ in range(HASHING_MAX + WAITING_MAX):
            nursery.start_soon(verify)
        await trio.testing.wait_all_tasks_blocked()
        try:
            with pytest.raises(TooManyLoginsError, match="try again in 1 s"):
                await verify()
            with trio.fail_after(60):
                while len(running) < HASHING_MAX:
                    await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            assert len(running) == HASHING_MAX
        finally:
            release.set()
    assert len(running) == HASHING_MAX + WAITING_MAX


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
