"""A socket without libzmq, whose monitor reports the events that a test gives it."""

from __future__ import annotations

from typing import Any

import trio
import trio.lowlevel

from dafka.errors import AddressInUseError
from dafka.transport.connector import EVENT_HEADING


class ScriptedMonitor:
    """Receives the events of a test."""

    def __init__(self) -> None:
        self._events: list[list[bytes]] = []
        self._readers = trio.lowlevel.ParkingLot()
        self.is_closed = False

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def report(self, event: int, value: int, endpoint: str = "") -> None:
        self._events.append([EVENT_HEADING.pack(event, value), endpoint.encode()])
        self._readers.unpark_all()

    def receive_nowait(self) -> list[list[bytes]]:
        found, self._events = self._events, []
        return found

    async def receive_many(self) -> list[list[bytes]]:
        while not self._events:
            await self._readers.park()
        return self.receive_nowait()

    def close(self, _linger_ms: int) -> None:
        self.is_closed = True


class ScriptedSocket:
    """Records the calls on a socket."""

    def __init__(self, *, busy: int = 0) -> None:
        self.endpoint = "tcp://127.0.0.1:7"
        self.monitored = ScriptedMonitor()
        self.events = 0
        self.calls: list[tuple[str, object]] = []
        self._busy = busy
        """How many times listening fails."""

    def as_socket(self) -> Any:
        """Return it as an argument for a real socket."""
        return self

    def monitor(self, events: int) -> ScriptedMonitor:
        self.events = events
        return self.monitored

    def stop_monitor(self) -> None:
        assert not self.monitored.is_closed, "libzmq would block"

    def set_options(self, **options: object) -> None:
        self.calls.append(("set", options))

    def connect(self, endpoint: str) -> None:
        self.calls.append(("connect", endpoint))

    def disconnect(self, endpoint: str) -> None:
        self.calls.append(("disconnect", endpoint))

    def unbind(self, endpoint: str) -> None:
        self.calls.append(("unbind", endpoint))

    def bind(self, endpoint: str) -> str:
        self._busy -= 1
        if self._busy >= 0:
            raise AddressInUseError("in use")
        self.calls.append(("bind", endpoint))
        return endpoint
