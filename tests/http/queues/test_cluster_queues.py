"""Queues of a cluster: each broker serves all logs, for clients of HTTP, WebSocket and Kafka."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from functools import partial

import pytest
import trio
from confluent_kafka import AcknowledgeType, ShareConsumer

from tests.http.queues.clients import Consumer
from tests.http.queues.cluster import BROKERS, LOGS, spread, webs
from tests.http.running import DEADLINE_S, SharedWeb
from tests.http.websocket.clients import BINARY, JSON, open_client

__all__ = ["webs"]


def test_every_broker_serves_all_logs(webs: list[SharedWeb]) -> None:
    queue, left = spread(webs), {(log, offset) for log in range(LOGS) for offset in range(8)}
    for log in range(LOGS):
        queue.publish(*"abcdefgh", log=log)
    while left:
        web, other = webs[len(left) % BROKERS], webs[(len(left) + 1) % BROKERS]
        receipt, found = queue.at(web).receive(4, wait_ms=60_000)
        taken = {(each["log"], each["offset"]) for each in found}
        assert taken <= left
        left -= taken
        said = [{"log": log, "offset": offset, "type": "accept"} for log, offset in sorted(taken)]
        acknowledge = partial(
            other.ask, "POST", f"{queue.path}/acknowledge", document={"receipt": receipt, "acknowledgements": said}
        )
        refused = acknowledge().document["refused"]
        assert refused == []
        again = acknowledge().document["refused"]
        assert {(each["log"], n) for each in again for n in range(each["offset"], each["last"] + 1)} == taken
        assert {each["code"] for each in again} == {"lock_lost"}
    for web in webs:
        queue.at(web).wait_state(0, 0)


def test_every_broker_reaches_the_coordinator_of_a_group_and_the_leaders_of_logs(webs: list[SharedWeb]) -> None:
    queue = spread(webs)
    for log in range(LOGS):
        queue.publish("a", "b", log=log)
    for number, web in enumerate(webs):
        own = f"/topics/{queue.topic}/queues/own-{number}"
        assert web.ask("PUT", own, document={"from": "earliest"}).status == 200
        assert web.ask("POST", f"{own}/receive", document={"wait_ms": 60_000}).document["records"]
        committed = web.ask("PUT", f"/groups/read-{number}/offsets", document={"topic": queue.topic, "to": "latest"})
        assert (committed.status, committed.document["lag"]) == (200, 0), committed.body


@pytest.mark.parametrize("subprotocol", [JSON, BINARY])
async def test_a_socket_that_closes_releases_the_records_of_all_leaders(
    webs: list[SharedWeb], subprotocol: str
) -> None:
    queue = await trio.to_thread.run_sync(spread, webs)
    with trio.fail_after(DEADLINE_S):
        async with open_client(webs[0], subprotocol) as client:
            one = await Consumer(client, queue).consume(10)
            for number in range(LOGS):
                await trio.to_thread.run_sync(partial(queue.publish, "a", "b", log=number))
            await one.take(2 * LOGS)
        found = Counter[int]()
        while found.total() < 2 * LOGS:
            _, records = await trio.to_thread.run_sync(partial(queue.at(webs[1]).receive, wait_ms=5000))
            found.update(each["log"] for each in records)
            assert all(each["delivery_count"] == 2 for each in records)
    assert found == dict.fromkeys(range(LOGS), 2)


def test_members_of_kafka_and_clients_of_http_share_the_records(webs: list[SharedWeb]) -> None:
    queue = spread(webs)
    name, values = queue.name, {str(number) for number in range(120)}
    settings = {
        "bootstrap.servers": webs[0].broker.bootstrap_servers,
        "group.id": name,
        "share.acknowledgement.mode": "explicit",
    }
    by_kafka, by_http = list[str](), list[str]()
    with closing(ShareConsumer(settings)) as consumer:
        consumer.subscribe([queue.topic])

        def poll() -> None:
            for message in consumer.poll(timeout=0.2):
                assert message.error() is None
                by_kafka.append(message.value().decode())
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            assert set(consumer.commit_sync(DEADLINE_S).values()) <= {None}

        while not webs[0].ask("GET", f"/groups/{name}").document["members"]:
            poll()
        for value in sorted(values):
            queue.publish(value, log=int(value) % LOGS)
            if int(value) % 10 == 0:
                receipt, found = queue.at(webs[1]).receive(3)
                by_http += [each["value"] for each in found]
                assert queue.acknowledge(receipt, others="accept") == []
                poll()
        while len(by_kafka) + len(by_http) < len(values):
            poll()
    assert sorted(by_kafka + by_http) == sorted(values)
    assert by_kafka
    assert by_http
