"""Queues over WebSocket: credit, acknowledgements, and sockets that close."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.queues.clients import Consumer, Queue, counts, read_deliveries
from tests.http.running import SharedWeb
from tests.http.websocket.clients import BINARY, JSON, open_client

TEXT_AND_BINARY = pytest.mark.parametrize("subprotocol", [JSON, BINARY])


@TEXT_AND_BINARY
async def test_records_are_pushed_while_there_is_credit_and_released_when_the_socket_closes(
    web: SharedWeb, subprotocol: str
) -> None:
    queue = Queue.make(web)
    async with open_client(web, subprotocol) as client, open_client(web, subprotocol) as other:
        one = await Consumer(client, queue).consume(2)
        await client.publish(queue.topic, *"abcde")
        assert [each["value"] for each in await one.take(2)] == ["a", "b"]
        two = await Consumer(other, queue).consume(10)
        assert counts(await two.take(3)) == {2: 1, 3: 1, 4: 1}
        assert await one.acknowledge((0, "accept"), (3, "accept")) == [(3, "lock_lost")]
        await client.send("credit", id=one.identifier, records=5)
        assert await two.acknowledge((2, "accept"), (3, "reject"), (4, "release")) == []
        # Both have credit; whoever gets the record has it for an hour, or until its socket closes.
        await client.connection.aclose()
        assert counts(await take_all(two, {1, 4})) in ({1: 2, 4: 2}, {1: 2, 4: 3})
        assert await two.acknowledge(others="accept") == []
    assert queue.receive()[1] == []


async def take_all(consumer: Consumer, offsets: set[int]) -> list[dict[str, Any]]:
    """Return deliveries, up to those of some offsets."""
    found, consumer.early = consumer.early, []
    while not offsets <= {each["offset"] for each in found}:
        found += read_deliveries(await consumer.client.receive(), consumer.identifier)
    return found


@TEXT_AND_BINARY
async def test_a_subscription_that_ends_releases_its_records(web: SharedWeb, subprotocol: str) -> None:
    queue = Queue.make(web)
    async with open_client(web, subprotocol) as client:
        await client.publish(queue.topic, *"abc")
        one = await Consumer(client, queue).consume(3)
        await one.take(3)
        assert await one.acknowledge((1, "accept")) == []
        await client.send("unsubscribe", id=one.identifier)
        await client.expect("unsubscribed", one.identifier)
        assert await one.acknowledge((0, "accept")) == [(0, "lock_lost")]
        receive = await client.send("receive", **one.named, records_max=5)
        found = read_deliveries(await client.receive(), receive)
        assert counts(found) == {0: 2, 2: 2}
        answer = await client.expect("received", receive)
        assert answer["record_count"] == 2
        one.receipt = answer["receipt"]
        assert await one.acknowledge(others="accept") == []
        described = await client.ask("describe_queue", **one.named)
        assert described["logs"] == [{"log": 0, "start_offset": 3, "available_count": 0, "locked_count": 0}]


async def test_a_client_waits_for_the_state_of_a_queue(web: SharedWeb) -> None:
    queue = Queue.make(web)
    async with open_client(web) as client:
        one = Consumer(client, queue)
        waiting = await client.send("describe_queue", **one.named, wait_ms=60_000)
        await client.publish(queue.topic, "a")
        (log,) = (await client.expect("described_queue", waiting))["logs"]
        assert log["available_count"] == 1


async def test_requests_of_a_socket_wait_while_many_others_are_not_answered(
    web: SharedWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dafka.http.websocket.session.UNANSWERED_MAX", 2)
    queue = Queue.make(web)
    async with open_client(web) as client:
        named = Consumer(client, queue).named
        for _ in range(3):
            assert (await client.ask("describe_queue", **named))["type"] == "described_queue"
            assert (await client.ask("describe_queue", **named, logs=[7]))["code"] == "log_not_found"
        waiting = {await client.send("describe_queue", **named, wait_ms=60_000) for _ in range(2)}
        last = await client.send("describe_queue", **named)
        await web.request("POST", f"/topics/{queue.topic}/records", b"a")
        answers = [await client.expect("described_queue") for _ in range(3)]
        assert {each["id"] for each in answers} == {*waiting, last}
        assert answers[0]["id"] in waiting, "the last one is executed when one of them is answered"


async def test_large_records_are_sent_whole(web: SharedWeb) -> None:
    queue = Queue.make(web)
    values = ["ä" * 300_000, "b" * 300_000]
    for value in values:
        web.ask("POST", f"/topics/{queue.topic}/records", value.encode())
    async with open_client(web) as client:
        one = await Consumer(client, queue).consume(1)
        assert [each["value"] for each in await one.take(1)] == values[:1]
        assert [each["value"] for each in queue.receive()[1]] == values[1:]


async def test_a_queue_that_is_deleted_ends_the_subscription(web: SharedWeb) -> None:
    queue = Queue.make(web)
    async with open_client(web) as client:
        one = await Consumer(client, queue).consume(1)
        assert (await web.request("DELETE", f"/groups/{one.named['queue']}")).status == 204
        error = await client.expect("error", one.identifier)
        assert error["code"] == "group_not_found"
        assert (await client.ask("consume", **one.named, credit=1))["code"] == "group_not_found"
