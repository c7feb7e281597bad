"""Accepts clients: binds the sockets, and runs a task for each admitted connection."""

from __future__ import annotations

import errno
import logging
import math
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from weakref import WeakSet

import attrs
import trio

from dafka.broker.connections.connection_quotas import ConnectionQuotas
from dafka.broker.connections.security import ServerSecurity
from dafka.config import split_listen_address
from dafka.endpoints import is_loopback
from dafka.errors import AddressInUseError
from dafka.transport.connections import has_peer_closed, unread_bytes

_LOGGER = logging.getLogger("dafka.broker")

_ACCEPT_PAUSE_S = 0.1
_BACKLOG = 0xFFFF
"""Maximum number of connections that wait to be accepted. The system has its own limit, too."""

LINGER_S = 2.0
"""Seconds after the last response during which a connection that ends still reads what the client sends."""

_AT_ONCE_MAX = 100
"""Connections that are accepted before other tasks run. With one at a time, many new clients would delay each other."""

_LOW_WATER = getattr(socket, "SO_RCVLOWAT", 0) if sys.platform == "linux" else 0
"""The option that sets how many bytes make a socket readable. Other systems do not heed it in every kind of wait."""

_UNAVAILABLE = {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES}
_GONE = {errno.ENOTCONN, errno.ECONNABORTED}
"""Errors of a connection that its client closed before it was accepted."""


@attrs.define(eq=False)
class AcceptedClient:
    """An accepted connection, which is not encrypted, from a host to an address and port of this machine.

    Call `mark_served` when the client has sent a request, after authentication if that is required: until then, another
    client can replace it. Set `sent_at` when something is sent to the client, by Trio's clock.
    """

    stream: trio.SocketStream
    host: str
    local_address: tuple[str, int]
    mark_served: Callable[[], None]
    _socket: socket.socket
    sent_at: float = -math.inf

    @property
    def is_local(self) -> bool:
        """Whether the client has connected to a loopback address."""
        return is_loopback(self.local_address[0])

    @property
    def has_closed(self) -> bool:
        """Whether the client has closed the connection; see `has_peer_closed`."""
        return has_peer_closed(self.stream.socket.fileno())

    def send_now(self, data: bytes | memoryview) -> int:
        """Send as much as the system takes without a wait, not encrypted, and return its size.

        Raises `trio.BrokenResourceError` if the client has left.
        """
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(f"the client has disconnected: {error}") from error
        self.sent_at = trio.current_time()
        return sent

    def count_arrived(self) -> int:
        """Return the number of bytes that the client has sent and that were not received yet."""
        return unread_bytes(self.stream.socket.fileno())

    async def wait_arrived(self, size: int) -> None:
        """Wait until a number of the bytes that the client must still send have arrived, or it has left.

        Fewer are enough if the system cannot hold as many. One wait for many packets takes a fraction of the time that
        a wait for each takes.
        """
        connected = self.stream.socket
        if _LOW_WATER:
            connected.setsockopt(socket.SOL_SOCKET, _LOW_WATER, size)
        try:
            await trio.lowlevel.wait_readable(connected)
        finally:
            if _LOW_WATER:
                connected.setsockopt(socket.SOL_SOCKET, _LOW_WATER, 1)

    async def end(self, linger_s: float = LINGER_S) -> None:
        """End the connection so that the client can read its last responses, even if it still sends data.

        It waits for the client's end for `linger_s` after the last response. If a socket with unread data is closed,
        the system discards the data that is being sent.
        """
        with (
            trio.move_on_at(self.sent_at + linger_s),
            suppress(trio.BrokenResourceError, trio.ClosedResourceError),
        ):
            await self.stream.send_eof()
            while await self.stream.receive_some():
                pass


class Stopping:
    """Whether a broker is stopping. `begun` is set when the stop begins."""

    def __init__(self) -> None:
        self.begun = trio.Event()
        self._scopes: WeakSet[trio.CancelScope] = WeakSet()

    @property
    def has_begun(self) -> bool:
        """Whether the broker is stopping."""
        return self.begun.is_set()

    def interrupting(self, wait_s: float = math.inf) -> trio.CancelScope:
        """Return a scope for a wait that can end without a result, of at most `wait_s`.

        It is cancelled when the broker begins to stop.
        """
        scope = trio.CancelScope(deadline=-math.inf if self.has_begun else trio.current_time() + wait_s)
        self._scopes.add(scope)
        return scope

    def begin(self) -> None:
        """Begin to stop."""
        self.begun.set()
        for scope in self._scopes:
            scope.cancel()


@asynccontextmanager
async def open_listening(listen: str, security: ServerSecurity, clients: str) -> AsyncIterator[list[socket.socket]]:
    """Bind an address, `PORT` or `ADDRESS:PORT`, for a kind of clients for the duration of a block.

    There are several sockets if a name has several addresses. They refuse clients until `accept_clients` runs. Raise
    `AddressInUseError`, or `ConfigError` if unauthenticated clients could connect from other machines.
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


async def _bind(host: str, port: int, stack: ExitStack) -> list[socket.socket]:
    """Return a bound socket for each address of a host."""
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM, flags=trio.socket.AI_PASSIVE)
    sockets = []
    for family, kind, protocol, _name, address in found:
        listener = stack.enter_context(socket.socket(family, kind, protocol))
        listener.setblocking(False)
        if os.name != "nt":  # on Windows, this would take over the address of another program
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        sockets.append(listener)
    return sockets


async def accept_clients(
    sockets: list[socket.socket],
    quotas: ConnectionQuotas,
    stopping: Stopping,
    serve: Callable[[AcceptedClient], Awaitable[None]],
    *,
    linger_s: float = LINGER_S,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Listen and serve clients until the broker stops and all connections have ended.

    The sockets of `open_listening` are closed when the broker stops. `serve` serves a client until its connection must
    end, and need not close it. When the broker stops, it stops reading requests, and returns when it has answered the
    earlier ones. Raise `AddressInUseError` if another program has begun to listen at the address.
    """
    for listener in sockets:
        try:
            listener.listen(_BACKLOG)
        except OSError as error:
            host, port = listener.getsockname()[:2]
            raise AddressInUseError(f"cannot listen at {host}:{port}: {error.strerror}") from None
    task_status.started()
    async with trio.open_nursery() as nursery:
        with stopping.interrupting():
            async with trio.open_nursery() as accepting:
                for listener in sockets:
                    accepting.start_soon(_accept, listener, quotas, serve, linger_s, nursery)
        for listener in sockets:
            listener.close()


async def _accept(
    listener: socket.socket,
    quotas: ConnectionQuotas,
    serve: Callable[[AcceptedClient], Awaitable[None]],
    linger_s: float,
    nursery: trio.Nursery,
) -> None:
    async def serve_in(scope: trio.CancelScope, connected: socket.socket, host: str) -> None:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(connected))
        try:
            address, port = stream.socket.getsockname()[:2]
            with scope:
                served = partial(quotas.mark_served, scope)
                client = AcceptedClient(stream, host, (str(address), port), served, connected)
                await serve(client)
                await client.end(linger_s)
        except OSError:
            pass  # the client closed the connection before it was served
        finally:
            quotas.leave(scope, host)
            stream.socket.close()

    while True:
        await trio.lowlevel.wait_readable(listener)
        for _ in range(_AT_ONCE_MAX):
            try:
                accepted, address = listener.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _GONE:
                    continue
                _LOGGER.warning("cannot accept a client: %s", error.strerror)
                await trio.sleep(_ACCEPT_PAUSE_S)
                break
            host = str(address[0])
            scope = quotas.admit(host)
            if scope is None:
                accepted.close()
                continue
            accepted.setblocking(False)
            nursery.start_soon(serve_in, scope, accepted, host)
