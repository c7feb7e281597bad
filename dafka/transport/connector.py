"""Connections to peers: authenticate the peer, report the outcome of each handshake, and retry.

libzmq reconnects by itself after a connection is lost, but not after a handshake that failed for a known reason, such
as a key that is not authorized. The key may be authorized at any time, so this module retries once a second.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from socket import gaierror

import attrs
import trio
import zmq

from dafka.endpoints import PeerEndpoint
from dafka.protocol import RefusedByPeer
from dafka.protocol.trust import KEY_NOT_AUTHORIZED, NO_KEY, UNKNOWN, WRONG_KEY
from dafka.transport.security import Security
from dafka.transport.socket import BaseSocket, Socket

HANDSHAKE_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
"""The events of libzmq's monitor that end a handshake."""

RETRY_S = 1.0
"""Seconds between a refusal and the next attempt."""

BROKEN_MAX = 3
"""Consecutive handshakes that must end without a reason before they are reported. A node that stops can cause one."""

HIGH_WATERMARK = 100_000
"""The maximum number of messages from one peer that `listen` queues. More wait at the sender."""

MESSAGE_BYTES_MAX = 4096
"""The largest message that `listen` accepts, in bytes. Beacons and all commands but RECORD are smaller."""

DIAGNOSIS_S = 1.0
"""Seconds that `diagnose_connection` waits for a TCP connection."""

EVENT_HEADING = struct.Struct("=Hi")
"""The first frame of a monitor's message: the event and its value."""


class Outcome(enum.Enum):
    """How a handshake, or a connection, ended."""

    MADE = enum.auto()
    NOT_AUTHORIZED = enum.auto()
    """The peer does not authorize the key of the connecting side."""
    WRONG_SERVER_KEY = enum.auto()
    """The connecting side expects another public key of the peer. Only the peer sees this outcome."""
    NO_CURVE = enum.auto()
    """One of the two sides has no key."""
    BROKEN = enum.auto()
    """The peer ended the handshake without giving a reason: one of those above, or it is stopping."""
    LOST = enum.auto()
    """The connection was lost, during the handshake or later."""


_OUTCOMES = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED: Outcome.MADE,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: Outcome.NOT_AUTHORIZED,
    zmq.EVENT_DISCONNECTED: Outcome.LOST,
}
_PROTOCOL_FAILURES = {
    0x11000001: Outcome.WRONG_SERVER_KEY,  # libzmq's ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
    0x11000002: Outcome.NO_CURVE,  # ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
}
_REASONS = {
    Outcome.NOT_AUTHORIZED: KEY_NOT_AUTHORIZED,
    Outcome.NO_CURVE: NO_KEY,
    Outcome.WRONG_SERVER_KEY: WRONG_KEY,
    Outcome.BROKEN: UNKNOWN,
}


@attrs.frozen
class Handshake:
    """The outcome of one handshake, and its endpoint."""

    endpoint: str
    outcome: Outcome


def decode_handshake(frames: Sequence[bytes]) -> Handshake:
    """Decode one message of a monitor."""
    event, value = EVENT_HEADING.unpack(frames[0])
    found = _PROTOCOL_FAILURES.get(value) if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL else _OUTCOMES.get(event)
    return Handshake(frames[-1].decode("utf-8", "replace"), found or Outcome.BROKEN)


class Connector:
    """The connections of one socket to peers. `watch` must run.

    Args:
        socket: The socket to connect.
        security: The keys of this node; None in a plain cluster.
        on_connected: Called with the endpoint of every connection that is made.
        on_refused: Called when a peer refuses a connection, once for each reason.
        on_lost: Called with the endpoint of every lost connection; None to ignore losses.
    """

    def __init__(
        self,
        socket: BaseSocket,
        security: Security | None,
        on_connected: Callable[[str], None],
        on_refused: Callable[[RefusedByPeer], None],
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self._socket = socket
        self._security = security
        self._on_connected = on_connected
        self._on_refused = on_refused
        self._on_lost = on_lost
        self._monitor = socket.monitor(HANDSHAKE_EVENTS | (0 if on_lost is None else zmq.EVENT_DISCONNECTED))
        self._keys: dict[str, str] = {}
        self._broken_counts: dict[str, int] = {}
        self._reported: dict[str, str] = {}

    def connect(self, endpoint: str, key: str) -> None:
        """Connect to the peer at an endpoint, which must hold the secret key of this public key.

        Raises `TransportError` if the endpoint is invalid.
        """
        if self._security is not None:
            self._security.expect_key(self._socket, key)
        self._socket.connect(endpoint)
        self._keys[endpoint] = key

    def disconnect(self, endpoint: str) -> None:
        """Undo `connect`."""
        if self._keys.pop(endpoint, None) is not None:
            self._socket.disconnect(endpoint)
            self._reported.pop(endpoint, None)
            self._broken_counts.pop(endpoint, None)

    async def watch(self) -> None:
        """Report the outcome of each handshake, and try refused connections again. Run until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for handshake in map(decode_handshake, await self._monitor.receive_many()):
                    endpoint, outcome = handshake.endpoint, handshake.outcome
                    if endpoint not in self._keys:
                        continue
                    if outcome is Outcome.LOST:
                        if self._on_lost is not None:
                            self._on_lost(endpoint)
                        continue
                    if outcome is Outcome.MADE:
                        self._broken_counts.pop(endpoint, None)
                        self._reported.pop(endpoint, None)
                        self._on_connected(endpoint)
                        continue
                    if outcome is not Outcome.BROKEN:
                        nursery.start_soon(self._connect_again, endpoint)
                    self._report_refusal(endpoint, outcome)

    def close(self) -> None:
        """Stop monitoring. Call it after the socket is closed; may be repeated."""
        self._socket.stop_monitor()
        self._monitor.close(0)

    def _report_refusal(self, endpoint: str, outcome: Outcome) -> None:
        if outcome is Outcome.BROKEN:
            self._broken_counts[endpoint] = self._broken_counts.get(endpoint, 0) + 1
            if self._broken_counts[endpoint] < BROKEN_MAX or endpoint in self._reported:
                return
        if self._reported.get(endpoint) != _REASONS[outcome]:
            self._reported[endpoint] = _REASONS[outcome]
            own_key = self._security.pair.public if self._security is not None else ""
            self._on_refused(RefusedByPeer(endpoint, own_key, _REASONS[outcome]))

    async def _connect_again(self, endpoint: str) -> None:
        await trio.sleep(RETRY_S)
        key = self._keys.get(endpoint)
        if key is not None:
            self._socket.disconnect(endpoint)
            self.connect(endpoint, key)


async def listen(
    context: zmq.Context[zmq.Socket[bytes]],
    security: Security | None,
    peer: PeerEndpoint,
    prefixes: Iterable[bytes],
    on_messages: Callable[[list[list[bytes]]], None],
    on_connected: Callable[[str], None],
    on_refused: Callable[[RefusedByPeer], None],
) -> None:
    """Receive messages with these prefixes from one peer through a separate SUB socket, until cancelled.

    See `Connector` for the other arguments. Raise `TransportError` if the endpoint is invalid.
    """
    socket = Socket(context.socket(zmq.SocketType.SUB))
    connector = Connector(socket, security, on_connected, on_refused)
    try:
        socket.set_options(rcvhwm=HIGH_WATERMARK, maxmsgsize=MESSAGE_BYTES_MAX)
        for prefix in prefixes:
            socket.subscribe(prefix)
        connector.connect(peer.endpoint, peer.key)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connector.watch)
            while True:
                on_messages(await socket.receive_many())
    finally:
        socket.close(0)
        connector.close()


async def find_resolution_problem(host: str) -> str:
    """Return why a host name cannot be resolved to an IPv4 address; empty if it can be."""
    try:
        await trio.socket.getaddrinfo(host, None, family=trio.socket.AF_INET)
    except (gaierror, UnicodeError) as error:
        with suppress(gaierror, UnicodeError):
            await trio.socket.getaddrinfo(host, None, family=trio.socket.AF_INET6)
            return "it has an IPv6 address only; write that in its place, such as [fd00::1]"
        return str(getattr(error, "strerror", None) or error)
    return ""


async def diagnose_connection(endpoint: str) -> str:
    """Return why no TCP connection to an endpoint can be made, in one clause; empty if one can be made.

    libzmq reports neither host names that cannot be resolved nor refused connections: it silently retries.
    """
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not endpoint.startswith("tcp://") or not port.isdecimal():
        return ""
    try:
        with trio.fail_after(DIAGNOSIS_S):
            stream = await trio.open_tcp_stream(host.strip("[]"), int(port))
    except gaierror:
        return f"the host name {host!r} cannot be resolved"
    except trio.TooSlowError:
        return f"nothing answers at {endpoint}: check the address and the firewall"
    except OSError as error:
        causes = [*error.__cause__.exceptions] if isinstance(error.__cause__, BaseExceptionGroup) else [error.__cause__]
        is_refused = any(isinstance(cause, ConnectionRefusedError) for cause in causes)
        return f"nothing listens at {endpoint}" if is_refused else f"{endpoint} cannot be reached"
    await trio.aclose_forcefully(stream)
    return ""
