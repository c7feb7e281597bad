"""A small HTTP server for supervisors and Prometheus: one short answer to GET for each connection.

Clients cannot exhaust the process: the size and the duration of requests and the number of connections are limited, and
no request ends the server. This module needs the extra `dafka[metrics]`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

import attrs
import trio
from prometheus_client.exposition import CONTENT_TYPE_LATEST, choose_encoder, generate_latest

from dafka.config import split_listen_address
from dafka.errors import AddressInUseError
from dafka.http1.connection import Http1Connection
from dafka.http1.head import Head, RequestError
from dafka.operations.metrics import TOPICS_MAX, make_registry
from dafka.operations.monitor import Monitor

LIVE, READY, METRICS = "/livez", "/readyz", "/metrics"

REQUEST_BYTES_MAX = 8192
"""The largest request line with its headers, in bytes. Those of Prometheus take a few hundred."""

CONNECTIONS_MAX = 32
"""Connections at once. Further ones are closed immediately."""

EXCHANGE_S = 10.0
"""Seconds for a request to arrive and its answer to be received."""

_logger = logging.getLogger("dafka.metrics")


@attrs.frozen
class Answer:
    """An HTTP response."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Handler: TypeAlias = Callable[[Mapping[str, str]], Answer]
"""Answers a GET, given the request's headers with lower-case names. It must not wait."""


def make_handlers(monitor: Monitor, topics_max: int = TOPICS_MAX) -> dict[str, Handler]:
    """Return the handlers of `/metrics` for Prometheus, and of `/livez` and `/readyz` for supervisors, by path."""
    registry = make_registry(monitor, topics_max)

    def metrics(headers: Mapping[str, str]) -> Answer:
        try:
            encode, content_type = choose_encoder(headers.get("accept", ""))
            return Answer(200, encode(registry), content_type)
        except (TypeError, ValueError):  # an Accept header with an invalid version or escaping
            return Answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)

    def live(_: Mapping[str, str]) -> Answer:
        return _answer_health(monitor.health().trouble, "live")

    def ready(_: Mapping[str, str]) -> Answer:
        return _answer_health(monitor.health().unready, "ready")

    return {METRICS: metrics, LIVE: live, READY: ready}


def _answer_health(problem: str, state: str) -> Answer:
    return Answer(503 if problem else 200, f"{problem or state}\n".encode())


@asynccontextmanager
async def open_server(listen: str, handlers: Mapping[str, Handler]) -> AsyncIterator[str]:
    """Serve these paths for the duration of a block, at `PORT` or `ADDRESS:PORT`; port 0 takes a free one.

    Yield the URL of the server. Raise `AddressInUseError` if it cannot listen there, `ConfigError` if `listen` has
    another form.
    """
    host, port = split_listen_address(listen)
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"cannot serve metrics at {listen}: {reason}; choose another address or port ([metrics] listen)"
        raise AddressInUseError(message) from None
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
        """Answer one request, and close the connection."""
        if self._connections >= CONNECTIONS_MAX:
            await trio.aclose_forcefully(stream)
            return
        self._connections += 1
        try:
            with trio.move_on_after(EXCHANGE_S), suppress(trio.BrokenResourceError):
                await self._exchange(stream)
        except Exception:
            _logger.exception("An HTTP connection for metrics or health failed")
        finally:
            self._connections -= 1
            await trio.aclose_forcefully(stream)

    async def _exchange(self, stream: trio.SocketStream) -> None:
        connection = Http1Connection(stream, REQUEST_BYTES_MAX)
        try:
            head = await connection.next_request()
            if head is None:
                return
            answer = self._answer(head)
        except RequestError as error:
            answer = Answer(error.status, b"expected an HTTP/1.1 request\n")
        headers = [("Content-Type", answer.content_type), ("Cache-Control", "no-store"), ("Connection", "close")]
        if answer.status == 405:
            headers.append(("Allow", "GET, HEAD"))
        await connection.respond(answer.status, headers, answer.body)
        await stream.send_eof()
        # Closing while received bytes are unread resets the connection, and the client may lose the answer.
        with trio.move_on_after(1.0):
            while await stream.receive_some(REQUEST_BYTES_MAX):
                pass

    def _answer(self, head: Head) -> Answer:
        handler = self._handlers.get(head.path)
        if handler is None:
            return Answer(404, f"not found: expected {' or '.join(self._handlers)}\n".encode())
        if head.method not in {"GET", "HEAD"}:
            return Answer(405, b"expected GET or HEAD\n")
        try:
            return handler(head.headers)
        except Exception:
            # A plugin's counters may raise anything, and must not end the process.
            _logger.exception("The HTTP request for %s failed", head.path)
            return Answer(500, b"the request failed; the log has the reason\n")
