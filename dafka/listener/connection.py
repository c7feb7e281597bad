"""One connection of a client: requests are handled in their order, and answered in their order.

The answer to Produce waits for the disk while the requests behind it are handled. All others are handled one after the
other, as Kafka does.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from dafka.errors import EncodingError, StorageError, UnsupportedRequestError, WireError
from dafka.kafka.errors import ErrorCode
from dafka.kafka.protocol import (
    ApiKey,
    FrameSplitter,
    Request,
    RequestHeader,
    Response,
    advertise,
    decode_request,
    encode_response,
    encode_unsupported,
)
from dafka.kafka.protocol.messages.connections import (
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from dafka.kafka.protocol.messages.logs import ProduceRequest
from dafka.listener.authentication import (
    LOGIN_BYTES_MAX,
    Authentication,
    AuthenticationError,
    refuse_authenticate,
    refuse_handshake,
)
from dafka.listener.guards import GUARDS, Access, Amendment, Verdict
from dafka.listener.handlers import HANDLERS, SERVED, Client, ProduceRefusedError, begin_produce
from dafka.listener.security import ListenerSecurity
from dafka.listener.service import Service

READ_BYTES = 2**20
"""The most that is read from a connection at a time, in bytes."""

UNANSWERED_MAX = 100
"""Requests of a connection whose answers may wait for the disk or for the client to read."""

_LOGGER = logging.getLogger("dafka.broker")

_Outgoing: TypeAlias = bytes | tuple[RequestHeader, Callable[[], Awaitable[Response | None]]]


class DisconnectError(Exception):
    """The client is disconnected. The message says why."""


class Connection:
    """The connection of one client.

    Args:
        stream: The connection.
        service: What all clients share.
        security: The users and the certificate.
        host: The address of the client.
        endpoint: The host and port at which the client reaches the broker.
        is_local: Whether the client has connected to a loopback address.
    """

    def __init__(
        self,
        stream: trio.SocketStream,
        service: Service,
        security: ListenerSecurity,
        host: str,
        endpoint: tuple[str, int],
        *,
        is_local: bool,
    ) -> None:
        self._stream: trio.abc.Stream = stream if security.tls is None else security.tls.wrap(stream)
        self._service = service
        self._users = security.users
        self._host = host
        self._endpoint = endpoint
        kafka = service.config.kafka
        self._splitter = FrameSplitter(kafka.request_bytes_max)
        self._authentication: Authentication | None = None
        if security.users is not None:
            is_private = security.tls is not None or is_local
            self._authentication = Authentication(security.users, allows_plain=is_private)
            self._splitter.limit(min(LOGIN_BYTES_MAX, kafka.request_bytes_max))
        self._user = ""
        self._ending = ""
        self._login_s = security.settings.login_ms / 1000
        self._login_scope = trio.CancelScope()
        self._idle_s = kafka.idle_ms / 1000
        self._outgoing, self._answers = trio.open_memory_channel[_Outgoing](UNANSWERED_MAX)

    async def run(self) -> None:
        """Serve the client until it or the broker closes the connection."""
        try:
            async with self._stream:
                self._login_scope.deadline = trio.current_time() + self._login_s
                with self._login_scope:
                    await self._serve()
                if self._login_scope.cancelled_caught:
                    raise DisconnectError(f"it has not authenticated within {self._login_s:.0f} s")
        except* (DisconnectError, AuthenticationError, ProduceRefusedError, WireError, EncodingError) as group:
            _LOGGER.info("disconnected the client at %s: %s", self._host, group.exceptions[0])
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has gone
        except* StorageError as failed:
            _LOGGER.warning("disconnected the client at %s: %s", self._host, failed.exceptions[0])
        except* Exception:
            # A mistake of this program must not end the service of other clients.
            _LOGGER.exception("disconnected the client at %s after an unexpected error", self._host)

    async def _serve(self) -> None:
        if isinstance(self._stream, trio.SSLStream):
            try:
                await self._stream.do_handshake()
            except trio.BrokenResourceError as error:
                raise DisconnectError(f"there is no TLS connection: {error.__cause__ or error}") from None
        if self._authentication is None:
            self._login_scope.deadline = math.inf
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_all)
            async with self._outgoing:
                await self._receive_all()

    async def _receive_all(self) -> None:
        while True:
            with trio.move_on_after(self._idle_s) as scope:
                data = await self._stream.receive_some(READ_BYTES)
            if scope.cancelled_caught:
                raise DisconnectError(f"it has sent nothing for {self._idle_s:.0f} s")
            if not data:
                return
            for frame in self._splitter.receive(data):
                await self._handle(frame)
                if self._ending:
                    _LOGGER.info("disconnecting the client at %s: %s", self._host, self._ending)
                    return

    async def _handle(self, frame: bytes) -> None:
        authentication = self._authentication
        if authentication is not None:
            authentication.count_request()
            if authentication.takes_tokens:
                await self._outgoing.send(await authentication.answer_token(frame))
                self._end_login(authentication)
                return
        try:
            header, request = decode_request(frame)
        except UnsupportedRequestError as error:
            answer = encode_unsupported(error, SERVED)
            if answer is None:
                raise DisconnectError(str(error)) from None
            await self._outgoing.send(answer)
            return
        if authentication is not None and not isinstance(request, ApiVersionsRequest):
            response, self._ending = await authentication.answer(header, request)
            await self._outgoing.send(encode_response(header, response))
            self._end_login(authentication)
            return
        client = Client(self._service, header, self._host, self._endpoint)
        verdict = self._guard(client, request)
        if isinstance(verdict, Response):
            await self._outgoing.send(encode_response(header, verdict))
        elif isinstance(request, ProduceRequest):
            await self._service.broker.wait_room()
            await self._outgoing.send((header, _amended(begin_produce(client, request), verdict)))
        else:
            response_or_none = await self._respond(client, request)
            if response_or_none is not None:
                if verdict is not None:
                    verdict(response_or_none)
                await self._outgoing.send(encode_response(header, response_or_none))

    def _end_login(self, authentication: Authentication) -> None:
        """Let the client do what its user may do, as soon as the user is proved."""
        if authentication.user is None:
            return
        self._user = authentication.user
        self._authentication = None
        self._login_scope.deadline = math.inf
        self._splitter.limit(self._service.config.kafka.request_bytes_max)

    def _guard(self, client: Client, request: Request) -> Verdict:
        """Take away what the user may not do; see `dafka.listener.guards`."""
        if self._users is None or isinstance(
            request, (ApiVersionsRequest, SaslHandshakeRequest, SaslAuthenticateRequest)
        ):
            return None
        user = self._users.find(self._user)
        if user is None:
            raise DisconnectError(f"the user {self._user!r} was removed")
        guard = GUARDS.get(request.API_KEY)
        if guard is None:
            raise DisconnectError(f"nobody is permitted to use {request.API_KEY.name}")
        return guard(Access(user.permissions, client), request)

    async def _respond(self, client: Client, request: Request) -> Response | None:
        if isinstance(request, ApiVersionsRequest):
            return advertise(SERVED)
        if isinstance(request, SaslHandshakeRequest):
            return refuse_handshake([])
        if isinstance(request, SaslAuthenticateRequest):
            return refuse_authenticate(ErrorCode.ILLEGAL_SASL_STATE, "the client is not expected to authenticate")
        handler = HANDLERS.get(ApiKey(request.API_KEY))
        if handler is None:
            raise DisconnectError(f"the broker does not serve {request.API_KEY.name}")
        return await handler(client, request)

    async def _send_all(self) -> None:
        async for each in self._answers:
            if isinstance(each, bytes):
                await self._stream.send_all(each)
                continue
            header, wait = each
            response = await wait()
            if response is not None:
                await self._stream.send_all(encode_response(header, response))


def _amended(
    wait: Callable[[], Awaitable[Response | None]], amend: Amendment | None
) -> Callable[[], Awaitable[Response | None]]:
    """Return a function that waits for a response, and adds to it what was refused."""
    if amend is None:
        return wait

    async def wait_amended() -> Response | None:
        response = await wait()
        if response is not None:
            amend(response)
        return response

    return wait_amended
