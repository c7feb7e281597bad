"""Accepting clients: listening sockets, and a task for each connection that there is room for."""

from __future__ import annotations

import errno
import logging
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress

import attrs
import trio

from dafka.broker.crowd import Crowd
from dafka.broker.security import ListenerSecurity, is_loopback
from dafka.broker.stopping import Stopping
from dafka.config import split_listen_address
from dafka.errors import AddressInUseError
from dafka.transport.connections import has_peer_closed

_LOGGER = logging.getLogger("dafka.broker")

_ACCEPT_PAUSE_S = 0.1
_BACKLOG = 0xFFFF
"""Connections that wait to be accepted; the system has a limit of its own."""

LINGER_S = 2.0
"""How long a connection that has ended takes in what the client still sends, after the last answer."""

_UNAVAILABLE = {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES}
_GONE = {errno.ENOTCONN, errno.ECONNABORTED}
"""Errors of a connection whose client has gone before it was accepted."""


@attrs.define(eq=False)
class AcceptedClient:
    """A connection that was accepted.

    Attributes:
        stream: The connection, not encrypted.
        host: The address of the client.
        local_address: The address and port to which the client has connected.
        mark_served: To be called when the client has sent a request, after it has authenticated if it must. Until then
            its place may be given to another client.
        sent_at: When the client was sent something last, by Trio's clock.
    """

    stream: trio.SocketStream
    host: str
    local_address: tuple[str, int]
    mark_served: Callable[[], None]
    sent_at: float = -math.inf

    @property
    def is_local(self) -> bool:
        """Whether the client has connected to a loopback address."""
        return is_loopback(self.local_address[0])

    @property
    def has_closed(self) -> bool:
        """Whether the client has closed the connection; see `has_peer_closed`."""
        return has_peer_closed(self.stream.socket.fileno())

    async def end(self) -> None:
        """End the connection so that the client can read its last answers, whatever it still sends.

        When a socket is closed that has received more than was read, the system throws away what is being sent.
        """
        with (
            trio.move_on_at(self.sent_at + LINGER_S),
            suppress(trio.BrokenResourceError, trio.ClosedResourceError),
        ):
            await self.stream.send_eof()
            while await self.stream.receive_some():
                pass


@asynccontextmanager
async def open_listening(
    listen: str, security: ListenerSecurity, clients: str
) -> AsyncIterator[list[trio.socket.SocketType]]:
    """Keep an address at which to listen to clients for the duration of a block. `accept_clients` begins to listen.

    Args:
        listen: `PORT` or `ADDRESS:PORT`.
        security: The users and the certificate.
        clients: What the clients are, for messages.

    Yields:
        The sockets; more than one if a name has several addresses. Clients are refused until one accepts them.

    Raises:
        AddressInUseError: The broker cannot listen there.
        ConfigError: Anyone could connect from elsewhere.
    """
    host, port = split_listen_address(listen)
    security.check_exposure(host)
    with ExitStack() as stack:
        try:
            sockets = await _bind(host, port, stack)
        except OSError as error:
            if error.errno not in _UNAVAILABLE:
                raise
            raise AddressInUseError(f"cannot listen to {clients} at {host}:{port}: {error.strerror}") from None
        yield sockets


async def _bind(host: str, port: int, stack: ExitStack) -> list[trio.socket.SocketType]:
    """Return a bound socket for each address of a host."""
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM, flags=trio.socket.AI_PASSIVE)
    sockets = []
    for family, kind, protocol, _name, address in found:
        socket = stack.enter_context(trio.socket.socket(family, kind, protocol))
        if os.name != "nt":  # there, it would take an address from another program
            socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
        if family == trio.socket.AF_INET6:
            socket.setsockopt(trio.socket.IPPROTO_IPV6, trio.socket.IPV6_V6ONLY, 1)
        await socket.bind(address)
        sockets.append(socket)
    return sockets


async def accept_clients(
    sockets: list[trio.socket.SocketType],
    crowd: Crowd,
    stopping: Stopping,
    serve: Callable[[AcceptedClient], Awaitable[None]],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Listen to clients and serve them, until the broker stops and all connections have ended.

    Args:
        sockets: The sockets of `open_listening`, which are closed when the broker stops.
        crowd: The connections of the listener.
        stopping: Whether the broker is stopping.
        serve: Serves a client until its connection is to end, which it need not close. When the broker stops, it
            handles no further requests, and returns when those before have their answers.
        task_status: Reports that it listens.

    Raises:
        AddressInUseError: Another program has begun to listen at the address.
    """
    for socket in sockets:
        try:
            socket.listen(_BACKLOG)
        except OSError as error:
            host, port = socket.getsockname()[:2]
            raise AddressInUseError(f"cannot listen at {host}:{port}: {error.strerror}") from None
    task_status.started()
    async with trio.open_nursery() as nursery:
        with stopping.interrupting():
            async with trio.open_nursery() as accepting:
                for socket in sockets:
                    accepting.start_soon(_accept, trio.SocketListener(socket), crowd, serve, nursery)
        for socket in sockets:
            socket.close()


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
                client = AcceptedClient(stream, host, (str(address), port), lambda: crowd.mark_served(scope))
                await serve(client)
                await client.end()
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
