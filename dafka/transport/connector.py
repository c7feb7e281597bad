"""A socket of a closed cluster that connects to others, each of whom must prove who it is; and tries again.

libzmq connects again by itself after a loss, but not after a handshake that failed for a reason that it was told: the
key is not authorized, say. That may change at any time, so it is tried again here, once a second.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable, Sequence

import attrs
import trio
import zmq

from dafka.endpoints import PeerEndpoint
from dafka.protocol import RefusedByPeer
from dafka.transport.security import Security
from dafka.transport.socket import BaseSocket, Socket

EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)

_HEADING = struct.Struct("=Hi")
_CRYPTOGRAPHIC = 0x11000001
_MECHANISM_MISMATCH = 0x11000002


class Outcome(enum.Enum):
    """How a handshake ended."""

    MADE = enum.auto()
    NOT_AUTHORIZED = enum.auto()
    """The side that was connected to does not authorise the other's key."""
    WRONG_SERVER_KEY = enum.auto()
    """Of the side that is connected to: another public key was expected there."""
    NO_CURVE = enum.auto()
    """One of the two has no keys."""
    BROKEN = enum.auto()
    """The other side ended it without a word: it may have had any of these reasons, or be gone."""


@attrs.frozen
class Handshake:
    """One end: at which endpoint, and how."""

    endpoint: str
    outcome: Outcome


class Monitor:
    """Tells every handshake of a socket from now on. The caller closes it, before or after the socket."""

    def __init__(self, socket: BaseSocket) -> None:
        self._watched = socket
        self._socket: Socket = socket.monitor(EVENTS)

    async def receive_many(self) -> list[Handshake]:
        """Waits for handshakes to end."""
        return [read_handshake(frames) for frames in await self._socket.receive_many()]

    def close(self) -> None:
        """Harmless when repeated."""
        self._watched.stop_monitor()
        self._socket.close(0)


def read_handshake(frames: Sequence[bytes]) -> Handshake:
    """Reads one message of a monitor."""
    event, value = _HEADING.unpack(frames[0])
    return Handshake(frames[-1].decode("utf-8", "replace"), _outcome(event, value))


def _outcome(event: int, value: int) -> Outcome:
    if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
        return Outcome.MADE
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return Outcome.NOT_AUTHORIZED
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == _CRYPTOGRAPHIC:
        return Outcome.WRONG_SERVER_KEY
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == _MECHANISM_MISMATCH:
        return Outcome.NO_CURVE
    return Outcome.BROKEN


RETRY_S = 1.0
"""How long after a refusal the other side is asked again."""

BROKEN_MAX = 3
"""So many handshakes in a row that end without a word are told of: one may be a node that has just gone."""

_REASONS = {
    Outcome.NOT_AUTHORIZED: "key not authorized",
    Outcome.NO_CURVE: "no key",
    Outcome.WRONG_SERVER_KEY: "another key expected",
    Outcome.BROKEN: "unknown",
}


class Connector:
    """Connects one socket, and watches what becomes of it. A plain cluster's has no `security`."""

    def __init__(
        self,
        socket: BaseSocket,
        security: Security | None,
        made: Callable[[str], None],
        refused: Callable[[RefusedByPeer], None],
    ) -> None:
        """`made` is told the endpoint of every connection that is made, `refused` of each that is not, and why."""
        self._socket = socket
        self._security = security
        self._made = made
        self._refused = refused
        self._monitor = Monitor(socket)
        self._keys: dict[str, str] = {}
        self._broken: dict[str, int] = {}
        self._told: dict[str, str] = {}

    def connect(self, endpoint: str, key: str) -> None:
        """Connects to whoever has the secret key of this public one. Raises `TransportError`: that is no endpoint."""
        if self._security is not None:
            self._security.expect(self._socket, key)
        self._socket.connect(endpoint)
        self._keys[endpoint] = key

    def disconnect(self, endpoint: str) -> None:
        """Undoes `connect`."""
        if self._keys.pop(endpoint, None) is not None:
            self._socket.disconnect(endpoint)
            self._told.pop(endpoint, None)
            self._broken.pop(endpoint, None)

    async def watch(self) -> None:
        """Reports how connecting goes, and asks those again who have refused."""
        async with trio.open_nursery() as nursery:
            while True:
                for handshake in await self._monitor.receive_many():
                    endpoint, outcome = handshake.endpoint, handshake.outcome
                    if endpoint not in self._keys:
                        continue
                    if outcome is Outcome.MADE:
                        self._broken.pop(endpoint, None)
                        self._told.pop(endpoint, None)
                        self._made(endpoint)
                        continue
                    if outcome is not Outcome.BROKEN:
                        nursery.start_soon(self._ask_again, endpoint)
                    self._tell(endpoint, outcome)

    def close(self) -> None:
        """After the socket. Harmless when repeated."""
        self._monitor.close()

    def _tell(self, endpoint: str, outcome: Outcome) -> None:
        if outcome is Outcome.BROKEN:
            self._broken[endpoint] = self._broken.get(endpoint, 0) + 1
            if self._broken[endpoint] < BROKEN_MAX or endpoint in self._told:
                return
        if self._told.get(endpoint) != _REASONS[outcome]:
            self._told[endpoint] = _REASONS[outcome]
            own_key = self._security.pair.public if self._security is not None else ""
            self._refused(RefusedByPeer(endpoint, own_key, _REASONS[outcome]))

    async def _ask_again(self, endpoint: str) -> None:
        await trio.sleep(RETRY_S)
        key = self._keys.get(endpoint)
        if key is not None:
            self._socket.disconnect(endpoint)
            self.connect(endpoint, key)


HIGH_WATERMARK = 100_000
"""Messages queued, of whoever sends faster than they are taken; further ones wait with the sender."""

MESSAGE_BYTES_MAX = 4096
"""Enough for beacons, and for every command but RECORDs: those are not what is listened to."""


async def listen(
    context: zmq.Context[zmq.Socket[bytes]],
    security: Security | None,
    peer: PeerEndpoint,
    prefixes: Iterable[bytes],
    take: Callable[[list[list[bytes]]], None],
    made: Callable[[str], None],
    refused: Callable[[RefusedByPeer], None],
) -> None:
    """Pass what a peer publishes to `take`, until cancelled.

    `made` is called with the endpoint whenever a connection is made, `refused` when one is refused.

    Raises `TransportError` if the endpoint is invalid.
    """
    socket = Socket(context.socket(zmq.SocketType.SUB))
    connector = Connector(socket, security, made, refused)
    try:
        socket.set_options(rcvhwm=HIGH_WATERMARK, maxmsgsize=MESSAGE_BYTES_MAX)
        for prefix in prefixes:
            socket.subscribe(prefix)
        connector.connect(peer.endpoint, peer.key)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connector.watch)
            while True:
                take(await socket.receive_many())
    finally:
        socket.close(0)
        connector.close()
