"""The metrics of running nodes, compared with what the nodes have done."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any

import pytest
import trio
import zmq
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import dafka
from dafka import Consumer, Partition
from dafka.batches import records_codec
from dafka.operations import metrics
from dafka.operations.metrics import (
    BUILD_INFO,
    COMMIT_SECONDS,
    COUNTERS,
    GAUGES,
    NodeCollector,
    TopicLabels,
    make_registry,
)
from dafka.operations.monitor import Monitor
from dafka.roles import ConsumerStatistics, Health
from dafka.testing import open_cluster
from dafka.transport import choose_loops
from dafka.wire import Command
from tests.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "operate.md"

Values = dict[tuple[str, ...], float]
"""Values by the name of the sample and the values of its labels, in the order of the labels' names."""


def read(monitor: Monitor, topics_max: int = 100) -> Values:
    registry = CollectorRegistry()
    registry.register(NodeCollector(monitor, topics_max=topics_max))
    text = generate_latest(registry).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(each.name, *(each.labels[label] for label in sorted(each.labels))): each.value for each in samples}
    assert len(found) == len(samples)
    return found


async def wait_for(monitor: Monitor, name: tuple[str, ...], value: float) -> Values:
    with trio.fail_after(30):
        while (found := read(monitor)).get(name) != value:  # noqa: ASYNC110 (there is no event to wait for)
            await trio.sleep(0.01)
    return found


async def test_metrics_agree_with_the_work_of_the_nodes() -> None:
    monitor = Monitor()
    async with open_cluster() as cluster, cluster.consumer(["t"]) as consumer, cluster.producer("t") as producer:
        assert cluster.store is not None
        for node in (cluster.tower, cluster.store, producer, consumer):
            monitor.add(node)
        await producer.send_many([b"12345"] * 100)
        await producer.wait_stored()
        await wait_for(monitor, ("dafka_lag_records", "consumer"), 100)  # which a HEAD may tell before the records
        await wait_until(lambda: read(monitor)["dafka_pending_bytes", "consumer"] > 500)
        given = 0
        while given < 100:
            given += len(await consumer.next_batch(60))
        for role in ("tower", "store", "producer", "consumer"):
            await wait_for(monitor, ("dafka_ready_nodes", role), 1)
        for role in ("store", "producer", "consumer"):
            found = await wait_for(monitor, ("dafka_peers", role), 2)
        commits = cluster.store.statistics().commits
        assert found["dafka_records_total", "published", "producer"] == 100
    assert found["dafka_records_total", "stored", "store"] == 100
    assert found["dafka_records_total", "delivered", "consumer"] == 100
    for direction, role in (("published", "producer"), ("stored", "store"), ("delivered", "consumer")):
        assert found["dafka_record_bytes_total", direction, role] == 500
    for role in ("store", "consumer"):
        assert found["dafka_lag_records", role] == found["dafka_lagging_partitions", role] == 0
        assert found["dafka_partitions", role] == 1
        assert found["dafka_pending_bytes", role] == 0
    for role in ("tower", "store", "producer", "consumer"):
        assert found["dafka_nodes", role] == 1
    assert found["dafka_unacknowledged_records", "producer"] == found["dafka_unacknowledged_bytes", "producer"] == 0
    assert found["dafka_known_nodes", "tower"] == 3
    assert found["dafka_beacons_total", "tower"] >= 3
    assert (
        found["dafka_commit_duration_seconds_count", "store"]
        == found["dafka_commit_duration_seconds_bucket", "+Inf", "store"]
    )
    assert found["dafka_commit_duration_seconds_count", "store"] == commits
    assert 0 < found["dafka_commit_duration_seconds_sum", "store"] < 30


async def test_unacknowledged_records_are_counted() -> None:
    monitor = Monitor()
    async with open_cluster(storage=None) as cluster:
        with trio.CancelScope() as leaving:
            async with cluster.producer("t") as producer:
                monitor.add(producer)
                await producer.send_many([b"12345"] * 3)
                found = read(monitor)
                leaving.cancel()
    assert found["dafka_unacknowledged_records", "producer"] == 3
    assert found["dafka_unacknowledged_bytes", "producer"] == 15


async def test_fetches_and_resent_records_are_counted() -> None:
    monitor = Monitor()
    async with open_cluster() as cluster:
        assert cluster.store is not None
        async with cluster.producer("t") as producer:
            await producer.send_many([b"12345"] * 10)
        monitor.add(cluster.store)
        async with cluster.consumer(["t"]) as consumer:
            monitor.add(consumer)
            given = 0
            while given < 10:
                given += len(await consumer.next_batch())
            found = read(monitor)
    assert found["dafka_fetches_total", "sent", "consumer"] >= 1
    assert found["dafka_fetches_total", "received", "store"] >= 1
    assert found["dafka_records_total", "resent", "store"] >= 10
    assert found["dafka_record_bytes_total", "resent", "store"] == 5 * found["dafka_records_total", "resent", "store"]


async def test_discarded_messages_are_counted_by_reason() -> None:
    monitor = Monitor()
    context = zmq.Context()
    publisher, beacon = context.socket(zmq.PUB), context.socket(zmq.PUB)
    try:
        async with open_cluster() as cluster:
            assert cluster.store is not None
            monitor.add(cluster.store)
            monitor.add(cluster.tower)
            beacon.connect(cluster.tower.sub_endpoint)
            publisher.bind("tcp://127.0.0.1:*")
            port = publisher.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2].encode()
            counted: tuple[str, ...] = ("dafka_discarded_messages_total", "signature", "store")
            with trio.fail_after(30):
                while not read(monitor).get(counted):
                    beacon.send_multipart([b"B", b"X" * 32, b"127.0.0.1", port])
                    publisher.send_multipart([Command.RECORD.value + b"t", b"rubbish", b"content"])
                    await trio.sleep(0.02)
            beacon.send_multipart([b"B", b"X" * 32, b"127.0.0.1", b"no port"])
            found = await wait_for(monitor, ("dafka_discarded_messages_total", "port", "tower"), 1)
            assert found[counted] >= 1
    finally:
        publisher.close(0)
        beacon.close(0)
        context.term()


class Fake:
    """A node with given statistics and health."""

    def __init__(self, statistics: Any, health: Health) -> None:
        self._statistics, self._health = statistics, health
        self.reads = 0

    def statistics(self) -> Any:
        self.reads += 1
        return self._statistics

    def health(self) -> Health:
        return self._health

    def discarded(self) -> dict[str, int]:
        return {"frames": 2}


class FakeConsumer(Fake, Consumer):
    """A fake that is an instance of `Consumer`, with the constructor of `Fake`."""


def consumer_with(lag: dict[Partition, int], health: Health = Health()) -> FakeConsumer:  # noqa: B008
    statistics = ConsumerStatistics(
        records=5,
        bytes=50,
        buffered_bytes=0,
        records_unrecoverable=1,
        fetches_sent=2,
        positions=dict.fromkeys(lag, 7),
        lag=lag,
        discarded={},
        peers=3,
    )
    return FakeConsumer(statistics, health)


def test_reading_takes_a_limited_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    consumer = consumer_with({})

    def statistics() -> Any:
        nonlocal now
        consumer.reads += 1
        now += 2.0
        return consumer._statistics

    monkeypatch.setattr(consumer, "statistics", statistics)
    monitor = Monitor()
    monitor.add(consumer)
    collector = NodeCollector(monitor, lambda: now)
    first = list(collector.collect())
    now = 100.0 + 2.0 * metrics.CACHE_FACTOR - 0.1
    assert (list(collector.collect()), consumer.reads) == (first, 1)
    now += 0.2
    collector.collect()
    assert consumer.reads == 2


def test_the_page_lists_every_metric_and_no_others() -> None:
    names = {f"{name}_total" for name in COUNTERS} | {*GAUGES, COMMIT_SECONDS, BUILD_INFO}
    documented = set(re.findall(r"^\| `(dafka_\w+)", PAGE.read_text("utf-8"), re.MULTILINE))
    assert documented == names
    rows = dict(re.findall(r"^\| `(dafka_\w+)` \| ([^|]*) \|", PAGE.read_text("utf-8"), re.MULTILINE))
    for name, described in COUNTERS.items():
        assert rows[f"{name}_total"].strip().split(", ") == ["`role`", *(f"`{label}`" for label in described.labels)]
    exported = {metric.name for metric in make_registry(Monitor()).collect() if metric.name.startswith("dafka")}
    assert exported == {*COUNTERS, *GAUGES, COMMIT_SECONDS, BUILD_INFO}


def test_the_build_is_described() -> None:
    (found,) = [name for name in read(Monitor()) if name[0] == BUILD_INFO]
    names = (choose_loops().name, records_codec().name)
    assert sorted(found[1:]) == sorted((dafka.__version__, platform.python_version(), *names))


def test_topics_beyond_the_limit_are_added_up_as_other() -> None:
    monitor = Monitor()
    monitor.add(consumer_with({Partition(f"t{number % 5}", f"{number}"): 10 for number in range(20)}))
    found = read(monitor, topics_max=2)
    for name, each in (
        ("dafka_topic_lag_records", 40),
        ("dafka_topic_records_total", 28),
        ("dafka_topic_partitions", 4),
    ):
        by_topic = {labels[2]: value for labels, value in found.items() if labels[0] == name}
        assert by_topic == {"t0": each, "t1": each, "other": 3 * each}


def test_a_topic_keeps_its_label() -> None:
    labels = TopicLabels(2)
    assert [labels.label(topic) for topic in ("a", "b", "c", "a", "b", "d")] == ["a", "b", "other", "a", "b", "other"]


def test_there_are_no_metrics_by_topic_without_topics() -> None:
    monitor = Monitor()
    monitor.add(consumer_with({Partition("t", "A"): 3}))
    assert not [name for name in read(monitor, topics_max=0) if name[0].startswith("dafka_topic")]
