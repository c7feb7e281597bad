"""Prometheus metrics of the nodes of one process, read from their counters when somebody asks.

Nodes of a role are added up: how many series there are depends on neither nodes nor partitions. Reading the lag looks
at every partition, so it takes a share of the time that stays small however many there are.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import attrs
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dafka.operations.monitor import Monitor, Watched, role_of
from dafka.records import Partition
from dafka.roles import ConsumerStatistics, Histogram, ProducerStatistics, StoreStatistics, TowerStatistics

IDLE_FACTOR = 20
"""After reading the counters took so long, what was read is given again for so many times that time."""

Statistics: TypeAlias = StoreStatistics | ProducerStatistics | ConsumerStatistics | TowerStatistics

Samples: TypeAlias = dict[str, dict[tuple[str, ...], float]]
"""By a metric's name, and then by its labels besides the role, its value."""


@attrs.frozen
class Described:
    """What a metric says, and its labels besides the role."""

    text: str
    labels: tuple[str, ...] = ()


COUNTERS = {
    "dafka_records": Described(
        "Records made durable by a store (stored), sent by a producer (published), given to a consumer's program "
        "(delivered), or sent again to who had missed them (resent).",
        ("direction",),
    ),
    "dafka_record_bytes": Described("The contents of these records, in bytes.", ("direction",)),
    "dafka_fetches": Described(
        "FETCHes sent for records that were missed, and those received that are answered.", ("direction",)
    ),
    "dafka_discarded_messages": Described("Messages of peers that were thrown away.", ("reason",)),
    "dafka_dropped_records": Described("Records that a store's retention has dropped."),
    "dafka_gone_records": Described("Records that a consumer had to leave out, because nobody holds them any more."),
    "dafka_beacons": Described("Beacons that a tower has passed on."),
}

GAUGES = {
    "dafka_nodes": Described("Nodes of this role in this process."),
    "dafka_ready": Described("Nodes of this role that are ready to do their work."),
    "dafka_peers": Described("Nodes connected to."),
    "dafka_known_nodes": Described("Distinct nodes that a tower has heard since it began."),
    "dafka_partitions": Described("Partitions held by a store or followed by a consumer."),
    "dafka_lag_records": Described(
        "Records known to exist and not yet durable in the store, or not yet given to the consumer's program."
    ),
    "dafka_largest_lag_records": Described("The lag of the partition that is furthest behind."),
    "dafka_lagging_partitions": Described("Partitions with any lag."),
    "dafka_pending_bytes": Described("Received, and not yet durable in the store or taken by the consumer's program."),
    "dafka_unacknowledged_records": Described("Records of a producer that too few stores have acknowledged."),
    "dafka_unacknowledged_bytes": Described("Their contents, as far as they are in memory; a spool's are on disk."),
}

COMMIT_SECONDS = "dafka_commit_seconds"
COMMIT_TEXT = "How long a store's storage took to make what had gathered durable, one transaction."

_LARGEST = {"dafka_largest_lag_records"}
"""Of several nodes, the largest value counts, and not the sum."""


class NodeCollector(Collector):
    """Gives a Prometheus registry the metrics of the nodes that a monitor knows."""

    def __init__(self, monitor: Monitor, clock: Callable[[], float] = time.monotonic) -> None:
        self._monitor = monitor
        self._clock = clock
        self._metrics: list[Metric] = []
        self._is_good_until = 0.0

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        begun = self._clock()
        if begun >= self._is_good_until:
            self._metrics = _read(self._monitor)
            self._is_good_until = begun + IDLE_FACTOR * (self._clock() - begun)
        return iter(self._metrics)

    def describe(self) -> list[Metric]:
        """None: registering it reads no counters."""
        return []


def _read(monitor: Monitor) -> list[Metric]:
    samples: dict[str, Samples] = {}
    commits: dict[str, list[Histogram]] = {}
    for node in monitor.nodes:
        role = role_of(node)
        found = node.statistics()
        _add(samples.setdefault(role, {}), _health_samples(node) | _samples(found) | _discard_samples(node))
        if isinstance(found, StoreStatistics):
            commits.setdefault(role, []).append(found.commit_seconds)
    metrics: list[Metric] = []
    for name, described in COUNTERS.items():
        counter = CounterMetricFamily(name, described.text, labels=("role", *described.labels))
        _fill(counter, name, samples)
        metrics.append(counter)
    for name, described in GAUGES.items():
        gauge = GaugeMetricFamily(name, described.text, labels=("role", *described.labels))
        _fill(gauge, name, samples)
        metrics.append(gauge)
    histogram = HistogramMetricFamily(COMMIT_SECONDS, COMMIT_TEXT, labels=("role",))
    for role, each in commits.items():
        histogram.add_metric([role], *_buckets(each))
    return [*metrics, histogram]


def _fill(metric: CounterMetricFamily | GaugeMetricFamily, name: str, samples: Mapping[str, Samples]) -> None:
    for role, found in samples.items():
        for labels, value in sorted(found.get(name, {}).items()):
            metric.add_metric((role, *labels), value)


def _add(total: Samples, samples: Samples) -> None:
    for name, found in samples.items():
        values = total.setdefault(name, {})
        for labels, value in found.items():
            before = values.get(labels, 0)
            values[labels] = max(before, value) if name in _LARGEST else before + value


def _health_samples(node: Watched) -> Samples:
    health = node.health()
    return {"dafka_nodes": {(): 1}, "dafka_ready": {(): not (health.trouble or health.unready)}}


def _discard_samples(node: Watched) -> Samples:
    return {"dafka_discarded_messages": {(reason,): count for reason, count in node.discarded().items()}}


def _samples(found: Statistics) -> Samples:
    match found:
        case StoreStatistics():
            return _store_samples(found)
        case ProducerStatistics():
            return _producer_samples(found)
        case ConsumerStatistics():
            return _consumer_samples(found)
        case TowerStatistics():
            return {"dafka_beacons": {(): found.beacons}, "dafka_known_nodes": {(): found.nodes}}


def _store_samples(found: StoreStatistics) -> Samples:
    return {
        "dafka_records": {("stored",): found.records_stored, ("resent",): found.records_sent},
        "dafka_record_bytes": {("stored",): found.bytes_stored, ("resent",): found.bytes_sent},
        "dafka_fetches": {("sent",): found.fetches_sent, ("received",): found.fetches_received},
        "dafka_dropped_records": {(): found.records_dropped},
        "dafka_peers": {(): found.peers},
        "dafka_partitions": {(): found.partitions},
        "dafka_pending_bytes": {(): found.pending_bytes},
        **_lag_samples(found.lag),
    }


def _producer_samples(found: ProducerStatistics) -> Samples:
    return {
        "dafka_records": {("published",): found.records, ("resent",): found.records_sent},
        "dafka_record_bytes": {("published",): found.bytes, ("resent",): found.bytes_sent},
        "dafka_fetches": {("received",): found.fetches_received},
        "dafka_peers": {(): found.peers},
        "dafka_unacknowledged_records": {(): found.unacknowledged},
        "dafka_unacknowledged_bytes": {(): found.unacknowledged_bytes},
    }


def _consumer_samples(found: ConsumerStatistics) -> Samples:
    return {
        "dafka_records": {("delivered",): found.records},
        "dafka_record_bytes": {("delivered",): found.bytes},
        "dafka_fetches": {("sent",): found.fetches_sent},
        "dafka_gone_records": {(): found.records_gone},
        "dafka_peers": {(): found.peers},
        "dafka_partitions": {(): len(found.positions)},
        "dafka_pending_bytes": {(): found.buffered_bytes},
        **_lag_samples(found.lag),
    }


def _lag_samples(lag: Mapping[Partition, int]) -> Samples:
    return {
        "dafka_lag_records": {(): sum(lag.values())},
        "dafka_largest_lag_records": {(): max(lag.values(), default=0)},
        "dafka_lagging_partitions": {(): len(lag)},
    }


def _buckets(histograms: list[Histogram]) -> tuple[list[tuple[str, float]], float]:
    """The buckets of several stores together, each with those below it, and the seconds of all."""
    counts: Counter[float] = Counter()
    for each in histograms:
        counts.update(dict(zip((*each.bounds, float("inf")), each.counts, strict=True)))
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound in sorted(counts):
        total += counts[bound]
        buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
    return buckets, sum(each.total for each in histograms)
