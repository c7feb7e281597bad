"""The positions of groups in logs that have branches.

A position counts in the branch that its group has read. If the log goes on in another branch, the group goes on where
the two part: it can get records again, and misses none. All brokers know all branches, so whichever broker coordinates
a group can tell.
"""

from __future__ import annotations

from dafka.broker.core.groups.coordinator import FetchedOffset, OffsetToCommit
from dafka.broker.core.metadata.topic_settings import MAJORITY, availability_of
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.records import EpochEnd
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.node import BrokerNode
from dafka.records import SEQUENCE_MAX


def name_branch(broker: BrokerNode, place: TopicPartition, offset: OffsetToCommit) -> OffsetToCommit:
    """Return a position with the leader epoch of the branch in which it counts, if the client does not say it.

    The clients of this broker's side of a split read the latest branch that this broker knows.
    """
    table = _find_table(broker, place)
    if table is None or table.latest is None or offset.leader_epoch >= 0:
        return offset
    return offset._replace(leader_epoch=table.epoch_at(table.latest.leader_epoch, offset.offset))


def follow_branches(broker: BrokerNode, place: TopicPartition, fetched: FetchedOffset) -> FetchedOffset:
    """Return a position; the place where the branches part if the one in which it counts has lost."""
    table = _find_table(broker, place)
    if table is None or table.latest is None or fetched.leader_epoch < 0:
        return fetched
    read = next((branch for branch in table.starts if branch.epoch == fetched.leader_epoch), None)
    if read is None:
        return fetched
    fork = table.common_end(EpochEnd(read, fetched.offset), EpochEnd(table.latest.leader_epoch, SEQUENCE_MAX))
    if fork is None or fork.end_offset >= fetched.offset:
        return fetched
    return fetched._replace(leader_epoch=max(fork.leader_epoch.epoch, 0), offset=fork.end_offset)


def _find_table(broker: BrokerNode, place: TopicPartition) -> EpochTree | None:
    """Return the branches of a log; None if it has none, or if nobody reads anything but what all of them have."""
    topic = broker.order.topics.get(place.topic)
    if topic is None or availability_of(topic) == MAJORITY:
        return None
    log = broker.replicator.logs.find(name_log(topic.topic_id, place.partition))
    return None if log is None else log.replica.epoch_tree
