"""Several brokers as operators see them: who leads and keeps which log, leader epochs, moves, and draining."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from dafka import Config
from tests.http.running import RunningWeb, SharedWeb, open_webs, run_webs
from tests.http.websocket.clients import open_client
from tests.waiting import poll_until, wait_until

FAST = Config().with_broker(heartbeat_ms=50, leader_timeout_ms=4000, rack="r")
"""In racks, clients also read logs that another broker leads: each log counts once all the same."""


@pytest.fixture(scope="module")
def webs() -> Iterator[Sequence[SharedWeb]]:
    with run_webs(3, FAST) as running:
        yield running


def know_leaders(webs: Sequence[RunningWeb], topic: str, log_count: int) -> bool:
    """Return whether all brokers know who leads each log of a topic."""
    logs = [web.broker.node.find_log(topic, number) for web in webs for number in range(log_count)]
    return all(log is not None and log.leadership.leader for log in logs)


async def create(webs: Sequence[RunningWeb], topic: str, log_count: int) -> None:
    """Create a topic, and wait until all brokers know who leads its logs."""
    answer = await webs[0].request("POST", "/topics", document={"name": topic, "log_count": log_count})
    assert answer.status == 201, answer.body
    await wait_until(lambda: know_leaders(webs, topic, log_count))


def create_shared(webs: Sequence[SharedWeb], topic: str, log_count: int, replica_count: int = 3) -> None:
    """Create a topic at brokers in a thread, as `create` does."""
    webs[0].create(topic, log_count, replica_count)
    poll_until(lambda: know_leaders(webs, topic, log_count))


def number_of(web: RunningWeb) -> int:
    return web.broker.node.brokers.own.number


def test_every_broker_says_the_same(webs: Sequence[SharedWeb]) -> None:
    create_shared(webs, "orders", 4)
    for number in range(4):
        answer = webs[0].ask("POST", f"/topics/orders/records?log={number}", b"x" * (number + 1))
        assert answer.status == 200, answer.body
    logs_here = [log for web in webs for log in web.broker.node.logs("orders")]
    poll_until(lambda: all(log.high_watermark == 1 for log in logs_here))
    described = [web.ask("GET", "/topics/orders").document["logs"] for web in webs]
    for web, logs in zip(webs, described, strict=True):
        assert [each["end_offset"] for each in logs] == [1, 1, 1, 1]
        assert all(sorted(each["replicas"]) == [0, 1, 2] for each in logs)
        assert all(each["leader"] in each["in_sync"] for each in logs)
        assert [each["leader"] for each in logs] == [each["leader"] for each in described[0]]
        (listed,) = web.ask("GET", "/topics?prefix=orders").document["topics"]
        assert (listed["record_count"], listed["end_offset"]) == (4, 4)
        brokers = web.ask("GET", "/brokers").document["brokers"]
        assert [each["number"] for each in brokers] == [0, 1, 2]
        assert [each["number"] for each in brokers if each["is_self"]] == [number_of(web)]
        assert {each["http_url"] for each in brokers} == {other.broker.url for other in webs}
        assert all(each["is_alive"] and not each["is_draining"] for each in brokers)
    epochs = [web.ask("GET", "/topics/orders/epochs").document["logs"] for web in webs]
    assert epochs[0] == epochs[1] == epochs[2]
    (epoch,) = epochs[0][0]["epochs"]
    assert (epoch["epoch"], epoch["start_offset"], epoch["parent_epoch"]) == (0, 0, None)
    assert (epoch["flags"], sorted(epoch["replicas"])) == (["first", "latest"], [0, 1, 2])


def test_any_broker_drains_any_other_one(webs: Sequence[SharedWeb]) -> None:
    for web in webs:
        own = web.broker.node.brokers
        for action, is_draining in (("drain", True), ("undrain", False)):
            answer = webs[0].ask("POST", f"/brokers/{number_of(web)}/{action}")
            assert answer.status == 200
            assert answer.document["is_draining"] == own.own.is_draining == is_draining
    answer = webs[0].ask("POST", "/brokers/7/drain")
    assert (answer.status, answer.code) == (404, "broker_not_found")
    assert "the cluster has 0, 1, 2" in answer.document["error"]["message"]


def moves(web: SharedWeb, topic: str) -> list[dict[str, Any]]:
    """Return the logs of a topic that are getting other replicas."""
    return [each for each in web.ask("GET", "/moves").document["moves"] if each["topic"] == topic]


def test_logs_that_move_are_listed_with_the_reason(webs: Sequence[SharedWeb]) -> None:
    create_shared(webs, "moving", 1, replica_count=1)
    assert webs[2].ask("POST", "/topics/moving/records", b"v").status == 200
    assert not moves(webs[0], "moving")
    (log,) = webs[0].ask("GET", "/topics/moving").document["logs"]
    assert log["replicas"] == [log["leader"]]
    wanted = (log["leader"] + 1) % 3
    answer = webs[0].ask("PUT", "/topics/moving/logs/0/replicas", document={"replicas": [wanted]})
    assert answer.status < 300
    (move,) = moves(webs[0], "moving")
    assert (move["log"], move["reason"]) == (0, "an operator has named the brokers that keep it")
    poll_until(lambda: not moves(webs[0], "moving"))
    poll_until(lambda: webs[0].ask("GET", "/topics/moving").document["logs"][0]["replicas"] == [wanted])
    for web in webs:
        assert web.ask("GET", "/topics/moving/records").document["value"] == "v"


async def test_streams_go_on_when_the_leader_dies() -> None:
    async with open_webs(3, FAST.with_broker(leader_timeout_ms=500, replicas=3)) as webs:
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
