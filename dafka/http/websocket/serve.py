"""Serves an HTTP connection that is upgraded to WebSocket."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus

import trio
from websockets.exceptions import ConnectionClosed, NegotiationError
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from dafka.http.server.messages import Request
from dafka.http.websocket.client_stream import ClientStream
from dafka.http.websocket.connection import Connection
from dafka.http.websocket.messages import SUBPROTOCOLS
from dafka.http.websocket.session import Session

_LOGGER = logging.getLogger("dafka.http")

_INTERNAL_ERROR = 1011

HEADER_BYTES_MAX = 2**16
"""The maximum size of a message without its record batches."""


async def serve_websocket(stream: trio.abc.Stream, received: bytes, request: Request) -> None:
    """Serve a WebSocket client until the connection ends.

    Args:
        stream: The connection.
        received: The received bytes: the request of the handshake, and possibly more.
        request: The same request, with checked origin and credentials.
    """
    web, settings = request.web, request.broker.config.http
    bytes_max = settings.message_bytes_max
    if request.is_forwarded:  # the forwarding broker has checked the size of the message
        bytes_max = max(bytes_max, request.broker.config.kafka.batch_bytes_max + HEADER_BYTES_MAX)
    client = ClientStream(
        stream, received, web.receiving, request.principal.user or request.host, bytes_max, settings.receive_ms
    )
    async with trio.open_nursery() as nursery:
        connection = Connection(nursery, client, _select_subprotocol, bytes_max)
        with trio.move_on_after(settings.receive_ms / 1000):
            await connection.handshake(server_header=None)
        # The session answers the close frame of a client that closes immediately.
        if connection.response is None or connection.response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            web.counters.disconnected["refused handshake"] += 1
            await connection.end()
            return
        reason = "unexpected error"
        try:
            await Session(connection, request).run()
            reason = "closed" if web.broker.stopping.has_begun else "no login"
        except* ConnectionClosed:
            reason = "closed" if connection.close_code in {1000, 1001} else "gone"
        except* Exception:
            # A bug in this program must not affect other clients.
            _LOGGER.exception("ended the WebSocket of the client at %s after an unexpected error", request.host)
            with trio.move_on_after(1):
                await connection.aclose(_INTERNAL_ERROR)
        finally:
            web.counters.disconnected[reason] += 1
            await connection.end()


def _select_subprotocol(_protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    if not offered:
        return None
    for each in SUBPROTOCOLS:
        if each in offered:
            return Subprotocol(each)
    raise NegotiationError(f"expected one of the subprotocols {', '.join(SUBPROTOCOLS)}, or none")
