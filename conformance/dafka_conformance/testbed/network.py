"""The suite's ZeroMQ sockets. All that a scenario opened is closed with it."""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import Callable, Iterator
from functools import cache

import zmq

from dafka.transport.socket import Socket, connected_endpoint

LOOPBACK = "tcp://127.0.0.1:*"

_SOCKETS_MAX = 16_384

_ADDRESS_PREFIX = "DAFCA0"


@cache
def _context() -> zmq.Context[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, _SOCKETS_MAX)
    return context


class Sockets:
    """Opens sockets, and closes them all at the end of its block."""

    def __init__(self) -> None:
        self._open: list[Socket] = []

    def __enter__(self) -> Sockets:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in reversed(self._open):
            opened.close(0)

    def publisher(self, **options: int | bytes) -> Socket:
        """An XPUB that reports every subscription and drops nothing."""
        return self._make(zmq.XPUB, sndhwm=0, xpub_verbose=1, **options)

    def subscriber(self) -> Socket:
        """A SUB that drops nothing."""
        return self._make(zmq.SUB, rcvhwm=0)

    def beacon_publisher(self) -> Socket:
        """A PUB, as nodes use it towards towers."""
        return self._make(zmq.PUB)

    def monitor(self, watched: Socket) -> Socket:
        """A socket that tells of every connection that `watched` makes; see `handshakes`."""
        monitor = watched.monitor_handshakes()
        self._open.insert(0, monitor)
        return monitor

    def _make(self, kind: int, **options: int | bytes) -> Socket:
        made = Socket(_context().socket(kind))
        made.set_options(**options)
        self._open.append(made)
        return made


async def track_handshakes(monitor: Socket, connected: set[str], changed: Callable[[], None]) -> None:
    """Keeps adding the endpoints that were connected to, and tells of it."""
    while True:
        connected.update(connected_endpoint(message) for message in await monitor.receive_many())
        changed()


@contextlib.contextmanager
def reserve_endpoint() -> Iterator[str]:
    """A loopback endpoint that nobody listens at, for a node that must be told where to listen.

    It stays reserved until the block is left: nobody is given it unasked, while whoever sets SO_REUSEADDR, as ZeroMQ
    does, can listen there.
    """
    with contextlib.closing(socket.socket()) as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{reserved.getsockname()[1]}"


def new_address() -> bytes:
    """An address that no other node has: 32 upper-case hexadecimal digits."""
    return (_ADDRESS_PREFIX + uuid.uuid4().hex[len(_ADDRESS_PREFIX) :]).upper().encode("ascii")


def is_suite_address(address: bytes) -> bool:
    """Is this the address of a node that the suite plays, in whatever scenario?"""
    return address.startswith(_ADDRESS_PREFIX.encode("ascii"))
