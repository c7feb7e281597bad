"""Verifies logins in threads, and shares the processor time fairly between the clients of all servers.

The client addresses take turns, and within an address the user names. Wrong passwords delay only later attempts from
the same address for the same user.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import attrs
import trio

from dafka.broker.access.login import LoginError

HASHING_MAX = 2
"""Maximum number of passwords that are hashed at the same time."""

WAITING_MAX = 10
"""Maximum number of passwords from one address for one user that wait to be hashed."""

FAILURES_FREE = 5
"""Number of wrong passwords in a row after which an address must wait before it tries the same user again."""

BACKOFF_S = 0.5
"""The first wait. Each additional wrong password doubles it."""

BACKOFF_MAX_S = 60.0
"""The longest wait. After the same time again without an attempt, the failures are forgotten."""

REMEMBERED_MAX = 10_000
"""Maximum number of pairs of an address and a user for which failures are remembered."""

NAME_CHARACTERS_MAX = 100
"""How many characters of a name are compared: as many as a user can have. Clients can send longer names."""

_T = TypeVar("_T")


class TooManyLoginsError(Exception):
    """An address tried too many passwords for a user. It may try again after `wait_s` seconds."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"too many wrong passwords: try again in {max(wait_s, 1):.0f} s")
        self.wait_s = wait_s


class Turns:
    """Limits how many tasks run at the same time, and how many of one source and user wait.

    Sources take turns, and within a source its users.
    """

    def __init__(self, running_max: int, waiting_max: int) -> None:
        self._left = running_max
        self._waiting_max = waiting_max
        self._waiting: OrderedDict[str, OrderedDict[str, deque[trio.Event]]] = OrderedDict()

    @asynccontextmanager
    async def take(self, source: str, user: str) -> AsyncIterator[None]:
        """Wait for a turn of a client's address and user name, and keep it for the duration of a block.

        Raise `TooManyLoginsError` if too many tasks of the same source and user are waiting.
        """
        users = self._waiting.setdefault(source, OrderedDict())
        waiting = users.setdefault(user, deque())
        if len(waiting) >= self._waiting_max:
            raise TooManyLoginsError(1)
        admitted = trio.Event()
        waiting.append(admitted)
        self._admit()
        try:
            await admitted.wait()
            yield
        finally:
            if admitted.is_set():
                self._left += 1
            else:
                waiting.remove(admitted)
                self._remove_empty(source, user)
            self._admit()

    def _admit(self) -> None:
        while self._left and self._waiting:
            source, users = next(iter(self._waiting.items()))
            user, waiting = next(iter(users.items()))
            waiting.popleft().set()
            self._left -= 1
            users.move_to_end(user)
            self._waiting.move_to_end(source)
            self._remove_empty(source, user)

    def _remove_empty(self, source: str, user: str) -> None:
        users = self._waiting[source]
        if not users[user]:
            del users[user]
        if not users:
            del self._waiting[source]


@attrs.define
class _Failures:
    count: int = 0
    until: float = 0.0


class Logins:
    """Verifies the logins of all servers of a broker. It remembers failures of `remembered_max` users and addresses."""

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._turns = Turns(HASHING_MAX, WAITING_MAX)
        self._remembered_max = remembered_max
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()

    async def verify(self, host: str, user: str, answer: Callable[[], _T], *, is_last: Callable[[], bool]) -> _T:
        """Run a step of a login, which takes processor time, in a thread when it is the client's turn.

        The user name is empty if it is not known yet. `is_last` returns whether the step completed the login, so that
        the client is authenticated. Raise `LoginError` if the client failed to authenticate, and `TooManyLoginsError`
        if clients of this address tried too many passwords for this user.
        """
        key = host, user[:NAME_CHARACTERS_MAX]
        self.check(*key)
        async with self._turns.take(*key):
            try:
                answered = await trio.to_thread.run_sync(answer)
            except LoginError:
                if user:
                    self._record_failure(key)
                raise
        if is_last():
            self._failures.pop(key, None)
        return answered

    def check(self, host: str, user: str) -> None:
        """Raise `TooManyLoginsError` if clients of an address must wait before they try a user again."""
        failures = self._failures.get((host, user[:NAME_CHARACTERS_MAX]))
        if failures is not None and trio.current_time() < failures.until:
            raise TooManyLoginsError(failures.until - trio.current_time())

    def _record_failure(self, key: tuple[str, str]) -> None:
        now = trio.current_time()
        found = self._failures.pop(key, None)
        if found is None or now > found.until + BACKOFF_MAX_S:
            found = _Failures()
        found.count += 1
        excess = found.count - FAILURES_FREE
        found.until = now if excess < 0 else now + min(BACKOFF_S * 2 ** min(excess, 20), BACKOFF_MAX_S)
        self._failures[key] = found
        if len(self._failures) > self._remembered_max:
            self._failures.popitem(last=False)
