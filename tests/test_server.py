"""A broker with its servers: where it listens, in which order it begins, and how long it takes to stop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from dafka import Config, server
from dafka.broker.connections.tcp_server import Stopping
from dafka.config import DEFAULT_KAFKA_LISTEN
from dafka.errors import StorageError
from dafka.http.server import connection, http_server
from dafka.server import ServingBroker, serve_listeners

GRACE_MS = 8000


@attrs.define
class Parts:
    """What a broker is made of, as parts that record what is done with them, and when each server ended."""

    done: list[str] = attrs.field(factory=list)
    ended: dict[str, float] = attrs.field(factory=dict)
    answering_s: float = 0.0
    handing_over_s: float = 0.0
    error: Exception | None = None
    broker: Any = attrs.field(
        factory=lambda: SimpleNamespace(
            stopping=Stopping(),
            has_started=trio.Event(),
            node=SimpleNamespace(store=SimpleNamespace(finish_by=None)),
        )
    )

    def __attrs_post_init__(self) -> None:
        self.broker.node.handover = SimpleNamespace(run=self.hand_over)

    async def hand_over(self) -> None:
        assert not self.broker.stopping.has_begun
        await trio.sleep(self.handing_over_s)

    @asynccontextmanager
    async def open_listening(self, listen: str, security: object, clients: str) -> AsyncIterator[str]:
        self.done.append(f"bind {listen} for {clients}")
        try:
            yield listen
        finally:
            self.done.append(f"unbind {listen}")

    @asynccontextmanager
    async def open_broker(self, config: Config, security: object, _progress: object) -> AsyncIterator[Any]:
        if self.error is not None:
            raise self.error
        self.done.append("open")
        self.broker.has_started.set()
        try:
            yield self.broker
        finally:
            self.done.append("close")

    async def serve(self, kind: Any, sockets: str, task_status: trio.TaskStatus[None]) -> None:
        await trio.lowlevel.checkpoint()
        self.done.append(f"serve {sockets}")
        task_status.started()
        try:
            await self.broker.stopping.begun.wait()
            await trio.sleep(self.answering_s)
        finally:
            self.ended[kind.name] = trio.current_time()


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    found = Parts()
    monkeypatch.setattr(server, "open_listening", found.open_listening)
    monkeypatch.setattr(server, "open_broker", found.open_broker)
    monkeypatch.setattr(server, "KafkaServer", lambda _: SimpleNamespace(name="kafka", bootstrap_servers="h:9092"))
    monkeypatch.setattr(http_server, "HttpServer", lambda _: SimpleNamespace(name="http", url="http://h:80"))
    monkeypatch.setattr(server, "serve_kafka", found.serve)
    monkeypatch.setattr(connection, "serve_http", found.serve)
    return found


LISTENING = {
    ("", ""): (DEFAULT_KAFKA_LISTEN, ""),
    ("127.0.0.1:1", ""): ("127.0.0.1:1", ""),
    ("", "127.0.0.1:2"): ("", "127.0.0.1:2"),
    ("127.0.0.1:1", "127.0.0.1:2"): ("127.0.0.1:1", "127.0.0.1:2"),
}
"""By what is configured for clients of Kafka and of HTTP: where a broker listens."""


@pytest.mark.parametrize(("configured", "listening"), LISTENING.items())
@pytest.mark.parametrize("answering_s", [0, 3, 5])
@pytest.mark.parametrize("handing_over_s", [0, 1, 100])
async def test_a_broker_listens_and_stops_within_its_grace(
    parts: Parts,
    autojump_clock: trio.testing.MockClock,
    configured: tuple[str, str],
    listening: tuple[str, str],
    answering_s: float,
    handing_over_s: float,
) -> None:
    """Leaders have a fifth of the grace to hand over, they and requests half of it; the storage has all of it."""
    kafka, http = listening
    parts.answering_s, parts.handing_over_s = answering_s, handing_over_s
    config = Config().with_node(grace_ms=GRACE_MS).with_kafka(listen=configured[0]).with_http(listen=configured[1])
    async with trio.open_nursery() as nursery:
        serving: ServingBroker = await nursery.start(serve_listeners, config)
        await trio.sleep(1000)
        assert not parts.broker.stopping.has_begun
        nursery.cancel_scope.cancel()
    assert (serving.bootstrap_servers, serving.url) == ("h:9092" if kafka else "", "http://h:80" if http else "")
    assert serving.node is parts.broker.node
    binds = [
        f"bind {listen} for {clients}"
        for listen, clients in ((kafka, "clients of Kafka"), (http, "HTTP clients"))
        if listen
    ]
    serves = [f"serve {listen}" for listen in listening if listen]
    assert parts.done == [*binds, "open", *serves, "close", *(f"unbind {listen}" for listen in (http, kafka) if listen)]
    ended = 1000 + min(min(handing_over_s, GRACE_MS / 5000) + answering_s, GRACE_MS / 2000)
    assert parts.ended == {name: ended for name, listen in (("kafka", kafka), ("http", http)) if listen}
    assert parts.broker.node.store.finish_by == 1000 + GRACE_MS / 1000


async def test_an_error_comes_out_alone_and_leaves_nothing_bound(parts: Parts) -> None:
    parts.error = StorageError("the disk is gone")
    with pytest.raises(StorageError, match=r"^the disk is gone$"):
        await serve_listeners()
    assert parts.done[-1] == f"unbind {DEFAULT_KAFKA_LISTEN}"
