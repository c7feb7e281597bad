"""Brokers whose processes were stopped, and go on after others have begun to lead, and have changed the topics."""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
import trio
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.cluster.brokers import (
    READY_S,
    SILENT,
    BrokerNode,
    ProcessCluster,
    find_leaders,
    open_cluster,
    topic_ids,
)
from tests.broker.cluster.waiting_requests import WaitingRequests

pytestmark = [
    pytest.mark.long,  # `tests/kafka/apis/test_leaders.py` has the answers of a leader without a lease
    pytest.mark.skipif(sys.platform != "linux", reason="needs SIGSTOP"),
    pytest.mark.trio,
    pytest.mark.timeout(300),
]

TOPIC, LOGS = "orders", 2
LEADER_TIMEOUT_MS = 4000
GROUPS = [f"group-{number}" for number in range(6)]
BEFORE, AFTER = 5, 10
LIST_OFFSETS, FETCH, OFFSET_FETCH = (2, 5), (1, 4), (9, 5)
COPIES = 20
"""How often each question is asked at the moment at which the process goes on."""


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def one(head: bytes, rest: bytes) -> bytes:
    """Return an array with one item."""
    return struct.pack(">i", 1) + head + rest


class Questions:
    """Requests that were sent to a broker, whose answers are read later."""

    def __init__(self, broker: BrokerNode) -> None:
        host, port = broker.servers.rsplit(":", 1)
        self.kafka = socket.create_connection((host, int(port)), 60)
        self.http = WaitingRequests(broker, COPIES)
        self.asked: list[tuple[int, int]] = []

    def ask(self) -> None:
        """Send all of them."""
        log = struct.pack(">i", 1) + struct.pack(">iiq", 0, -1, -1)
        offsets = struct.pack(">ib", -1, 0) + one(text(TOPIC), log)
        wanted = struct.pack(">i", 1) + struct.pack(">iqi", 0, BEFORE, 2**20)
        fetch = struct.pack(">iiiib", -1, 0, 0, 2**20, 0) + one(text(TOPIC), wanted)
        places = one(text(TOPIC), struct.pack(">ii", 1, 0))
        for _ in range(COPIES):
            self._send(LIST_OFFSETS, offsets)
            self._send(FETCH, fetch)
            for group in GROUPS:
                self._send(OFFSET_FETCH, text(group) + places)
            self.http.send("GET", f"/topics/{TOPIC}/offsets")

    def _send(self, api: tuple[int, int], body: bytes) -> None:
        request = struct.pack(">hhi", *api, len(self.asked)) + text("test") + body
        self.kafka.sendall(struct.pack(">i", len(request)) + request)
        self.asked.append(api)

    def answers(self) -> list[str]:
        """Return what is stale of the answers."""
        found = []
        with self.kafka.makefile("rb") as stream:
            for api in self.asked:
                (size,) = struct.unpack(">i", stream.read(4))
                if problem := _check(api, stream.read(size)[4:]):
                    found.append(problem)
        for status, body in self.http.answers():
            assert status in {200, 503}, body
            if status == 200 and (end := _http_end(body)) < AFTER:
                found.append(f"HTTP has the end {end}")
        return found

    def close(self) -> None:
        self.kafka.close()
        self.http.close()


def _http_end(body: bytes) -> int:
    return int(json.loads(body)["offsets"][0]["end_offset"])


def _check(api: tuple[int, int], body: bytes) -> str | None:
    """Return what is stale of an answer; None if nothing is. Errors, after which clients try again, are not."""
    at = 4 + 4 + 2 + len(TOPIC) + 4
    if api == LIST_OFFSETS:
        _, error, _, offset, _ = struct.unpack_from(">ihqqi", body, at)
        return f"ListOffsets has the end {offset}" if not error and offset < AFTER else None
    if api == FETCH:
        _, error, high_watermark, _, _, size = struct.unpack_from(">ihqqii", body, at)
        is_stale = not error and size <= 0 and high_watermark < AFTER
        return f"Fetch has nothing behind {BEFORE}, and the high watermark {high_watermark}" if is_stale else None
    _, offset, _, length = struct.unpack_from(">iqih", body, at)
    (error,) = struct.unpack_from(">h", body, at + 18 + max(length, 0))
    (whole,) = struct.unpack_from(">h", body, len(body) - 2)
    return f"OffsetFetch has {offset}" if not error and not whole and offset < AFTER else None


def produce(servers: str, first: int, end: int) -> None:
    """Append records, and commit their end for all groups."""
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 0})
    for number in range(first, end):
        producer.produce(TOPIC, b"%d" % number)
    assert producer.flush(60) == 0
    for group in GROUPS:
        # By default, a client asks for another coordinator after ten minutes, as a stopped one accepts connections.
        asking = {"coordinator.query.interval.ms": 500}
        consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0, **asking})
        deadline = time.monotonic() + READY_S
        while True:
            try:
                consumer.commit(offsets=[TopicPartition(TOPIC, 0, end)], asynchronous=False)
                break
            except KafkaException:  # the coordinator is changing
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        consumer.close()


async def find_leader(cluster: ProcessCluster, servers: str, besides: int = -1) -> BrokerNode:
    def is_led() -> bool:
        return find_leaders(servers, TOPIC).get(0, besides) != besides

    await cluster.wait_until(is_led, "nobody else leads the log")
    number = (await trio.to_thread.run_sync(find_leaders, servers, TOPIC))[0]
    return next(each for each in cluster.brokers.values() if each.number == number)


async def check_leader(cluster: ProcessCluster) -> None:
    """A leader that was stopped gives no stale answer."""
    await cluster.create_topic(TOPIC, 1)
    await trio.to_thread.run_sync(produce, cluster.servers, 0, BEFORE)
    await cluster.wait_replicated()  # two replicas cannot do without one of them
    leader = await find_leader(cluster, cluster.servers)
    others = ",".join(each.servers for each in cluster.brokers.values() if each is not leader)
    with closing(Questions(leader)) as questions:
        cluster.stop(leader)
        await find_leader(cluster, others, leader.number)
        await trio.to_thread.run_sync(produce, others, BEFORE, AFTER)
        questions.ask()
        cluster.go_on(leader)
        assert await trio.to_thread.run_sync(questions.answers) == []


async def check_topics(cluster: ProcessCluster) -> None:
    """A broker that was stopped changes the topics that exist now."""
    for name in ("visits", "trips"):
        await cluster.create_topic(name, LOGS)
    *others, stopped = cluster.brokers.values()
    servers = ",".join(each.servers for each in others)
    with closing(WaitingRequests(stopped, 4)) as requests:
        cluster.stop(stopped)
        await trio.to_thread.run_sync(recreate, servers, ["visits", "trips"], ["stock"])
        await trio.sleep(2 * LEADER_TIMEOUT_MS / 1000)  # heartbeats from before the stop are out of date
        requests.send("DELETE", "/topics/trips")
        requests.send("POST", "/topics", '{"name": "stock"}')
        requests.send("PATCH", "/topics/visits", '{"settings": {"retention.ms": "86400000"}}')
        requests.send("DELETE", "/topics/unknown")
        cluster.go_on(stopped)
        answers = await trio.to_thread.run_sync(requests.answers)
    assert [status for status, _ in answers] == [204, 409, 200, 404]
    expected = {name: each for name, each in topic_ids(servers).items() if name != "trips"}
    assert expected.keys() == {TOPIC, "visits", "stock"}
    await cluster.wait_until(
        lambda: all(topic_ids(each.servers) == expected for each in cluster.running()),
        f"not every broker has the topics {expected}",
    )
    assert {retention_ms(each, "visits") for each in cluster.running()} == {"86400000"}


async def test_brokers_that_were_stopped_go_on_with_what_is_true_now(tmp_path: Path) -> None:
    # A leader that gets no time on a busy machine would lose its lease again and again.
    broker, kafka = {"leader_timeout_ms": LEADER_TIMEOUT_MS}, {"auto_create_topics": "off"}
    async with open_cluster(tmp_path, 3, broker=broker, kafka=kafka) as cluster:
        await check_leader(cluster)
        await cluster.wait_members()
        await check_topics(cluster)


def retention_ms(broker: BrokerNode, topic: str) -> str:
    """Return how long a broker keeps the records of a topic."""
    with urllib.request.urlopen(f"{broker.url}/topics/{topic}", timeout=READY_S) as answer:
        settings = json.load(answer)["settings"]
    return str(next(each["value"] for each in settings if each["name"] == "retention.ms"))


def recreate(servers: str, again: list[str], new: list[str]) -> None:
    """Delete some topics, and make them again, and others."""
    admin = AdminClient({"bootstrap.servers": servers, **SILENT})
    for each in admin.delete_topics(again).values():
        each.result(READY_S)
    for each in admin.create_topics([NewTopic(name, LOGS, 2) for name in again + new]).values():
        each.result(READY_S)
