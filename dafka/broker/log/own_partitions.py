"""Publishes the partitions that only this broker writes: leader partitions, indexes and its own state."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
import trio

from dafka import wire
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.node_machine import BrokerMachine
from dafka.broker.core.partition_policy import CONTROL_TOPICS, PartitionPolicy
from dafka.broker.local_state import LocalState
from dafka.records import Partition
from dafka.roles.commit_pipeline import Commit, CommitStage
from dafka.roles.sockets import NodeSockets

HEAD_WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds between the HEADs that follow published records."""


@attrs.define(eq=False, slots=False)
class HeadAnnouncer:
    """Sends HEADs after records were published, at increasing intervals, for nodes that have missed the records.

    There is a queue for each interval, in which the partitions are in the order of the times of their HEADs.
    """

    _sockets: NodeSockets
    _durable_end: Callable[[Partition], int]
    _queues: list[dict[Partition, float]] = attrs.field(init=False, factory=lambda: [{} for _ in HEAD_WAITS_S])
    _added: trio.Event = attrs.field(init=False, factory=trio.Event)

    @property
    def partitions(self) -> set[Partition]:
        """The partitions that are announced."""
        return {partition for queue in self._queues for partition in queue}

    def add(self, partitions: Iterable[Partition]) -> None:
        """Start to announce partitions of which records were published."""
        due = trio.current_time() + HEAD_WAITS_S[0]
        for partition in partitions:
            self.forget(partition)
            self._queues[0][partition] = due
        self._added.set()

    def forget(self, partition: Partition) -> None:
        """Stop announcing a partition."""
        for queue in self._queues:
            queue.pop(partition, None)

    async def run(self) -> None:
        """Send HEADs until cancelled."""
        while True:
            while (due := self._find_next()) is None:
                self._added = trio.Event()
                await self._added.wait()
            await trio.sleep_until(due)
            self._sockets.publish(self._take_due(trio.current_time()))
            await trio.lowlevel.checkpoint()

    def _find_next(self) -> float | None:
        return min((next(iter(queue.values())) for queue in self._queues if queue), default=None)

    def _take_due(self, now: float) -> list[wire.Head]:
        """Return the HEADs that are due, and move their partitions to the next queue."""
        heads = []
        for attempt, queue in reversed([*enumerate(self._queues)]):
            while queue and (found := next(iter(queue.items())))[1] <= now:
                partition, _ = found
                del queue[partition]
                end = self._durable_end(partition)
                if not end:  # it was deleted after its last records were published
                    continue
                heads.append(wire.Head(partition.address, partition.topic, end - 1))
                if attempt + 1 < len(self._queues):
                    self._queues[attempt + 1][partition] = now + HEAD_WAITS_S[attempt + 1]
        return heads


@attrs.define(eq=False, slots=False)
class OwnPartitions(CommitStage):
    """The partitions that a broker writes. As a stage of its commits, it publishes their records once durable."""

    _machine: BrokerMachine
    _sockets: NodeSockets
    _policy: PartitionPolicy
    _log_table: LogTable
    _state: LocalState
    heads: HeadAnnouncer = attrs.field(init=False)
    _index_logs: dict[Partition, Log] = attrs.field(init=False, factory=dict)
    _were_announced: list[bool] = attrs.field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        self.heads = HeadAnnouncer(self._sockets, self._machine.stored.durable_end)

    def lead(self, log: Log) -> None:
        """Record that this broker leads a log, and announce its index, which others read."""
        self._index_logs[log.index_partition] = log
        self.announce(log.index_partition)

    def announce_control(self) -> None:
        """Announce this broker's control records to other nodes."""
        for topic in CONTROL_TOPICS:
            self.announce(Partition(topic, self._machine.address))

    def announce(self, partition: Partition) -> None:
        """Announce a partition that other nodes could not see before."""
        log = self._find_index(partition)
        self.announce_until(partition, self._state.end_of(partition) if log is None else log.index_end)

    def announce_until(self, partition: Partition, end: int, *, is_announced: bool = True) -> None:
        """Serve a partition to other nodes up to a sequence, and announce it."""
        if end:
            self._machine.store_own(partition, end)
        if end and is_announced:
            self._sockets.publish([wire.Head(partition.address, partition.topic, end - 1)])
            self.heads.add([partition])

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Stop announcing partitions, because they are deleted."""
        for partition in partitions:
            self.heads.forget(partition)

    def _find_index(self, partition: Partition) -> Log | None:
        """Return the log with an index partition, if this broker leads it; None otherwise."""
        log = self._index_logs.get(partition)
        is_led = log is not None and log.index_partition == partition and self._log_table.leads(log)
        return log if is_led else None

    def _is_announced(self, partition: Partition) -> bool:
        if partition.topic in CONTROL_TOPICS:
            return True
        log = self._find_index(partition)
        return log is not None and log.is_replicated

    # The stage

    def prepare(self, commit: Commit) -> None:
        """Record which of the added records others can see.

        If this broker no longer leads a log when they are durable, they diverge, and the new leader merges them.
        """
        self._were_announced = [self._is_announced(batch.partition) for batch in commit.added]

    def done(self, commit: Commit) -> None:
        """Publish the records."""
        announced = [
            batch
            for batch, was_announced in zip(commit.added, self._were_announced, strict=True)
            if was_announced or self._is_announced(batch.partition)
        ]
        for batch in announced:
            self._machine.store_own(batch.partition, batch.end_sequence)
        announced += [batch for batch in commit.batches if self._policy.owns(batch.partition)]
        if announced:
            self._sockets.publish([wire.RecordRun(batch) for batch in announced])
            self.heads.add(batch.partition for batch in announced)
