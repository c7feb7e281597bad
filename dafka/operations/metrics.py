"""Prometheus metrics of the nodes of one process, read from their counters at each scrape.

The values of all nodes of a role are added up, so the number of series depends on neither nodes nor partitions. The
number of topics with series of their own is limited. Reading the lag examines every partition. With very many
partitions, a scrape may therefore return the values of an earlier one, so that reading takes a small share of the time.
This module needs the extra `dafka[metrics]`.
"""

from __future__ import annotations

import platform
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TypeAlias

import attrs
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dafka.batches import records_codec
from dafka.config import MetricsConfig
from dafka.operations.monitor import Monitor, MonitoredNode, role_of
from dafka.records import Partition
from dafka.roles import ConsumerStatistics, Histogram, Producer, ProducerStatistics, StoreStatistics, TowerStatistics
from dafka.storage import TierStatistics
from dafka.transport import choose_loops

TOPICS_MAX = MetricsConfig().topics_max
"""How many topics have series of their own by default."""

CACHE_FACTOR = 20
"""The values of a scrape are reused for this multiple of the time that reading them took."""

Statistics: TypeAlias = StoreStatistics | ProducerStatistics | ConsumerStatistics | TowerStatistics

Samples: TypeAlias = dict[str, dict[tuple[str, ...], float]]
"""Values by the name of the metric, and then by its labels besides the role."""


@attrs.frozen
class MetricHelp:
    """What a metric counts or measures, with its unit, and the names of its labels besides `role`."""

    text: str
    labels: tuple[str, ...] = ()


COUNTERS = {
    "dafka_records": MetricHelp(
        "Records that a store made durable (stored), a producer sent (published), a consumer's program received "
        "(delivered), or a store or producer sent again on request (resent).",
        ("direction",),
    ),
    "dafka_record_bytes": MetricHelp("Bytes of values, keys and headers in these records.", ("direction",)),
    "dafka_fetches": MetricHelp(
        "FETCH messages sent for missing records, and FETCH messages received and answered.", ("direction",)
    ),
    "dafka_discarded_messages": MetricHelp("Messages of peers that were discarded.", ("reason",)),
    "dafka_retention_dropped_records": MetricHelp("Records that a store's retention dropped."),
    "dafka_cold_moved_records": MetricHelp("Records that a store moved to its cold tier."),
    "dafka_cold_moved_bytes": MetricHelp("Bytes of the objects that a store wrote to its cold tier."),
    "dafka_cold_requests": MetricHelp("Requests of a store to the object store of its cold tier."),
    "dafka_cold_failures": MetricHelp(
        "Failures of a cold tier: segments that could not be moved (move), requests that failed (request), answers "
        "that were wrong and were asked for again (wrong_answer), pieces that are damaged (damage).",
        ("kind",),
    ),
    "dafka_cold_reads": MetricHelp(
        "Reads of a cold tier that the cache answered, or for which an object was fetched.", ("source",)
    ),
    "dafka_compaction_removed_records": MetricHelp("Superseded records that a store's compaction removed."),
    "dafka_unrecoverable_records": MetricHelp("Records that a consumer skipped because no node holds them any more."),
    "dafka_replaced_partitions": MetricHelp(
        "New partitions that a producer began because no store could continue the one before."
    ),
    "dafka_topic_records": MetricHelp(
        "Records of the topic that are durable in a store, that a producer sent, or up to the positions of a consumer; "
        "with those that were dropped since.",
        ("topic",),
    ),
    "dafka_beacons": MetricHelp("Beacons that a tower passed on."),
}

GAUGES = {
    "dafka_nodes": MetricHelp("Nodes of this role in this process."),
    "dafka_ready_nodes": MetricHelp("Nodes of this role that are ready to work."),
    "dafka_peers": MetricHelp("Peers that the node connects to."),
    "dafka_known_nodes": MetricHelp("Nodes that a tower introduces."),
    "dafka_partitions": MetricHelp("Partitions that a store holds or a consumer follows."),
    "dafka_cold_records": MetricHelp("Records in the cold tier of a store."),
    "dafka_cold_bytes": MetricHelp("Bytes in the cold tier of a store: of records, and of objects.", ("kind",)),
    "dafka_cold_due_bytes": MetricHelp("Bytes of records that should have moved to the cold tier by now."),
    "dafka_cold_cached_bytes": MetricHelp("Bytes of the cache of records that were read from a cold tier."),
    "dafka_full_stores": MetricHelp("Stores that take no further partition, or whose storage fails."),
    "dafka_lag_records": MetricHelp(
        "Records known to exist that are not yet durable in the store, or not yet received by the consumer's program."
    ),
    "dafka_lag_records_max": MetricHelp("The lag, in records, of the partition with the largest lag."),
    "dafka_lagging_partitions": MetricHelp("Partitions with any lag."),
    "dafka_missing_records": MetricHelp(
        "The part of a store's lag for which several FETCHes in a row were not answered."
    ),
    "dafka_topic_partitions": MetricHelp("Partitions of the topic in a store or of a consumer.", ("topic",)),
    "dafka_topic_lag_records": MetricHelp("The lag, in records, of all partitions of the topic.", ("topic",)),
    "dafka_pending_bytes": MetricHelp(
        "Bytes received that are not yet durable in the store, or not yet received by the consumer's program."
    ),
    "dafka_unacknowledged_records": MetricHelp("Records of a producer that too few stores have acknowledged."),
    "dafka_unacknowledged_bytes": MetricHelp(
        "Bytes of values, keys and headers in these records that are in memory; those in a spool are on disk."
    ),
}

BUILD_INFO = "dafka_build_info"
BUILD_TEXT = (
    "Always 1. The labels are the versions of dafka and Python, and whether the transport and the codec of record "
    "batches are compiled."
)
BUILD_LABELS = ("version", "python", "transport", "batches")

OTHER_TOPICS = "other"
"""The label of the topics beyond the limit, all together."""

COMMIT_SECONDS = "dafka_commit_duration_seconds"
COMMIT_TEXT = "Seconds that a store's storage took for each transaction, until its records were durable."

_LARGEST = {"dafka_lag_records_max"}
"""Metrics whose value is the largest value of all nodes, not the sum."""


def make_registry(monitor: Monitor, topics_max: int = TOPICS_MAX) -> CollectorRegistry:
    """Return a registry with the metrics of a monitor's nodes and of the process (memory, CPU time, open files).

    At most `topics_max` topics have series of their own.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(monitor, topics_max=topics_max))
    ProcessCollector(registry=registry)
    return registry


class NodeCollector(Collector):
    """A collector of the metrics of a monitor's nodes, for a Prometheus registry."""

    def __init__(
        self, monitor: Monitor, clock: Callable[[], float] = time.monotonic, topics_max: int = TOPICS_MAX
    ) -> None:
        """Create a collector. If `topics_max` is 0, there are no metrics by topic."""
        self._labels = TopicLabels(topics_max)
        self._monitor = monitor
        self._clock = clock
        self._metrics: list[Metric] = []
        self._cached_until = 0.0

    def collect(self) -> Iterator[Metric]:
        """Return the metrics; see `prometheus_client.registry.Collector`."""
        begun = self._clock()
        if begun >= self._cached_until:
            self._metrics = _read(self._monitor, self._labels)
            self._cached_until = begun + CACHE_FACTOR * (self._clock() - begun)
        return iter(self._metrics)

    def describe(self) -> list[Metric]:
        """Return no metrics, so that registering the collector reads no counters."""
        return []


class TopicLabels:
    """The topics that have series of their own: the first ones that were seen, so that no series is ever cut."""

    def __init__(self, topics_max: int) -> None:
        self.topics_max = topics_max
        self._topics: set[str] = set()

    def label(self, topic: str) -> str:
        """Return the label of a topic: its name, or `other`."""
        if topic not in self._topics and len(self._topics) < self.topics_max:
            self._topics.add(topic)
        return topic if topic in self._topics else OTHER_TOPICS


def _read(monitor: Monitor, labels: TopicLabels) -> list[Metric]:
    samples: dict[str, Samples] = {}
    commits: dict[str, list[Histogram]] = {}
    for node in monitor.nodes:
        role = role_of(node)
        found = node.statistics()
        for of_node in (_node_samples(node), _samples(found), _topic_samples(node, found, labels)):
            _add(samples.setdefault(role, {}), of_node)
        if isinstance(found, StoreStatistics):
            commits.setdefault(role, []).append(found.commit_seconds)
    by_role: Samples = {}
    for role, of_role in samples.items():
        for name, values in of_role.items():
            by_role.setdefault(name, {}).update({(role, *each): value for each, value in values.items()})
    metrics = make_families(COUNTERS, GAUGES, by_role, first_labels=("role",))
    histogram = HistogramMetricFamily(COMMIT_SECONDS, COMMIT_TEXT, labels=("role",))
    for role, each in commits.items():
        histogram.add_metric([role], *histogram_buckets(each))
    build = GaugeMetricFamily(BUILD_INFO, BUILD_TEXT, labels=BUILD_LABELS)
    build.add_metric((_version(), platform.python_version(), choose_loops().name, records_codec().name), 1)
    others = [metric for source in monitor.metric_sources for metric in source(labels)]
    return [*metrics, histogram, build, *others]


def _version() -> str:
    try:
        return version("dafka")
    except PackageNotFoundError:  # run from the source tree
        return "unknown"


def _topic_samples(node: MonitoredNode, found: Statistics, labels: TopicLabels) -> Samples:
    """Return the values by topic. Topics with the same label are added up."""
    if not labels.topics_max:
        return {}
    if isinstance(found, StoreStatistics):
        held = [(topic, counts.records, counts.partitions) for topic, counts in sorted(found.topics.items())]
    elif isinstance(found, ConsumerStatistics):
        held = [(partition.topic, position, 1) for partition, position in found.positions.items()]
    elif isinstance(node, Producer) and isinstance(found, ProducerStatistics):
        return {"dafka_topic_records": {(labels.label(node.partition.topic),): found.records}}
    else:
        return {}
    records, partitions, lag = (defaultdict[tuple[str, ...], float](int) for _ in range(3))
    for topic, record_count, partition_count in held:
        label = (labels.label(topic),)
        records[label] += record_count
        partitions[label] += partition_count
        lag[label] += 0
    for partition, count in found.lag.items():
        lag[(labels.label(partition.topic),)] += count
    return {"dafka_topic_records": records, "dafka_topic_partitions": partitions, "dafka_topic_lag_records": lag}


def _add(total: Samples, samples: Samples) -> None:
    for name, found in samples.items():
        values = total.setdefault(name, {})
        for labels, value in found.items():
            before = values.get(labels, 0)
            values[labels] = max(before, value) if name in _LARGEST else before + value


def _node_samples(node: MonitoredNode) -> Samples:
    health = node.health()
    return {
        "dafka_nodes": {(): 1},
        "dafka_ready_nodes": {(): not (health.trouble or health.unready)},
        "dafka_discarded_messages": {(reason,): count for reason, count in node.discarded().items()},
    }


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


def _cold_samples(cold: TierStatistics | None) -> Samples:
    if cold is None:
        return {}
    return {
        "dafka_cold_moved_records": {(): cold.moved_records},
        "dafka_cold_moved_bytes": {(): cold.moved_bytes},
        "dafka_cold_requests": {(): cold.requests},
        "dafka_cold_failures": {
            ("move",): cold.move_failures,
            ("request",): cold.request_failures,
            ("wrong_answer",): cold.wrong_answers,
            ("damage",): cold.damaged,
        },
        "dafka_cold_reads": {("cache",): cold.cache_hits, ("object",): cold.cache_misses},
        "dafka_cold_records": {(): cold.records},
        "dafka_cold_bytes": {("records",): cold.content_bytes, ("objects",): cold.object_bytes},
        "dafka_cold_due_bytes": {(): cold.due_bytes},
        "dafka_cold_cached_bytes": {(): cold.cached_bytes},
    }


def _store_samples(found: StoreStatistics) -> Samples:
    return {
        "dafka_records": {("stored",): found.records_stored, ("resent",): found.records_sent},
        "dafka_record_bytes": {("stored",): found.bytes_stored, ("resent",): found.bytes_sent},
        "dafka_fetches": {("sent",): found.fetches_sent, ("received",): found.fetches_received},
        "dafka_retention_dropped_records": {(): found.records_dropped},
        "dafka_compaction_removed_records": {(): found.records_compacted},
        "dafka_peers": {(): found.peers},
        "dafka_partitions": {(): found.partitions},
        "dafka_pending_bytes": {(): found.pending_bytes},
        "dafka_full_stores": {(): found.is_full},
        "dafka_missing_records": {(): found.missing_records},
        **_cold_samples(found.cold),
        **_lag_samples(found.lag),
    }


def _producer_samples(found: ProducerStatistics) -> Samples:
    return {
        "dafka_records": {("published",): found.records, ("resent",): found.records_sent},
        "dafka_record_bytes": {("published",): found.bytes, ("resent",): found.bytes_sent},
        "dafka_fetches": {("received",): found.fetches_received},
        "dafka_peers": {(): found.peers},
        "dafka_unacknowledged_records": {(): found.unacknowledged},
        "dafka_replaced_partitions": {(): found.partitions_replaced},
        "dafka_unacknowledged_bytes": {(): found.unacknowledged_bytes},
    }


def _consumer_samples(found: ConsumerStatistics) -> Samples:
    return {
        "dafka_records": {("delivered",): found.records},
        "dafka_record_bytes": {("delivered",): found.bytes},
        "dafka_fetches": {("sent",): found.fetches_sent},
        "dafka_unrecoverable_records": {(): found.records_unrecoverable},
        "dafka_peers": {(): found.peers},
        "dafka_partitions": {(): len(found.positions)},
        "dafka_pending_bytes": {(): found.buffered_bytes},
        **_lag_samples(found.lag),
    }


def _lag_samples(lag: Mapping[Partition, int]) -> Samples:
    return {
        "dafka_lag_records": {(): sum(lag.values())},
        "dafka_lag_records_max": {(): max(lag.values(), default=0)},
        "dafka_lagging_partitions": {(): len(lag)},
    }


def make_families(
    counters: Mapping[str, MetricHelp],
    gauges: Mapping[str, MetricHelp],
    samples: Samples,
    *,
    first_labels: tuple[str, ...] = (),
) -> list[Metric]:
    """Return the counters, then the gauges, with their samples; those without samples too.

    The first labels come before those of the help texts.
    """
    metrics: list[Metric] = []
    for kind, helps in ((CounterMetricFamily, counters), (GaugeMetricFamily, gauges)):
        for name, help_ in helps.items():
            family = kind(name, help_.text, labels=(*first_labels, *help_.labels))
            for labels, value in sorted(samples.get(name, {}).items()):
                family.add_metric(labels, value)
            metrics.append(family)
    return metrics


def histogram_buckets(histograms: list[Histogram]) -> tuple[list[tuple[str, float]], float]:
    """Return the cumulative buckets of several histograms together, and the sum of all durations."""
    counts: Counter[float] = Counter()
    for each in histograms:
        counts.update(dict(zip((*each.bounds, float("inf")), each.counts, strict=True)))
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound in sorted(counts):
        total += counts[bound]
        buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
    return buckets, sum(each.total for each in histograms)
