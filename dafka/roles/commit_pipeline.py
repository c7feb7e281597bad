"""Writes what a store has received to its storage, in one transaction at a time, and acknowledges it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence

import attrs
import trio

from dafka.config.settings import StoreConfig
from dafka.errors import StorageError, StorageLostError, StorageUnsupportedError
from dafka.protocol import CommitQueue, DeletePartitions, ForgetPartitions, ResetPosition
from dafka.protocol.actions import Action
from dafka.records import RecordBatch
from dafka.roles.events import NodeLog
from dafka.roles.logging_events import CommitSlow
from dafka.roles.statistics import Timer
from dafka.storage import CompactsPartitions, Storage
from dafka.storage.opening import delete_partitions

SLOW_COMMIT_REPEAT_S = 60.0
"""Seconds after which a slow commit is logged again."""


@attrs.define(eq=False)
class Commit:
    """One step of the storage: usually a transaction, otherwise a partition that is reset, or partitions to delete.

    The transaction appends records of peers and of the node's own partitions, and those that stages have added.
    """

    batches: Sequence[RecordBatch] = ()
    added: list[RecordBatch] = attrs.field(factory=list)
    reset: ResetPosition | None = None


class CommitStage:
    """Takes part in the commits of a `CommitPipeline`. No method waits; here they do nothing."""

    def has_work(self) -> bool:
        """Return whether the stage has records to add, so that a commit is due."""
        return False

    def prepare(self, commit: Commit) -> None:
        """Add records to a transaction before it is written."""

    def done(self, commit: Commit) -> None:
        """Process a transaction that is durable now, before peers get ACKs."""

    def acknowledged(self, commit: Commit) -> None:
        """Process a successful commit of any kind, after peers got ACKs."""

    def failed(self, commit: Commit, error: BaseException) -> None:
        """Undo `prepare`: nothing of the commit is durable. It is repeated later, with another `prepare`."""


@attrs.define(eq=False, slots=False)
class CommitPipeline:
    """Commits what waits in a queue, together with the records of stages.

    Records that arrive while one transaction is written form the next one. The queue also has the partitions to reset
    and to delete. `act` executes actions of the store's machine, for example sends ACKs.

    Attributes:
        stages: The stages. Their methods are called in this order, only `failed` in the reverse one.
        refusal: The reason why the storage refused the last commit; empty if it did not.
        in_flight: The received records in the transaction that is being written.
        writing_since: When the present transaction began, by Trio's clock; None if there is none.
    """

    queue: CommitQueue
    _storage: Storage
    _config: StoreConfig
    _act: Callable[[Iterable[Action]], None]
    _log: NodeLog
    stages: Sequence[CommitStage] = attrs.field(init=False, default=())
    refusal: str = attrs.field(init=False, default="")
    in_flight: Sequence[RecordBatch] = attrs.field(init=False, default=())
    writing_since: float | None = attrs.field(init=False, default=None)
    timer: Timer = attrs.field(init=False, factory=Timer)
    _logged_at: float = attrs.field(init=False, default=-math.inf)
    _woken: trio.lowlevel.ParkingLot = attrs.field(init=False, factory=trio.lowlevel.ParkingLot)
    _repeats_added: bool = attrs.field(init=False, default=False)

    def has_work(self) -> bool:
        """Return whether something waits for the storage."""
        return bool(self.queue) or self._have_stages_work()

    def wake(self) -> None:
        """Begin a commit soon, because something was queued or a stage has work."""
        self._woken.unpark_all()

    async def run(self) -> None:
        """Commit until cancelled, and try again after failures. Raises `StorageLostError`."""
        while True:
            if not self.has_work():
                await self._woken.park()
            try:
                await self._commit()
            except StorageLostError:
                raise
            except StorageError:
                await trio.sleep(self._config.retry_ms / 1000)

    async def finish(self) -> None:
        """Commit everything that waits. Raises `StorageError`."""
        while self.has_work():
            await self._commit()

    def _have_stages_work(self) -> bool:
        return any(stage.has_work() for stage in self.stages)

    async def _commit(self) -> None:
        """Carry out the next work of the queue, or a transaction of the stages alone. Raises `StorageError`."""
        queue, commit = self.queue, Commit()
        # A failed transaction of the stages alone is repeated before anything else.
        is_queued = bool(queue) and not self._repeats_added
        if is_queued and queue.lets_others_write:
            is_queued = not self._have_stages_work()
        try:
            if is_queued:
                await self._carry_out(commit)
            else:
                self._repeats_added = True
                await self._append(commit)
                self._repeats_added = False
        except BaseException as error:
            self._fail(commit, error)
            raise
        self.refusal = ""
        if is_queued:
            self._act(queue.work_done(trio.current_time()))
        else:
            queue.others_written()
        self.in_flight = ()
        for stage in self.stages:
            stage.acknowledged(commit)

    async def _carry_out(self, commit: Commit) -> None:
        work = self.queue.begin_work()
        if isinstance(work, ResetPosition):
            await self._storage.reset_to(work.partition, work.next_sequence)
            commit.reset = work
        elif isinstance(work, ForgetPartitions | DeletePartitions):
            await delete_partitions(self._storage, work.partitions)
        else:
            commit.batches = work
            await self._append(commit)

    async def _append(self, commit: Commit) -> None:
        self.in_flight = commit.batches
        for stage in self.stages:
            stage.prepare(commit)
        is_compacted = any(batch.compacted is not None for batch in commit.batches)
        if is_compacted and not isinstance(self._storage, CompactsPartitions):
            raise StorageUnsupportedError(
                "other stores have compacted records, and this storage cannot keep the places of removed ones; "
                "use sqlite: or filelog:"
            )
        await self._write([*commit.batches, *commit.added])
        for stage in self.stages:
            stage.done(commit)

    async def _write(self, batches: list[RecordBatch]) -> None:
        self.writing_since = begun = trio.current_time()
        try:
            await self._storage.append(batches)
        finally:
            self.writing_since = None
        now = trio.current_time()
        self.timer.add(now - begun)
        if now - begun > self._config.slow_commit_ms / 1000 and now >= self._logged_at + SLOW_COMMIT_REPEAT_S:
            self._logged_at = now
            records, size = sum(map(len, batches)), sum(batch.content_bytes for batch in batches)
            self._log.write(CommitSlow(now - begun, records, size), logging.WARNING)

    def _fail(self, commit: Commit, error: BaseException) -> None:
        for stage in reversed(self.stages):
            stage.failed(commit, error)
        if isinstance(error, StorageError) and not isinstance(error, StorageLostError):
            self.refusal = str(error)
            self._act(self.queue.work_failed(self.refusal))
