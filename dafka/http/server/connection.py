"""Serves clients of HTTP and WebSocket on one port.

A client that sends or reads too slowly is disconnected, and delays no other client.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

import trio

from dafka.broker.connections.tcp_server import AcceptedClient, accept_clients
from dafka.broker.connections.uploads import SlowUploadError, Upload
from dafka.endpoints import split_tcp_endpoint
from dafka.exceptions import unwrap_group
from dafka.http.api import answer_request, is_websocket_route
from dafka.http.forwarding.credentials import SignatureChecker
from dafka.http.server.authentication import session_of
from dafka.http.server.errors import WebError, refused_request
from dafka.http.server.http_server import HttpServer
from dafka.http.server.messages import AnyResponse, Request, StreamedResponse, respond_error, response_headers
from dafka.http.websocket.session import serve_websocket
from dafka.http1.connection import Http1Connection, Send
from dafka.http1.head import RequestError

SEND_BYTES = 2**18
"""The maximum size of one send, in bytes."""

AHEAD_BYTES_MAX = 2**16
"""How many bytes of later requests are received while a streamed response is sent."""

_LOGGER = logging.getLogger("dafka.http")


class DisconnectError(Exception):
    """The connection must end. The message is a short reason."""


class _ClientStream:
    """The bytes of a client: decrypted (`stream`), counted, and sent within limits of time and memory."""

    def __init__(self, web: HttpServer, client: AcceptedClient) -> None:
        self.stream: trio.abc.Stream = web.broker.security.encrypt(client.stream)
        self.buffered_bytes: Callable[[], int] = lambda: 0
        """Returns the memory that the response takes besides the bytes being sent."""
        self._web = web
        self._client = client
        self._settings = web.broker.config.http

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return isinstance(self.stream, trio.SSLStream)

    async def shake_hands(self) -> None:
        """Begin TLS, if the server uses it."""
        if not isinstance(self.stream, trio.SSLStream):
            return
        with trio.move_on_after(self._settings.receive_ms / 1000) as scope, self._web.broker.stopping.interrupting():
            try:
                await self.stream.do_handshake()
            except (trio.BrokenResourceError, ssl.SSLError):
                raise DisconnectError("no TLS") from None
        if scope.cancelled_caught:
            raise DisconnectError("no TLS")

    async def receive_some(self, max_bytes: int) -> bytes | bytearray:
        """Receive bytes; none when the client has disconnected, or when the broker stops."""
        data: bytes | bytearray = b""
        with self._web.broker.stopping.interrupting(), suppress(trio.BrokenResourceError):
            data = await self.stream.receive_some(max_bytes)
        self._web.counters.received_bytes += len(data)
        return data

    async def send_all(self, data: bytes) -> None:
        """Send bytes. A client that does not read them in time is disconnected."""
        view, memory = memoryview(data), self._web.answers
        memory.take_now(len(view))
        try:
            for position in range(0, len(view), SEND_BYTES):
                part = view[position : position + SEND_BYTES]
                with (
                    trio.move_on_after(self._settings.send_ms / 1000) as scope,
                    memory.waiting_for_client(scope, len(view) + self.buffered_bytes()),
                ):
                    await self.stream.send_all(part)
                if scope.cancelled_caught:
                    raise DisconnectError("slow reader")
                self._client.sent_at = trio.current_time()
                self._web.counters.sent_bytes += len(part)
        finally:
            memory.give_back(len(view))


class ClientConnection:
    """The connection of one client."""

    def __init__(self, web: HttpServer, client: AcceptedClient) -> None:
        self._web = web
        self._client = client
        self._settings = web.broker.config.http
        self._signatures = SignatureChecker(web.signing_secret, web.broker.node.address)
        self._stream = _ClientStream(web, client)
        self._http = Http1Connection(self._stream)

    async def run(self) -> None:
        """Serve the client until it or the broker ends the connection."""
        try:
            await self._stream.shake_hands()
            while not self._web.broker.stopping.has_begun and await self._exchange():
                pass
        except DisconnectError as ended:
            self._web.counters.disconnected[str(ended)] += 1
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._web.counters.disconnected["gone"] += 1

    async def _exchange(self) -> bool:
        """Answer a request. Return whether the connection continues."""
        settings, client = self._settings, self._client
        try:
            head = await self._http.next_request(idle_s=settings.idle_ms / 1000, receive_s=settings.receive_ms / 1000)
        except RequestError as error:
            return await self._respond(respond_error(refused_request(error)))
        if head is None:
            return False
        is_private = self._stream.is_encrypted or client.is_local
        try:
            self._web.origins.check(
                "WEBSOCKET" if head.wants_websocket else head.method,
                head.headers,
                is_local=client.is_local,
                has_session=session_of(head.headers) is not None,
            )
            principal = await self._web.authenticator.identify(
                head, host=client.host, is_private=is_private, signatures=self._signatures
            )
        except WebError as error:
            return await self._respond(respond_error(error))
        request = Request(self._web, head, principal, client.host, is_private, has_left=lambda: client.has_closed)
        self._stream.buffered_bytes = lambda: request.buffered_bytes
        if principal.is_known:
            client.mark_served()
        if head.wants_websocket and is_websocket_route(head):
            request.mark_served = client.mark_served
            self._web.counters.websocket_connections += 1
            try:
                await serve_websocket(self._stream.stream, self._http.unprocessed(), request)
            finally:
                self._web.counters.websocket_connections -= 1
            return False
        return await self._respond(await self._answer(request))

    async def _answer(self, request: Request) -> AnyResponse:
        """Return the response to a request, whose body is received when its route asks for it."""
        settings, body = self._settings, self._http.body
        upload: Upload | None = None

        async def receive(received_bytes: int, most: int) -> bytes | bytearray:
            assert upload is not None
            try:
                return await upload.receive(self._http.receive, received_bytes, most)
            except SlowUploadError as error:
                body.failure = "slow request"
                raise WebError("request_timeout", f"the body comes too slowly: {error}") from None

        async def read_body(bytes_max: int | None) -> bytes:
            nonlocal upload
            limit = min(bytes_max or settings.body_bytes_max, settings.body_bytes_max)
            upload = Upload(self._web.receiving, request.source, body.size_max(limit), settings.receive_ms)
            try:
                data = await body.read(limit, receive, self._stream.send_all)
            except RequestError as error:
                raise refused_request(error) from None
            upload.complete(len(data))
            return data

        request.read_body, request.wait_end = read_body, self._wait_end
        try:
            response = await answer_request(request)
        finally:
            if upload is not None:
                upload.close()
        if body.failure and self._web.broker.stopping.has_begun:  # only this broker knows why the rest is missing
            raise DisconnectError("gone")
        return response

    async def _respond(self, response: AnyResponse) -> bool:
        """Send a response. Return whether the connection continues."""
        headers = response_headers(self._http.head, response, self._web.origins)
        if self._web.broker.stopping.has_begun:
            headers.append(("Connection", "close"))
        self._web.counters.responses[int(response.status)] += 1
        if not isinstance(response, StreamedResponse):
            return await self._http.respond(response.status, headers, response.body)
        return await self._http.respond_stream(response.status, headers, partial(self._produce, response))

    async def _produce(self, response: StreamedResponse, send: Send) -> None:
        """Send the body of a streamed response, until it ends or the client has disconnected."""
        disconnected = False

        async def watch() -> None:
            nonlocal disconnected
            await self._wait_end()
            disconnected = True
            nursery.cancel_scope.cancel()

        try:
            with unwrap_group():
                async with trio.open_nursery() as nursery:
                    if response.is_endless:
                        nursery.start_soon(watch)
                    await response.produce(send)
                    nursery.cancel_scope.cancel()
        except (DisconnectError, trio.BrokenResourceError, trio.ClosedResourceError):
            raise
        except WebError as error:
            raise DisconnectError(error.code) from None
        except Exception:
            _LOGGER.exception("a response to the client at %s failed", self._client.host)
            raise DisconnectError("failed response") from None
        if disconnected:
            raise DisconnectError("gone")

    async def _wait_end(self) -> None:
        """Wait until the client has closed its side. Later requests wait meanwhile."""
        while len(self._http.received) < AHEAD_BYTES_MAX:
            try:
                if not await self._http.receive():
                    return
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
        await trio.sleep_forever()


async def serve_http(
    web: HttpServer,
    sockets: list[socket.socket],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve clients of HTTP and WebSocket until the broker stops, at the sockets of `open_listening`."""
    host, port = sockets[0].getsockname()[:2]
    scheme = "http" if web.broker.security.tls is None else "https"
    web.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    web.broker.node.membership.update_registration(http_url=find_advertised_url(web), forwarding_key=web.forwarding_key)

    async def serve_client(client: AcceptedClient) -> None:
        try:
            await ClientConnection(web, client).run()
        except Exception:
            # A bug in this program must not affect other clients.
            web.counters.disconnected["unexpected error"] += 1
            _LOGGER.exception("disconnected the client at %s after an unexpected error", client.host)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(web.client.run)
        await nursery.start(web.remote_logs.run)
        nursery.start_soon(web.survey_cache.run)
        nursery.start_soon(web.verification.run)
        await accept_clients(sockets, web.quotas, web.broker.stopping, serve_client, task_status=task_status)
        nursery.cancel_scope.cancel()


def find_advertised_url(web: HttpServer) -> str:
    """Return the URL at which other brokers reach this server."""
    advertised = web.broker.config.http.advertised_url
    if advertised:
        return advertised.rstrip("/")
    url = urlsplit(web.url)
    if url.hostname not in {"0.0.0.0", "::"}:
        return web.url
    endpoint = split_tcp_endpoint(web.broker.node.store.endpoint)
    return web.url if endpoint is None else f"{url.scheme}://{endpoint[0]}:{url.port}"
