"""The TCP connections that peers make to this process: identify and end them by their file descriptors.

libzmq accepts any number of connections and has no call to end one. But it reports the descriptor on which each message
arrived. If the TCP socket of that descriptor is shut down, libzmq treats the connection as closed by the peer, and
cleans up only this connection.
"""

from __future__ import annotations

import array
import errno
import ipaddress
import os
import select
import socket
from contextlib import suppress

import attrs
import zmq

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]
try:
    import fcntl
    import termios
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SRCFD = 2
"""libzmq's `ZMQ_SRCFD`; pyzmq has no name for it."""

RESERVED_DESCRIPTORS = 128
"""Descriptors kept for files, towers and libzmq itself. libzmq's threads abort if they run out of descriptors."""

CONNECTIONS_MIN = 16
"""The lowest limit of connections, even if the process can open few descriptors."""

MANY_CONNECTIONS = "connection ended: too many connections"

_UNLIMITED = 2**20
_PEER_CLOSED = getattr(select, "POLLRDHUP", 0)  # Linux only


@attrs.frozen
class Connection:
    """The socket addresses of the two ends of a connection.

    They identify it even after its descriptor is reused for another connection.
    """

    own: object
    peer: object

    @property
    def own_host(self) -> str:
        """The IP address of this machine that the peer reached; empty if the connection is not TCP."""
        return str(self.own[0]) if isinstance(self.own, tuple) else ""

    @property
    def host(self) -> str:
        """The peer's IP address; empty if the connection is not TCP."""
        return str(self.peer[0]) if isinstance(self.peer, tuple) else ""

    @property
    def port(self) -> int:
        """The local TCP port; 0 if the connection is not TCP."""
        return int(self.own[1]) if isinstance(self.own, tuple) else 0


def source_descriptor(frame: zmq.Frame) -> int:
    """Return the descriptor that a frame arrived on; -1 if it was sent within this process."""
    try:
        return int(frame.get(SRCFD))
    except (zmq.ZMQError, ValueError):
        return -1


def find_connection(descriptor: int) -> Connection | None:
    """Return the connection that a descriptor belongs to now; None if it belongs to none."""
    with suppress(OSError), _duplicate(descriptor) as duplicate:
        return _identify(duplicate)
    return None


def is_open(descriptor: int, connection: Connection) -> bool:
    """Return whether a descriptor still belongs to this connection, and the peer has not closed its side.

    libzmq closes its side a moment after the peer does. Without this check, the former connection of a node that
    restarts would still count as open. Only Linux reports that the peer has closed its side.
    """
    with suppress(OSError), _duplicate(descriptor) as duplicate:
        return _identify(duplicate) == connection and not has_peer_closed(duplicate.fileno())
    return False


def has_peer_closed(descriptor: int) -> bool:
    """Return whether the peer has closed its side of a connection. Some of its data may still be unread.

    Except on Linux, this is known only when both sides are closed.
    """
    poll = select.poll()
    poll.register(descriptor, _PEER_CLOSED)
    return bool(poll.poll(0))


def is_other_machine(host: str) -> bool:
    """Return whether a host is an IP address of another machine. Names are not resolved."""
    address = host.strip("[]")
    try:
        is_v6 = ipaddress.ip_address(address).version == 6
        with socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError as error:
        return error.errno == errno.EADDRNOTAVAIL
    except ValueError:
        return False
    return False


def unsent_bytes(descriptor: int) -> int:
    """Return the number of bytes that the system has not yet sent to the peer; 0 if the system does not report it."""
    count = array.array("i", [0])
    if fcntl is not None:
        with suppress(OSError):
            fcntl.ioctl(descriptor, termios.TIOCOUTQ, count)
    return count[0]


def unread_bytes(descriptor: int) -> int:
    """Return the number of bytes that have arrived and were not read; 0 if the system does not report it."""
    count = array.array("i", [0])
    if fcntl is not None:
        with suppress(OSError):
            fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]


def end_connection(descriptor: int, connection: Connection) -> bool:
    """Shut a connection down if the descriptor still belongs to it, and return whether it did."""
    with suppress(OSError), _duplicate(descriptor) as duplicate:
        if _identify(duplicate) == connection:
            duplicate.shutdown(socket.SHUT_RDWR)
            return True
    return False


def descriptors_max() -> int:
    """Return the number of descriptors that this process can open."""
    if resource is None:
        return _UNLIMITED
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def connections_max(wanted: int, others: int = 0) -> int:
    """Return how many of the wanted connections to accept at one socket, at least `CONNECTIONS_MIN`.

    Connections to other sockets of the process need descriptors, too.
    """
    return max(min(wanted, (descriptors_max() - RESERVED_DESCRIPTORS) * 3 // 4 - others), CONNECTIONS_MIN)


def raise_descriptors_max() -> int:
    """Raise this process's limit of descriptors to the highest that the system allows, and return it.

    Only the `dafka` command calls this. A library must not change the limits of the program that uses it.
    """
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return descriptors_max()


def _identify(connected: socket.socket) -> Connection:
    own, peer = connected.getsockname(), connected.getpeername()
    return Connection(own[:2] if isinstance(own, tuple) else own, peer[:2] if isinstance(peer, tuple) else peer)


def _duplicate(descriptor: int) -> socket.socket:
    """Return a second descriptor of the same socket; closing it does not close the first. Raises OSError."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
