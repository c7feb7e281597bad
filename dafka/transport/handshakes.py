"""What becomes of a socket's connections, as libzmq's monitor tells: which were made, which were refused and why."""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence

import attrs
import zmq

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
    NOT_AUTHORISED = enum.auto()
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
        return Outcome.NOT_AUTHORISED
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == _CRYPTOGRAPHIC:
        return Outcome.WRONG_SERVER_KEY
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == _MECHANISM_MISMATCH:
        return Outcome.NO_CURVE
    return Outcome.BROKEN
