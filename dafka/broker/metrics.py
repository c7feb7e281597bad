"""Prometheus metrics of a broker in a cluster: led logs, replicas, under-replicated logs, elections and memory.

This module needs the extra `dafka[metrics]`.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from prometheus_client.core import Metric

from dafka.broker.connections.memory import Memory
from dafka.broker.node import BrokerNode
from dafka.operations.metrics import MetricHelp, Samples, TopicLabels, make_families
from dafka.storage.plugin_helpers import now_ms

COUNTERS = {
    "dafka_broker_leader_elections": MetricHelp(
        "How often this broker has become the leader of a log after another one, or again."
    ),
    "dafka_broker_refused_messages": MetricHelp(
        "What other nodes have sent to this broker as a broker of its cluster, and was refused.", ("reason",)
    ),
    "dafka_broker_memory_disconnected_clients": MetricHelp(
        "Clients that were disconnected because they read nothing while others waited for memory."
    ),
}

GAUGES = {
    "dafka_broker_brokers": MetricHelp("Brokers of the cluster, as this one sees them: alive or dead.", ("state",)),
    "dafka_broker_logs_led": MetricHelp("Logs that this broker leads, internal ones among them."),
    "dafka_broker_replicas": MetricHelp("Logs that this broker keeps, led or not."),
    "dafka_broker_under_replicated_logs": MetricHelp(
        "Logs that this broker leads and that fewer living brokers have whole than should."
    ),
    "dafka_broker_leaderless_logs": MetricHelp("Logs of the cluster that no broker leads at present."),
    "dafka_broker_damaged_logs": MetricHelp("Logs of which this broker has found damaged records in its storage."),
    "dafka_broker_orphaned_partitions": MetricHelp(
        "Partitions that are kept though they belong to no topic that the broker knows."
    ),
    "dafka_broker_active_controller": MetricHelp("1 if this broker is the controller."),
    "dafka_broker_has_controller": MetricHelp("1 if this broker is the controller, or hears it."),
    "dafka_broker_voters": MetricHelp(
        "Brokers that vote on metadata, as this one sees them: heard or silent.", ("state",)
    ),
    "dafka_broker_metadata_lag": MetricHelp("Committed changes of the cluster that this broker has not applied yet."),
    "dafka_broker_draining": MetricHelp("1 if this broker hands its logs to others, to be taken away."),
    "dafka_broker_last_election_timestamp_seconds": MetricHelp(
        "When a scrape has found that the leader of a log has changed, in seconds since 1970; 0 if none has."
    ),
    "dafka_broker_memory_used_bytes": MetricHelp("Memory that clients take, of all listeners together."),
    "dafka_broker_memory_limit_bytes": MetricHelp("Memory that clients may take, of all listeners together."),
    "dafka_broker_memory_waiting": MetricHelp("Requests and reads of clients that wait for memory."),
}


@attrs.define(eq=False, slots=False)
class BrokerMetrics:
    """The metrics of a broker in a cluster."""

    _broker: BrokerNode
    _memory: Memory
    _clock_ms: Callable[[], int] = now_ms
    _epochs: dict[tuple[str, int], int] = attrs.field(init=False, factory=dict)
    _elections: int = attrs.field(init=False, default=0)
    _changed_ms: int = attrs.field(init=False, default=0)

    def read(self, _topics: TopicLabels) -> list[Metric]:
        """Return the metrics."""
        return list(make_families(COUNTERS, GAUGES, self._measure()))

    def _measure(self) -> Samples:
        broker = self._broker
        own, alive = broker.address, broker.brokers.alive
        logs = broker.all_logs()
        quorum = broker.quorum
        self._count_elections()
        return {
            "dafka_broker_leader_elections": {(): self._elections},
            "dafka_broker_brokers": {
                ("alive",): len(alive),
                ("dead",): sum(each.address not in alive for each in broker.brokers.all()),
            },
            "dafka_broker_logs_led": {(): sum(log.leadership.is_led for log in logs)},
            "dafka_broker_replicas": {(): sum(own in log.leadership.replicas for log in logs)},
            "dafka_broker_under_replicated_logs": {(): len(broker.replicator.reassigner.under_replicated())},
            "dafka_broker_leaderless_logs": {(): sum(not log.leadership.leader for log in logs)},
            "dafka_broker_damaged_logs": {(): len(broker.damaged.names)},
            "dafka_broker_orphaned_partitions": {(): len(broker.inventory.orphans())},
            "dafka_broker_active_controller": {(): int(broker.controller.is_active)},
            "dafka_broker_has_controller": {(): int(quorum.controller != "")},
            "dafka_broker_voters": {
                ("heard",): quorum.heard,
                ("silent",): len(quorum.voters) - quorum.heard,
            },
            "dafka_broker_metadata_lag": {(): max(quorum.committed - quorum.applied, 0)},
            "dafka_broker_draining": {(): int(broker.brokers.own.is_draining)},
            "dafka_broker_last_election_timestamp_seconds": {(): self._changed_ms / 1000},
            "dafka_broker_memory_used_bytes": {(): self._memory.used_bytes},
            "dafka_broker_memory_limit_bytes": {(): self._memory.bytes_max},
            "dafka_broker_memory_waiting": {(): self._memory.waiting},
            "dafka_broker_refused_messages": {(reason,): count for reason, count in broker.messenger.refused.items()},
            "dafka_broker_memory_disconnected_clients": {(): self._memory.ended_holders},
        }

    def _count_elections(self) -> None:
        """Count elections: each leader epoch of this broker after the first epoch of a log is one."""
        broker = self._broker
        elections = 0
        for name in dict.fromkeys(log.topic for log in broker.all_logs()):
            for number, starts in enumerate(broker.epoch_starts(name)):
                elections += sum(
                    each.leader_epoch.epoch > 0 and each.leader_epoch.leader == broker.address for each in starts
                )
                latest = starts[-1].leader_epoch.epoch if starts else 0
                previous = self._epochs.get((name, number))
                if previous is not None and latest > previous:
                    self._changed_ms = self._clock_ms()
                self._epochs[name, number] = latest
        self._elections = max(self._elections, elections)  # the epochs of deleted topics are forgotten
