"""A client of server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from tests.http.running import RunningWeb


@attrs.define
class EventSource:
    """A client of server-sent events, which reads them as browsers do. The last id is None before the first event."""

    last_event_id: str | None = None
    records: list[dict[str, Any]] = attrs.field(factory=list)
    errors: list[dict[str, Any]] = attrs.field(factory=list)

    @asynccontextmanager
    async def connect(self, web: RunningWeb, target: str, **headers: str) -> AsyncIterator[trio.SocketStream]:
        """Ask for the events, from the last one on if there was one."""
        stream = await trio.open_tcp_stream("127.0.0.1", web.port)
        async with stream:
            lines = [f"GET {target} HTTP/1.0", "Host: localhost", "Accept: text/event-stream"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            if self.last_event_id is not None:
                lines.append(f"Last-Event-ID: {self.last_event_id}")
            await stream.send_all("\r\n".join([*lines, "", ""]).encode())
            yield stream

    async def wait_begun(self, stream: trio.SocketStream) -> None:
        """Wait until the broker has said where the events begin. There are no records before it."""
        while self.last_event_id is None:
            data = await stream.receive_some()
            assert data, "the stream has ended"
            self.take(data.decode().partition("\n\n")[0])

    async def read(self, stream: trio.SocketStream, count: int) -> None:
        """Read events until there are this many records."""
        received = b""
        while len(self.records) < count:
            data = await stream.receive_some()
            assert data, "the stream has ended"
            received += data
            *events, received = received.split(b"\n\n")
            for event in events:
                self.take(event.decode())

    def take(self, event: str) -> None:
        fields = dict(line.split(": ", 1) for line in event.splitlines() if ": " in line)
        self.last_event_id = fields.get("id", self.last_event_id)
        if "data" in fields:
            is_error = fields.get("event") == "error"
            (self.errors if is_error else self.records).append(json.loads(fields["data"]))

    def values(self) -> list[str]:
        """Return the values of the records, by log and in their order."""
        return [each["value"] for each in sorted(self.records, key=lambda each: (each["log"], each["offset"]))]
