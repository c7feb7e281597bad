"""Authenticates requests by password, token or session cookie. Sessions are those of browsers."""

from __future__ import annotations

import binascii
import hmac
import secrets
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from typing import NoReturn

import attrs
import trio

from dafka.broker.access.login import PLAIN, LoginError, begin_login
from dafka.broker.access.logins import Logins, TooManyLoginsError
from dafka.broker.access.oauth import InvalidTokenError, TokenVerifier
from dafka.broker.access.users import Users
from dafka.broker.access.users_file import User
from dafka.http.forwarding.credentials import SCHEME as BROKER_SCHEME
from dafka.http.forwarding.credentials import SignatureChecker
from dafka.http.server.errors import WebError
from dafka.http.server.principal import Principal
from dafka.http1.head import Head

FAILURE_DELAY_S = 0.1
"""How long the response to wrong credentials is delayed, to slow down guessing."""

VERIFIED_MAX = 1000
"""The maximum number of cached verified passwords, so that not each Basic request hashes one."""

COOKIE = "dafka_session"

SESSION_S = 12 * 3600.0
"""How long a session lasts without a request."""

SESSIONS_MAX = 10_000
"""The maximum number of sessions. A new one beyond it ends the least recently used one."""

USER_SESSIONS_MAX = 100
"""The maximum number of sessions of one user, so that users do not end each other's sessions."""

JWT_DOTS = 2
"""How many dots a token of an issuer has: they separate its header, claims and signature. Other tokens have none."""

_SECRET_BYTES = 32


@attrs.define
class _Session:
    user: User
    expires_at: float


class Sessions:
    """All sessions. They are kept in memory: after a restart, users log in again. The clock counts seconds."""

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


class Authenticator:
    """Authenticates the users of requests.

    It counts logins with passwords and tokens. `users` is None if clients do not authenticate. `attempts` limits the
    login attempts of the clients of all servers. `issuer` verifies tokens of an issuer; None if there is none.
    """

    def __init__(
        self, users: Users | None, sessions: Sessions, attempts: Logins, issuer: TokenVerifier | None = None
    ) -> None:
        self.users = users
        self.sessions = sessions
        self.logins = 0
        self.failed_logins = 0
        self._attempts = attempts
        self._issuer = issuer
        self._key = secrets.token_bytes(32)
        self._verified: OrderedDict[bytes, User] = OrderedDict()

    async def identify(self, head: Head, *, host: str, is_private: bool, signatures: SignatureChecker) -> Principal:
        """Return the principal of a client; an anonymous one if its request has no credentials.

        A client may send a password only if its connection is private: encrypted or local. `signatures` checks those of
        other brokers over this connection. Raises `WebError` if the credentials are wrong.
        """
        headers = head.headers
        scheme, _, given = headers.get("authorization", "").strip().partition(" ")
        if scheme == BROKER_SCHEME:
            return await self._check_broker(given.strip(), head, is_private=is_private, signatures=signatures)
        if self.users is None:
            return Principal(None)
        if scheme.lower() == "bearer":
            return await self.check_token(given.strip(), host=host, is_private=is_private)
        if scheme.lower() == "basic":
            name, password = _read_basic(given.strip())
            return await self.check_password(name, password, host=host, is_private=is_private)
        if scheme:
            raise WebError("unauthenticated", "expected the scheme Basic or Bearer in the header Authorization")
        secret = session_of(headers)
        user = None if secret is None else self.sessions.find(secret)
        if secret is None or user is None:
            return Principal(self.users)
        credentials = user.credentials
        return Principal(
            self.users,
            user.name,
            lambda current: current.credentials == credentials and self.sessions.is_open(secret),
            host=host,
        )

    async def _check_broker(
        self, credential: str, head: Head, *, is_private: bool, signatures: SignatureChecker
    ) -> Principal:
        """Return the principal of another broker, which may do everything: it has checked its client's permissions."""
        if self.users is not None:
            _check_private("a broker's credential", is_private)
        if not credential:
            challenge = [("WWW-Authenticate", f"{BROKER_SCHEME} {signatures.challenge()}")]
            raise WebError(
                "unauthenticated", "expected a request that is signed with this challenge", headers=challenge
            )
        if not signatures.check(credential, head.method, head.target):
            await self._refuse("expected a request that a broker with the same [broker] secret_file has signed")
        return Principal(None, is_broker=True)

    async def check_password(self, name: str, password: str, *, host: str, is_private: bool) -> Principal:
        """Return the principal for a name and a password. Raises `WebError` if they are wrong."""
        user = await self.log_in(name, password, host=host, is_private=is_private)
        if user is None:
            return Principal(None)
        return Principal(self.users, name, lambda current: current.credentials == user.credentials, host=host)

    async def check_token(self, token: str, *, host: str, is_private: bool) -> Principal:
        """Return the principal for a token of the file of users or of the issuer.

        Raises `WebError` if it is unknown, forged, revoked or expired.
        """
        if self.users is None:
            return Principal(None)
        _check_private("a token", is_private)
        if self._issuer is not None and token.count(".") == JWT_DOTS:
            return await self._check_issued(self.users, self._issuer, token, host)
        found = self.users.find_token(token)
        if found is None:
            await self._refuse("the token is unknown, was revoked or has expired")
        user, known = found
        self.logins += 1
        return Principal(self.users, user.name, lambda current: known.is_valid() and known in current.tokens, host=host)

    async def _check_issued(self, users: Users, issuer: TokenVerifier, token: str, host: str) -> Principal:
        """Return the principal that a token of the issuer names, until the token expires."""
        try:
            found = await issuer.verify(token)
        except InvalidTokenError as error:
            await self._refuse(str(error))
        self.logins += 1
        return Principal(users, found.user, lambda _: found.is_valid(), is_proved=True, host=host)

    async def log_in(self, name: str, password: str, *, host: str, is_private: bool) -> User | None:
        """Check a password and return its user; None if there are no users.

        Raises `WebError` if the user does not exist, the password is wrong, the client has made too many attempts, or
        its connection is not private.
        """
        if self.users is None:
            return None
        _check_private("a password", is_private)
        digest = hmac.digest(self._key, f"{name}\0{password}".encode("utf-8", "replace"), sha256)
        user, verified = self.users.find(name), self._verified.get(digest)
        if user is not None and verified is not None and verified.credentials == user.credentials:
            self._verified.move_to_end(digest)
            return user
        login = begin_login(PLAIN, self.users)
        message = f"\0{name}\0{password}".encode("utf-8", "replace")
        try:
            await self._attempts.verify(host, name, partial(login.answer, message), is_last=lambda: bool(login.user))
        except TooManyLoginsError as error:
            retry_after = [("Retry-After", f"{max(error.wait_s, 1):.0f}")]
            raise WebError("too_many_requests", str(error), headers=retry_after) from None
        except LoginError:
            await self._refuse("unknown user or wrong password")
        if user is None:
            await self._refuse("unknown user or wrong password")
        self.logins += 1
        self._verified[digest] = user
        if len(self._verified) > VERIFIED_MAX:
            self._verified.popitem(last=False)
        return user

    async def _refuse(self, message: str) -> NoReturn:
        self.failed_logins += 1
        await trio.sleep(FAILURE_DELAY_S)
        raise WebError("unauthenticated", message)


def session_of(headers: Mapping[str, str]) -> str | None:
    """Return the secret of the session in a request's cookie; None if there is none.

    Browsers send the cookies of all programs on the same host, with any content.
    """
    for each in headers.get("cookie", "").split(";"):
        name, _, value = each.strip().partition("=")
        if name == COOKIE:
            return value
    return None


def _check_private(what: str, is_private: bool) -> None:
    if not is_private:
        raise WebError("forbidden", f"expected {what} over TLS only: others on the way could read it")


def _read_basic(given: str) -> tuple[str, str]:
    try:
        name, separator, password = b64decode(given, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        name = separator = password = ""
    if not separator:
        raise WebError("unauthenticated", "expected a name and a password, as Basic authentication has them")
    return name, password
