"""Decides which partitions a broker stores, which of them it writes, and from whom others fetch them."""

from __future__ import annotations

import attrs

from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.brokers import BROKERS_TOPIC, Brokers
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC, ClusterState
from dafka.broker.core.metadata.topics import find_name_problem
from dafka.broker.core.partition_address import INDEX_TOPIC, name_log, parse_address
from dafka.broker.core.replication.records import BRANCHES_TOPIC
from dafka.broker.core.replication.replicated_logs import ReplicatedLogs
from dafka.internal_topics import is_internal_topic
from dafka.protocol.presence.identity import owner_of
from dafka.protocol.rendezvous import rank_nodes
from dafka.records import Partition

CONTROL_TOPICS = (BROKERS_TOPIC, BRANCHES_TOPIC)
"""The topics of which every broker stores all partitions."""


@attrs.define(eq=False, slots=False)
class PartitionPolicy:
    """The policy of one broker. It can create topics when a producer writes to them."""

    _address: str
    _brokers: Brokers
    _state: ClusterState
    _log_table: LogTable
    _logs: ReplicatedLogs
    _creates_topics: bool = attrs.field(kw_only=True)

    @property
    def is_registered(self) -> bool:
        """Whether the broker belongs to a cluster. Before, it cannot know whether it is alone: see `keeps`."""
        return self._address in self._state.brokers

    def owns(self, partition: Partition) -> bool:
        """Return whether only this broker writes a partition."""
        return owner_of(partition.address) == self._address

    def describes_cluster(self, partition: Partition) -> bool:
        """Return whether every broker of the cluster stores a partition: control records, and the log of metadata."""
        address = parse_address(partition.address)
        is_of_metadata = address is not None and address.topic_id == self._state.cluster_id
        return is_of_metadata or partition.topic in CONTROL_TOPICS

    def is_client_data(self, partition: Partition) -> bool:
        """Return whether a partition has records of clients, or the index of such records."""
        address = parse_address(partition.address)
        if partition.topic != INDEX_TOPIC or address is None:
            return not is_internal_topic(partition.topic)
        topic = self._state.find_id(address.topic_id)
        return topic is not None and not is_internal_topic(topic.name)

    def keeps(self, partition: Partition) -> bool | None:
        """Return whether this broker stores a partition; None if the limits for peers decide."""
        if self.describes_cluster(partition):
            return True
        address = parse_address(partition.address)
        if partition.topic == METADATA_TOPIC or (address is not None and address.topic_id in self._state.deleted_ids):
            return False
        if self._brokers.is_alone:
            return None
        found = self._logs.keeps(partition)
        if found is not None or partition.topic == INDEX_TOPIC:
            return bool(found)
        return None if self._keeps_producer_partition(partition, is_of_broker=address is not None) else False

    def _keeps_producer_partition(self, partition: Partition, *, is_of_broker: bool) -> bool:
        """Return whether this broker stores a partition that belongs to no replicated log."""
        topic = self._log_table.topics.get(partition.topic)
        if topic is None:  # partitions of other brokers wait until the topic is known
            return not is_of_broker and (not self._may_create(partition.topic) or self.creates(partition.topic))
        if not self._log_table.is_producer_partition(partition):
            return False
        names = (name_log(topic.topic_id, number) for number in range(topic.log_count))
        logs = (self._logs.find(name) for name in names)
        return any(log is None or self._address in log.replica.replicas for log in logs)

    def acknowledges(self, partition: Partition) -> bool:
        """Return whether the records of a partition are acknowledged as soon as they are stored.

        Index records of replicated logs are not: their acknowledgement says that their records are stored, too.
        """
        return partition.topic != INDEX_TOPIC or self._logs.find_partition(partition) is None

    def is_background_copy(self, partition: Partition) -> bool:
        """Return whether a partition is fetched only so that this broker becomes an additional replica."""
        return self._logs.is_joining(partition)

    def fetch_leader(self, partition: Partition) -> str:
        """Return the living leader of the replicated log of a partition; empty if there is none."""
        found = self._logs.find_partition(partition)
        leader = "" if found is None else found[0].replica.leader
        return leader if self._brokers.is_alive(leader) else ""

    def creates(self, topic: str) -> bool:
        """Return whether this broker is the one that creates a topic, if a topic of this name is created."""
        return rank_nodes(topic, self._brokers.alive)[0] == self._address

    def creates_topic_of(self, partition: Partition) -> bool:
        """Return whether this broker creates the topic of stored records, if it does not exist.

        Records of brokers create no topic: theirs was deleted, or is not known yet.
        """
        is_producer_partition = parse_address(partition.address) is None
        return is_producer_partition and self._may_create(partition.topic) and self.creates(partition.topic)

    def misses_topic_of(self, partition: Partition) -> bool:
        """Return whether this broker must create the topic of received records now."""
        return partition.topic not in self._log_table.topics and self.creates_topic_of(partition)

    def _may_create(self, topic: str) -> bool:
        return self._creates_topics and not find_name_problem(topic)
