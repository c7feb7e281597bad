"""A socket without libzmq, whose monitor reports the events that a test gives it."""

from __future__ import annotations

import math

import trio

from dafka.errors import AddressInUseError
from dafka.transport.connector import EVENT_HEADING


class ScriptedMonitor:
    """Receives the events of a test."""

    def __init__(self) -> None:
        self._give, self._given = trio.open_memory_channel[list[bytes]](math.inf)
        self.is_closed = False

    def report(self, event: int, value: int, endpoint: str = "") -> None:
        self._give.send_nowait([EVENT_HEADING.pack(event, value), endpoint.encode()])

    def receive_nowait(self) -> list[list[bytes]]:
        found = []
        while self._given.statistics().current_buffer_used:
            found.append(self._given.receive_nowait())
        return found

    async def receive_many(self) -> list[list[bytes]]:
        return [await self._given.receive(), *self.receive_nowait()]

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
