"""A socket of a closed cluster that connects to others, each of whom must prove who it is; and tries again.

libzmq connects again by itself after a loss, but not after a handshake that failed for a reason that it was told: the
key is not authorised, say. That may change at any time, so it is tried again here, once a second.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from dafka.protocol import HandshakeRefused
from dafka.transport.handshakes import Monitor, Outcome
from dafka.transport.security import Security
from dafka.transport.socket import BaseSocket

RETRY_S = 1.0
"""How long after a refusal the other side is asked again."""

BROKEN_MAX = 3
"""So many handshakes in a row that end without a word are told of: one may be a node that has just gone."""

_REASONS = {
    Outcome.NOT_AUTHORISED: "key not authorised",
    Outcome.NO_CURVE: "no key",
    Outcome.WRONG_SERVER_KEY: "another key expected",
    Outcome.BROKEN: "unknown",
}


class Caller:
    """Connects one socket, and watches what becomes of it. A plain cluster's has no `security`."""

    def __init__(
        self,
        socket: BaseSocket,
        security: Security | None,
        made: Callable[[str], None],
        refused: Callable[[HandshakeRefused], None],
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
            self._refused(HandshakeRefused(endpoint, own_key, _REASONS[outcome]))

    async def _ask_again(self, endpoint: str) -> None:
        await trio.sleep(RETRY_S)
        key = self._keys.get(endpoint)
        if key is not None:
            self._socket.disconnect(endpoint)
            self.connect(endpoint, key)
