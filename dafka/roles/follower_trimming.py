"""Frees the space of records that were deleted from logs which another broker leads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dafka.protocol.logs import LogOrder, LogState, ProducerEntry
from dafka.protocol.replication.replicated_logs import ReplicatedLog
from dafka.records import Partition
from dafka.roles.branch_reading import restore_log
from dafka.storage import Storage


class FollowerTrimming:
    """Deletes the records before the starts of logs that a broker follows.

    A follower keeps no index of its logs in memory. It reads that of a log again when the leader has written that the
    log begins later. A leader deletes records at once, except those that it was asked to delete as a follower.

    Args:
        storage: The storage of the broker.
        order: The logs.
    """

    def __init__(self, storage: Storage, order: LogOrder) -> None:
        self._storage = storage
        self._order = order
        self._trimmed: dict[str, int] = {}

    async def trim(self, logs: Iterable[ReplicatedLog], earliest: Mapping[Partition, int]) -> dict[Partition, int]:
        """Delete what the logs do not have any more.

        Args:
            logs: The logs of the broker.
            earliest: By partition, the sequence of the first record in the storage, if it is not 0.

        Returns:
            By partition of which records were deleted, the sequence of the first one that is left.

        Raises:
            StorageError: The storage fails.
        """
        moved: dict[Partition, int] = {}
        for log in list(logs):
            start = log.held.start_offset
            if start <= self._trimmed.get(log.name, 0):
                continue
            if not log.replica.branches.is_complete(log.replica.latest.branch):
                continue
            for partition, sequence in (await self._find_starts(log)).items():
                if sequence > max(earliest.get(partition, 0), moved.get(partition, 0)):
                    await self._storage.trim(partition, sequence)
                    moved[partition] = sequence
            self._trimmed[log.name] = start
        return moved

    async def _find_starts(self, log: ReplicatedLog) -> dict[Partition, int]:
        """Return the sequence of the first record of each partition that a log still has, or of the next one."""
        branch = log.replica.latest.branch
        state = LogState(log.topic, log.number, log.own_partition(branch), log.index_partition(branch))
        await restore_log(self._storage, log, state, branch, _ignore, is_led=False)
        index, topic = state.index, self._order.topics.get(log.topic)
        found = {}
        for address in index.addresses():
            partition = Partition(log.topic, address)
            # Records of other producers' partitions may be in several logs, of which this broker may not keep all.
            if topic is None or (self._order.is_native(partition) and topic.log_count > 1):
                continue
            first = index.sequence_from(address, index.start_offset)
            found[partition] = index.end_sequence(address) if first is None else first
        return found


def _ignore(_log: LogState, _entry: ProducerEntry) -> None:
    pass
