"""A client of WebSocket that is none of ours: Python's `websockets`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from websockets.trio.client import ClientConnection, connect

from dafka.http.websocket.messages import SERVER_MESSAGES
from tests.http.running import RunningWeb

DEADLINE_S = 60

JSON = "dafka.json.v1"
BINARY = "dafka.binary.v1"


class Client:
    """A client. Each message that it gets is held against the table of messages."""

    def __init__(self, connection: ClientConnection, welcome: dict[str, Any]) -> None:
        self.connection = connection
        self.welcome = welcome
        self._next_id = 100

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    async def send(self, kind: str, **fields: Any) -> int:
        """Send a message; `from_` stands for `from`. Return its id, which is a new one if none is given."""
        fields.setdefault("id", self.new_id())
        if "from_" in fields:
            fields["from"] = fields.pop("from_")
        await self.connection.send(json.dumps({"type": kind, **fields}))
        return int(fields["id"])

    async def receive(self) -> Any:
        """Return the next message: an object, or the bytes of a binary message."""
        with trio.fail_after(DEADLINE_S):
            received = await self.connection.recv()
        if isinstance(received, bytes):
            return received
        message = json.loads(received)
        assert message.keys() == {"type", *SERVER_MESSAGES[message["type"]].__struct_fields__}, message
        return message

    async def expect(self, kind: str, identifier: int | None = None) -> Any:
        message = await self.receive()
        assert message["type"] == kind, message
        if identifier is not None:
            assert message["id"] == identifier
        return message

    async def ask(self, kind: str, **fields: Any) -> Any:
        await self.send(kind, **fields)
        return await self.receive()

    async def publish(self, topic: str, *values: str, **fields: Any) -> list[dict[str, int]]:
        answer = await self.ask("publish", topic=topic, records=[{"value": value} for value in values], **fields)
        assert answer["type"] == "published", answer
        offsets: list[dict[str, int]] = answer["offsets"]
        return offsets

    async def subscribe(self, topic: str, position: Any = "earliest", credit: int = 1000, **fields: Any) -> int:
        identifier = await self.send("subscribe", topic=topic, from_=position, credit=credit, **fields)
        await self.expect("subscribed", identifier)
        return identifier

    async def take(self, count: int, identifier: int | None = None) -> list[dict[str, Any]]:
        """Return the next records of a subscription, which are as many as this."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            message = await self.expect("records", identifier)
            found += [{"log": message["log"], **each} for each in message["records"]]
        assert len(found) == count
        return found

    async def values(self, count: int, identifier: int | None = None) -> list[str]:
        return [str(each["value"]) for each in await self.take(count, identifier)]


@asynccontextmanager
async def open_client(
    web: RunningWeb, subprotocol: str | None = JSON, *, compression: str | None = None, **headers: str
) -> AsyncIterator[Client]:
    """Connect to a broker for the duration of a block."""
    async with connect(
        f"ws://127.0.0.1:{web.port}/ws",
        subprotocols=None if subprotocol is None else [subprotocol],  # type: ignore[list-item]
        compression=compression,
        additional_headers={name.replace("_", "-"): value for name, value in headers.items()},
        max_size=2**26,
        proxy=None,
    ) as connection:
        welcome = json.loads(await connection.recv())
        assert welcome["type"] == "welcome"
        yield Client(connection, welcome)
