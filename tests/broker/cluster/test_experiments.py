"""Ten experiments with real brokers, none of which may lose, double or reveal a record, or change a topic.

They are in the order of the scenarios in `tests/broker/core/metadata/scenarios/`, which say more of each.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer, Producer, TopicPartition

from dafka.batches import encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from tests.broker.cluster.brokers import (
    READY_S,
    TOWER,
    BrokerNode,
    ProcessCluster,
    ask,
    find_leaders,
    find_replicas,
    list_topics,
    open_cluster,
)
from tests.broker.cluster.disks import DiskFaults, copy_folder
from tests.broker.cluster.network import find_obstacle, split
from tests.broker.cluster.traffic import IDEMPOTENT, QUICK, TOPIC, Traffic, read_settled
from tests.broker.cluster.workload import FEW_LOGS, PAID, Workload
from tests.kafka.apis.door import Client, of_logs

OBSTACLE = find_obstacle()
CUT_S = 5.0
"""Longer than brokers hear each other after the network is cut."""

LOG = ("orders", 0)
ASKED_AFTER = 300
"""Questions that the broker gets after it has continued."""

QUESTIONS: tuple[tuple[ApiKey, int, dict[str, Any]], ...] = (
    (ApiKey.LIST_OFFSETS, 4, of_logs(ApiKey.LIST_OFFSETS, {LOG: {"timestamp": -1, "current_leader_epoch": -1}})),
    (ApiKey.FETCH, 4, of_logs(ApiKey.FETCH, {LOG: {"fetch_offset": 1}}, max_bytes=10**6)),
    (ApiKey.METADATA, 4, {"topics": [{"name": "later"}], "allow_auto_topic_creation": False}),
)


needs_splits = pytest.mark.skipif(bool(OBSTACLE), reason=OBSTACLE or "there are namespaces")


@asynccontextmanager
async def keep_sending(cluster: ProcessCluster, logs: int = 2) -> AsyncIterator[Workload]:
    """Have a producer send records to a topic during the block, and check the topic and all replicas in the end."""
    await cluster.create_topic(TOPIC, logs)
    workload = Workload([Traffic(cluster.servers, logs, IDEMPOTENT)])
    async with workload.run(cluster):
        yield workload
    assert await workload.find_problems(cluster) == []


@asynccontextmanager
async def cut_off(cluster: ProcessCluster, broker: BrokerNode) -> AsyncIterator[None]:
    """Cut a broker off from all others and the tower during the block, which begins when they do not hear it."""
    await cluster.network.cut(split([broker.name], [TOWER, *(cluster.brokers.keys() - {broker.name})]))
    await trio.sleep(CUT_S)
    yield
    await cluster.network.cut(())


async def order(broker: BrokerNode, method: str, target: str, document: object = None) -> bool:
    """Return whether a broker carries out an order of an administrator."""

    def send() -> bool:
        try:
            ask(broker.url + target, document, method=method)
        except OSError:
            return False
        return True

    return await trio.to_thread.run_sync(send)


def send(servers: str, topic: str, values: Sequence[str]) -> dict[int, bytes]:
    """Send values to the first log of a topic, and return them by the offsets in the acknowledgements."""
    found: dict[int, bytes] = {}
    producer = Producer({"bootstrap.servers": servers, **IDEMPOTENT})
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda _, found_: found.update(_at(found_)))
    assert not producer.flush(READY_S)
    return found


def _at(message: Any) -> dict[int, bytes]:
    return {message.offset(): message.value()}


async def read(cluster: ProcessCluster, topic: str) -> dict[int, bytes]:
    """Return the records of the first log of a topic by their offsets."""
    (found,) = await trio.to_thread.run_sync(read_settled, cluster.servers, topic, 1)
    return dict(found)


async def wait_topics(cluster: ProcessCluster, **logs: int) -> None:
    """Wait until each broker has these topics, with so many logs, and no others."""
    await cluster.wait_until(
        lambda: all(list_topics(each.servers) == logs for each in cluster.running()), f"not all have {logs}"
    )


@needs_splits
@pytest.mark.long
async def test_a_topic_gets_more_logs_on_both_sides_of_a_split(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, is_split=not OBSTACLE) as cluster, keep_sending(cluster) as workload:
        *_, other, alone = cluster.brokers.values()
        async with cut_off(cluster, alone):
            assert await order(other, "PATCH", f"/topics/{TOPIC}", {"log_count": 4})
            assert not await order(alone, "PATCH", f"/topics/{TOPIC}", {"log_count": 5})
            await workload.wait_more(cluster, "the split")
        await wait_topics(cluster, **{TOPIC: 4})


@needs_splits
@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_fresh_broker_whose_clock_is_an_hour_slow_hears_only_the_tower_at_first(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, is_split=not OBSTACLE) as cluster:
        await cluster.create_topic(TOPIC, 1)
        positions = {f"group-{number}": number + 1 for number in range(6)}
        await trio.to_thread.run_sync(send, cluster.servers, TOPIC, [str(each) for each in positions])

        def find_position(group: str, commit: int | None = None) -> int:
            consumer = Consumer({"bootstrap.servers": cluster.servers, "group.id": group, **QUICK})
            if commit is not None:
                consumer.commit(offsets=[TopicPartition(TOPIC, 0, commit)], asynchronous=False)
            (found,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=READY_S)
            consumer.close()
            return int(found.offset)

        for group, position in positions.items():
            assert await trio.to_thread.run_sync(find_position, group, position) == position
        fresh, others = await cluster.add(), list(cluster.brokers)
        cluster.set_clock(fresh, -3600)
        await cluster.network.cut(split([fresh.name], [each for each in others if each != fresh.name]))
        fresh.node.start()
        await trio.sleep(25)
        await cluster.network.cut(())
        await cluster.start(fresh)
        await cluster.wait_members()
        await wait_topics(cluster, **{TOPIC: 1})
        for group, position in positions.items():
            assert await trio.to_thread.run_sync(find_position, group) == position


@needs_splits
@pytest.mark.long
async def test_a_topic_of_three_replicas_is_created_while_two_brokers_are_not_heard(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, is_split=not OBSTACLE) as cluster, keep_sending(cluster):
        alone, *_, other = cluster.brokers.values()
        new = {"name": "few", "log_count": 1, "replica_count": 3}
        async with cut_off(cluster, alone):
            assert not await order(alone, "POST", "/topics", new)
            assert "few" not in list_topics(alone.servers)
        await cluster.wait_members()
        await order(other, "POST", "/topics", new)  # it is there already if the first order came late
        await wait_topics(cluster, **{TOPIC: 2, "few": 1})
        assert {len(each) for each in find_replicas(other.servers, "few").values()} == {3}


@needs_splits
@pytest.mark.long
async def test_a_topic_is_created_by_use_on_both_sides_of_a_split(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, is_split=not OBSTACLE) as cluster, keep_sending(cluster):
        alone, *_, other = cluster.brokers.values()
        acknowledged: dict[int, bytes] = {}

        async def use(broker: BrokerNode, side: str) -> None:
            values = [f"{side} {number}" for number in range(100)]
            found = await trio.to_thread.run_sync(send, broker.servers, "used", values)
            assert sorted(found.values()) == sorted(each.encode() for each in values)
            assert not acknowledged.keys() & found.keys()
            acknowledged.update(found)

        async with trio.open_nursery() as nursery, cut_off(cluster, alone):
            nursery.start_soon(use, alone, "left")
            await use(other, "right")
        assert await read(cluster, "used") == acknowledged
        await wait_topics(cluster, **{TOPIC: 2, "used": 1})


@pytest.mark.long
async def test_all_brokers_start_ten_seconds_before_their_tower_after_a_rolling_restart(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, 4, is_split=not OBSTACLE) as cluster, keep_sending(cluster) as workload:
        for each in cluster.brokers.values():
            await each.node.terminate(READY_S)
            await cluster.start(each)
        for node in (cluster.tower, *(each.node for each in cluster.brokers.values())):
            await node.kill()
        for each in cluster.brokers.values():
            each.node.start()
        await trio.sleep(10)
        cluster.tower.start()
        await cluster.start(*cluster.brokers.values())
        await workload.wait_more(cluster, "the start of the tower")
        await wait_topics(cluster, **{TOPIC: 2})


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("storage", ["filelog", "sqlite"])
@pytest.mark.parametrize("kind", ["old-disk-first", "cut-disk-first", "clone"])
async def test_one_of_three_has_forgotten_something_or_runs_twice(tmp_path: Path, kind: str, storage: str) -> None:
    """A clone becomes a broker of its own, with another number. In the other cases, all brokers are killed."""
    async with (
        open_cluster(tmp_path, is_split=not OBSTACLE, storage=storage) as cluster,
        keep_sending(cluster) as workload,
    ):
        async with DiskFaults(cluster, Random(1)).apply(kind, cluster.brokers["broker-1"]):
            pass
        await workload.wait_more(cluster, kind)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_clone_starts_with_its_original_at_the_same_moment(tmp_path: Path) -> None:
    """One of the two keeps the number, and the other one becomes a broker of its own."""
    async with open_cluster(tmp_path, is_split=not OBSTACLE) as cluster, keep_sending(cluster) as workload:
        original = cluster.brokers["broker-1"]
        clone = await cluster.add(is_numbered=False)
        await original.node.kill()
        await trio.to_thread.run_sync(copy_folder, original.folder, clone.folder)
        await cluster.start(original, clone)
        await DiskFaults(cluster, Random(1)).remove(clone)
        await workload.wait_more(cluster, "the clone")


@pytest.mark.long
async def test_two_brokers_have_one_number(tmp_path: Path) -> None:
    """The second one ends."""
    async with open_cluster(tmp_path, is_split=not OBSTACLE) as cluster, keep_sending(cluster):
        place, config = await cluster.network.add("broker-1"), str(tmp_path / "broker-1.toml")
        command = [*place.prefix, sys.executable, "-m", "dafka", "broker", "--config", config]
        options = ["--storage", f"filelog:{tmp_path}/second", "--kafka", "0", "--http", "0"]
        ended = await trio.run_process([*command, *options], capture_stderr=True, check=False)
        assert ended.returncode == 2
        assert b"number 1" in ended.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_topic_is_deleted_made_again_and_written_to_and_brokers_restart_in_each_order(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, is_split=not OBSTACLE) as cluster, keep_sending(cluster):
        orders = [order for count in (1, 2, 3) for order in permutations(cluster.brokers.values(), count)]
        for turn, restarted in enumerate(orders):
            await cluster.create_topic("again", 1)
            values = [f"{turn} {number}" for number in range(20)]
            sent = await trio.to_thread.run_sync(send, cluster.servers, "again", values)
            for each in restarted:
                await each.node.kill()
            for each in restarted:
                await cluster.start(each)
            assert await read(cluster, "again") == sent == dict(enumerate(each.encode() for each in values))
            await wait_topics(cluster, **{TOPIC: 2, "again": 1})
            assert await order(restarted[0], "DELETE", "/topics/again")
            await wait_topics(cluster, **{TOPIC: 2})


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_transactions_are_aborted_through_twenty_changes_of_leaders(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, is_split=not OBSTACLE) as cluster:
        workload = await Workload.create(cluster, FEW_LOGS, Random(1))
        async with workload.run(cluster):
            kept = await trio.to_thread.run_sync(find_replicas, cluster.servers, PAID)
            for turn in range(20):
                kept = {log: [*brokers[1:], brokers[0]] for log, brokers in kept.items()}
                await cluster.prefer(PAID, kept)
                await workload.wait_more(cluster, f"change {turn}")
        assert await workload.find_problems(cluster) == []


def find_stale(answers: dict[ApiKey, Any]) -> list[Any]:
    """Return what answers say that was true before the broker was stopped, and is no longer."""
    stale = []
    (offsets,) = answers[ApiKey.LIST_OFFSETS]["topics"][0]["partitions"]
    if not offsets["error_code"] and offsets["offset"] != 2:
        stale.append(offsets)
    (fetched,) = answers[ApiKey.FETCH]["responses"][0]["partitions"]
    if not fetched["error_code"] and not fetched["records"]:
        stale.append(fetched)
    (topic,) = answers[ApiKey.METADATA]["topics"]
    if topic["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        stale.append(topic)
    return stale


async def wait_leader(brokers: Sequence[BrokerNode]) -> BrokerNode:
    """Wait until one of `brokers` says itself that it leads the log, and return it."""
    while True:
        for each in brokers:
            leaders = await trio.to_thread.run_sync(find_leaders, each.servers, "orders")
            if leaders.get(0) == each.number:
                return each
        await trio.sleep(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stopped_s", [3, pytest.param(60, marks=pytest.mark.long)])
async def test_a_leader_that_was_stopped_gives_no_stale_answer(tmp_path: Path, stopped_s: float) -> None:
    async with open_cluster(tmp_path, is_split=not OBSTACLE) as cluster:
        await cluster.create_topic("orders", 1)
        by_number = {each.number: each for each in cluster.brokers.values()}
        former = find_leaders(cluster.servers, "orders")[0]
        stopped, others = by_number[former], [each for each in by_number.values() if each.number != former]
        batch = encode_batch(0, [b"x"], timestamps=[1])
        with Client(stopped.servers) as client:
            assert client.append("orders", batch) == 0
            clients = [Client(stopped.servers) for _ in QUESTIONS]
            cluster.stop(stopped)
            try:
                begun = trio.current_time()
                for each, (api, version, values) in zip(clients, QUESTIONS, strict=True):
                    each.send(api, version, **values)  # it reads them as soon as it goes on
                leader = await wait_leader(others)
                with Client(leader.servers) as other:
                    assert other.append("orders", batch) == 1
                    other.create_topics("later", logs=1)
                await trio.sleep_until(begun + stopped_s)
            finally:
                cluster.go_on(stopped)
            stale = []
            for _ in range(ASKED_AFTER):
                answers = {}
                for each, (api, version, values) in zip(clients, QUESTIONS, strict=True):
                    answers[api] = each.receive_answer(api, version)
                    each.send(api, version, **values)
                stale += find_stale(answers)
            for each in clients:
                each.socket.close()
        assert not stale
