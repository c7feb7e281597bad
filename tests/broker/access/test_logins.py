"""Logins share the processor fairly, and wrong passwords delay only those who try them."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from functools import partial
from random import Random

import pytest
import trio
import trio.lowlevel
import trio.testing

from dafka.broker.access import logins as logins_module
from dafka.broker.access.login import LoginError
from dafka.broker.access.logins import (
    BACKOFF_MAX_S,
    HASHING_MAX,
    WAITING_MAX,
    Logins,
    TooManyLoginsError,
    Turns,
)


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


def answer_wrongly() -> bytes:
    raise LoginError("wrong password")


@pytest.mark.parametrize("seed", range(20))
async def test_wrong_passwords_delay_the_same_source_and_user_and_nobody_else(seed: int) -> None:
    """A right one ends this, and the longest wait once more. A malformed message names no user, and delays nobody."""
    clock, random = trio.testing.MockClock(), Random(seed)
    remembered_max = random.choice((2, 9))
    logins = Logins(remembered_max)

    async def play() -> None:
        failed: dict[tuple[str, str], tuple[int, float]] = {}  # how often, and until when it waits
        for _ in range(80):
            key = host, user = random.choice("aaaab"), random.choice(("anne", "anne", "anne", "bob", ""))
            count, until = failed.get(key, (0, 0.0))
            left = until - trio.current_time()
            verify = partial(logins.verify, host, user)
            match "refused" if left > 0 else random.choice((*["wrong"] * 12, "begun", "right")):
                case "refused":
                    called: list[str] = []
                    with pytest.raises(TooManyLoginsError, match=f"try again in {max(left, 1):.0f} s") as refused:
                        await verify(partial(called.append, "hashed"), is_last=lambda: True)
                    assert (refused.value.wait_s, called) == (left, []), "it takes no processor time"
                    clock.jump(
                        random.choice((left - TICK_S, left, left, left + BACKOFF_MAX_S, left + 2 * BACKOFF_MAX_S))
                    )
                case "wrong":
                    with pytest.raises(LoginError):
                        await verify(answer_wrongly, is_last=lambda: False)
                    if user:
                        count = 0 if -left > BACKOFF_MAX_S else count
                        failed.pop(key, None)
                        wait_s = WAITS_S[min(count, len(WAITS_S) - 1)]
                        failed[key] = count + 1, trio.current_time() + wait_s
                        if len(failed) > remembered_max:
                            del failed[next(iter(failed))]
                case "begun":
                    assert await verify(lambda: b"continue", is_last=lambda: False) == b"continue"
                case "right":
                    assert await verify(lambda: b"ok", is_last=lambda: True) == b"ok"
                    failed.pop(key, None)

    # Threads work while the clock stands still.
    await trio.to_thread.run_sync(partial(trio.run, play, clock=clock))


async def test_failures_of_long_names_take_little_memory() -> None:
    logins = Logins()
    tracemalloc.start()
    try:
        for number in range(500):
            with pytest.raises(LoginError):
                await logins.verify("host", f"{number}{'x' * 30_000}", answer_wrongly, is_last=lambda: False)
        gc.collect()  # tracebacks refer to themselves
        assert tracemalloc.get_traced_memory()[0] < 2**21
    finally:
        tracemalloc.stop()


async def test_an_address_that_tries_many_users_does_not_delay_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins_module, "HASHING_MAX", 1)
    logins, release, answered = Logins(), threading.Event(), list[tuple[str, str]]()

    def answer(host: str, user: str) -> bytes:
        assert release.wait(60)
        answered.append((host, user))
        return b"ok"

    async def verify(host: str, user: str) -> None:
        await logins.verify(host, user, partial(answer, host, user), is_last=lambda: True)

    async with trio.open_nursery() as nursery:
        try:
            for client in [*(("a", f"user{number}") for number in range(5)), ("b", "user0")]:
                nursery.start_soon(verify, *client)
                await trio.testing.wait_all_tasks_blocked()
        finally:
            release.set()
    assert answered.index(("b", "user0")) <= 2


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
