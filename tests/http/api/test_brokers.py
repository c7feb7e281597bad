"""Several brokers as operators see them: who leads and keeps which log, leader epochs, and draining."""

from __future__ import annotations

import json
from typing import Any

import trio

from dafka import Config
from tests.http.running import DEADLINE_S, RunningWeb, open_webs
from tests.http.websocket.clients import open_client

FAST = Config().with_broker(heartbeat_ms=50, leader_timeout_ms=4000)


async def create(webs: list[RunningWeb], topic: str, log_count: int, **fields: Any) -> None:
    """Create a topic, and wait until all brokers know who leads its logs."""
    document = {"name": topic, "log_count": log_count, **fields}
    answer = await webs[0].request("POST", "/topics", document=document)
    assert answer.status == 201, answer.body
    with trio.fail_after(DEADLINE_S):
        for web in webs:
            broker = web.broker.node
            for number in range(log_count):
                while (log := broker.find_log(topic, number)) is None or not log.leadership.leader:  # noqa: ASYNC110
                    await trio.sleep(0.02)


def number_of(web: RunningWeb) -> int:
    return web.broker.node.brokers.own.number


async def test_every_broker_lists_all_of_them() -> None:
    async with open_webs(3, FAST) as webs:
        await create(webs, "orders", 6)
        lists = [(await web.get("/brokers")).document["brokers"] for web in webs]
        for web, found in zip(webs, lists, strict=True):
            assert [each["number"] for each in found] == [0, 1, 2]
            assert [each["number"] for each in found if each["is_self"]] == [number_of(web)]
            assert {each["http_url"] for each in found} == {other.broker.url for other in webs}
            assert all(each["is_alive"] and not each["is_draining"] for each in found)
        assert {tuple(each["logs_led"] for each in found) for found in lists} == {
            tuple(each["logs_led"] for each in lists[0])
        }


async def test_topic_is_described_alike_by_all_brokers() -> None:
    async with open_webs(3, FAST) as webs:
        await create(webs, "orders", 4)
        for number in range(4):
            answer = await webs[0].request("POST", f"/topics/orders/records?log={number}", b"x" * (number + 1))
            assert answer.status == 200, answer.body
        described = [(await web.get("/topics/orders")).document["logs"] for web in webs]
        for logs in described:
            assert [each["end_offset"] for each in logs] == [1, 1, 1, 1]
            assert all(sorted(each["replicas"]) == [0, 1, 2] for each in logs)
            assert all(each["leader"] in each["in_sync"] for each in logs)
        assert [each["leader"] for each in described[0]] == [each["leader"] for each in described[1]]
        for web in webs:
            (listed,) = (await web.get("/topics")).document["topics"]
            assert (listed["record_count"], listed["end_offset"]) == (4, 4)


async def test_fewer_replicas_than_brokers() -> None:
    async with open_webs(3, FAST) as webs:
        await create(webs, "orders", 3, replica_count=1)
        logs = (await webs[1].get("/topics/orders")).document["logs"]
        assert [each["replicas"] for each in logs] == [[each["leader"]] for each in logs]
        for number in range(3):
            target = f"/topics/orders/records?log={number}"
            assert (await webs[2].request("POST", target, b"v")).status == 200
            (line,) = (await webs[0].get(target)).body.splitlines()
            assert json.loads(line)["value"] == "v"


async def test_first_epoch_begins_with_the_first_leader() -> None:
    async with open_webs(2, FAST) as webs:
        await create(webs, "orders", 2)
        await webs[0].request("POST", "/topics/orders/records?log=0", b"v")
        found = [(await web.get("/topics/orders/epochs")).document["logs"] for web in webs]
        assert found[0] == found[1]
        (epoch,) = found[0][0]["epochs"]
        assert (epoch["epoch"], epoch["start_offset"], epoch["parent_epoch"]) == (0, 0, None)
        assert epoch["flags"] == ["first", "latest"]
        assert sorted(epoch["replicas"]) == [0, 1]


async def test_any_broker_drains_any_other_one() -> None:
    async with open_webs(2, FAST) as webs:
        for number in (0, 1):
            answer = await webs[0].request("POST", f"/brokers/{number}/drain")
            assert (answer.status, answer.document["is_draining"]) == (200, True), answer.body
            drained = next(web for web in webs if number_of(web) == number)
            assert drained.broker.node.brokers.own.is_draining
            answer = await webs[0].request("POST", f"/brokers/{number}/undrain")
            assert not drained.broker.node.brokers.own.is_draining
        answer = await webs[0].request("POST", "/brokers/7/drain")
        assert (answer.status, answer.code) == (404, "broker_not_found")
        assert "the cluster has 0, 1" in answer.document["error"]["message"]


async def moves(web: RunningWeb, topic: str) -> list[dict[str, Any]]:
    """Return the logs of a topic that are getting other replicas."""
    return [each for each in (await web.get("/moves")).document["moves"] if each["topic"] == topic]


async def test_logs_that_move_are_listed_with_the_reason() -> None:
    async with open_webs(3, FAST) as webs:
        await create(webs, "orders", 1, replica_count=1)
        assert not await moves(webs[0], "orders")
        address = webs[0].broker.node.logs("orders")[0].leadership.leader
        kept = next(number_of(web) for web in webs if web.broker.node.address == address)
        wanted = next(number_of(web) for web in webs if number_of(web) != kept)
        answer = await webs[0].request("PUT", "/topics/orders/logs/0/replicas", document={"replicas": [wanted]})
        assert answer.status < 300
        (move,) = await moves(webs[0], "orders")
        assert move["log"] == 0
        assert move["reason"] == "an operator has named the brokers that keep it"
        with trio.fail_after(DEADLINE_S):
            while await moves(webs[0], "orders"):  # noqa: ASYNC110
                await trio.sleep(0.1)
        assert webs[0].broker.node.logs("orders")[0].leadership.replicas != (address,)


async def test_streams_go_on_when_the_leader_dies() -> None:
    config = FAST.with_broker(leader_timeout_ms=500, replicas=3)
    async with open_webs(3, config) as webs:
        await create(webs, "orders", 1)
        leader = next(web for web in webs if web.broker.node.logs("orders")[0].leadership.is_led)
        others = [web for web in webs if web is not leader]
        async with open_client(others[0]) as subscriber, open_client(others[1]) as publisher:
            producer = await publisher.ask("init_producer")
            ids = {each: producer[each] for each in ("producer_id", "producer_epoch")}
            await subscriber.subscribe("orders")
            await publisher.publish("orders", "a", **ids, base_sequence=0)
            assert await subscriber.values(1) == ["a"]
            leader.kill()
            found = await publisher.publish("orders", "b", **ids, base_sequence=1)
            assert found == [{"log": 0, "offset": 1, "count": 1}]
            assert await subscriber.values(1) == ["b"]
