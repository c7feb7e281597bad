"""Clients that have used more than their quota are told for how long they must wait, and are not read meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dafka.batches import encode_batch
from dafka.broker.core.client_quotas import QuotaKey
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.door import of_logs
from tests.kafka.server.memory_client import connect

RATE = 100.0
"""Bytes per second, of which ten seconds can be saved up."""

BIG = encode_batch(0, [bytes(3000)], timestamps=1)


def produce(acks: int = 1) -> dict[str, Any]:
    return of_logs(ApiKey.PRODUCE, {("t", 0): {"records": BIG}}, acks=acks)


@pytest.mark.parametrize("version", [0, 3, 9])
async def test_a_producer_waits_for_what_it_has_sent(autojump_clock: MockClock, version: int) -> None:
    async with connect() as client:
        client.limit(QuotaKey.PRODUCER_BYTE_RATE, RATE)
        size = await client.send(ApiKey.PRODUCE, version, **produce())
        answer, _ = await client.receive(ApiKey.PRODUCE, version)
        wait_s = (size - 10 * RATE) / RATE
        assert trio.current_time() == 0, "the response comes at once"
        assert answer["throttle_time_ms"] == (round(wait_s * 1000) if version else 0)
        await client.ask(ApiKey.API_VERSIONS, 0)
        assert trio.current_time() == pytest.approx(wait_s)
        assert client.cluster.listener.counters.throttled == {QuotaKey.PRODUCER_BYTE_RATE.value: 1}


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-9])
@pytest.mark.parametrize("api", [ApiKey.PRODUCE, ApiKey.FETCH])
async def test_a_tiny_quota_has_clients_wait_until_it_changes(
    autojump_clock: MockClock, rate: float, api: ApiKey
) -> None:
    key = QuotaKey.PRODUCER_BYTE_RATE if api is ApiKey.PRODUCE else QuotaKey.CONSUMER_BYTE_RATE
    async with connect() as client:
        client.limit(key, rate)
        asked = produce() if api is ApiKey.PRODUCE else of_logs(api, {("t", 0): {}})
        assert (await client.ask(api, 7, **asked))["throttle_time_ms"] == 2**31 - 1
        await client.send(ApiKey.API_VERSIONS, 0)
        with trio.move_on_after(1000) as scope:
            await client.receive(ApiKey.API_VERSIONS, 0)
        assert scope.cancelled_caught
        client.limit(key, 1e9)
        with trio.fail_after(2):
            await client.receive(ApiKey.API_VERSIONS, 0)


async def test_a_producer_without_answers_waits_too(autojump_clock: MockClock) -> None:
    async with connect() as client:
        client.limit(QuotaKey.PRODUCER_BYTE_RATE, RATE)
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
