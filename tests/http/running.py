"""A broker that listens to HTTP, and a client that is none of ours: Python's `http.client`."""

from __future__ import annotations

import http.client
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs
import trio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from dafka import Config, open_producer
from dafka.broker.broker import Broker, open_broker
from dafka.broker.connections.security import ServerSecurity
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.http.server.errors import WebError
from dafka.http.server.http_server import HttpServer
from dafka.records import Partition
from dafka.server import ServingBroker, serve_listeners
from dafka.testing.cluster import open_cluster

DEADLINE_S = 60

_T = TypeVar("_T")


@attrs.frozen
class Answer:
    """What a client was answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.document["error"]["code"])


@attrs.frozen
class RunningWeb:
    """A running broker that listens to HTTP."""

    broker: ServingBroker
    config: Config
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    @property
    def server(self) -> HttpServer:
        assert self.broker.web is not None
        return self.broker.web

    @property
    def port(self) -> int:
        return urlsplit(self.broker.url).port or 0

    async def request(
        self, method: str, target: str, body: bytes | None = None, *, document: Any = None, **headers: Any
    ) -> Answer:
        """Send a request over a connection of its own. Underscores in names of headers stand for hyphens."""
        return await trio.to_thread.run_sync(lambda: self.ask(method, target, body, document=document, **headers))

    def ask(
        self, method: str, target: str, body: bytes | None = None, *, document: Any = None, **headers: Any
    ) -> Answer:
        """Send a request as `request` does, from a thread in which the broker does not run."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if document is not None:
            body, sent = json.dumps(document).encode(), {"Content-Type": "application/json", **sent}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request(method, target, body, sent)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    async def get(self, target: str, **headers: Any) -> Answer:
        return await self.request("GET", target, None, **headers)

    async def exchange(self, *parts: bytes, eof: bool = False) -> bytes:
        """Send bytes, perhaps with an end, and return everything that comes until the broker ends the connection."""
        with trio.fail_after(DEADLINE_S):
            stream = await trio.open_tcp_stream("127.0.0.1", self.port)
            async with stream:
                for part in parts:
                    await stream.send_all(part)
                if eof:
                    await stream.send_eof()
                return await read_all(stream)

    def kill(self) -> None:
        """End the broker; only for those of `open_webs`."""
        self.scope.cancel()

    async def is_alive(self) -> bool:
        return (await self.get("/topics")).status == 200


async def outcome(call: Awaitable[object]) -> object:
    """Return what a call returns, or the code of its error."""
    try:
        return await call
    except WebError as error:
        return error.code


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    """Return everything that comes until the connection ends, also if it is reset."""
    received = b""
    try:
        while data := await stream.receive_some():
            received += data
    except trio.BrokenResourceError:
        pass
    return received


@asynccontextmanager
async def open_web(storage: str = "memory:", config: Config | None = None) -> AsyncIterator[RunningWeb]:
    """Run a tower and a broker that listens to HTTP and to clients of Kafka during the block."""
    async with open_cluster(config, storage=None) as cluster, trio.open_nursery() as nursery:
        listening = cluster.config.with_store(storage=storage).with_kafka(listen="127.0.0.1:0")
        http_listen = listening.http.listen or "127.0.0.1:0"
        broker: ServingBroker = await nursery.start(serve_listeners, listening.with_http(listen=http_listen))
        yield RunningWeb(broker, cluster.config)
        nursery.cancel_scope.cancel()


@attrs.frozen
class SharedWeb(RunningWeb):
    """A broker in a thread of its own, for all tests of a module or more. They use topics with names of their own."""

    portal: BlockingPortal = attrs.field(kw_only=True)
    _token: trio.lowlevel.TrioToken = attrs.field(init=False)

    @_token.default
    def _find_token(self) -> trio.lowlevel.TrioToken:
        return self.portal.call(trio.lowlevel.current_trio_token)

    def call_sync(self, function: Callable[..., _T], *arguments: object) -> _T:
        """Call a function in the broker's thread; also from a test that has an event loop of its own."""
        done: Future[_T] = Future()
        self._token.run_sync_soon(lambda: done.set_result(function(*arguments)))
        return done.result(DEADLINE_S)

    def call(self, function: Callable[..., Awaitable[_T]], *arguments: object) -> _T:
        return self.portal.call(function, *arguments)

    def create(self, topic: str, log_count: int = 1, replica_count: int = 1, **settings: str) -> str:
        """Create a topic. Underscores in names of settings stand for dots."""
        document = {
            "name": topic,
            "log_count": log_count,
            "replica_count": replica_count,
            "settings": {name.replace("_", "."): value for name, value in settings.items()},
        }
        answer = self.ask("POST", "/topics", document=document)
        assert answer.status == 201, answer.body
        return topic


@contextmanager
def run_web(storage: str = "memory:", config: Config | None = None) -> Iterator[SharedWeb]:
    """Run a broker as `open_web` does, in a thread of its own."""
    with start_blocking_portal("trio") as portal, portal.wrap_async_context_manager(open_web(storage, config)) as web:
        yield SharedWeb(web.broker, web.config, portal=portal)


STEADY = Config().with_broker(leader_timeout_ms=20_000)
"""Brokers that take none of them for lost, also on a machine that stops for seconds."""


@asynccontextmanager
async def open_webs(count: int, config: Config = STEADY) -> AsyncIterator[list[RunningWeb]]:
    """Run a tower and several brokers that know each other during the block."""
    async with open_cluster(config, storage=None) as cluster, trio.open_nursery() as nursery:
        listening = cluster.config.with_store(storage="memory:").with_kafka(listen="127.0.0.1:0")
        listening = listening.with_http(listen=listening.http.listen or "127.0.0.1:0")
        webs = []
        for _ in range(count):
            scope = trio.CancelScope()
            broker: ServingBroker = await nursery.start(_serve_in_scope, scope, listening)
            webs.append(RunningWeb(broker, cluster.config, scope))
            listening = listening.with_broker(cluster=broker.node.cluster_id)
        with trio.fail_after(DEADLINE_S):
            while not all(_knows_all(web, count) for web in webs):  # noqa: ASYNC110 (nothing else tells)
                await trio.sleep(0.02)
        yield webs
        nursery.cancel_scope.cancel()


@contextmanager
def run_webs(count: int, config: Config = STEADY) -> Iterator[list[SharedWeb]]:
    """Run brokers as `open_webs` does, in a thread of their own."""
    with start_blocking_portal("trio") as portal, portal.wrap_async_context_manager(open_webs(count, config)) as webs:
        yield [SharedWeb(each.broker, each.config, each.scope, portal=portal) for each in webs]


async def _serve_in_scope(
    scope: trio.CancelScope, config: Config, *, task_status: trio.TaskStatus[ServingBroker]
) -> None:
    with scope:
        await serve_listeners(config, task_status=task_status)


def _knows_all(web: RunningWeb, count: int) -> bool:
    living = web.broker.node.brokers.living()
    return len(living) == count and all(each.http_url for each in living)


async def wait_answer(ask: Callable[[], Awaitable[Answer]], accept: Callable[[Any], bool]) -> Any:
    """Ask until an answer is accepted."""
    with trio.fail_after(DEADLINE_S):
        while True:
            answer = await ask()
            assert answer.status == 200, answer.body
            if accept(answer.document):
                return answer.document
            await trio.sleep(0.1)


async def publish_as_node(web: RunningWeb, topic: str, count: int) -> None:
    async with open_producer(topic, web.config) as producer:
        for number in range(count):
            await producer.send(f"record {number}".encode())
        with trio.fail_after(DEADLINE_S):
            await producer.wait_stored()


STORAGES = ["memory:", "sqlite:{}/broker.db", "filelog:{}/log"]


@asynccontextmanager
async def open_broker_service(storage: str = "memory:", config: Config | None = None) -> AsyncIterator[Broker]:
    """Run a tower, and a broker with its coordinators, during the block."""
    async with open_cluster(config, storage=None) as cluster:
        settings = cluster.config.with_store(storage=storage)
        async with open_broker(settings, ServerSecurity(settings.clients)) as broker:
            yield broker


# Two brokers, of which one forwards to the other. They are in clusters of their own, so that tests decide who leads


TOPIC = "orders"


class Leaderships:
    """Says which of two brokers leads each log of a topic that both have."""

    def __init__(self, *webs: RunningWeb) -> None:
        self.webs = webs
        self._moved = trio.Event()
        for web in webs:
            broker: Any = web.broker.node
            broker.replicator.led_logs.wait_leadership = self._wait
            for other_number, other in enumerate(webs):
                if other is not web:
                    own = other.broker.node.brokers.own
                    address = own.address
                    broker.brokers.record_registration(attrs.evolve(own, number=other_number))
                    broker.brokers.record_heartbeat(address, float("inf"))
            broker.brokers.check_alive(trio.current_time())

    async def _wait(self, _log: Log) -> None:
        await self._moved.wait()

    def lead(self, number: int, leader: RunningWeb | None, *, epoch: int = 1) -> None:
        """Let a broker lead a log. Nobody leads it if there is none."""
        address = "" if leader is None else leader.broker.node.address
        for web in self.webs:
            leadership = LeaderAndIsr(address, epoch, is_led=web is leader)
            log_of(web, number).leadership = leadership
            web.broker.node.watchers.notify(log_of(web, number))
        self._moved.set()
        self._moved = trio.Event()


def log_of(web: RunningWeb, number: int = 0) -> Log:
    return web.broker.node.log_table.logs(TOPIC)[number]


@attrs.frozen
class Pair:
    """Clients connect to the first broker. The second one leads all logs of the topic at first."""

    first: RunningWeb
    second: RunningWeb
    leaderships: Leaderships

    def lead(self, number: int, leader: RunningWeb | None) -> None:
        self.leaderships.lead(number, leader)


@asynccontextmanager
async def open_pair(
    log_count: int = 1, config: Config | None = None, *, stay_alive: bool = True
) -> AsyncIterator[Pair]:
    """Run two brokers. They send each other no heartbeats, so that they stay alive only with a long timeout."""
    config = config or Config()
    if stay_alive:
        config = config.with_broker(leader_timeout_ms=3_600_000)
    async with open_web(config=config) as first, open_web(config=config) as second:
        for web in (first, second):
            await web.broker.node.admin.create_topic(TOPIC, log_count)
        pair = Pair(first, second, Leaderships(first, second))
        for number in range(log_count):
            pair.lead(number, second)
        yield pair


def make_log(number: int = 0, leader: str = "a" * 32, *, topic: str = TOPIC, is_led: bool | None = None) -> Log:
    """Return a log that this broker, the first one, leads, or another one."""
    place = Partition(topic, "a" * 32)
    log = Log(topic, number, place, place)
    log.leadership = LeaderAndIsr(leader, 1, is_led=leader == place.address if is_led is None else is_led)
    return log
