"""The logs that a broker begins to take part in because other brokers know of them, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

import trio

from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import INDEX_TOPIC, name_log
from dafka.broker.core.replication.checkpoints import Checkpoint
from dafka.broker.core.replication.replicated_logs import ReplicatedLog, ReplicatedLogs
from dafka.broker.core.replication.settings import Availability
from dafka.broker.replication.checkpoints import Checkpoints
from dafka.broker.replication.host import Host
from dafka.broker.replication.index_reader import read_index
from dafka.records import Partition, RecordBatch

ADOPTED_TOGETHER = 50
"""Logs that a broker begins to take part in before it lets its other tasks run."""


class ReplicaLoader:
    """The logs that one broker begins to take part in.

    It can promise and acknowledge nothing of a log before it has read what it holds of it.

    Args:
        host: The broker.
        logs: The replicated logs.
        checkpoints: What the broker need not read of them.
        indexes: The partitions of indexes that are stored, by the name of their log.
        take_part: Is called with each log that was read, and its state.
    """

    def __init__(
        self,
        host: Host,
        logs: ReplicatedLogs,
        checkpoints: Checkpoints,
        indexes: Mapping[str, AbstractSet[Partition]],
        take_part: Callable[[ReplicatedLog, Log], None],
    ) -> None:
        self._host = host
        self._order = host.order
        self._logs = logs
        self._checkpoints = checkpoints
        self._indexes = indexes
        self._take_part = take_part
        self._waiting: dict[Log, None] = {}
        self._has_come = trio.Event()

    def put(self, log: Log) -> None:
        """Have a log adopted soon."""
        self._waiting[log] = None
        self._has_come.set()

    async def load_first(self) -> None:
        """Adopt the logs that other brokers are known to keep, before any of them hears of this one."""
        for state in list(self._waiting):
            if not state.is_gone and not self._order.leads(state):
                await self._adopt(self._order.topics[state.topic], state)

    async def run(self) -> None:
        """Adopt logs until cancelled."""
        while True:
            await self._has_come.wait()
            states, self._waiting, self._has_come = list(self._waiting), {}, trio.Event()
            own = [each for each in states if self._order.leads(each) and not each.is_replicated]
            if own:
                for state in own:
                    self._order.replicate(state)
                self._host.wake()
                await self._host.wait_durable()
            for number, state in enumerate(states):
                if self._order.find_log(state.topic, state.number) is state:
                    await self._adopt(self._order.topics[state.topic], state)
                if number % ADOPTED_TOGETHER == 0:
                    await trio.lowlevel.checkpoint()
            self._host.ask_heads((*{each.topic for each in states}, INDEX_TOPIC))

    async def _adopt(self, topic: Topic, state: Log) -> None:
        number, name = state.number, name_log(topic.topic_id, state.number)
        if self._logs.find(name) is not None:
            return
        replicas = topic.placement[number] if number < len(topic.placement) else (self._host.address,)
        checkpoints = self._checkpoints.take(topic.name, self._indexes.get(name, ()))
        index, ends = await self._read_indexes(name, checkpoints)
        if self._order.find_log(topic.name, number) is not state:
            return
        log = self._logs.add(topic, number, replicas, index, checkpoints)
        self._show_ended(state, log, ends)
        self._take_part(log, state)

    async def _read_indexes(
        self, name: str, checkpoints: Mapping[Partition, Checkpoint]
    ) -> tuple[list[RecordBatch], dict[Partition, int]]:
        """Read the indexes of a log that are stored, with what is stored while others are read.

        Args:
            name: The name of the log.
            checkpoints: Those that say up to which sequence an index need not be read.

        Returns:
            The index records, and the end of each partition of an index.
        """
        found: list[RecordBatch] = []
        ends: dict[Partition, int] = {}
        while due := [
            each for each in self._indexes.get(name, ()) if self._host.durable_end_of(each) > ends.get(each, -1)
        ]:
            for partition in due:
                known = checkpoints[partition].index_end if partition in checkpoints else 0
                first = ends.get(partition, known)
                ends[partition] = max(first, self._host.durable_end_of(partition))
                async for batch in read_index(self._host.storage, partition, first):
                    found.append(batch)
                    ends[partition] = max(ends[partition], batch.end_sequence)
        return found, ends

    def _show_ended(self, state: Log, log: ReplicatedLog, ends: Mapping[Partition, int]) -> None:
        """Offer other brokers the records of epochs that this one has led before it was restarted.

        With "majority", they know from epoch starts what they miss of all but the latest ones.
        """
        led = state.index_partition if self._order.leads(state) else None
        row = log.replica.latest
        latest = {log.index_partition(branch) for branch in (row.leader_epoch, row.parent.leader_epoch)}
        announces_all = log.replica.availability is Availability.BRANCH
        for partition, end in ends.items():
            if partition != led and self._host.is_own(partition):
                self._host.announce_until(partition, end, is_announced=announces_all or partition in latest)
