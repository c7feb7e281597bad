"""Serves a connection that continues with WebSocket."""

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
"""What a message has at most in addition to its record batches."""


async def serve_websocket(stream: trio.abc.Stream, received: bytes, request: Request) -> None:
    """Serve a client of WebSocket until the connection ends.

    Args:
        stream: The connection.
        received: What was received of it: the request of the handshake, and perhaps more.
        request: The same request, whose origin and credentials were checked.
    """
    web, settings = request.web, request.broker.config.http
    bytes_max = settings.message_bytes_max
    if request.is_forwarded:  # the other broker has checked the size of its client's message
        bytes_max = max(bytes_max, request.broker.config.kafka.batch_bytes_max + HEADER_BYTES_MAX)
    client = ClientStream(
        stream, received, web.receiving, request.principal.user or request.host, bytes_max, settings.receive_ms
    )
    async with trio.open_nursery() as nursery:
        connection = Connection(nursery, client, _select_subprotocol, bytes_max)
        with trio.move_on_after(settings.receive_ms / 1000):
            await connection.handshake(server_header=None)
        # A client that ends the connection at once gets its close frame answered by the session.
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
            # A mistake of this program must not end the service of other clients.
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
