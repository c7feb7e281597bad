"""A broker stops while clients publish: each gets an answer to each of its records that is stored, and to no other."""

from __future__ import annotations

import json
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import TypeAlias

import pytest
import trio
import trio.testing
from websockets.exceptions import ConnectionClosed
from websockets.trio.client import connect

from dafka import Config
from dafka.batches import encode_batch
from dafka.kafka.protocol.apis import REQUESTS
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import FrameSplitter, decode_response, encode_request
from dafka.kafka.protocol.messages.connections import ApiVersionsRequest
from dafka.kafka.protocol.messages.logs import ProduceResponse
from tests.http.running import RunningWeb, open_web, read_all
from tests.http.websocket.clients import open_client
from tests.kafka.apis.door import build, of_logs
from tests.kafka.server.secured import Authority

TOPIC = "stopped"
DEADLINE_S = 60
PRODUCE_VERSION = 7
GOING_AWAY = 1001


class Requests:
    """The requests of one client, which sends them without waiting for the answers."""

    def __init__(self, name: str, web: RunningWeb, tls: ssl.SSLContext | None) -> None:
        self.answered: list[str] = []
        self.is_ended = False
        self.web = web
        self.tls = tls
        self._name = name
        self._sent: list[str] = []

    def next(self) -> tuple[int, str]:
        number = len(self._sent)
        self._sent.append(f"{self._name}-{number}")
        return number, self._sent[-1]

    def answer(self, number: int) -> None:
        self.answered.append(self._sent[number])

    async def connect(self, port: int) -> trio.abc.Stream:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        if self.tls is None:
            return stream
        return trio.SSLStream(stream, self.tls, server_hostname="localhost", https_compatible=True)

    async def send(self, stream: trio.abc.Stream, make: Callable[[int, str], bytes]) -> None:
        """Send requests until the broker ends the connection. Until then, the connection takes what is sent."""
        try:
            while not self.is_ended:
                await stream.send_all(make(*self.next()))
                await trio.lowlevel.checkpoint()
        except trio.BrokenResourceError as error:
            # Without a cause, TLS was ended, as will be received in a moment.
            if not self.is_ended and error.__cause__ is not None:
                raise


async def produce(requests: Requests) -> None:

    def make(number: int, value: str) -> bytes:
        batch = encode_batch(0, [value.encode()], timestamps=1000)
        request = build(REQUESTS[ApiKey.PRODUCE], of_logs(ApiKey.PRODUCE, {(TOPIC, 0): {"records": batch}}))
        return encode_request(request, PRODUCE_VERSION, number, "")

    async def receive() -> None:
        splitter, numbers = FrameSplitter(2**20), count()
        while received := await stream.receive_some():
            for frame in splitter.receive(received):
                answer = decode_response(bytes(frame), ProduceResponse, PRODUCE_VERSION)
                assert answer.responses[0].partition_responses[0].error_code == 0
                requests.answer(next(numbers))
        requests.is_ended = True

    host, port = requests.web.broker.bootstrap_servers.split(":")
    assert host == "127.0.0.1"
    async with await requests.connect(int(port)) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(requests.send, stream, make)
        await receive()
        nursery.cancel_scope.cancel()


async def post(requests: Requests) -> None:
    """Publish over HTTP. The answer before the end says that no other comes."""

    def make(_number: int, value: str) -> bytes:
        head = f"POST /topics/{TOPIC}/records?log=0 HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
        return f"{head}Content-Length: {len(value)}\r\n\r\n{value}".encode()

    async def receive() -> None:
        received, numbers = b"", count()
        while data := await stream.receive_some():
            received += data
            while b"\r\n\r\n" in received:
                head, _, rest = received.partition(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                if len(rest) < size:
                    break
                received = rest[size:]
                assert head.startswith(b"HTTP/1.1 200 "), head
                requests.answer(next(numbers))
        assert received == b""
        requests.is_ended = True

    async with await requests.connect(requests.web.port) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(requests.send, stream, make)
        await receive()
        nursery.cancel_scope.cancel()


async def publish(requests: Requests) -> None:
    stream = await requests.connect(requests.web.port)
    url = f"ws://localhost:{requests.web.port}/ws"
    async with connect(url, stream=stream, compression=None, proxy=None) as connection, trio.open_nursery() as nursery:

        async def send() -> None:
            try:
                while True:
                    number, value = requests.next()
                    message = {"type": "publish", "id": number, "topic": TOPIC, "log": 0, "records": [{"value": value}]}
                    await connection.send(json.dumps(message))
            except ConnectionClosed:
                pass

        nursery.start_soon(send)
        async for message in connection:
            answer = json.loads(message)
            if answer["type"] == "published":
                requests.answer(answer["id"])
        assert connection.close_code == GOING_AWAY


Door: TypeAlias = Callable[[Requests], Awaitable[None]]
DOORS: list[Door] = [produce, post, publish]


async def read_values(storage: str) -> Counter[str]:
    async with open_web(storage) as web:
        answer = await web.get(f"/topics/{TOPIC}/records?limit=1000000")
        return Counter(json.loads(line)["value"] for line in answer.body.splitlines())


@pytest.mark.parametrize(("seed", "is_encrypted"), [(0, False), (1, True)], ids=["plain", "tls"])
async def test_what_is_stored_is_answered_and_nothing_else(tmp_path: Path, seed: int, is_encrypted: bool) -> None:
    random, storage, config, tls = Random(seed), f"filelog:{tmp_path}/log", Config(), None
    if is_encrypted:
        authority = Authority(tmp_path)
        config = config.with_clients(tls_certificate=str(authority.issue("localhost")))
        tls = ssl.create_default_context(cafile=str(authority.path))
    clients: list[Requests] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery, open_web(storage, config) as web:
            await web.broker.node.admin.create_topic(TOPIC, 1)
            for door in DOORS:
                for _ in range(2):
                    clients.append(Requests(f"{door.__name__}-{len(clients)}", web, tls))
                    nursery.start_soon(door, clients[-1])
            while not all(each.answered for each in clients):  # noqa: ASYNC110 (nothing else tells)
                await trio.sleep(0.01)
            await trio.sleep(random.uniform(0, 0.1))
        stored = await read_values(storage)
    answered = Counter(value for each in clients for value in each.answered)
    assert answered == stored
    assert set(stored.values()) == {1}


async def test_waits_for_what_others_do_end_at_once(tmp_path: Path) -> None:
    """The broker would wait for ten minutes, if each request were to be answered."""
    config = Config().with_node(grace_ms=1_200_000).with_kafka(rebalance_delay_ms=600_000)
    fetch = of_logs(ApiKey.FETCH, {(TOPIC, 0): {}}, max_wait_ms=600_000)
    join = {
        "group_id": "group",
        "member_id": "",
        "session_timeout_ms": 60_000,
        "rebalance_timeout_ms": 600_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    target = f"/topics/{TOPIC}/records?wait_ms=60000&from=latest"
    streams = []
    with trio.fail_after(DEADLINE_S):
        async with open_web(f"filelog:{tmp_path}/log", config) as web, open_client(web) as client:
            await web.broker.node.admin.create_topic(TOPIC, 1)
            kafka = int(web.broker.bootstrap_servers.split(":")[1])
            for port, request in (
                (kafka, encode_request(build(REQUESTS[ApiKey.FETCH], fetch), 11, 0, "")),
                (kafka, encode_request(build(REQUESTS[ApiKey.JOIN_GROUP], join), 0, 0, "")),
                (web.port, f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()),
                (web.port, f"GET {target} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode()),
                (web.port, b"POST /topics/a/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\npart"),
            ):
                streams.append(await trio.open_tcp_stream("127.0.0.1", port))
                await streams[-1].send_all(request)
            await client.subscribe(TOPIC)
            await client.ask("watch", path="/topics", interval_ms=600_000)
            await trio.testing.wait_all_tasks_blocked(0.1)
            web.broker.broker.stopping.begin()
            for stream in streams:
                async with stream:
                    assert b"HTTP/1.1 4" not in await read_all(stream)
            with pytest.raises(ConnectionClosed):
                await client.receive()


async def test_clients_that_do_not_read_are_waited_for_until_the_grace_period_is_over() -> None:
    config = Config().with_node(grace_ms=400).with_kafka(send_ms=600_000)
    with trio.fail_after(DEADLINE_S):
        async with open_web("memory:", config) as web:
            port = int(web.broker.bootstrap_servers.split(":")[1])
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            asked = encode_request(ApiVersionsRequest(), 0, 1, "") * 1000
            is_full = False
            while not is_full:
                with trio.move_on_after(0.5) as scope:
                    await stream.send_all(asked)
                is_full = scope.cancelled_caught
        await stream.aclose()
