"""Finds where a client resumes reading after the leader epoch of a log has changed.

With the availability "branch", records that a client has read before a split of the cluster can be missing from the log
that is led afterwards. The client then resumes where the two epochs diverge: it can get records again, and misses none.

With "majority", every record that a client reads is in all later epochs, so the client never goes back. The epoch
starts known here can suggest otherwise: a leader that continues with other replicas serves records of its next epoch
before the start of that epoch has arrived here.
"""

from __future__ import annotations

from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.topic_settings import MAJORITY, availability_of
from dafka.broker.core.positions import OFFSET_MAX, Offset
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.records import EpochEnd, LeaderAndEpoch
from dafka.broker.node import BrokerNode


class DivergenceTracker:
    """The leader epochs that one client has read.

    Args:
        broker: The broker, which knows the epoch starts.
    """

    def __init__(self, broker: BrokerNode) -> None:
        self._broker = broker
        self._read: dict[Log, LeaderAndEpoch] = {}

    def check(self, log: Log, offset: int) -> int:
        """Return the offset at which a client resumes that has read up to an offset; less if the log has diverged."""
        topic = self._broker.log_table.topics.get(log.topic)
        if topic is None or availability_of(topic) == MAJORITY:
            return offset
        leadership = log.leadership
        epoch, former_epoch = LeaderAndEpoch(leadership.epoch, leadership.leader), self._read.get(log)
        if epoch == former_epoch or not leadership.leader:
            return offset
        if former_epoch is not None:
            divergence = self._find_divergence(log, EpochEnd(epoch, OFFSET_MAX), EpochEnd(former_epoch, Offset(offset)))
            if divergence is None:
                return offset  # the epoch starts have not arrived yet
            offset = min(offset, divergence)
        self._read[log] = epoch
        return offset

    def _find_divergence(self, log: Log, first: EpochEnd, second: EpochEnd) -> int | None:
        tables = self._broker.epoch_starts(log.topic)
        table = EpochTree(tables[log.number] if log.number < len(tables) else ())
        found = table.common_end(first, second)
        return None if found is None else found.end_offset
