"""A small HTTP server for those who watch a process: short answers to GET, one a connection.

Whoever connects can take neither memory nor time: requests are bounded in size and time, connections in number, and
nothing that they do ends the server.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

import attrs
import h11
import trio

from dafka.errors import AddressInUseError
from dafka.operations.addresses import split_address

REQUEST_BYTES_MAX = 8192
"""A request line with its headers; Prometheus' take a few hundred."""

CONNECTIONS_MAX = 32
"""Connections at once; further ones are closed as they come."""

EXCHANGE_S = 10.0
"""How long a request may take to come, and its answer to be taken."""

_REASONS = {
    200: b"OK",
    404: b"Not Found",
    405: b"Method Not Allowed",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}

_logger = logging.getLogger("dafka.metrics")


@attrs.frozen
class Answer:
    """What is answered: a status, a text, and its kind."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Handler: TypeAlias = Callable[[Mapping[str, str]], Answer]
"""Answers a GET, given the request's headers, their names in lower case. Does not wait."""


@asynccontextmanager
async def open_server(listen: str, handlers: Mapping[str, Handler]) -> AsyncIterator[str]:
    """Serves these paths during the block, which gets the URL (with the port that was free, for port 0).

    Raises `AddressInUseError` where it cannot listen there.
    """
    host, port = split_address(listen)
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        reason = error.strerror or str(error)
        raise AddressInUseError(f"cannot serve metrics at {listen}: {reason}") from None
    server = _Server(handlers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server.serve, listeners)
        bound_host, bound_port = listeners[0].socket.getsockname()[:2]
        yield f"http://[{bound_host}]:{bound_port}" if ":" in bound_host else f"http://{bound_host}:{bound_port}"
        nursery.cancel_scope.cancel()


class _Server:
    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._connections = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection, from its beginning to its end."""
        if self._connections >= CONNECTIONS_MAX:
            await trio.aclose_forcefully(stream)
            return
        self._connections += 1
        try:
            with trio.move_on_after(EXCHANGE_S), suppress(trio.BrokenResourceError):
                await self._exchange(stream)
        except Exception:
            _logger.exception("a connection for metrics ended in an error")
        finally:
            self._connections -= 1
            await trio.aclose_forcefully(stream)

    async def _exchange(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        is_head = False
        try:
            request = await _read_request(connection, stream)
            if request is None:
                return
            is_head = request.method == b"HEAD"
            answer = self._answer(request)
        except h11.RemoteProtocolError as error:
            if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                return
            answer = Answer(error.error_status_hint, b"expected an HTTP/1.1 request\n")
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ] + ([("Allow", "GET, HEAD")] if answer.status == 405 else [])
        events = [h11.Response(status_code=answer.status, headers=headers, reason=_REASONS.get(answer.status, b""))]
        parts = [connection.send(event) for event in events]
        parts += [] if is_head else [connection.send(h11.Data(data=answer.body))]
        parts.append(connection.send(h11.EndOfMessage()))
        await stream.send_all(b"".join(part for part in parts if part))
        await stream.send_eof()
        # Closing with octets unread would reset the connection, and the answer might be lost.
        with trio.move_on_after(1.0):
            while await stream.receive_some(REQUEST_BYTES_MAX):
                pass

    def _answer(self, request: h11.Request) -> Answer:
        path = request.target.partition(b"?")[0].decode("ascii", "replace")
        handler = self._handlers.get(path)
        if handler is None:
            return Answer(404, f"there is {' and '.join(self._handlers)}\n".encode())
        if request.method not in (b"GET", b"HEAD"):
            return Answer(405, b"only GET is answered\n")
        try:
            return handler({name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers})
        except Exception:
            # A plugin's counters may be at fault, and the records go on.
            _logger.exception("cannot answer %s", path)
            return Answer(500, b"cannot be answered\n")


async def _read_request(connection: h11.Connection, stream: trio.SocketStream) -> h11.Request | None:
    """The request; None where the peer went without one. Raises `h11.RemoteProtocolError`."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(REQUEST_BYTES_MAX))
        elif isinstance(event, h11.Request):
            return event
        else:
            return None
