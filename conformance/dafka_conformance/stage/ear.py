"""The one connection by which the suite hears everything that the target publishes, to whomever it may be."""

from __future__ import annotations

from collections.abc import Callable

from dafka_conformance.stage.network import Sockets, handshakes

Frames = list[bytes]


class Ear:
    """Attributes:
    connected: the endpoints that it is connected to.
    """

    def __init__(self, sockets: Sockets, changed: Callable[[], None]) -> None:
        self.connected: set[str] = set()
        self._changed = changed
        self._socket = sockets.subscriber()
        self._monitor = sockets.monitor(self._socket)
        self._socket.subscribe(b"")

    def connect(self, endpoint: str) -> None:
        """Hears what is published there."""
        self._socket.connect(endpoint)

    def disconnect(self, endpoint: str) -> None:
        """Hears it no more."""
        self._socket.disconnect(endpoint)
        self.connected.discard(endpoint)

    async def receive_many(self) -> list[Frames]:
        """Waits for messages."""
        return await self._socket.receive_many()

    async def watch_connections(self) -> None:
        """Works until cancelled."""
        await handshakes(self._monitor, self.connected, self._changed)
