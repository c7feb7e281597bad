"""The stages of a broker's commits that assign offsets and write state.

They take part in each transaction of the storage: see `CommitPipeline`. So records become durable together with their
offsets, and with the state that depends on them.
"""

from __future__ import annotations

from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.offset_assigner import OffsetAssigner, OffsetPlan
from dafka.broker.local_state import LocalState
from dafka.broker.log.waiters import LogWaiters
from dafka.records import RecordBatch
from dafka.roles.commit_pipeline import Commit, CommitStage
from dafka.steady_clock import steady_now_ms


class AssignOffsets(CommitStage):
    """Assigns offsets to the records of each transaction, in the logs that this broker leads."""

    def __init__(self, log_table: LogTable, watchers: LogWaiters) -> None:
        self._log_table = log_table
        self._assigner = OffsetAssigner(log_table)
        self._watchers = watchers
        self._backfill: list[tuple[Log, RecordBatch]] = []
        self._planned: list[tuple[Log, RecordBatch]] = []
        self._plan: OffsetPlan | None = None

    def assign_later(self, log: Log, batch: RecordBatch) -> None:
        """Assign offsets in a log to stored records, in the next transaction."""
        self._backfill.append((log, batch))

    def has_work(self) -> bool:
        """See `CommitStage.has_work`."""
        return self._log_table.has_unwritten() or bool(self._backfill)

    def prepare(self, commit: Commit) -> None:
        """Add the index records."""
        self._planned, self._backfill = self._backfill, []
        self._plan = self._assigner.plan(commit.batches, steady_now_ms(), self._planned)
        commit.added += self._plan.index_records

    def done(self, commit: Commit) -> None:
        """Apply the offsets."""
        plan = self._take_plan()
        if plan is not None:
            self._assigner.commit(plan)
            self._notify(plan)

    def failed(self, commit: Commit, error: BaseException) -> None:
        """Undo the assignment. Waiters then check whether this broker still leads their logs."""
        plan = self._take_plan()
        if plan is not None:
            self._assigner.undo(plan)
            self._backfill = self._planned + self._backfill
            self._notify(plan)

    def _take_plan(self) -> OffsetPlan | None:
        plan, self._plan = self._plan, None
        return plan

    def _notify(self, plan: OffsetPlan) -> None:
        for log in plan.logs:
            self._watchers.notify(log)


class WriteLocalState(CommitStage):
    """Writes changes of the broker's own state."""

    def __init__(self, state: LocalState) -> None:
        self._state = state

    def has_work(self) -> bool:
        """See `CommitStage.has_work`."""
        return bool(self._state)

    def prepare(self, commit: Commit) -> None:
        """Add the changed state."""
        commit.added += self._state.begin_write(steady_now_ms())

    def done(self, commit: Commit) -> None:
        """Record that the state is durable."""
        self._state.write_done()
