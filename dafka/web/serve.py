"""Serves the clients of HTTP and WebSocket: both come to one port."""

from __future__ import annotations

import trio

from dafka.broker import AcceptedClient, accept_clients
from dafka.web.web_listener import WebListener


async def serve_web(
    listener: WebListener,
    sockets: list[trio.SocketListener],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve clients of HTTP and WebSocket until cancelled.

    Args:
        listener: What the clients share.
        sockets: The listening sockets.
        task_status: Told that clients are served.
    """

    async def serve(client: AcceptedClient) -> None:
        await listener.service.security.encrypt(client.stream).aclose()

    host, port = sockets[0].socket.getsockname()[:2]
    scheme = "http" if listener.service.security.tls is None else "https"
    listener.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    task_status.started()
    await accept_clients(sockets, listener.crowd, serve)
