"""The TCP connections that peers make to this process: identify, count and end them by their file descriptors.

libzmq accepts any number of connections and has no call to end one. But it reports the descriptor that each message
arrived on. If the TCP socket of that descriptor is shut down, libzmq treats the connection as closed by the peer, and
cleans up only that connection.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import select
import socket
from collections.abc import Mapping
from contextlib import suppress

import attrs
import zmq

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

SRCFD = 2
"""libzmq's `ZMQ_SRCFD`; pyzmq has no name for it."""

RESERVED_DESCRIPTORS = 128
"""Descriptors kept for files, towers and libzmq itself. libzmq's threads abort if they run out of descriptors."""

SWEEP_S = 2.0
"""Seconds between two counts of the connections."""

SILENT_S = 10.0
"""Seconds after which a connection that sent nothing may be ended: a node sends something at once."""

CONNECTIONS_MIN = 16
"""The lowest limit of connections, however few descriptors the process may open."""

MANY_CONNECTIONS = "connection ended: too many connections"

_DESCRIPTOR_FOLDER = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
_UNLIMITED = 2**20
_PEER_CLOSED = getattr(select, "POLLRDHUP", 0)  # Linux only


@attrs.frozen
class Connection:
    """The two ends of a connection. They identify it even after its descriptor is reused for another connection.

    Attributes:
        own: The local socket address.
        peer: The peer's socket address.
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


def source_descriptor(frame: zmq.Frame) -> int | None:
    """Return the descriptor that a frame arrived on; None if it was sent within this process."""
    try:
        return int(frame.get(SRCFD))
    except (zmq.ZMQError, ValueError):
        return None


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
        if _identify(duplicate) != connection:
            return False
        poll = select.poll()
        poll.register(duplicate, _PEER_CLOSED)
        return not poll.poll(0)
    return False


def is_other_machine(host: str) -> bool:
    """Return whether a host is an IP address, and not one of this machine. Names are not looked up."""
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


def end_connection(descriptor: int, connection: Connection) -> bool:
    """Shut a connection down if the descriptor still belongs to it, and return whether it did."""
    with suppress(OSError), _duplicate(descriptor) as duplicate:
        if _identify(duplicate) == connection:
            duplicate.shutdown(socket.SHUT_RDWR)
            return True
    return False


def open_descriptors() -> list[int]:
    """Return the open descriptors of this process; an empty list if the system does not list them."""
    try:
        return [int(name) for name in os.listdir(_DESCRIPTOR_FOLDER)]
    except OSError:
        return []


def descriptors_max() -> int:
    """Return how many descriptors this process may open."""
    if resource is None:
        return _UNLIMITED
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def connections_max(wanted: int) -> int:
    """Return how many connections to accept: `wanted`, or fewer if the process has too few descriptors."""
    return max(min(wanted, (descriptors_max() - RESERVED_DESCRIPTORS) * 3 // 4), CONNECTIONS_MIN)


def raise_descriptors_max() -> int:
    """Raise this process's limit of descriptors to the highest that the system allows, and return it.

    Only the `dafka` command calls this. A library must not change the limits of the program that uses it.
    """
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return descriptors_max()


class ConnectionLimiter:
    """A limit on the connections to one listening socket.

    Connections are only examined if the process has many open descriptors, so a small number of connections costs
    nothing.
    """

    def __init__(self, endpoint: str, wanted_max: int) -> None:
        """Create a limiter.

        Args:
            endpoint: The endpoint of the listening socket. Only connections to a TCP endpoint are limited.
            wanted_max: Connections to accept, if the process has enough descriptors.
        """
        self._port = int(endpoint.rpartition(":")[2]) if endpoint.startswith("tcp://") else 0
        self._wanted_max = wanted_max
        self._silent: dict[int, tuple[Connection, float]] = {}

    def end_surplus(self, known: Mapping[int, Connection], now: float) -> int:
        """End connections beyond the limit, and return how many were ended.

        Connections that have been silent for too long are ended first, then other silent ones, then the newest of the
        `known` ones.

        Args:
            known: The connections that have sent messages, by descriptor, the newest last.
            now: The time in seconds.

        Returns:
            The number of connections ended.
        """
        descriptors = open_descriptors()
        limit = connections_max(self._wanted_max)
        if len(descriptors) <= limit // 2 or not self._port:
            self._silent.clear()
            return 0
        accepted = {
            descriptor: connection
            for descriptor in descriptors
            if (connection := find_connection(descriptor)) is not None and connection.port == self._port
        }
        silent = {number: connection for number, connection in accepted.items() if known.get(number) != connection}
        self._silent = {
            number: self._silent[number] if self._silent.get(number, (None,))[0] == connection else (connection, now)
            for number, connection in silent.items()
        }
        ended = {number for number, (_, since) in self._silent.items() if now - since >= SILENT_S}
        surplus = len(accepted) - limit - len(ended)
        if surplus > 0:
            others = [*(number for number in silent if number not in ended), *reversed([*known])]
            ended.update(others[:surplus])
        return sum(end_connection(number, accepted[number]) for number in ended if number in accepted)


def _identify(connected: socket.socket) -> Connection:
    own, peer = connected.getsockname(), connected.getpeername()
    return Connection(own[:2] if isinstance(own, tuple) else own, peer[:2] if isinstance(peer, tuple) else peer)


def _duplicate(descriptor: int) -> socket.socket:
    """Return a second descriptor of the same socket; closing it leaves the first open. Raises OSError."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
