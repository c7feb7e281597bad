"""Serves one HTTP/1.1 connection: requests are answered one by one, also if the client sends several at once.

A client that sends or reads too slowly is disconnected, and delays no other client. After an error in a request's head
or framing the connection ends, because the start of the next request is unknown.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import h11
import trio

from dafka.broker.connections.memory import MemoryPool
from dafka.broker.connections.tcp_server import AcceptedClient
from dafka.exceptions import unwrap_group
from dafka.http.api import answer_request, is_websocket_route
from dafka.http.server.body import BodyReader
from dafka.http.server.errors import WebError
from dafka.http.server.head import HEAD_BYTES_MAX, Head, check_head, read_head, take_head
from dafka.http.server.messages import AnyResponse, Request, StreamedResponse, respond_error
from dafka.http.server.response_headers import response_headers

if TYPE_CHECKING:
    from dafka.http.server.http_server import HttpServer

READ_BYTES = 2**16
SEND_BYTES = 2**18
"""The maximum size of one send, in bytes."""

AHEAD_BYTES_MAX = 2**16
"""How many bytes of later requests are received while a streamed response is sent."""

_LOGGER = logging.getLogger("dafka.http")


class DisconnectError(Exception):
    """The connection must end. The message is a short reason."""


class HttpConnection:
    """The connection of one client.

    Args:
        web: The state that all clients share.
        client: The connection.
        upgrade: Serves a connection that is upgraded to WebSocket, given the bytes received.
    """

    def __init__(
        self,
        web: HttpServer,
        client: AcceptedClient,
        upgrade: Callable[[trio.abc.Stream, bytes, Request], Awaitable[None]],
    ) -> None:
        self._web = web
        self._client = client
        self._upgrade = upgrade
        self._stream: trio.abc.Stream = web.broker.security.encrypt(client.stream)
        self._is_encrypted = isinstance(self._stream, trio.SSLStream)
        self._settings = web.broker.config.http
        self._signatures = web.check_signatures()
        self._received = bytearray()
        self._is_at_end = False
        self._request: Request | None = None

    async def run(self) -> None:
        """Serve the client until it or the broker ends the connection."""
        try:
            await self._shake_hands()
            while not self._web.broker.stopping.has_begun and await self._exchange():
                pass
        except DisconnectError as ended:
            self._web.counters.disconnected[str(ended)] += 1
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._web.counters.disconnected["gone"] += 1

    async def _shake_hands(self) -> None:
        if not isinstance(self._stream, trio.SSLStream):
            return
        with trio.move_on_after(self._settings.receive_ms / 1000) as scope, self._web.broker.stopping.interrupting():
            try:
                await self._stream.do_handshake()
            except (trio.BrokenResourceError, ssl.SSLError):
                raise DisconnectError("no TLS") from None
        if scope.cancelled_caught:
            raise DisconnectError("no TLS")

    async def _exchange(self) -> bool:
        """Answer a request. Return whether the connection continues."""
        framing = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        try:
            raw = await self._receive_head()
            if raw is None:
                return False
            head = _parse_head(framing, raw)
        except WebError as error:
            await self._answer_malformed(error)
            return False
        is_private = self._is_encrypted or self._client.is_local
        body = BodyReader(framing, head, self._received, self._receive, self._send)
        try:
            principal = await self._web.identify(
                head,
                host=self._client.host,
                is_local=self._client.is_local,
                is_private=is_private,
                signatures=self._signatures,
            )
        except WebError as error:
            body.skip_received()
            return await self._send_response(framing, head, respond_error(error))
        request = Request(self._web, head, principal, self._client.host, is_private)
        self._request = request
        if request.principal.is_known:
            self._client.mark_served()
        if head.wants_websocket and is_websocket_route(head):
            request.mark_served = self._client.mark_served
            await self._upgrade(self._stream, raw + bytes(self._received), request)
            return False
        settings, memory = self._settings, self._web.receiving

        async def read_body(bytes_max: int | None) -> bytes:
            limit = min(bytes_max or settings.body_bytes_max, settings.body_bytes_max)
            return await body.read(limit, settings.receive_ms, memory, principal.user or self._client.host)

        request.read_body, request.wait_end = read_body, self._wait_end
        try:
            response = await answer_request(request)
        finally:
            body.release()
        if body.failure and self._web.broker.stopping.has_begun:  # only this broker knows why the rest is missing
            raise DisconnectError("gone")
        body.skip_received()
        return await self._send_response(framing, head, response)

    # Receiving

    async def _receive_head(self) -> bytes | None:
        """Return the next head; None if the client has closed the connection, or sends no more requests."""
        if not self._received:
            with trio.move_on_after(self._settings.idle_ms / 1000) as scope:
                await self._receive()
            if scope.cancelled_caught or not self._received:
                return None
        deadline = trio.current_time() + self._settings.receive_ms / 1000
        while (head := take_head(self._received)) is None:
            with trio.move_on_at(deadline) as scope:
                is_open = await self._receive()
            if scope.cancelled_caught:
                raise WebError("request_timeout", f"expected a request within {self._settings.receive_ms} ms")
            if not is_open:
                if bytes(self._received).strip(b"\r\n"):
                    raise DisconnectError("gone")
                return None
        return head

    async def _receive(self, most: int = READ_BYTES) -> bytes | bytearray:
        """Receive more bytes, up to a number, and return them; none at the end or when the broker stops."""
        if self._is_at_end:
            await trio.lowlevel.checkpoint()
            return b""
        data: bytes | bytearray = b""
        with (
            self._web.broker.stopping.interrupting(),
            suppress(trio.BrokenResourceError),
        ):  # the client has disconnected
            data = await self._stream.receive_some(most)
        self._web.counters.received_bytes += len(data)
        self._received += data
        self._is_at_end = not data
        return data

    # Sending

    async def _answer_malformed(self, error: WebError) -> None:
        """Answer a malformed head, and end the connection."""
        framing = h11.Connection(h11.SERVER)
        framing.receive_data(b"GET / HTTP/1.1\r\nHost: unknown\r\nConnection: close\r\n\r\n")
        framing.next_event()
        framing.next_event()
        await self._send_response(framing, None, respond_error(error))

    async def _send_response(self, framing: h11.Connection, head: Head | None, response: AnyResponse) -> bool:
        """Send a response. Return whether the connection continues."""
        headers = response_headers(head, response, self._web.origins)
        if framing.their_state in {h11.SEND_BODY, h11.ERROR} or self._is_at_end or self._web.broker.stopping.has_begun:
            headers.append(("Connection", "close"))
        is_head = head is not None and head.method == "HEAD"
        self._web.counters.responses[int(response.status)] += 1
        if isinstance(response, StreamedResponse):
            await self._send_stream(framing, headers, response, is_head=is_head)
        else:
            if response.status not in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}:
                headers.append(("Content-Length", str(len(response.body))))
            parts = [framing.send(_response_event(response.status, headers))]
            if response.body and not is_head:
                parts.append(framing.send(h11.Data(data=response.body)))
            parts.append(framing.send(h11.EndOfMessage()))
            await self._send(b"".join(each for each in parts if each))
        return framing.our_state is h11.DONE and framing.their_state is h11.DONE

    async def _send_stream(
        self, framing: h11.Connection, headers: list[tuple[str, str]], response: StreamedResponse, *, is_head: bool
    ) -> None:
        await self._send(framing.send(_response_event(response.status, headers)) or b"")
        if not is_head:
            await self._produce(framing, response)
        await self._send(framing.send(h11.EndOfMessage()) or b"")

    async def _produce(self, framing: h11.Connection, response: StreamedResponse) -> None:
        """Send the body of a streamed response, until it ends or the client has disconnected."""

        async def send(data: bytes) -> None:
            if data:
                await self._send(framing.send(h11.Data(data=data)) or b"")

        disconnected = trio.Event()
        try:
            with unwrap_group():
                async with trio.open_nursery() as nursery:
                    if response.is_endless:
                        nursery.start_soon(self._watch, disconnected, nursery.cancel_scope)
                    await response.produce(send)
                    nursery.cancel_scope.cancel()
        except (DisconnectError, trio.BrokenResourceError, trio.ClosedResourceError):
            raise
        except WebError as error:
            raise DisconnectError(error.code) from None
        except Exception:
            # The client must not consider the body complete: the connection ends without the end of the body.
            _LOGGER.exception("a response to the client at %s failed", self._client.host)
            raise DisconnectError("failed response") from None
        if disconnected.is_set():
            raise DisconnectError("gone")

    async def _watch(self, disconnected: trio.Event, scope: trio.CancelScope) -> None:
        """Set an event and cancel a scope when the client has disconnected."""
        await self._wait_end()
        disconnected.set()
        scope.cancel()

    async def _wait_end(self) -> None:
        """Wait until the client has closed its side. Later requests wait meanwhile."""
        while len(self._received) < AHEAD_BYTES_MAX:
            try:
                if not await self._receive():
                    return
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
        await trio.sleep_forever()

    async def _send(self, data: bytes) -> None:
        """Send bytes. A client that does not read them in time is disconnected."""
        view, memory = memoryview(data), self._web.answers
        memory.take_now(len(view))
        try:
            await self._send_parts(view, memory)
        finally:
            memory.give_back(len(view))

    async def _send_parts(self, view: memoryview, memory: MemoryPool) -> None:
        for position in range(0, len(view), SEND_BYTES):
            part = view[position : position + SEND_BYTES]
            with (
                trio.move_on_after(self._settings.send_ms / 1000) as scope,
                memory.waiting_for_client(scope, len(view) + self._buffered_bytes),
            ):
                await self._stream.send_all(part)
            if scope.cancelled_caught:
                raise DisconnectError("slow reader")
            self._client.sent_at = trio.current_time()
            self._web.counters.sent_bytes += len(part)

    @property
    def _buffered_bytes(self) -> int:
        """The bytes that are buffered for the client, besides those being sent."""
        return 0 if self._request is None else self._request.buffered_bytes


def _response_event(status: int, headers: list[tuple[str, str]]) -> h11.Response:
    return h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode())


def _parse_head(framing: h11.Connection, raw: bytes) -> Head:
    check_head(raw)
    framing.receive_data(raw)
    try:
        event: Any = framing.next_event()
    except h11.RemoteProtocolError as error:
        raise WebError(
            "bad_request", f"expected an HTTP/1.1 request: {error}", status=error.error_status_hint
        ) from None
    if not isinstance(event, h11.Request):
        raise WebError("bad_request", "expected an HTTP/1.1 request")
    return read_head(event)
