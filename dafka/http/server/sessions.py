"""Browser sessions: a cookie identifies an authenticated user."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import sha256

import attrs

from dafka.broker.access.users_file import User

COOKIE = "dafka_session"

SESSION_S = 12 * 3600.0
"""How long a session lasts without a request."""

SESSIONS_MAX = 10_000
"""The maximum number of sessions. A new one beyond it ends the least recently used one."""

USER_SESSIONS_MAX = 100
"""The maximum number of sessions of one user, so that users do not end each other's sessions."""

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
        self._by_user: dict[str, dict[bytes, None]] = {}

    def begin(self, user: User) -> str:
        """Begin a session, and return its secret."""
        own = self._by_user.get(user.name, {})
        if len(own) >= USER_SESSIONS_MAX:
            self._remove(next(iter(own)))
        if len(self._sessions) >= SESSIONS_MAX:
            self._remove(next(iter(self._sessions)))
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        digest = _digest(secret)
        self._sessions[digest] = _Session(user, self._clock() + SESSION_S)
        self._by_user.setdefault(user.name, {})[digest] = None
        return secret

    def find(self, secret: str) -> User | None:
        """Return the user of a session as of its beginning, and extend the session; None if it has ended."""
        digest = _digest(secret)
        found = self._sessions.get(digest)
        if found is None:
            return None
        if found.expires_at <= self._clock():
            self._remove(digest)
            return None
        found.expires_at = self._clock() + SESSION_S
        self._sessions[digest] = self._sessions.pop(digest)
        return found.user

    def is_open(self, secret: str) -> bool:
        """Return whether a session has not ended."""
        found = self._sessions.get(_digest(secret))
        return found is not None and found.expires_at > self._clock()

    def end(self, secret: str) -> None:
        """End a session, if it exists."""
        self._remove(_digest(secret))

    def _remove(self, digest: bytes) -> None:
        session = self._sessions.pop(digest, None)
        if session is not None:
            own = self._by_user[session.user.name]
            del own[digest]
            if not own:
                del self._by_user[session.user.name]


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "replace")).digest()
