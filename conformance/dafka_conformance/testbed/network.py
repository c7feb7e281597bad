"""The suite's ZeroMQ sockets, endpoints and node addresses. A scenario's sockets are closed when it ends."""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import Callable, Iterator
from functools import cache

import zmq

from dafka.transport.socket import Socket, connected_endpoint

LOOPBACK = "tcp://127.0.0.1:*"
"""The endpoint to bind to for a free port on the loopback interface."""

_SOCKETS_MAX = 16_384

_ADDRESS_PREFIX = "DAFCA0"
"""The start of the addresses of all the suite's nodes: scenarios that share a cluster recognize each other's nodes."""


@cache
def _context() -> zmq.Context[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, _SOCKETS_MAX)
    return context


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

    def subscriber(self) -> Socket:
        """Open a SUB socket that never drops a message."""
        return self._make(zmq.SUB, rcvhwm=0)

    def beacon_publisher(self) -> Socket:
        """Open a PUB socket, as nodes use for towers."""
        return self._make(zmq.PUB)

    def monitor(self, watched: Socket) -> Socket:
        """Open a socket that reports every handshake of `watched`; see `track_handshakes`."""
        monitor = watched.monitor_handshakes()
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
        connected.update(connected_endpoint(message) for message in await monitor.receive_many())
        changed()


@contextlib.contextmanager
def reserve_endpoint() -> Iterator[str]:
    """Yield a free loopback endpoint, for a node that needs to know its endpoint before it starts.

    The port stays reserved inside the block: the system gives it to no other program, but a program that sets
    SO_REUSEADDR, as ZeroMQ does, can listen on it.
    """
    with contextlib.closing(socket.socket()) as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{reserved.getsockname()[1]}"


def new_address() -> bytes:
    """Return a new, unique node address: 32 upper-case hexadecimal digits."""
    return (_ADDRESS_PREFIX + uuid.uuid4().hex[len(_ADDRESS_PREFIX) :]).upper().encode("ascii")


def is_suite_address(address: bytes) -> bool:
    """Return whether an address belongs to one of the suite's own nodes, in any scenario."""
    return address.startswith(_ADDRESS_PREFIX.encode("ascii"))
