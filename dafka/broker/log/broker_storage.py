"""A broker's access to its storage: what is stored, what waits to be written, and the tasks that wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import trio

from dafka.broker.core.log.log import Log
from dafka.broker.local_state import LocalState
from dafka.broker.log.durable_waits import DurableWaits
from dafka.broker.log.stages import AssignOffsets
from dafka.errors import StorageError
from dafka.protocol import StoreMachine
from dafka.protocol.machines.stored_partitions import StoredPartitions
from dafka.records import Partition, RecordBatch
from dafka.roles.commit_pipeline import Commit, CommitPipeline, CommitStage
from dafka.storage import Storage


@attrs.define(eq=False, slots=False)
class BrokerStorage(CommitStage):
    """The storage of a broker. As the last stage of its commits, it wakes up the tasks that wait for them.

    `wait_capacity` waits while the records on their way to the storage need `pending_bytes_max`. `durable` is set when
    everything that is pending now is durable; another event follows it. `space_problem` says why no records of clients
    are stored; it is empty if they are.
    """

    storage: Storage
    _machine: StoreMachine
    _pipeline: CommitPipeline
    _state: LocalState
    _offsets: AssignOffsets
    _pending_bytes_max: int
    space_problem: str = attrs.field(init=False, default="")
    waits: DurableWaits = attrs.field(init=False, factory=DurableWaits)
    durable: trio.Event = attrs.field(init=False, factory=trio.Event)
    _writing: trio.Event | None = attrs.field(init=False, default=None)
    _deleted: trio.Event = attrs.field(init=False, factory=trio.Event)
    _capacity: trio.lowlevel.ParkingLot = attrs.field(init=False, factory=trio.lowlevel.ParkingLot)

    @property
    def stored(self) -> StoredPartitions:
        """The durable ends of the partitions."""
        return self._machine.stored

    @property
    def problem(self) -> str:
        """Why records of clients are refused; empty if they are not."""
        return self.waits.problem or self.space_problem

    @property
    def can_write(self) -> bool:
        """Whether the storage accepts records: the last write did not fail, for example on a full disk."""
        return not self._pipeline.refusal

    def durable_end(self, partition: Partition) -> int:
        """Return the sequence after the last durable record of a partition; 0 if there is none."""
        return self._machine.stored.durable_end(partition)

    def ends(self, topic: str) -> dict[Partition, int]:
        """Return the sequence after the last record of each partition of a topic that is stored or being written."""
        ends = {Partition(topic, address): end for address, end in self.stored.durable.get(topic, {}).items()}
        in_flight = (batch for batch in self._pipeline.in_flight if batch.partition.topic == topic)
        ends.update((batch.partition, batch.end_sequence) for batch in in_flight)
        return ends

    def earliest(self, topic: str) -> dict[Partition, int]:
        """Return the first stored sequence of each partition of a topic, where it is not 0."""
        return {each: first for each, first in self.stored.earliest.items() if each.topic == topic}

    def state(self, topic: str) -> Mapping[bytes, bytes]:
        """Return the state that `write_state` has written in a topic."""
        return self._state.values(topic)

    def state_end(self, topic: str) -> int:
        """Return the sequence after the last durable record of the state in a topic."""
        return self._state.end_of(Partition(topic, self._machine.address))

    def write(self) -> trio.Event:
        """Write everything that is pending now. The returned event is set when it is durable."""
        self._pipeline.wake()
        return self.durable

    def write_state(self, topic: str, changes: Iterable[tuple[bytes, bytes | None]]) -> trio.Event:
        """Write state: keys with values; None removes a key. The returned event is set when it is durable."""
        self._state.put(topic, changes)
        return self.write()

    async def assign_offsets(self, log: Log, batch: RecordBatch) -> None:
        """Assign offsets in a log to stored records, and wait until these are durable."""
        self._offsets.assign_later(log, batch)
        await self.write().wait()

    def delete_partitions(self, partitions: Iterable[Partition]) -> trio.Event:
        """Delete partitions that brokers have written. The returned event is set when they are deleted."""
        self._pipeline.queue.put_deleted(partitions)
        self._pipeline.wake()
        return self._deleted

    async def trim(self, earliest: Mapping[Partition, int]) -> None:
        """Drop the records of partitions before these sequences, as far as they are stored. Raises `StorageError`."""
        trimmed: dict[Partition, int] = {}
        try:
            for partition, sequence in earliest.items():
                first = min(sequence, self.durable_end(partition))
                if first > self.stored.earliest.get(partition, 0):
                    await self.storage.trim(partition, first)
                    trimmed[partition] = first
        finally:
            self._machine.records_trimmed(trimmed)

    async def wait_durable(self) -> None:
        """Wait until everything that is pending now is durable."""
        if self._pipeline.has_work():
            await self.durable.wait()

    async def wait_capacity(self) -> None:
        """Wait until the records that are not durable yet need less than `[store] pending_bytes_max`.

        Raises `StorageError` if the storage fails, the disk is almost full, or the wait takes too long.
        """
        if self.space_problem:
            raise StorageError(self.space_problem)
        if self._machine.pending_bytes < self._pending_bytes_max:
            return
        self.waits.check()
        with self.waits.bounded():
            while self._machine.pending_bytes >= self._pending_bytes_max:
                await self._capacity.park()

    # The stage

    def prepare(self, commit: Commit) -> None:
        """Begin a new event, for changes that come too late for the transaction."""
        if self._writing is None:
            self._writing, self.durable = self.durable, trio.Event()

    def done(self, commit: Commit) -> None:
        """Wake up the tasks that wait for the transaction."""
        if self._writing is not None:
            self._writing.set()
            self._writing = None

    def acknowledged(self, commit: Commit) -> None:
        """Wake up the tasks that wait for anything else."""
        self.waits.record_success()
        if not self._pipeline.has_work():  # a repeated write includes what arrived meanwhile
            self.durable.set()
            self.durable = trio.Event()
        if not self._pipeline.queue.is_deleting:
            self._deleted.set()
            self._deleted = trio.Event()
        self._capacity.unpark_all()

    def failed(self, commit: Commit, error: BaseException) -> None:
        """End the waits of requests if the storage has failed for a while."""
        if isinstance(error, StorageError):
            self.waits.record_failure(str(error))
