"""The tables in which a broker keeps what it knows of its cluster."""

from __future__ import annotations

import attrs

from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.brokers import BrokerRegistration, Brokers
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC, ClusterState
from dafka.broker.core.metadata.features import SUPPORTED, FeatureSupport
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.partition_policy import PartitionPolicy
from dafka.broker.core.positions import UNKNOWN_OFFSET, Offset
from dafka.broker.core.replication.replicated_logs import ReplicatedLog, ReplicatedLogs
from dafka.broker.core.replication.settings import ReplicaSettings
from dafka.config import Config
from dafka.protocol.machines.stored_partitions import StoredPartitions


@attrs.frozen
class BrokerTables:
    """The tables of one broker. They do no I/O."""

    brokers: Brokers
    state: ClusterState  # as the log of metadata says
    log_table: LogTable  # the topics in use, and their offsets
    logs: ReplicatedLogs
    policy: PartitionPolicy

    def find_metadata(self) -> ReplicatedLog | None:
        """Return the replicated log of metadata; None if this broker does not take part in it yet."""
        return self.logs.find(name_log(self.state.cluster_id, 0))

    def find_known_end(self, topic: str, number: int) -> Offset | None:
        """Return the end of a log as far as this broker knows it, for display; None if it does not know it.

        A leader returns the high watermark. A follower does not know that, and returns the end of its own replica.
        """
        log = self.log_table.find_log(topic, number)
        if log is None:
            return None
        if log.leadership.is_led:
            return log.high_watermark
        replicated = self.logs.find(name_log(self.log_table.topics[topic].topic_id, number))
        end = UNKNOWN_OFFSET if replicated is None else replicated.replica.acknowledged_log_end.end_offset
        return None if end == UNKNOWN_OFFSET else end


def make_tables(
    address: str,
    config: Config,
    stored: StoredPartitions,
    log_table: LogTable,
    support: FeatureSupport = SUPPORTED,
) -> BrokerTables:
    """Return the tables of a broker that starts, with this support for features. Its logs are still empty."""
    settings = config.broker
    own = BrokerRegistration(
        address=address,
        rack=settings.rack,
        initial_brokers=settings.initial_brokers,
    )
    brokers, state = Brokers(own, settings.leader_timeout_ms / 1000), ClusterState(support)
    log_table.producer_starts = state.producer_starts
    logs = ReplicatedLogs(
        address,
        lambda: brokers.own.number,
        stored.durable_end,
        ReplicaSettings(preferred_leader_after_s=settings.preferred_leader_after_ms / 1000),
        observed_topics=frozenset((METADATA_TOPIC,)),
        forgotten=state.forgotten_ids,
    )
    creates_topics = config.kafka.auto_create_topics == "on"
    policy = PartitionPolicy(address, brokers, state, log_table, logs, creates_topics=creates_topics)
    return BrokerTables(brokers, state, log_table, logs, policy)
