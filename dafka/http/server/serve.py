"""Serves clients of HTTP and WebSocket on one port."""

from __future__ import annotations

import logging
import socket
from urllib.parse import urlsplit

import trio

from dafka.broker.connections.tcp_server import AcceptedClient, accept_clients
from dafka.endpoints import split_tcp_endpoint
from dafka.http.server.connection import ClientConnection
from dafka.http.server.http_server import HttpServer
from dafka.http.server.messages import Request
from dafka.http.websocket.serve import serve_websocket

_LOGGER = logging.getLogger("dafka.http")


async def serve_http(
    web: HttpServer,
    sockets: list[socket.socket],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve clients of HTTP and WebSocket until the broker stops.

    Args:
        web: The state that they share.
        sockets: The sockets of `open_listening`.
        task_status: Signalled when the server accepts clients.
    """
    host, port = sockets[0].getsockname()[:2]
    scheme = "http" if web.broker.security.tls is None else "https"
    web.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    web.broker.node.membership.update_registration(http_url=find_advertised_url(web), forwarding_key=web.forwarding_key)

    async def serve_client(client: AcceptedClient) -> None:
        try:
            await ClientConnection(web, client, _continue_with_websocket).run()
        except Exception:
            # A bug in this program must not affect other clients.
            web.counters.disconnected["unexpected error"] += 1
            _LOGGER.exception("disconnected the client at %s after an unexpected error", client.host)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(web.client.run)
        await nursery.start(web.remote.run)
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


async def _continue_with_websocket(stream: trio.abc.Stream, received: bytes, request: Request) -> None:
    """Serve a connection that is upgraded to WebSocket."""
    counters = request.web.counters
    counters.websocket_connections += 1
    try:
        await serve_websocket(stream, received, request)
    finally:
        counters.websocket_connections -= 1
