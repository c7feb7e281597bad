"""Group commit: the received records that a store has not yet made durable.

Records that arrive while one transaction is being written form the next one. Nothing is acknowledged before it is
durable. A failed transaction is retried before later ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TypeAlias

import attrs

from dafka.protocol.actions import Action, Notify, ResetPosition
from dafka.protocol.machines.store import StoreMachine
from dafka.protocol.ordering.buffers import BatchBuffer
from dafka.protocol.store_events import StorageFailed, StorageRecovered
from dafka.records import Partition, RecordBatch

DELETED_TOGETHER = 4
"""Partitions that are deleted together. Waiting records, whose ACKs peers wait for, are appended in between."""


@attrs.frozen
class ForgetPartitions:
    """Delete these empty partitions from the storage."""

    partitions: tuple[Partition, ...]


@attrs.frozen
class DeletePartitions:
    """Delete these partitions, which this node produces, with their records from the storage."""

    partitions: tuple[Partition, ...]


StorageWork: TypeAlias = ResetPosition | ForgetPartitions | DeletePartitions | list[RecordBatch]
"""The next work of the storage: reset one partition, delete partitions, or append these runs in one transaction."""


class CommitQueue:
    """The work that waits for a store's storage. It reports waiting and durable records to the machine.

    `records`, `bytes` (of their contents) and `commits` count what was made durable so far.
    """

    def __init__(self, machine: StoreMachine) -> None:
        self.records = 0
        self.bytes = 0
        self.commits = 0
        self._machine = machine
        self._pending = BatchBuffer()
        self._resets: dict[Partition, int] = {}
        self._silent: list[Partition] = []
        self._deleted: dict[Partition, None] = {}
        self._has_just_deleted = False
        self._work: StorageWork | None = None
        self._work_bytes = 0
        self._is_failing = False

    def __bool__(self) -> bool:
        """Return whether there is work for the storage."""
        return bool(self._work or self._resets or self._silent or self._deleted or self._pending)

    @property
    def is_deleting(self) -> bool:
        """Whether own partitions wait to be deleted, or are being deleted."""
        return bool(self._deleted) or isinstance(self._work, DeletePartitions)

    @property
    def lets_others_write(self) -> bool:
        """Whether other waiting work should be written before more partitions are deleted."""
        return self._has_just_deleted and self._work is None and not self._pending

    def others_written(self) -> None:
        """Record that the other waiting work was written."""
        self._has_just_deleted = False

    def put_records(self, batch: RecordBatch) -> None:
        """Queue records that the machine wants appended."""
        self._pending.add_batch(batch)
        self._machine.records_queued(batch.memory_bytes)

    def put_reset(self, reset: ResetPosition) -> None:
        """Queue a reset of a partition, and drop the records that wait for it."""
        self._drop_waiting(reset.partition)
        self._resets[reset.partition] = reset.next_sequence

    def put_silent(self, partitions: Iterable[Partition]) -> None:
        """Queue ended partitions to be forgotten, replacing those that were queued before."""
        self._silent = list(partitions)

    def put_deleted(self, partitions: Iterable[Partition]) -> None:
        """Queue own partitions to be deleted. Their waiting records are dropped."""
        self._deleted.update(dict.fromkeys(partitions))

    def begin_work(self) -> StorageWork:
        """Return the next work of the storage; call `work_done` or `work_failed` afterward. There must be work.

        A reset comes before waiting records, since they continue the partition after it. Deletions come first, too, but
        of a few partitions at a time.
        """
        if self._work is None:
            if self._resets:
                partition = next(iter(self._resets))
                self._work = ResetPosition(partition, self._resets.pop(partition))
            elif self._deleted and not (self._has_just_deleted and self._pending):
                self._work = DeletePartitions(tuple(islice(self._deleted, DELETED_TOGETHER)))
            elif self._silent:
                silent, self._silent = self._silent, []
                self._work = ForgetPartitions(self._machine.begin_forgetting(silent))
            else:
                for partition in self._deleted:  # records being appended count as held
                    self._drop_waiting(partition)
                self._work_bytes = self._pending.memory_bytes
                self._work = self._pending.take_all()
        return self._work

    def work_done(self, now: float) -> list[Action]:
        """Record that the work of `begin_work` is durable, and acknowledge it."""
        work, self._work = self._work, None
        actions: list[Action] = [Notify(StorageRecovered())] if self._is_failing else []
        self._is_failing = False
        self._has_just_deleted = isinstance(work, DeletePartitions)
        if isinstance(work, ResetPosition):
            return actions + self._machine.position_reset(work.partition, work.next_sequence)
        if isinstance(work, ForgetPartitions):
            return actions + self._machine.partitions_deleted()
        if isinstance(work, DeletePartitions):
            for partition in work.partitions:
                del self._deleted[partition]
                self._drop_waiting(partition)
                self._resets.pop(partition, None)
                self._machine.forget_own(partition)
            return actions
        assert work is not None
        self._machine.records_unqueued(self._work_bytes)
        self.records += sum(map(len, work))
        self.bytes += sum(batch.content_bytes for batch in work)
        self.commits += 1
        ends = {batch.partition: batch.end_sequence for batch in work}
        return actions + self._machine.records_committed(ends, now)

    def work_failed(self, reason: str) -> list[Action]:
        """Record that the work of `begin_work` failed; `begin_work` returns it again."""
        is_new, self._is_failing = not self._is_failing, True
        return [Notify(StorageFailed(reason))] if is_new else []

    def _drop_waiting(self, partition: Partition) -> None:
        self._machine.records_unqueued(self._pending.drop_partition(partition))
