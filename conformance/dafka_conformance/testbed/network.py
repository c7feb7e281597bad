"""The suite's ZeroMQ sockets, endpoints and node addresses. A scenario's sockets are closed when it ends.

No endpoint is used twice in a run. A node of the target tries for seconds to connect again to a peer that has left; if
another scenario's peer, or another target, listened there, it would be blamed for what that node sends.
"""

from __future__ import annotations

import contextlib
import random
import socket
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from typing import ClassVar

import trio
import zmq

from dafka.errors import TransportError
from dafka.transport.socket import Socket

PORTS = range(20_000, 32_768)
"""The ports of the suite's nodes: below those that Linux (from 32,768 on) and CZMQ (from 49,152 on) choose from."""

RECONNECT_MS = 2000
"""The wait before a connection to a node of the target that was lost is tried again."""

LAST_MESSAGES_S = 1.0
"""How long the last messages of a target that has ended are received: less than `RECONNECT_MS`.

Its port may be another target's soon, which the suite must not connect to.
"""

CLOSING_S = 0.01

_LOCALHOST = "127.0.0.1"
_SOCKETS_MAX = 16_384

_ADDRESS_PREFIX = "DAFCA0"
"""The start of the addresses of all the suite's nodes: scenarios that share a cluster recognize each other's nodes."""


@cache
def _context() -> zmq.Context[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, _SOCKETS_MAX)
    return context


@cache
def _has_loopback_network() -> bool:
    """Return whether this machine has all addresses of 127.0.0.0/8, as Linux has, and not only 127.0.0.1."""
    with contextlib.closing(socket.socket()) as tried:
        try:
            tried.bind(("127.77.77.77", 0))
        except OSError:
            return False
    return True


class Loopback:
    """The endpoints of one testbed: a loopback address of its own, and a new port for each endpoint.

    Where there is only one loopback address, the system chooses the ports.

    Attributes:
        host: The address.

    Args:
        is_shared: Whether to use 127.0.0.1: a tower that is not the suite's announces nodes there.
    """

    _used_hosts: ClassVar[set[str]] = {_LOCALHOST}

    def __init__(self, *, is_shared: bool = False) -> None:
        self.host = _LOCALHOST
        self._ports = iter(PORTS)
        if not is_shared and _has_loopback_network():
            while self.host in self._used_hosts:
                # Random, so that several runs at once on a machine do not meet.
                self.host = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"
            self._used_hosts.add(self.host)

    def bind(self, opened: Socket) -> str:
        """Bind a socket to a new endpoint and return the endpoint."""
        if self.host == _LOCALHOST:
            return opened.bind(f"tcp://{_LOCALHOST}:*")
        for port in self._ports:
            with contextlib.suppress(TransportError):  # another program listens there
                return opened.bind(f"tcp://{self.host}:{port}")
        raise TransportError(f"no port of {self.host} is left")

    @contextlib.contextmanager
    def reserve(self) -> Iterator[str]:
        """Yield a free endpoint, for a node that needs to know its endpoint before it starts.

        The port stays reserved inside the block: the system gives it to no other program, but a program that sets
        SO_REUSEADDR, as ZeroMQ does, can listen on it.
        """
        with contextlib.closing(socket.socket()) as reserved:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind((self.host, 0 if self.host == _LOCALHOST else next(self._ports)))
            yield f"tcp://{self.host}:{reserved.getsockname()[1]}"


class Sockets:
    """A context manager that opens sockets and closes them all at its end."""

    def __init__(self) -> None:
        self._open: list[Socket] = []

    def __enter__(self) -> Sockets:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in reversed(self._open):
            opened.close(0)

    def publisher(self, **options: int | bytes) -> Socket:
        """Open an XPUB socket that reports every subscription and unsubscription, and never drops a message."""
        return self._make(zmq.XPUB, sndhwm=0, xpub_verboser=1, **options)

    def subscriber(self, **options: int | bytes) -> Socket:
        """Open a SUB socket that never drops a message."""
        return self._make(zmq.SUB, rcvhwm=0, **options)

    def target_subscriber(self) -> Socket:
        """Open a SUB socket for nodes of the target, which may end by themselves."""
        return self.subscriber(reconnect_ivl=RECONNECT_MS)

    def beacon_publisher(self) -> Socket:
        """Open a PUB socket, as nodes use for towers."""
        return self._make(zmq.PUB)

    def monitor(self, watched: Socket) -> Socket:
        """Open a socket that reports every handshake of `watched`; see `track_handshakes`."""
        monitor = watched.monitor(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._open.insert(0, monitor)
        return monitor

    def _make(self, kind: int, **options: int | bytes) -> Socket:
        made = Socket(_context().socket(kind))
        made.set_options(**options)
        self._open.append(made)
        return made


async def track_handshakes(monitor: Socket, connected: set[str], changed: Callable[[], None]) -> None:
    """Add each endpoint that completes a handshake to `connected` and call `changed`, until cancelled."""
    while True:
        connected.update(message[-1].decode("utf-8", "replace") for message in await monitor.receive_many())
        changed()


async def wait_free(endpoint: str) -> None:
    """Wait until the socket that was bound to an endpoint is closed, which ZeroMQ does in the background."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    while True:
        with contextlib.closing(socket.socket()) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((host, int(port)))
            except OSError:
                await trio.sleep(CLOSING_S)
            else:
                return


def new_address() -> bytes:
    """Return a new, unique node address: 32 upper-case hexadecimal digits."""
    return (_ADDRESS_PREFIX + uuid.uuid4().hex[len(_ADDRESS_PREFIX) :]).upper().encode("ascii")


def is_suite_address(address: bytes) -> bool:
    """Return whether an address belongs to one of the suite's own nodes, in any scenario."""
    return address.startswith(_ADDRESS_PREFIX.encode("ascii"))
