"""The login of one connection's client: by its certificate or by SASL, and again when the first one has ended."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import trio

from dafka.broker.access.users import Users
from dafka.broker.access.users_file import find_user_name_problem
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.frames import RequestHeader
from dafka.kafka.protocol.tables import Request, Response
from dafka.kafka.server.kafka_server import KafkaServer
from dafka.kafka.server.sasl import (
    Authentication,
    AuthenticationError,
    Session,
    offer_mechanisms,
    refuse_authenticate,
)

CERTIFICATE = "TLS"
"""The mechanism of clients whose certificate names the user, in counters."""

_T = TypeVar("_T")


class ClientLogin:
    """The login of the client of one connection, which is encrypted or local if it `is_private`.

    The client must finish the `pending` login before anything else; it is None if it has, or need not log in. `user` is
    empty until then. If `is_proved`, a certificate or a token names the user, whom the broker need not know.
    """

    def __init__(self, server: KafkaServer, host: str, *, is_private: bool) -> None:
        self._logins = server.broker.logins
        self._tokens = server.broker.security.tokens
        self._users = server.broker.security.users
        self._counters = server.counters
        self._host = host
        self._session = Session(server.broker.security.settings.reauthenticate_ms / 1000)
        self.pending: Authentication | None = None
        if self._users is not None:
            mechanisms = offer_mechanisms(server.broker.security, is_private=is_private)
            self.pending = self._begin(self._users, mechanisms)
        self.user = ""
        self.is_proved = False

    def _begin(self, users: Users, mechanisms: tuple[str, ...]) -> Authentication:
        return Authentication(users, self._logins, self._host, mechanisms=mechanisms, tokens=self._tokens)

    # The first login

    def take_certificate(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        """Take the user from the client's verified certificate. Raise `AuthenticationError` if it names none."""
        subject = (stream.getpeercert() or {}).get("subject", ())
        names = [str(value) for part in subject for name, value in part if name == "commonName"]
        problem = find_user_name_problem(names[0]) if len(names) == 1 else f"expected one common name, not {len(names)}"
        if problem:
            self._counters.failed_logins[CERTIFICATE] += 1
            raise AuthenticationError(f"its certificate names no user: {problem}")
        self._counters.logins[CERTIFICATE] += 1
        self.user, self.is_proved, self.pending = names[0], True, None

    async def answer_token(self, frame: bytes) -> bytes:
        """Return the response to a message of the pending login that has no header."""
        assert self.pending is not None
        return await self._finish(self.pending, self.pending.answer_token(frame))

    async def answer(self, header: RequestHeader, request: Request) -> tuple[Response, str]:
        """Return the response to a request of the pending login, and the reason if the connection ends after it."""
        pending = self.pending
        assert pending is not None
        response, ending = await self._finish(pending, pending.answer(header, request))
        self._session.describe(response)
        if ending:
            self._counters.failed_logins[pending.mechanism] += 1
        return response, ending

    async def _finish(self, pending: Authentication, answered: Awaitable[_T]) -> _T:
        """Return the next response of the pending login. On success, it is not pending any more."""
        try:
            answer = await answered
        except AuthenticationError:
            self._counters.failed_logins[pending.mechanism] += 1
            raise
        if pending.user is not None:
            self._counters.logins[pending.mechanism] += 1
            self.user, self.is_proved, self.pending = pending.user, pending.is_proved, None
            self._session.begin(pending)
        return answer

    # Later ones

    @property
    def is_renewable(self) -> bool:
        """Whether the client can authenticate again, since its login ends before the connection."""
        return self._session.is_limited

    def has_ended(self) -> bool:
        """Return whether the client should have authenticated again by now."""
        return self._session.has_ended()

    async def renew(self, header: RequestHeader, request: Request) -> tuple[Response, str]:
        """Return the response to a client that authenticates again, and the reason if the connection ends after it.

        It must be the same user with the same mechanism.
        """
        renewal = self._session.renewal
        if renewal is None:
            assert self._users is not None
            renewal = self._session.renewal = self._begin(self._users, (self._session.mechanism,))
        renewal.count_request()
        response, ending = await renewal.answer(header, request)
        if ending:
            self._counters.failed_logins[renewal.mechanism] += 1
        if renewal.user is not None and renewal.user != self.user:
            self._counters.failed_logins[renewal.mechanism] += 1
            ending = f"it authenticated again as {renewal.user[:100]!r} in place of {self.user!r}"
            response = refuse_authenticate(ErrorCode.SASL_AUTHENTICATION_FAILED, "the user cannot change")
        elif renewal.user is not None:
            self._counters.logins[renewal.mechanism] += 1
            self._session.begin(renewal)
            self._session.describe(response)
        return response, ending
