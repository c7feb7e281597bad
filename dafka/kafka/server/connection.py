"""Serves one connection: requests are handled in order, and answered in order.

The response to Produce waits for the disk while the following requests are handled. All other requests are handled one
by one, as in Kafka.
"""

from __future__ import annotations

import logging
import math
from contextlib import nullcontext

import trio

from dafka.broker.connections.tcp_server import AcceptedClient
from dafka.broker.connections.uploads import SMALL_BYTES, SlowUploadError, Upload
from dafka.broker.core.client_quotas import QuotaKey
from dafka.broker.core.error_codes import ErrorCode
from dafka.errors import EncodingError, StorageError, UnsupportedRequestError, WireError
from dafka.kafka.apis import OFFERED, SERVED
from dafka.kafka.apis.features import answer_versions
from dafka.kafka.apis.produce import PendingProduce, ProduceRefusedError, begin_produce
from dafka.kafka.apis.shared.registry import AUTHORIZATIONS, HANDLERS, Decision, RequestContext, ResponsePatch
from dafka.kafka.apis.shared.topic_ids import name_topics
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import (
    SIZE_BYTES,
    FrameSplitter,
    RequestHeader,
    decode_request,
    encode_response_parts,
    encode_unsupported,
)
from dafka.kafka.protocol.messages.access import DescribeAclsResponse
from dafka.kafka.protocol.messages.connections import (
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from dafka.kafka.protocol.messages.logs import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from dafka.kafka.protocol.messages.membership import JoinGroupRequest, SyncGroupRequest
from dafka.kafka.protocol.messages.offsets import OffsetCommitRequest, TxnOffsetCommitRequest
from dafka.kafka.protocol.messages.share_records import ShareFetchRequest, ShareFetchResponse
from dafka.kafka.protocol.tables import Request, Response
from dafka.kafka.server.client_login import ClientLogin
from dafka.kafka.server.kafka_server import KafkaServer
from dafka.kafka.server.responses import DisconnectError, PendingResponse, ResponseSender
from dafka.kafka.server.sasl import LOGIN_BYTES_MAX, AuthenticationError, refuse_authenticate, refuse_handshake

MIB = 2**20

READ_BYTES = 2 * MIB
"""The maximum size of one read of a large request, in bytes."""

MUTED_S = 1.0
"""How often to check whether a throttled client has left, in seconds."""

THROTTLE_MS_MAX = 2**31 - 1
"""The longest time for which a response can throttle its client, in ms."""

_WAITING = (FetchRequest, ShareFetchRequest, JoinGroupRequest, SyncGroupRequest)
"""Requests that wait for other clients. When the broker stops, they get no response."""

_WITHOUT_USER = (ApiVersionsRequest, SaslHandshakeRequest, SaslAuthenticateRequest)
"""Requests that need no authenticated user."""

_LONG = (DescribeAclsResponse,)
"""Responses that are encoded in a thread, because they can have very many items."""

_LOGGER = logging.getLogger("dafka.broker")


class Connection:
    """The connection of one client, which reaches the broker at the host and port of the endpoint."""

    def __init__(self, accepted: AcceptedClient, server: KafkaServer, endpoint: tuple[str, int]) -> None:
        self._accepted = accepted
        self._server = server
        broker = server.broker
        self._stopping = broker.stopping
        security = broker.security
        self._stream = security.encrypt(accepted.stream)
        self._counters = server.counters
        self._users = security.users
        self._host = accepted.host
        self._endpoint = endpoint
        self._kafka = kafka = broker.config.kafka
        self._splitter = FrameSplitter(kafka.request_bytes_max)
        self._login = ClientLogin(server, accepted.host, is_private=security.tls is not None or accepted.is_local)
        if self._login.pending is not None:
            self._splitter.limit(min(LOGIN_BYTES_MAX, kafka.request_bytes_max))
        self._ending = ""
        self._login_s = security.settings.login_ms / 1000
        self._login_scope = trio.CancelScope()
        self._responses = ResponseSender(self._stream, accepted, server, kafka.send_ms / 1000)

    async def run(self) -> None:
        """Serve the client until it or the broker ends the connection."""
        try:
            self._login_scope.deadline = trio.current_time() + self._login_s
            with self._login_scope:
                await self._serve()
            if self._login_scope.cancelled_caught:
                raise DisconnectError(f"it has not authenticated within {self._login_s:.0f} s", "login timeout")
        except* (DisconnectError, AuthenticationError, ProduceRefusedError, WireError, EncodingError) as group:
            self._record_end(group.exceptions[0])
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has disconnected
        except* StorageError as failed:
            self._counters.disconnected["storage failure"] += 1
            _LOGGER.warning("disconnected the client at %s: %s", self._host, failed.exceptions[0])
        except* Exception:
            # A bug in this program must not affect other clients.
            self._counters.disconnected["unexpected error"] += 1
            _LOGGER.exception("disconnected the client at %s after an unexpected error", self._host)
        finally:
            self._responses.close()
            for member in self._server.share_sessions.end_of(self):
                self._server.broker.shares.release(*member)

    def _record_end(self, error: BaseException) -> None:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        reason = "malformed request"
        if isinstance(error, DisconnectError):
            reason = error.reason
        elif isinstance(error, AuthenticationError):
            reason = "failed login"
        elif isinstance(error, ProduceRefusedError):
            reason = "refused records"
        self._counters.disconnected[reason] += 1
        _LOGGER.info("disconnected the client at %s: %s", self._host, error)

    async def _serve(self) -> None:
        if isinstance(self._stream, trio.SSLStream):
            try:
                with self._stopping.interrupting():
                    await self._stream.do_handshake()
            except trio.BrokenResourceError as error:
                raise DisconnectError(f"there is no TLS connection: {error.__cause__ or error}", "no TLS") from None
            if self._server.broker.security.settings.tls_users == "on" and not self._stopping.has_begun:
                self._login.take_certificate(self._stream)
        self._lift_login_limits()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._responses.run)
            with self._responses:
                await self._receive_all()

    def _lift_login_limits(self) -> None:
        """Give the client more time and larger requests, unless it must still authenticate."""
        if self._login.pending is None:
            self._login_scope.deadline = math.inf
            self._splitter.limit(self._kafka.request_bytes_max)

    @property
    def _source(self) -> str:
        """The source that limits count: the user, or the address of a client that has not authenticated."""
        return self._login.user or self._host

    async def _receive_all(self) -> None:
        """Receive requests and handle them, until the client ends the connection or the broker stops."""
        idle_s = self._kafka.idle_ms / 1000
        is_open, was_large = True, False
        while is_open:
            size = self._splitter.frame_bytes
            if not self._splitter.pending_bytes:
                # The next request is probably as large: it is received in one piece, and not copied.
                data = await self._receive(SIZE_BYTES if was_large else SMALL_BYTES, idle_s)
                await self._take_in(data)
                is_open = bool(data) and not self._ending
            else:
                was_large = size > SMALL_BYTES
                arrived = self._accepted.count_arrived
                with Upload(self._server.receiving, self._source, size, self._kafka.receive_ms, arrived) as upload:
                    is_open = await self._receive_rest(size, upload)

    async def _receive_rest(self, size: int, upload: Upload) -> bool:
        """Receive the rest of a request within the time limit, and handle it. Return whether the connection continues.

        The size of the request is 0 if it is not known yet.
        """
        receive = self._receive_large if size > SMALL_BYTES else self._receive
        is_complete = False
        while not is_complete:
            pending = self._splitter.pending_bytes
            missing = max(size - pending, 1) if size > SMALL_BYTES else SMALL_BYTES
            try:
                data = await upload.receive(receive, pending, min(missing, READ_BYTES))
            except SlowUploadError as error:
                raise DisconnectError(f"its request comes too slowly: {error}", "slow request") from None
            is_complete = await self._take_in(data) or not size
            if not data or self._ending:
                return False
        return True

    async def _receive(self, bytes_max: int, wait_s: float = math.inf) -> bytes | bytearray:
        """Receive bytes; none if the client has closed its side, or the broker is stopping.

        A client that sends nothing for `wait_s` is disconnected.
        """
        with self._stopping.interrupting(wait_s):
            return await self._stream.receive_some(bytes_max)
        if not self._stopping.has_begun:
            raise DisconnectError(f"it has sent nothing for {wait_s:.0f} s", "idle")
        return b""

    async def _receive_large(self, bytes_max: int) -> bytes | bytearray:
        """Receive bytes of a request that has at least `bytes_max` more; see `_receive`."""
        if isinstance(self._stream, trio.SocketStream):
            with self._stopping.interrupting():
                await self._accepted.wait_arrived(bytes_max)
        return await self._receive(bytes_max)

    async def _take_in(self, data: bytes | bytearray) -> bool:
        """Parse received bytes, and handle the requests that they complete. Return whether there were any."""
        self._counters.received_bytes += len(data)
        frames = self._splitter.receive(data)
        for number, frame in enumerate(frames):
            if number:
                await trio.lowlevel.checkpoint()  # others come before the next request of a client that sends many
            await self._handle(frame)
            if self._ending:
                self._counters.disconnected["failed login"] += 1
                _LOGGER.info("disconnecting the client at %s: %s", self._host, self._ending)
                break
            if self._stopping.has_begun:
                break
        return bool(frames)

    async def _handle(self, frame: bytes) -> None:
        begun = trio.current_time()
        pending = self._login.pending
        if pending is not None:
            pending.count_request()
            if pending.takes_tokens:
                token = await self._login.answer_token(frame)
                self._lift_login_limits()
                await self._responses.put([token])
                return
        try:
            header, request = decode_request(frame, offered=OFFERED)
        except UnsupportedRequestError as error:
            answer = encode_unsupported(error, SERVED)
            if answer is None:
                raise self._refuse_unsupported(error) from None
            await self._responses.put([answer])
            return
        if pending is not None and not isinstance(request, ApiVersionsRequest):
            response, self._ending = await self._login.answer(header, request)
            self._lift_login_limits()
            await self._answer(header, response, begun)
            return
        if pending is None:
            self._accepted.mark_served()
        if isinstance(request, SaslHandshakeRequest | SaslAuthenticateRequest) and self._login.is_renewable:
            response, self._ending = await self._login.renew(header, request)
            await self._answer(header, response, begun)
            return
        if self._login.has_ended() and not isinstance(request, ApiVersionsRequest):
            raise DisconnectError(f"the user {self._login.user!r} has not authenticated again in time", "expired login")
        await self._serve_request(header, request, len(frame), begun)

    def _refuse_unsupported(self, error: UnsupportedRequestError) -> DisconnectError:
        """Return the error that ends the connection if the client could not read the next response."""
        name = next((each.name for each in ApiKey if each == error.api_key), f"the API {error.api_key}")
        asked = f"{name} in version {error.api_version}"
        versions = OFFERED.get(error.api_key)
        offered = "does not serve it" if versions is None else f"offers versions {versions}"
        client = self._host if error.client_id is None else f"{self._host} ({error.client_id[:100]!r})"
        if self._server.refusals.is_due((self._host, error.api_key, error.api_version), trio.current_time()):
            _LOGGER.warning(
                "disconnecting the client at %s: it asked for %s, and this broker %s", client, asked, offered
            )
        return DisconnectError(f"it asked for {asked}, and this broker {offered}", "unsupported request")

    async def _serve_request(self, header: RequestHeader, request: Request, size: int, begun: float) -> None:
        context = RequestContext(
            self._server,
            header,
            self._host,
            self._endpoint,
            self._source,
            self,
            lambda: self._accepted.has_closed,
            is_proved=self._login.is_proved,
        )
        name_topics(self._server.broker.node.log_table, header.api_version, request)
        decision = self._authorize(context, request)
        if isinstance(decision, Response):
            await self._answer(header, decision, begun)
        elif isinstance(request, ProduceRequest):
            begun_produce = _patched(await begin_produce(context, request), decision)
            context.spend(QuotaKey.PRODUCER_BYTE_RATE, size)
            await self._responses.put(PendingResponse(header, _throttled(begun_produce, context), begun))
        elif isinstance(request, OffsetCommitRequest | TxnOffsetCommitRequest) and context.has_left():
            # The network was cut, and the client uses another connection by now. Its group can have later offsets.
            self._counters.late_requests += 1
        else:
            await self._responses.wait_read()
            found = None
            with self._stopping.interrupting() if isinstance(request, _WAITING) else nullcontext():
                found = await self._respond(context, request)
            if found is not None and decision is not None:
                decision(found)
            await self._answer(header, found, begun, context)
        await self._mute(context.throttle_s)

    async def _mute(self, wait_s: float) -> None:
        """Read nothing for a time, because the client has used more than its quota.

        It ends if the client leaves, or quotas change.
        """
        until, meter = trio.current_time() + wait_s, self._server.quota_meter
        version = meter.version
        while (
            wait_s > 0 and meter.version == version and not self._accepted.has_closed and not self._stopping.has_begun
        ):
            with self._stopping.interrupting():
                await trio.sleep(min(wait_s, MUTED_S))
            wait_s = until - trio.current_time()

    def _authorize(self, context: RequestContext, request: Request) -> Decision:
        """Remove unauthorized parts of a request; see `dafka.kafka.apis.shared.authorization`."""
        if self._users is None or isinstance(request, _WITHOUT_USER):
            return None
        user = self._users.find(self._login.user, is_proved=self._login.is_proved)
        if user is None:
            raise DisconnectError(f"the user {self._login.user!r} was removed", "removed user")
        permissions = self._users.permissions_of(user, self._host)
        return AUTHORIZATIONS[request.API_KEY](permissions, context, request)

    async def _respond(self, context: RequestContext, request: Request) -> Response | None:
        if isinstance(request, ApiVersionsRequest):
            return answer_versions(context, request, SERVED)
        if isinstance(request, SaslHandshakeRequest):
            return refuse_handshake([])
        if isinstance(request, SaslAuthenticateRequest):
            return refuse_authenticate(ErrorCode.ILLEGAL_SASL_STATE, "the client is not expected to authenticate")
        return await HANDLERS[request.API_KEY](context, request)

    async def _answer(
        self, header: RequestHeader, response: Response | None, begun: float, context: RequestContext | None = None
    ) -> None:
        self._counters.add_response(header.api_key, response, trio.current_time() - begun)
        if response is None:
            return
        if isinstance(response, _LONG):
            answer = await trio.to_thread.run_sync(encode_response_parts, header, response)
        else:
            answer = encode_response_parts(header, response)
        if context is not None and isinstance(response, FetchResponse | ShareFetchResponse):
            context.spend(QuotaKey.CONSUMER_BYTE_RATE, sum(map(len, answer)))
        if context is not None and context.throttle_s:
            _set_throttle_time(response, context)
            answer = encode_response_parts(header, response)
        await self._responses.put(answer)


def _set_throttle_time(response: Response, context: RequestContext) -> None:
    """Have a response say for how long its client should send nothing."""
    if hasattr(response, "throttle_time_ms"):
        response.throttle_time_ms = math.ceil(min(context.throttle_s * 1000, THROTTLE_MS_MAX))


def _throttled(pending: PendingProduce, context: RequestContext) -> PendingProduce:
    """Return a request whose response says for how long its client should send nothing."""
    if not context.throttle_s:
        return pending

    async def wait_throttled() -> ProduceResponse | None:
        response = await pending.wait()
        if response is not None:
            _set_throttle_time(response, context)
        return response

    return pending._replace(wait=wait_throttled)


def _patched(pending: PendingProduce, patch: ResponsePatch | None) -> PendingProduce:
    """Return a request to whose response the refused parts are added.

    Its wait raises `ProduceRefusedError` if there is no response, in which the client would learn of them.
    """
    if patch is None:
        return pending

    async def wait_patched() -> ProduceResponse | None:
        response = await pending.wait()
        if response is None:
            raise ProduceRefusedError("its user may not write to all of the topics")
        patch(response)
        return response

    return pending._replace(wait=wait_patched)
