"""The metrics of nodes: against a table of the figures that they show, and against what running nodes have done."""

from __future__ import annotations

import itertools
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import dafka
from dafka import Consumer, Partition, Producer, Store, Tower
from dafka.batches import records_codec
from dafka.broker.metrics import BrokerMetrics
from dafka.operations import metrics
from dafka.operations.metrics import (
    BUILD_INFO,
    COMMIT_SECONDS,
    COUNTERS,
    GAUGES,
    NodeCollector,
    TopicLabels,
    histogram_buckets,
    make_registry,
)
from dafka.operations.monitor import Monitor
from dafka.roles import ConsumerStatistics, Health, Histogram, ProducerStatistics, StoreStatistics, TowerStatistics
from dafka.roles.statistics import BOUNDS_S, Timer, TopicCounts
from dafka.storage import TierStatistics
from dafka.testing import open_cluster
from dafka.transport import choose_loops
from tests.http.api.test_brokers import FAST, create
from tests.http.running import RunningWeb, open_webs
from tests.waiting import DEADLINE_S, wait_until

TABLE = {
    "store": """
        records_total{stored} records_stored
        records_total{resent} records_sent
        record_bytes_total{stored} bytes_stored
        record_bytes_total{resent} bytes_sent
        fetches_total{sent} fetches_sent
        fetches_total{received} fetches_received
        retention_dropped_records_total records_dropped
        compaction_removed_records_total records_compacted
        peers peers
        partitions partitions
        pending_bytes pending_bytes
        missing_records missing_records
        full_stores is_full
        cold_moved_records_total cold.moved_records
        cold_moved_bytes_total cold.moved_bytes
        cold_requests_total cold.requests
        cold_failures_total{move} cold.move_failures
        cold_failures_total{request} cold.request_failures
        cold_failures_total{wrong_answer} cold.wrong_answers
        cold_failures_total{damage} cold.damaged
        cold_reads_total{cache} cold.cache_hits
        cold_reads_total{object} cold.cache_misses
        cold_records cold.records
        cold_bytes{records} cold.content_bytes
        cold_bytes{objects} cold.object_bytes
        cold_due_bytes cold.due_bytes
        cold_cached_bytes cold.cached_bytes
    """,
    "producer": """
        records_total{published} records
        records_total{resent} records_sent
        record_bytes_total{published} bytes
        record_bytes_total{resent} bytes_sent
        fetches_total{received} fetches_received
        peers peers
        unacknowledged_records unacknowledged
        unacknowledged_bytes unacknowledged_bytes
        replaced_partitions_total partitions_replaced
    """,
    "consumer": """
        records_total{delivered} records
        record_bytes_total{delivered} bytes
        fetches_total{sent} fetches_sent
        unrecoverable_records_total records_unrecoverable
        peers peers
        pending_bytes buffered_bytes
    """,
    "tower": """
        beacons_total beacons
        known_nodes nodes
    """,
}
"""By role, each series without its prefix, with the label besides the role, and the figure that it shows."""

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
    with trio.fail_after(DEADLINE_S):
        while (found := read(monitor)).get(name) != value:  # noqa: ASYNC110 (there is no event to wait for)
            await trio.sleep(0.01)
    return found


OF_EVERY_ROLE = ("dafka_nodes", "dafka_ready_nodes", "dafka_discarded_messages")
OF_LAG = ("dafka_lag_records", "dafka_lag_records_max", "dafka_lagging_partitions")
OF_TOPICS = ("dafka_topic_records", "dafka_topic_partitions", "dafka_topic_lag_records")
STATISTICS: dict[str, type[Any]] = {
    "store": StoreStatistics,
    "producer": ProducerStatistics,
    "consumer": ConsumerStatistics,
    "tower": TowerStatistics,
}
LAG = {Partition("a", "1"): 3, Partition("a", "2"): 50, Partition("b", "3"): 700}


class Fake:
    """A node with given figures and health."""

    def __init__(self, statistics: Any, health: Health) -> None:
        self._statistics, self._health = statistics, health

    def statistics(self) -> Any:
        return self._statistics

    def health(self) -> Health:
        return self._health

    def discarded(self) -> dict[str, int]:
        return {"frames": 2, "signature": 5}


NODES = {
    role: type(f"Fake{kind.__name__}", (Fake, kind), {"partition": None})
    for role, kind in {"store": Store, "producer": Producer, "consumer": Consumer, "tower": Tower}.items()
}


def figures(role: str, numbers: Iterator[int], lag: dict[Partition, int]) -> Any:
    """Return statistics with another number in each figure."""
    special: dict[str, Any] = {
        "lag": lag,
        "positions": dict.fromkeys(lag, 7),
        "discarded": {},
        "commit_seconds": Histogram((1.0,), (2, 3), 9.0),
        "topics": {"a": TopicCounts(2, 90), "b": TopicCounts(1, 7)},
        "is_full": True,
        "place": "s3://b",
        "move_error": "",
        "request_error": "",
        "is_stale": False,
    }

    def make(kind: type[Any]) -> Any:
        given = {
            field.name: make(TierStatistics)
            if field.name == "cold"
            else special[field.name]
            if field.name in special and (field.name != "discarded" or role != "tower")
            else next(numbers)
            for field in attrs.fields(kind)
        }
        return kind(**given)

    return make(STATISTICS[role])


def expected(role: str, found: Any) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the value of each series, by the name of the sample and its labels in the order of their names."""
    for line in TABLE[role].split("\n"):
        if line.strip():
            series, path = line.split()
            name, _, label = series.rstrip("}").partition("{")
            value = found
            for part in path.split("."):
                value = getattr(value, part)
            # The labels are in the order of their names: `role` comes after `direction` and `kind`, before `source`.
            labels = [role] if not label else [role, label] if name == "cold_reads_total" else [label, role]
            yield (f"dafka_{name}", *labels), int(value)


def monitor_of(*nodes: tuple[str, Any, Health]) -> Monitor:
    monitor = Monitor()
    for role, found, health in nodes:
        node = NODES[role](found, health)
        node.partition = Partition("a", "P")
        monitor.add(node)
    return monitor


@pytest.mark.parametrize("role", TABLE)
def test_each_series_shows_its_figure_and_nodes_of_a_role_are_added_up(role: str) -> None:
    numbers = itertools.count(1000, 7)
    one, other = figures(role, numbers, LAG), figures(role, numbers, {Partition("a", "9"): 40})
    has_lag = role in {"store", "consumer"}
    for nodes in ([(role, one, Health())], [(role, one, Health()), (role, other, Health(unready="no tower"))]):
        found = read(monitor_of(*nodes))
        of_nodes = [dict(expected(role, each)) for _, each, _ in nodes]
        for series in of_nodes[0]:
            assert found.pop(series) == sum(each[series] for each in of_nodes), series
        count = len(nodes)
        assert (found.pop(("dafka_nodes", role)), found.pop(("dafka_ready_nodes", role))) == (count, 1)
        for reason, each in (("frames", 2), ("signature", 5)):
            assert found.pop(("dafka_discarded_messages_total", reason, role)) == count * each
        if has_lag:
            lag = 753 if count == 1 else 793
            assert [found.pop((name, role)) for name in OF_LAG] == [lag, 700, 3 + (count == 2)]
        if role == "consumer":
            assert found.pop(("dafka_partitions", role)) == 3 + (count == 2)
        rest = {name for name, *labels in found if role in labels and not name.startswith("dafka_topic_")}
        assert rest <= {f"dafka_commit_duration_seconds_{each}" for each in ("bucket", "count", "sum")}


def test_the_table_has_every_metric() -> None:
    named = {
        f"dafka_{line.split()[0].partition('{')[0]}" for lines in TABLE.values() for line in lines.strip().split("\n")
    }
    known = {*OF_EVERY_ROLE, *OF_LAG, *OF_TOPICS}
    assert {f"{name}_total" for name in COUNTERS.keys() - known} <= named
    assert GAUGES.keys() - known <= named
    assert len(named) == len((COUNTERS.keys() | GAUGES.keys()) - known)


def test_topics_have_the_figures_of_their_partitions() -> None:
    numbers = itertools.count(1000)
    nodes = [(role, figures(role, numbers, LAG), Health()) for role in ("store", "consumer", "producer")]
    found = {
        labels: value for labels, value in read(monitor_of(*nodes)).items() if labels[0].startswith("dafka_topic_")
    }
    published = nodes[2][1].records
    assert found == {
        **{("dafka_topic_records_total", "store", topic): records for topic, records in (("a", 90), ("b", 7))},
        **{("dafka_topic_records_total", "consumer", topic): records for topic, records in (("a", 14), ("b", 7))},
        ("dafka_topic_records_total", "producer", "a"): published,
        **{("dafka_topic_partitions", role, "a"): 2 for role in ("store", "consumer")},
        **{("dafka_topic_partitions", role, "b"): 1 for role in ("store", "consumer")},
        **{("dafka_topic_lag_records", role, "a"): 53 for role in ("store", "consumer")},
        **{("dafka_topic_lag_records", role, "b"): 700 for role in ("store", "consumer")},
    }


def test_the_histograms_of_several_stores_are_added_up() -> None:
    buckets, seconds = histogram_buckets([Histogram((1.0, 2.0), (1, 2, 3), 9.0), Histogram((1.0, 2.0), (4, 0, 1), 4.0)])
    assert (buckets, seconds) == ([("1.0", 5), ("2.0", 7), ("+Inf", 11)], 13.0)


def test_a_duration_counts_in_the_first_bucket_whose_bound_it_does_not_exceed() -> None:
    durations = [0.0, *(each for bound in BOUNDS_S for each in (bound, bound * 1.001)), 1e6]
    timer = Timer()
    for each in durations:
        timer.add(each)
    found = timer.histogram()
    expected = [
        sum(low < each <= high for each in durations)
        for low, high in itertools.pairwise((-1.0, *BOUNDS_S, float("inf")))
    ]
    assert (list(found.counts), found.count) == (expected, len(durations))
    assert found.total == pytest.approx(sum(durations))


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
    for direction, role in (("published", "producer"), ("stored", "store"), ("delivered", "consumer")):
        assert found["dafka_records_total", direction, role] == 100
        assert found["dafka_record_bytes_total", direction, role] == 500
    for role in ("store", "consumer"):
        figures_of = ("lag_records", "lagging_partitions", "partitions", "pending_bytes")
        assert [found[f"dafka_{name}", role] for name in figures_of] == [0, 0, 1, 0]
    assert [found["dafka_nodes", role] for role in ("tower", "store", "producer", "consumer")] == [1] * 4
    assert found["dafka_unacknowledged_records", "producer"] == found["dafka_unacknowledged_bytes", "producer"] == 0
    assert (found["dafka_known_nodes", "tower"], found["dafka_beacons_total", "tower"] >= 3) == (3, True)
    assert found["dafka_commit_duration_seconds_count", "store"] == commits
    assert found["dafka_commit_duration_seconds_bucket", "+Inf", "store"] == commits
    assert 0 < found["dafka_commit_duration_seconds_sum", "store"] < 30


def test_reading_takes_a_limited_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, reads = 100.0, 0
    monitor = monitor_of(("consumer", figures("consumer", itertools.count(), {}), Health()))
    (consumer,) = monitor.nodes

    def statistics() -> Any:
        nonlocal now, reads
        reads += 1
        now += 2.0
        return figures("consumer", itertools.count(), {})

    monkeypatch.setattr(consumer, "statistics", statistics)
    collector = NodeCollector(monitor, lambda: now)
    first = list(collector.collect())
    now = 100.0 + 2.0 * metrics.CACHE_FACTOR - 0.1
    assert (list(collector.collect()), reads) == (first, 1)
    now += 0.2
    collector.collect()
    assert reads == 2


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
    lag = {Partition(f"t{number % 5}", f"{number}"): 10 for number in range(20)}
    found = read(monitor_of(("consumer", figures("consumer", itertools.count(), lag), Health())), topics_max=2)
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
    monitor = monitor_of(("consumer", figures("consumer", itertools.count(), {Partition("t", "A"): 3}), Health()))
    assert not [name for name in read(monitor, topics_max=0) if name[0].startswith("dafka_topic")]


# A broker among others


def read_broker(web: RunningWeb) -> dict[tuple[str, ...], float]:
    found = BrokerMetrics(web.broker.node, web.broker.broker.memory).read(TopicLabels(0))
    return {(each.name, *each.labels.values()): each.value for metric in found for each in metric.samples}


def led(webs: list[RunningWeb]) -> float:
    return sum(read_broker(web)["dafka_broker_logs_led",] for web in webs)


async def test_logs_and_brokers_are_counted() -> None:
    async with open_webs(2, FAST) as webs:
        before = led(webs)
        await create(webs, "orders", 5)
        await wait_until(lambda: led(webs) >= before + 5)  # and those that get their leaders meanwhile
        labelled = {("brokers", "alive"): 2, ("brokers", "dead"): 0, ("voters", "heard"): 1, ("voters", "silent"): 0}
        counts = labelled | {("has_controller",): 1, ("metadata_lag",): 0, ("draining",): 0, ("memory_waiting",): 0}
        expected = {(f"dafka_broker_{name}", *labels): count for (name, *labels), count in counts.items()}.items()
        await wait_until(lambda: all(expected <= read_broker(web).items() for web in webs))
        await wait_until(lambda: all(read_broker(web)["dafka_broker_replicas",] >= 5 for web in webs))
        await wait_until(lambda: sum(read_broker(web)["dafka_broker_active_controller",] for web in webs) == 1)
        assert all(read_broker(web)["dafka_broker_memory_limit_bytes",] > 0 for web in webs)
        await webs[0].broker.node.admin.set_draining(webs[0].broker.node.address, is_draining=True)
        await wait_until(lambda: read_broker(webs[0])["dafka_broker_draining",] == 1)
