"""What a store has received on its way to the disk: group commit.

What arrives while one transaction is being made durable is the next one. Nothing is acknowledged before it is durable;
what the storage refused is tried again, before anything that came later.
"""

from __future__ import annotations

from typing import TypeAlias

from dafka.protocol.actions import Action, Notify, Skip
from dafka.protocol.events import StorageFailed, StorageRecovered
from dafka.protocol.machines.store import StoreMachine
from dafka.protocol.ordering.buffers import BatchBuffer
from dafka.records import Partition, RecordBatch

Work: TypeAlias = Skip | list[RecordBatch]
"""What the storage is to do next: let a partition go on elsewhere, or append these runs in one transaction."""


class Commits:
    """Keeps the machine's `pending_bytes`, and tells it what is durable.

    Attributes:
        records: records made durable so far.
        bytes: their contents.
        commits: transactions so far.
    """

    def __init__(self, machine: StoreMachine) -> None:
        self.records = 0
        self.bytes = 0
        self.commits = 0
        self._machine = machine
        self._pending = BatchBuffer()
        self._skips: dict[Partition, int] = {}
        self._work: Work | None = None
        self._is_failing = False

    @property
    def is_failing(self) -> bool:
        """Has the storage refused what it was given last?"""
        return self._is_failing

    def __bool__(self) -> bool:
        """Is there anything to do for the storage?"""
        return bool(self._work or self._skips or self._pending)

    def take(self, batch: RecordBatch) -> None:
        """The machine wants these records appended."""
        self._pending.put(batch)
        self._machine.pending_bytes += batch.memory_bytes

    def skip(self, skip: Skip) -> None:
        """The machine gives up what is stored of a partition; what waits of it is dropped, too."""
        self._machine.pending_bytes -= self._pending.drop(skip.partition)
        self._skips[skip.partition] = skip.next_sequence

    def begin(self) -> Work:
        """What is to be done now, followed up with `done` or `failed`. There must be something.

        A skip comes before what waits, which continues the partitions where they go on.
        """
        if self._work is None:
            if self._skips:
                partition = next(iter(self._skips))
                self._work = Skip(partition, self._skips.pop(partition))
            else:
                self._work = self._pending.take_all()
        return self._work

    def done(self, now: float) -> list[Action]:
        """The storage has made durable what `begin` gave."""
        work, self._work = self._work, None
        actions: list[Action] = [Notify(StorageRecovered())] if self._is_failing else []
        self._is_failing = False
        if isinstance(work, Skip):
            return actions + self._machine.skipped(work.partition, work.next_sequence)
        assert work is not None
        self._machine.pending_bytes -= sum(batch.memory_bytes for batch in work)
        self.records += sum(map(len, work))
        self.bytes += sum(batch.content_bytes for batch in work)
        self.commits += 1
        ends = {batch.partition: batch.end_sequence for batch in work}
        return actions + self._machine.committed(ends, now)

    def failed(self, reason: str) -> list[Action]:
        """The storage has refused what `begin` gave; `begin` gives it again."""
        is_news, self._is_failing = not self._is_failing, True
        return [Notify(StorageFailed(reason))] if is_news else []
