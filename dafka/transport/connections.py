"""File descriptors: how many there are, whose they are, and ending connections by them.

libzmq ends no connection that somebody else has made, and takes as many as come. But it tells of each message by which
descriptor it came, and a socket that is shut down beneath it is to it as one whose other side has gone: it tidies up
after that connection, and after no other.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

import attrs
import zmq

try:
    import resource
except ImportError:  # no such limits on this system
    resource = None  # type: ignore[assignment]

SRCFD = 2
"""libzmq's `ZMQ_SRCFD`, which pyzmq has no name for."""

RESERVED = 128
"""Descriptors kept for files, towers and libzmq itself: running out of them ends libzmq's threads."""

_FOLDER = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
_UNLIMITED = 2**20


@attrs.frozen
class Connection:
    """One that was made to this process: where it was taken, and who made it. Not another one with the same number."""

    own: object
    peer: object

    @property
    def host(self) -> str:
        """The other side's IP address; empty where it has none."""
        return str(self.peer[0]) if isinstance(self.peer, tuple) else ""

    @property
    def port(self) -> int:
        """The TCP port where it was taken; 0 where there is none."""
        return int(self.own[1]) if isinstance(self.own, tuple) else 0


def source_descriptor(frame: zmq.Frame) -> int | None:
    """The descriptor by which a frame came; None where it came by none (it is from this process)."""
    try:
        return int(frame.get(SRCFD))
    except (zmq.ZMQError, ValueError):
        return None


def find_connection(descriptor: int) -> Connection | None:
    """Which connection a descriptor is now; None where it is none (any more)."""
    with suppress(OSError), _borrow(descriptor) as borrowed:
        return _identify(borrowed)
    return None


def cut(descriptor: int, connection: Connection) -> bool:
    """Ends a connection, if that is what the descriptor still is."""
    with suppress(OSError), _borrow(descriptor) as borrowed:
        if _identify(borrowed) == connection:
            borrowed.shutdown(socket.SHUT_RDWR)
            return True
    return False


def open_descriptors() -> list[int]:
    """Those of this process; none where the system does not tell."""
    try:
        return [int(name) for name in os.listdir(_FOLDER)]
    except OSError:
        return []


def descriptors_max() -> int:
    """How many this process may have."""
    if resource is None:
        return _UNLIMITED
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def connections_max(wanted: int) -> int:
    """How many connections may be taken: this many, or fewer where there are not descriptors enough."""
    return max(min(wanted, (descriptors_max() - RESERVED) * 3 // 4), 16)


def raise_descriptors_max() -> int:
    """Lets this process have as many as the system allows it; for programs of their own. Gives how many."""
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return descriptors_max()


def _identify(connected: socket.socket) -> Connection:
    own, peer = connected.getsockname(), connected.getpeername()
    return Connection(own[:2] if isinstance(own, tuple) else own, peer[:2] if isinstance(peer, tuple) else peer)


def _borrow(descriptor: int) -> socket.socket:
    """A second descriptor of the same socket, whose closing leaves the first one open. Raises OSError."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


SWEEP_S = 2.0
"""How often the connections are counted."""

SILENT_S = 10.0
"""A connection by which nothing came for so long is not a node's."""

MANY_CONNECTIONS = "connection ended: too many connections"


class ConnectionLimiter:
    """The connections that were taken at one TCP port. Few of them cost nothing: only many are looked at."""

    def __init__(self, port: int, wanted_max: int) -> None:
        self._port = port
        self._wanted_max = wanted_max
        self._silent: dict[int, tuple[Connection, float]] = {}

    def sweep(self, known: Mapping[int, Connection], now: float) -> int:
        """Ends what is too many: those by which nothing came, then the newest of the `known` ones. Gives how many.

        `known` are those by which something came, by descriptor, the newest last.
        """
        descriptors = open_descriptors()
        limit = connections_max(self._wanted_max)
        if len(descriptors) <= limit // 2 or not self._port:
            self._silent.clear()
            return 0
        taken = {
            source: connection
            for source in descriptors
            if (connection := find_connection(source)) is not None and connection.port == self._port
        }
        silent = {source: connection for source, connection in taken.items() if known.get(source) != connection}
        self._silent = {
            source: self._silent[source] if self._silent.get(source, (None,))[0] == connection else (connection, now)
            for source, connection in silent.items()
        }
        ended = {source for source, (_, since) in self._silent.items() if now - since >= SILENT_S}
        surplus = len(taken) - limit - len(ended)
        if surplus > 0:
            others = [*(source for source in silent if source not in ended), *reversed([*known])]
            ended.update(others[:surplus])
        return sum(cut(source, taken[source]) for source in ended if source in taken)
