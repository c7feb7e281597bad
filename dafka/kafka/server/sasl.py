"""SaslHandshake and SaslAuthenticate: authenticates clients of Kafka.

After SaslHandshake version 0, frames are the mechanism's messages, without headers, until the login has ended.
"""

from __future__ import annotations

import math
import time
from functools import partial

import trio

from dafka.broker.access.credentials import MECHANISMS
from dafka.broker.access.login import PLAIN, LoginError, PasswordLogin, TokenLogin, begin_login
from dafka.broker.access.logins import Logins, TooManyLoginsError
from dafka.broker.access.oauth import OAUTHBEARER, TokenVerifier
from dafka.broker.access.users import Users
from dafka.broker.connections.security import ServerSecurity
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.frames import RequestHeader, encode_token
from dafka.kafka.protocol.messages.connections import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from dafka.kafka.protocol.tables import Request, Response

LOGIN_BYTES_MAX = 2**16
"""The largest frame of a client that has not authenticated."""

LOGIN_REQUESTS_MAX = 20
"""How many requests a client may send until it has authenticated. Clients send three to five."""

FAILURE_DELAY_S = 0.1
"""How long the response to a wrong password is delayed, as in Kafka, to slow down guessing."""


class AuthenticationError(Exception):
    """The client has failed to authenticate."""


def offer_mechanisms(security: ServerSecurity, *, is_private: bool) -> tuple[str, ...]:
    """Return the mechanisms for a connection. One that is encrypted or local may carry passwords and tokens."""
    plain = (PLAIN, OAUTHBEARER) if security.tokens is not None else (PLAIN,)
    return (*MECHANISMS, *plain) if is_private else MECHANISMS


class Session:
    """The time of a login, after which the client must authenticate again. 0 is as long as it is connected.

    A login with a token ends with the token at the latest.
    `renewal` is the authentication that is under way; None if there is none.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._lifetime_s = 0.0
        self._ends_at = math.inf
        self.mechanism = ""
        self.renewal: Authentication | None = None

    @property
    def is_limited(self) -> bool:
        """Whether the client is authenticated, and must authenticate again."""
        return self._ends_at < math.inf

    def begin(self, authentication: Authentication) -> None:
        """Begin the time of a login."""
        self.mechanism, self.renewal = authentication.mechanism, None
        left_s = min(self._longest_s or math.inf, authentication.expires_at - time.time())
        self._lifetime_s = max(left_s, 0.0)
        self._ends_at = trio.current_time() + self._lifetime_s

    def describe(self, response: Response) -> None:
        """Add the time of a login to its last response."""
        if self.is_limited and isinstance(response, SaslAuthenticateResponse):
            response.session_lifetime_ms = int(self._lifetime_s * 1000)

    def has_ended(self) -> bool:
        """Return whether the time is over."""
        return trio.current_time() >= self._ends_at


class Authentication:
    """The authentication of one connection.

    `mechanism` is empty until the client has chosen one, and `user` is None until it is authenticated. If
    `takes_tokens`, the next frame is a message of the mechanism, without a header. After a failure that was answered,
    `has_failed` is set. `mechanisms` are those that the client may choose.
    """

    def __init__(
        self,
        users: Users,
        logins: Logins,
        host: str,
        *,
        mechanisms: tuple[str, ...],
        tokens: TokenVerifier | None = None,
    ) -> None:
        self._users = users
        self._tokens = tokens
        self._logins = logins
        self._host = host
        self.mechanisms = mechanisms
        self.mechanism = ""
        self._login: PasswordLogin | TokenLogin | None = None
        self._requests = 0
        self.user: str | None = None
        self.takes_tokens = False

    @property
    def is_proved(self) -> bool:
        """Whether an issuer of tokens names the user; see `Login`."""
        return self._login is not None and self._login.is_proved

    @property
    def expires_at(self) -> float:
        """Until when the login counts, in seconds since 1970."""
        return math.inf if self._login is None else self._login.expires_at

    def count_request(self) -> None:
        """Count a frame. Raises `AuthenticationError` if there were too many."""
        self._requests += 1
        if self._requests > LOGIN_REQUESTS_MAX:
            raise AuthenticationError(f"it has not authenticated within {LOGIN_REQUESTS_MAX} requests")

    async def answer_token(self, token: bytes) -> bytes:
        """Return the response to a message without a header. Raises `AuthenticationError`."""
        try:
            return encode_token(await self._continue(token))
        except (LoginError, TooManyLoginsError) as error:
            await trio.sleep(FAILURE_DELAY_S)
            raise AuthenticationError(str(error)) from None

    async def answer(self, header: RequestHeader, request: Request) -> tuple[Response, str]:
        """Return the response to a request, and the reason if the connection ends after it; empty if it continues."""
        if isinstance(request, SaslHandshakeRequest):
            return self._choose(header, request)
        if not isinstance(request, SaslAuthenticateRequest):
            raise AuthenticationError(f"it sent {request.API_KEY.name} before it authenticated")
        if self._login is None:
            reason = "expected SaslHandshake before SaslAuthenticate"
            return refuse_authenticate(ErrorCode.ILLEGAL_SASL_STATE, reason), reason
        try:
            token = await self._continue(bytes(request.auth_bytes))
        except (LoginError, TooManyLoginsError) as error:
            await trio.sleep(FAILURE_DELAY_S)
            reason = f"authentication failed: {error}"
            return refuse_authenticate(ErrorCode.SASL_AUTHENTICATION_FAILED, reason), reason
        return SaslAuthenticateResponse(error_code=ErrorCode.NONE, error_message=None, auth_bytes=token), ""

    def _choose(self, header: RequestHeader, request: SaslHandshakeRequest) -> tuple[Response, str]:
        mechanisms = list(self.mechanisms)
        if self._login is not None:
            return refuse_handshake(mechanisms), "it sent SaslHandshake twice"
        if request.mechanism not in mechanisms:
            error = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            reason = f"it asked for the mechanism {request.mechanism[:50]!r}, not for {', '.join(mechanisms)}"
            return SaslHandshakeResponse(error_code=error, mechanisms=mechanisms), reason
        self.mechanism = request.mechanism
        if self.mechanism == OAUTHBEARER and self._tokens is not None:
            self._login = TokenLogin(self._tokens)
        else:
            self._login = begin_login(self.mechanism, self._users)
        self.takes_tokens = header.api_version == 0
        return SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=mechanisms), ""

    async def _continue(self, message: bytes) -> bytes:
        login = self._login
        assert login is not None
        if isinstance(login, TokenLogin):
            answer = await login.answer(message)
        else:
            user, step = login.claimed_user(message), partial(login.answer, message)
            answer = await self._logins.verify(self._host, user, step, is_last=lambda: bool(login.user))
        self.user = login.user
        return answer


def refuse_handshake(mechanisms: list[str]) -> SaslHandshakeResponse:
    """Return the response to SaslHandshake at the wrong time."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=mechanisms)


def refuse_authenticate(error_code: ErrorCode, message: str) -> SaslAuthenticateResponse:
    """Return the response to a failed SaslAuthenticate."""
    return SaslAuthenticateResponse(error_code=error_code, error_message=message, auth_bytes=b"")
