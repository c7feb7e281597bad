"""Accepting clients: listening sockets, and a task for each connection that there is room for."""

from __future__ import annotations

import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from dafka.broker.crowd import Crowd
from dafka.broker.security import ListenerSecurity, is_loopback
from dafka.config import split_listen_address
from dafka.errors import AddressInUseError
from dafka.transport.connections import has_peer_closed

_LOGGER = logging.getLogger("dafka.broker")

_ACCEPT_PAUSE_S = 0.1

_UNAVAILABLE = {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES}
_GONE = {errno.ENOTCONN, errno.ECONNABORTED}
"""Errors of a connection whose client has gone before it was accepted."""


@attrs.frozen(eq=False)
class AcceptedClient:
    """A connection that was accepted.

    Attributes:
        stream: The connection, not encrypted.
        host: The address of the client.
        local_address: The address and port to which the client has connected.
        mark_served: To be called when the client has sent a request, after it has authenticated if it must. Until then
            its place may be given to another client.
    """

    stream: trio.SocketStream
    host: str
    local_address: tuple[str, int]
    mark_served: Callable[[], None]

    @property
    def is_local(self) -> bool:
        """Whether the client has connected to a loopback address."""
        return is_loopback(self.local_address[0])

    @property
    def has_closed(self) -> bool:
        """Whether the client has closed the connection; see `has_peer_closed`."""
        return has_peer_closed(self.stream.socket.fileno())


@asynccontextmanager
async def open_listening(
    listen: str, security: ListenerSecurity, clients: str
) -> AsyncIterator[list[trio.SocketListener]]:
    """Listen to clients for the duration of a block.

    Args:
        listen: `PORT` or `ADDRESS:PORT`.
        security: The users and the certificate.
        clients: What the clients are, for messages.

    Yields:
        The listening sockets; more than one if a name has several addresses.

    Raises:
        AddressInUseError: The broker cannot listen there.
        ConfigError: Anyone could connect from elsewhere.
    """
    host, port = split_listen_address(listen)
    security.check_exposure(host)
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        if error.errno not in _UNAVAILABLE:
            raise
        raise AddressInUseError(f"cannot listen to {clients} at {host}:{port}: {error.strerror}") from None
    try:
        yield listeners
    finally:
        for listener in listeners:
            listener.socket.close()


async def accept_clients(
    listeners: list[trio.SocketListener], crowd: Crowd, serve: Callable[[AcceptedClient], Awaitable[None]]
) -> None:
    """Serve clients until cancelled.

    Args:
        listeners: The listening sockets.
        crowd: The connections of the listener.
        serve: Serves a client until its connection ends. It need not close the connection.
    """
    async with trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(_accept, listener, crowd, serve, nursery)


async def _accept(
    listener: trio.SocketListener,
    crowd: Crowd,
    serve: Callable[[AcceptedClient], Awaitable[None]],
    nursery: trio.Nursery,
) -> None:
    async def serve_in(scope: trio.CancelScope, stream: trio.SocketStream, host: str) -> None:
        try:
            address, port = stream.socket.getsockname()[:2]
            with scope:
                await serve(AcceptedClient(stream, host, (str(address), port), lambda: crowd.mark_served(scope)))
        except OSError:
            pass  # the client has gone before it was known
        finally:
            crowd.leave(scope, host)
            stream.socket.close()

    while True:
        try:
            stream = await listener.accept()
            host = str(stream.socket.getpeername()[0])
        except OSError as error:
            if error.errno in _GONE:
                continue
            _LOGGER.warning("cannot accept a client: %s", error.strerror)
            await trio.sleep(_ACCEPT_PAUSE_S)
            continue
        scope = crowd.admit(host)
        if scope is None:
            stream.socket.close()
            continue
        nursery.start_soon(serve_in, scope, stream, host)
