"""Prometheus metrics of the Kafka server, read from its counters at each scrape.

This module needs the extra `dafka[metrics]`.
"""

from __future__ import annotations

from collections import Counter

from prometheus_client.core import HistogramMetricFamily, Metric

from dafka.broker.core.error_codes import error_name
from dafka.broker.core.groups.share.runs import RecordState
from dafka.broker.core.transactions.transaction import TransactionPhase
from dafka.kafka.server.kafka_server import KafkaServer
from dafka.operations.metrics import MetricHelp, Samples, TopicLabels, histogram_buckets, make_families

COUNTERS = {
    "dafka_kafka_requests": MetricHelp("Requests of clients of Kafka that were handled.", ("api",)),
    "dafka_kafka_errors": MetricHelp(
        "Error codes in responses, under Kafka's names. One response may have several.", ("api", "error")
    ),
    "dafka_kafka_accepted_connections": MetricHelp("Connections of clients of Kafka that were accepted."),
    "dafka_kafka_refused_connections": MetricHelp("Connections that were closed because there were too many."),
    "dafka_kafka_disconnected_clients": MetricHelp("Clients of Kafka that the broker disconnected.", ("reason",)),
    "dafka_kafka_bytes": MetricHelp(
        "Bytes received from clients of Kafka, and sent to them; with TLS, before encryption.", ("direction",)
    ),
    "dafka_kafka_records": MetricHelp(
        "Records that clients of Kafka published (produced), and that were sent to them (consumed).",
        ("direction", "topic"),
    ),
    "dafka_kafka_duplicate_batches": MetricHelp(
        "Batches that idempotent producers sent again, and that were not stored again."
    ),
    "dafka_kafka_late_requests": MetricHelp(
        "Commits of offsets, and changes of the cluster, that were discarded because the client had closed the "
        "connection before they were begun."
    ),
    "dafka_kafka_throttled": MetricHelp(
        "Requests after which the client had to wait because of a quota, and connections that were closed for one.",
        ("quota",),
    ),
    "dafka_kafka_logins": MetricHelp(
        "Authentications of clients of Kafka. The mechanism is empty if the client has chosen none.",
        ("mechanism", "result"),
    ),
    "dafka_kafka_share_records": MetricHelp(
        "What has happened to records of share groups in the logs that this broker leads: acquired; accepted, "
        "released, rejected, renewed or skipped by a member; expired, when a lock ends; given_up; dead_lettered, or "
        "undeliverable if the dead letter was refused.",
        ("group", "event"),
    ),
}

GAUGES = {
    "dafka_kafka_connections": MetricHelp("Connections of clients of Kafka."),
    "dafka_kafka_receiving_bytes": MetricHelp("Size of the large requests that are being received."),
    "dafka_kafka_groups": MetricHelp("Groups of consumers, by their state under Kafka's name.", ("state",)),
    "dafka_kafka_group_lag_records": MetricHelp(
        "Records of a topic behind the offsets that a group has committed, or that a share group has not finished, in "
        "the logs that its coordinator replicates. Other brokers do not count them.",
        ("group", "topic"),
    ),
    "dafka_kafka_share_acquired_records": MetricHelp(
        "Records that members of a share group have at present, in the logs that this broker leads.", ("group",)
    ),
    "dafka_kafka_share_awaiting_letters": MetricHelp(
        "Records that a share group has given up, and that wait for their dead letters.", ("group",)
    ),
    "dafka_kafka_share_sessions": MetricHelp("Members of share groups that can get records from this broker."),
    "dafka_kafka_open_transactions": MetricHelp("Transactions that are neither committed nor aborted."),
}

DURATION_SECONDS = "dafka_kafka_request_duration_seconds"
DURATION_TEXT = (
    "Seconds from the receipt of a request until its response was ready. That of a fetch includes the wait for records."
)


class KafkaMetrics:
    """The metrics of a Kafka server."""

    def __init__(self, server: KafkaServer) -> None:
        self._server = server
        self._groups: TopicLabels | None = None

    def read(self, topics: TopicLabels) -> list[Metric]:
        """Return the metrics. The limit on topics with their own series also applies to groups."""
        if self._groups is None:
            self._groups = TopicLabels(topics.topics_max)
        samples = self._count(topics, self._groups) | self._measure(topics, self._groups)
        durations = HistogramMetricFamily(DURATION_SECONDS, DURATION_TEXT, labels=("api",))
        for api, timer in self._server.counters.timers.items():
            durations.add_metric([api.name], *histogram_buckets([timer.histogram()]))
        return [*make_families(COUNTERS, GAUGES, samples), durations]

    def _count(self, topics: TopicLabels, groups: TopicLabels) -> Samples:
        counters = self._server.counters
        records: Counter[tuple[str, ...]] = Counter()
        if topics.topics_max:
            for direction, by_topic in (("produced", counters.produced), ("consumed", counters.consumed)):
                for topic, count in by_topic.items():
                    records[direction, topics.label(topic)] += count
        logins: Counter[tuple[str, ...]] = Counter()
        for result, by_mechanism in (("succeeded", counters.logins), ("failed", counters.failed_logins)):
            for mechanism, count in by_mechanism.items():
                logins[mechanism, result] += count
        shared: Counter[tuple[str, ...]] = Counter()
        if topics.topics_max:
            for group_id, events in self._server.broker.shares.counts.items():
                for event, count in events.items():
                    shared[groups.label(group_id), event.value] += count
        return {
            "dafka_kafka_share_records": dict(shared),
            "dafka_kafka_requests": {(api.name,): count for api, count in counters.requests.items()},
            "dafka_kafka_errors": {
                (api.name, error_name(code)): count for (api, code), count in counters.errors.items()
            },
            "dafka_kafka_accepted_connections": {(): self._server.quotas.admitted},
            "dafka_kafka_refused_connections": {(): self._server.quotas.refused},
            "dafka_kafka_disconnected_clients": {(reason,): n for reason, n in counters.disconnected.items()},
            "dafka_kafka_bytes": {("received",): counters.received_bytes, ("sent",): counters.sent_bytes},
            "dafka_kafka_records": dict(records),
            "dafka_kafka_duplicate_batches": {(): counters.duplicates},
            "dafka_kafka_late_requests": {(): counters.late_requests},
            "dafka_kafka_throttled": {(quota,): count for quota, count in counters.throttled.items()},
            "dafka_kafka_logins": dict(logins),
        }

    def _measure(self, topics: TopicLabels, groups: TopicLabels) -> Samples:
        broker = self._server.broker
        states: Counter[tuple[str, ...]] = Counter()
        lag: Counter[tuple[str, ...]] = Counter()
        listed = [(each, group) for each in broker.groups.coordinators() for group in each.list_groups()]
        for coordinator, group in listed:
            states[group.state,] += 1
            if not topics.topics_max:
                continue
            for partition, offset in coordinator.fetch_offsets(group.group_id, None).items():
                end = broker.node.tables.find_known_end(*partition)
                if end is not None and offset.offset >= 0:
                    log_lag = max(end - offset.offset, 0)
                    lag[groups.label(group.group_id), topics.label(partition.topic)] += log_lag
            for log, state in (coordinator.shares.states_of(group.group_id) or {}).items():
                topic = broker.node.log_table.find_client_topic_by_id(log.topic_id)
                end = None if topic is None else broker.node.tables.find_known_end(topic.name, log.number)
                if topic is not None and end is not None and state.start_offset >= 0:
                    lag[groups.label(group.group_id), topics.label(topic.name)] += state.lag_to(end)
        in_share = {state: Counter[tuple[str, ...]]() for state in (RecordState.ACQUIRED, RecordState.ARCHIVING)}
        if topics.topics_max:
            for (group_id, record_state), count in broker.shares.count_records().items():
                in_share[record_state][groups.label(group_id),] += count
        phases = [each.phase for each in broker.transactions.known()]
        is_open = {TransactionPhase.ONGOING, TransactionPhase.PREPARE_COMMIT, TransactionPhase.PREPARE_ABORT}
        return {
            "dafka_kafka_connections": {(): len(self._server.quotas)},
            "dafka_kafka_receiving_bytes": {(): self._server.receiving.taken_bytes},
            "dafka_kafka_groups": dict(states),
            "dafka_kafka_group_lag_records": dict(lag),
            "dafka_kafka_share_acquired_records": dict(in_share[RecordState.ACQUIRED]),
            "dafka_kafka_share_awaiting_letters": dict(in_share[RecordState.ARCHIVING]),
            "dafka_kafka_share_sessions": {(): len(self._server.share_sessions)},
            "dafka_kafka_open_transactions": {(): sum(phase in is_open for phase in phases)},
        }
