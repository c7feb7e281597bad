"""The positions of groups in logs with divergent leader epochs.

A position is valid in the leader epoch that its group has read. If the log continues without the end of that epoch, the
group continues at the divergence: it can get records again, and misses none. All brokers know all epochs of a log, so
any coordinator can decide this.
"""

from __future__ import annotations

from dafka.broker.core.groups.coordinator import FetchedOffset, OffsetToCommit
from dafka.broker.core.metadata.topic_settings import MAJORITY, availability_of
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.positions import OFFSET_MAX, Offset
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.records import EpochEnd
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.node import BrokerNode


def name_epoch(broker: BrokerNode, partition: TopicPartition, offset: OffsetToCommit) -> OffsetToCommit:
    """Return a position with the leader epoch in which it is valid, if the client does not name it.

    The clients on this broker's side of a split read the latest epoch that this broker knows.
    """
    tree = _find_tree(broker, partition)
    if tree is None or tree.latest is None or offset.leader_epoch >= 0:
        return offset
    return offset._replace(leader_epoch=tree.epoch_at(tree.latest.leader_epoch, Offset(offset.offset)))


def follow_divergences(broker: BrokerNode, partition: TopicPartition, fetched: FetchedOffset) -> FetchedOffset:
    """Return a position; the start of the divergence if the log does not contain the position's epoch up to it."""
    tree = _find_tree(broker, partition)
    if tree is None or tree.latest is None or fetched.leader_epoch < 0:
        return fetched
    read = next((epoch for epoch in tree.starts if epoch.epoch == fetched.leader_epoch), None)
    if read is None:
        return fetched
    divergence = tree.common_end(EpochEnd(read, Offset(fetched.offset)), EpochEnd(tree.latest.leader_epoch, OFFSET_MAX))
    if divergence is None or divergence.end_offset >= fetched.offset:
        return fetched
    return fetched._replace(leader_epoch=max(divergence.leader_epoch.epoch, 0), offset=divergence.end_offset)


def _find_tree(broker: BrokerNode, partition: TopicPartition) -> EpochTree | None:
    """Return the epoch tree of a log; None if it has none, or if clients read only records that cannot diverge."""
    topic = broker.log_table.topics.get(partition.topic)
    if topic is None or availability_of(topic) == MAJORITY:
        return None
    log = broker.replicator.logs.find(name_log(topic.topic_id, partition.partition))
    return None if log is None else log.replica.epoch_tree
