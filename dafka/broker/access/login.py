"""SASL logins: the messages with which a client authenticates. They are bytes, which a server carries.

An unknown user and a wrong password get the same answer, so that no client learns which users exist.
"""

from __future__ import annotations

import hmac
import math
import secrets
from abc import ABC, abstractmethod
from hashlib import sha256

from dafka.broker.access.credentials import DEFAULT_ITERATIONS, MECHANISMS, Credential, load_scramp, verify_password
from dafka.broker.access.oauth import InvalidTokenError, TokenVerifier
from dafka.broker.access.users import Users

PLAIN = "PLAIN"
"""The mechanism that sends the password in plain text."""

_SECRET = secrets.token_bytes(32)
_SALT_BYTES = 32
"""The size of the salts that scramp generates."""


class LoginError(Exception):
    """The client failed to authenticate."""


class Login:
    """One attempt of a client to authenticate. `user` is the name of the authenticated user; None before.

    If `is_proved`, an issuer of tokens names the user, whom the broker need not know. The login counts until
    `expires_at`, in seconds since 1970.
    """

    def __init__(self) -> None:
        self.user: str | None = None
        self.is_proved = False
        self.expires_at = math.inf


class PasswordLogin(Login, ABC):
    """A login with a password, which others could guess."""

    @abstractmethod
    def answer(self, message: bytes) -> bytes:
        """Return the answer to the client's next message. This can take milliseconds of processor time.

        If it ends the login, `user` is set. Raise `LoginError` if the client failed to authenticate.
        """

    @abstractmethod
    def claimed_user(self, message: bytes) -> str:
        """Return the user name that the client gives, from its next message; empty if it is unknown."""


def begin_login(mechanism: str, users: Users) -> PasswordLogin:
    """Begin a login with one of the `MECHANISMS` or `PLAIN`. It expects the client's first message."""
    return _PlainLogin(users) if mechanism == PLAIN else _ScramLogin(users, mechanism)


class _PlainLogin(PasswordLogin):
    """PLAIN (RFC 4616): the client sends its user name and password."""

    def __init__(self, users: Users) -> None:
        super().__init__()
        self._users = users

    def answer(self, message: bytes) -> bytes:
        """See `PasswordLogin.answer`."""
        try:
            identity, name, password = message.decode().split("\0")
        except ValueError:
            raise LoginError("expected a name and a password") from None
        found = self._users.find(name)
        if found is None:
            mechanism, credential = MECHANISMS[0], _make_up_credential(MECHANISMS[0], name)
        else:
            mechanism, credential = next(iter(found.credentials.items()))
        is_right = verify_password(mechanism, credential, password)
        if found is None or not is_right or not password or identity not in {"", name}:
            raise LoginError("unknown user or wrong password")
        self.user = name
        return b""

    def claimed_user(self, message: bytes) -> str:
        """See `PasswordLogin.claimed_user`."""
        parts = message.split(b"\0")
        return parts[1].decode("utf-8", "replace") if len(parts) == 3 else ""


class _ScramLogin(PasswordLogin):
    """SCRAM (RFC 5802): the client proves that it knows the password without sending it."""

    def __init__(self, users: Users, mechanism: str) -> None:
        super().__init__()
        self._users = users
        self._mechanism = mechanism
        self._name = ""
        self._has_begun = False
        scramp = load_scramp()
        self._errors = (scramp.ScramException, ValueError, KeyError)
        self._server = scramp.ScramMechanism(mechanism).make_server(self._find)

    def answer(self, message: bytes) -> bytes:
        """See `PasswordLogin.answer`."""
        try:
            text = message.decode()
            if not self._has_begun:
                self._has_begun = True
                self._server.set_client_first(text)
                first: str = self._server.get_server_first()
                return first.encode()
            self._server.set_client_final(text)
            final: str = self._server.get_server_final()
        except self._errors:
            raise LoginError("unknown user or wrong password") from None
        self.user = self._name
        return final.encode()

    def claimed_user(self, message: bytes) -> str:
        """See `PasswordLogin.claimed_user`."""
        return self._name

    def _find(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        found = self._users.find(name)
        credential = None if found is None else found.credentials.get(self._mechanism)
        self._name = name
        if credential is None:
            credential = _make_up_credential(self._mechanism, name)
        return credential.salt, credential.stored_key, credential.server_key, credential.iterations


class TokenLogin(Login):
    """OAUTHBEARER (RFC 7628): the client sends a token that an issuer has signed."""

    def __init__(self, tokens: TokenVerifier) -> None:
        super().__init__()
        self._tokens = tokens

    async def answer(self, message: bytes) -> bytes:
        """Return the answer to the client's only message, which ends the login.

        Raise `LoginError` if the client failed to authenticate. Tokens cannot be guessed, so wrong ones cause no delay.
        """
        try:
            head, *pairs = message.decode("ascii").split("\1")
            _, identity, _ = head.split(",")
            fields = dict(each.split("=", 1) for each in pairs if each)
            scheme, _, token = fields["auth"].partition(" ")
        except (ValueError, KeyError):
            raise LoginError("expected a token, as RFC 7628 has it") from None
        if scheme.lower() != "bearer":
            raise LoginError("expected a token, as RFC 7628 has it")
        try:
            found = await self._tokens.verify(token.strip())
        except InvalidTokenError as error:
            raise LoginError(str(error)) from None
        if identity not in {"", f"a={found.user}"}:
            raise LoginError("the token names another user")
        self.user, self.is_proved, self.expires_at = found.user, True, found.expires_at
        return b""


def _make_up_credential(mechanism: str, name: str) -> Credential:
    """Make up a credential for an unknown user. Its salt is the same in each attempt, and no password matches it."""
    salt = hmac.digest(_SECRET, f"{mechanism} {name}".encode(), sha256)[:_SALT_BYTES]
    size = 32 if mechanism == MECHANISMS[0] else 64
    return Credential(salt, DEFAULT_ITERATIONS, secrets.token_bytes(size), secrets.token_bytes(size))
