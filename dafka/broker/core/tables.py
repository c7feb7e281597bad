"""The tables in which a broker keeps what it knows of its cluster."""

from __future__ import annotations

import attrs

from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.brokers import BrokerRegistration, Brokers
from dafka.broker.core.metadata.topic_table import TopicTable
from dafka.broker.core.partition_policy import PartitionPolicy
from dafka.broker.core.replication.replicated_logs import ReplicatedLogs
from dafka.broker.core.replication.settings import ReplicaSettings
from dafka.config import Config
from dafka.protocol.machines.stored_partitions import StoredPartitions


@attrs.frozen
class BrokerTables:
    """The tables of one broker. They do no I/O."""

    brokers: Brokers
    topics: TopicTable  # as brokers have written them
    log_table: LogTable  # the topics in use, and their offsets
    logs: ReplicatedLogs
    policy: PartitionPolicy


def make_tables(address: str, config: Config, stored: StoredPartitions, log_table: LogTable) -> BrokerTables:
    """Return the tables of a broker that starts. Its logs are still empty."""
    settings = config.broker
    own = BrokerRegistration(
        address=address,
        number=max(settings.number, 0),
        rack=settings.rack,
        is_starting=True,
        has_set_number=settings.number >= 0,
        awaits_share=True,
    )
    brokers, topics = Brokers(own, settings.leader_timeout_ms / 1000), TopicTable()
    log_table.producer_starts = topics.producer_starts
    logs = ReplicatedLogs(
        address,
        lambda: brokers.own.number,
        stored.durable_end,
        ReplicaSettings(preferred_leader_after_s=settings.preferred_leader_after_ms / 1000),
    )
    creates_topics = config.kafka.auto_create_topics == "on"
    policy = PartitionPolicy(address, brokers, topics, log_table, logs, creates_topics=creates_topics)
    return BrokerTables(brokers, topics, log_table, logs, policy)
