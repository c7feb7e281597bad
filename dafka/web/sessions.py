"""Sessions of browsers: a cookie stands for a user that has proved who it is."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import sha256

import attrs

from dafka.users import User

COOKIE = "dafka_session"

SESSION_S = 12 * 3600.0
"""How long a session lasts without a request."""

SESSIONS_MAX = 10_000
"""How many sessions there may be. A further one ends the one that was not used for the longest time."""

_SECRET_BYTES = 32


@attrs.define
class _Session:
    user: User
    expires_at: float


class Sessions:
    """All sessions. They are kept in memory: after a restart, users log in again.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sessions: dict[bytes, _Session] = {}

    def begin(self, user: User) -> str:
        """Begin a session, and return the secret that stands for it."""
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        self._sessions[_digest(secret)] = _Session(user, self._clock() + SESSION_S)
        return secret

    def find(self, secret: str) -> User | None:
        """Return the user of a session as it was when the session began, and extend the session; None if it is over."""
        digest = _digest(secret)
        found = self._sessions.pop(digest, None)
        if found is None or found.expires_at <= self._clock():
            return None
        found.expires_at = self._clock() + SESSION_S
        self._sessions[digest] = found
        return found.user

    def is_open(self, secret: str) -> bool:
        """Return whether a session is not over."""
        found = self._sessions.get(_digest(secret))
        return found is not None and found.expires_at > self._clock()

    def end(self, secret: str) -> None:
        """End a session, if there is one."""
        self._sessions.pop(_digest(secret), None)


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "replace")).digest()
