"""Clients that have used more than their quota are told for how long they must wait, and are not read meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from dafka.batches import encode_batch
from dafka.broker.connections.tcp_server import Stopping
from dafka.broker.core.client_quotas import EntityType, QuotaKey, make_entity
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import AlterClientQuota
from dafka.kafka.protocol.apis import REQUESTS, RESPONSES
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import FrameSplitter, decode_response, encode_request
from dafka.kafka.server.connection import Connection
from tests.kafka.apis.door import build, of_logs, plain
from tests.kafka.apis.fake_cluster import ENDPOINT, FakeCluster

RATE = 100.0
"""Bytes per second, of which ten seconds can be saved up."""

BIG = encode_batch(0, [bytes(3000)], timestamps=1)


class ThrottledClient:
    """A client, whose connection is in memory, of a broker that exists in its tables only."""

    def __init__(self, cluster: FakeCluster, stream: trio.abc.Stream) -> None:
        self.cluster = cluster
        self.stopping = Stopping()
        self.accepted: Any = SimpleNamespace(
            stream=None, host="10.0.0.1", is_local=True, mark_served=lambda: None, has_closed=False, sent_at=0.0
        )
        self._stream = stream
        self._splitter = FrameSplitter()
        self._frames: list[bytes] = []

    def limit(self, key: QuotaKey, rate: float = RATE) -> None:
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
            assert data, "the broker has closed the connection"
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
async def connect() -> AsyncIterator[ThrottledClient]:
    cluster = FakeCluster()

    async def append(_: bool) -> int:
        await trio.lowlevel.checkpoint()
        return 7

    cluster.broker.appended = append
    ours, theirs = memory_stream_pair()
    client = ThrottledClient(cluster, ours)
    client.accepted.stream = theirs
    broker: Any = cluster.listener.broker
    settings = SimpleNamespace(login_ms=1000)
    broker.security = SimpleNamespace(users=None, tls=None, encrypt=lambda stream: stream, settings=settings)
    broker.stopping = client.stopping
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Connection(cast(Any, client.accepted), cluster.listener, ENDPOINT).run)
        yield client
        await client.close()


def produce(acks: int = 1) -> dict[str, Any]:
    return of_logs(ApiKey.PRODUCE, {("t", 0): {"records": BIG}}, acks=acks)


@pytest.mark.parametrize("version", [0, 3, 9])
async def test_a_producer_waits_for_what_it_has_sent(autojump_clock: MockClock, version: int) -> None:
    async with connect() as client:
        client.limit(QuotaKey.PRODUCER_BYTE_RATE)
        size = await client.send(ApiKey.PRODUCE, version, **produce())
        answer, _ = await client.receive(ApiKey.PRODUCE, version)
        wait_s = (size - 10 * RATE) / RATE
        assert trio.current_time() == 0, "the response comes at once"
        assert answer["throttle_time_ms"] == (round(wait_s * 1000) if version else 0)
        await client.ask(ApiKey.API_VERSIONS, 0)
        assert trio.current_time() == pytest.approx(wait_s)
        assert client.cluster.listener.counters.throttled == {QuotaKey.PRODUCER_BYTE_RATE.value: 1}


async def test_a_producer_without_answers_waits_too(autojump_clock: MockClock) -> None:
    async with connect() as client:
        client.limit(QuotaKey.PRODUCER_BYTE_RATE)
        sizes = [await client.send(ApiKey.PRODUCE, 7, **produce(acks=0)) for _ in range(3)]
        await client.ask(ApiKey.API_VERSIONS, 0)
        assert trio.current_time() == pytest.approx((sum(sizes) - 10 * RATE) / RATE)


async def test_a_consumer_waits_for_what_it_has_got(autojump_clock: MockClock) -> None:
    async with connect() as client:
        client.limit(QuotaKey.CONSUMER_BYTE_RATE, 2.0)
        asked = of_logs(ApiKey.FETCH, {("t", 0): {}})
        await client.send(ApiKey.FETCH, 11, **asked)
        answer, size = await client.receive(ApiKey.FETCH, 11)
        assert answer["responses"][0]["partitions"][0]["records"], "records are not held back"
        wait_s = (size - 20) / 2
        assert answer["throttle_time_ms"] == round(wait_s * 1000) > 0
        await client.ask(ApiKey.PRODUCE, 7, **produce())
        assert trio.current_time() == pytest.approx(wait_s), "what others may use is not metered"


async def test_clients_wait_only_for_their_own_quota(autojump_clock: MockClock) -> None:
    async with connect() as client:
        for key in (QuotaKey.CONSUMER_BYTE_RATE, QuotaKey.CONTROLLER_MUTATION_RATE):
            client.limit(key, 0.001)
        for _ in range(3):
            assert (await client.ask(ApiKey.PRODUCE, 7, **produce()))["throttle_time_ms"] == 0
        assert trio.current_time() == 0
        assert not client.cluster.listener.counters.throttled


async def test_who_leaves_or_is_stopped_is_not_waited_for(autojump_clock: MockClock) -> None:
    for is_stopped in (False, True):
        begun = trio.current_time()
        async with connect() as client:
            client.limit(QuotaKey.PRODUCER_BYTE_RATE, 0.001)
            answer = await client.ask(ApiKey.PRODUCE, 7, **produce())
            assert answer["throttle_time_ms"] == 2**31 - 1
            if is_stopped:
                client.stopping.begin()
        assert trio.current_time() <= begun + 1


CREATED = {"num_partitions": 15, "replication_factor": 1, "assignments": [], "configs": []}


async def test_who_changes_too_much_is_refused_until_the_time_has_passed(autojump_clock: MockClock) -> None:
    async with connect() as client:
        client.limit(QuotaKey.CONTROLLER_MUTATION_RATE, 1.0)

        async def create(name: str, version: int = 7, **others: Any) -> tuple[int, int]:
            topics = [{"name": name, **CREATED}]
            answer = await client.ask(ApiKey.CREATE_TOPICS, version, topics=topics, **others)
            return answer["topics"][0]["error_code"], answer["throttle_time_ms"]

        assert await create("tried", validate_only=True) == (0, 0)
        assert await create("a") == (0, 5000)
        # The broker reads nothing meanwhile, so only another connection could ask before; it is refused.
        client.cluster.listener.quota_meter.spend(QuotaKey.CONTROLLER_MUTATION_RATE, "", "", 10, trio.current_time())
        assert await create("b") == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 10_000)
        partitions = [{"name": "a", "count": 16, "assignments": None}]
        answer = await client.ask(ApiKey.CREATE_PARTITIONS, 3, topics=partitions, timeout_ms=1000, validate_only=False)
        assert (answer["results"][0]["error_code"], answer["throttle_time_ms"]) == (0, 1000)
        assert await create("c", version=5) == (0, 15_000)
        names = [each[0] for each in client.cluster.broker.created]
        assert names == ["a", "c"]
