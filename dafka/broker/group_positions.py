"""The positions of groups in logs that have branches.

A position counts in the branch that its group has read. If the log goes on in another branch, the group goes on where
the two part: it can get records again, and misses none. All brokers know all branches, so whichever broker coordinates
a group can tell.
"""

from __future__ import annotations

from dafka.broker.topic_settings import MAJORITY, availability_of
from dafka.kafka.groups import FetchedOffset, OffsetToCommit
from dafka.kafka.topics import TopicPartition
from dafka.protocol.logs import name_log
from dafka.protocol.replication import Branch, BranchTable, Tip
from dafka.records import SEQUENCE_MAX
from dafka.roles import Broker

FOLLOWED_WITHIN_MS = 300_000
"""How long a client may read a branch after another one has begun: most ask for metadata again after five minutes."""


class GroupPositions:
    """The branches in which positions of groups count.

    Args:
        broker: The broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._latest: dict[TopicPartition, tuple[Branch, int]] = {}

    def name_branch(
        self, place: TopicPartition, offset: OffsetToCommit, before: FetchedOffset, now_ms: int
    ) -> OffsetToCommit:
        """Return a position with the leader epoch of the branch in which it counts, if the client does not say it.

        When the latest branch has just begun, the client may still read the one before, whose leader may be where this
        broker is not. So for some minutes its positions go on to count there.

        Args:
            place: The log.
            offset: The position.
            before: The position that was committed before.
            now_ms: The time, in milliseconds since 1970.

        Returns:
            The position.
        """
        table = self._find_table(place)
        if table is None or table.latest is None or offset.leader_epoch >= 0:
            return offset
        branch, known_since_ms = self._latest.get(place, (None, 0))
        if branch != table.latest.branch:
            branch, known_since_ms = self._latest[place] = table.latest.branch, now_ms
        if now_ms < known_since_ms + FOLLOWED_WITHIN_MS:
            branch = next((each for each in table.rows if each.epoch == before.leader_epoch), branch)
        return offset._replace(leader_epoch=table.epoch_at(branch, offset.offset))

    def follow_branches(self, place: TopicPartition, fetched: FetchedOffset) -> FetchedOffset:
        """Return a position; the place where the branches part if the one in which it counts has lost."""
        table = self._find_table(place)
        if table is None or table.latest is None:
            return fetched
        read = next((branch for branch in table.rows if branch.epoch == fetched.leader_epoch), None)
        if read is None:
            return fetched
        fork = table.fork(Tip(read, fetched.offset), Tip(table.latest.branch, SEQUENCE_MAX))
        if fork is None or fork.end_offset >= fetched.offset:
            return fetched
        return fetched._replace(leader_epoch=max(fork.branch.epoch, 0), offset=fork.end_offset)

    def _find_table(self, place: TopicPartition) -> BranchTable | None:
        """Return the branches of a log; None if it has none, or if nobody reads anything but what all of them have."""
        topic = self._broker.order.topics.get(place.topic)
        if topic is None or availability_of(topic) == MAJORITY:
            return None
        log = self._broker.cluster.logs.find(name_log(topic.topic_id, place.partition))
        return None if log is None else log.replica.table
