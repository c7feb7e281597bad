"""A client of a broker that exists only in its tables, over memory: its time can be that of Trio's test clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import trio
from trio.testing import memory_stream_pair

from dafka.broker.access.logins import Logins
from dafka.broker.access.users import Users
from dafka.broker.connections.tcp_server import Stopping
from dafka.broker.core.client_quotas import EntityType, QuotaKey, make_entity
from dafka.broker.core.metadata.commands import AlterClientQuota
from dafka.config import ClientsConfig
from dafka.kafka.protocol.apis import REQUESTS, RESPONSES
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import FrameSplitter, decode_response, encode_request
from dafka.kafka.server.connection import Connection
from tests.kafka.apis.door import build, plain
from tests.kafka.apis.fake_cluster import ENDPOINT, FakeCluster


class MemoryClient:
    """A client, and the fake cluster that it talks to."""

    def __init__(self, cluster: FakeCluster, stream: trio.abc.Stream) -> None:
        self.cluster = cluster
        self.stopping = Stopping()
        self.accepted: Any = SimpleNamespace(
            stream=None,
            host="10.0.0.1",
            is_local=True,
            count_arrived=lambda: 0,
            mark_served=lambda: None,
            has_closed=False,
            sent_at=0.0,
        )
        self._stream = stream
        self._splitter = FrameSplitter()
        self._frames: list[bytes] = []

    def limit(self, key: QuotaKey, rate: float) -> None:
        command = AlterClientQuota(make_entity({EntityType.CLIENT_ID: None}), {key.value: str(rate)})
        self.cluster.broker.tables.state.quotas.alter(command)

    async def send(self, api: ApiKey, version: int, **values: Any) -> int:
        """Send a request, and return its size without the number before it."""
        data = encode_request(build(REQUESTS[api], values), version, 1)
        await self._stream.send_all(data)
        return len(data) - 4

    async def receive(self, api: ApiKey, version: int) -> tuple[Any, int]:
        """Return the next response, and its size with the number before it."""
        while not self._frames:
            data = await self._stream.receive_some()
            if not data:
                raise EOFError
            self._frames += self._splitter.receive(data)
        frame = self._frames.pop(0)
        return plain(decode_response(frame, RESPONSES[api], version)), len(frame) + 4

    async def ask(self, api: ApiKey, version: int, **values: Any) -> Any:
        await self.send(api, version, **values)
        return (await self.receive(api, version))[0]

    async def close(self) -> None:
        self.accepted.has_closed = True
        await self._stream.aclose()


@asynccontextmanager
async def connect(users: Users | None = None, *, reauthenticate_ms: int = 0) -> AsyncIterator[MemoryClient]:
    """Connect to a broker, which has users if they are given, and logins that count for this time."""
    cluster = FakeCluster()

    async def append(_: bool) -> int:
        await trio.lowlevel.checkpoint()
        return 7

    cluster.broker.appended = append
    ours, theirs = memory_stream_pair()
    client = MemoryClient(cluster, ours)
    client.accepted.stream = theirs
    broker: Any = cluster.listener.broker
    settings = ClientsConfig(login_ms=1000, reauthenticate_ms=reauthenticate_ms)
    broker.security = SimpleNamespace(
        users=users, tokens=None, tls=None, encrypt=lambda stream: stream, settings=settings
    )
    broker.logins = Logins()
    broker.stopping = client.stopping

    async def serve() -> None:
        async with theirs:
            await Connection(cast(Any, client.accepted), cluster.listener, ENDPOINT).run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield client
        await client.close()
