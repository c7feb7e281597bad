"""The stored state of a share partition: what a share group has done with the records of one log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import attrs

from dafka.broker.core.groups.share.runs import ENDED, RecordState, Run
from dafka.broker.core.metadata.log_replicas import LogKey


class SharePartitionKey(NamedTuple):
    """A share group, and one log of a topic."""

    group_id: str
    topic_id: str
    number: int

    @property
    def log(self) -> LogKey:
        """The log."""
        return LogKey(self.topic_id, self.number)


class StoredRun(NamedTuple):
    """A number of neighboring offsets in a state."""

    size: int
    state: RecordState
    delivery_count: int


@attrs.frozen
class ShareState:
    """The state of a share partition.

    Attributes:
        state_id: It changes when an administrator sets the start offset, or the group is deleted and created again.
        loaded_epoch: The latest epoch of a leader that has loaded the state. Former leaders cannot write it any more.
        written_epoch: The epoch of the leader that has written the state last, in whose log its offsets are valid.
        start_offset: The offset of the first record whose state has not ended; -1 before the first delivery.
        runs: The states from the start offset on. Later records were not delivered.
    """

    state_id: str
    loaded_epoch: int
    written_epoch: int
    start_offset: int
    runs: tuple[StoredRun, ...]

    @property
    def end_offset(self) -> int:
        """The offset after the last run."""
        return self.start_offset + sum(run.size for run in self.runs)

    @property
    def ended_count(self) -> int:
        """The number of offsets after the start offset whose states have ended."""
        return sum(run.size for run in self.runs if run.state in ENDED)

    def lag_to(self, end_offset: int) -> int:
        """Return how many offsets have not ended, up to the end of the log."""
        return max(end_offset - self.start_offset - self.ended_count, 0)

    def cut(self, end_offset: int) -> ShareState:
        """Return the state without what it says of an offset and later ones."""
        runs, first = list[StoredRun](), self.start_offset
        for run in self.runs:
            if first < end_offset:
                runs.append(run._replace(size=min(run.size, end_offset - first)))
            first += run.size
        return attrs.evolve(self, start_offset=min(self.start_offset, end_offset), runs=tuple(runs))


NO_STATE = ShareState("", -1, -1, -1, ())
"""The state before a leader has loaded it."""


def store_runs(runs: Iterable[Run]) -> tuple[StoredRun, ...]:
    """Return the stored form of runs. A delivery that has not ended is not stored: the next leader repeats it."""
    stored = list[StoredRun]()
    for run in runs:
        is_acquired = run.state is RecordState.ACQUIRED
        state = RecordState.AVAILABLE if is_acquired else run.state
        found = StoredRun(run.end - run.first, state, run.delivery_count - is_acquired)
        if stored and stored[-1][1:] == found[1:]:
            found = found._replace(size=stored.pop().size + found.size)
        stored.append(found)
    if stored and stored[-1][1:] == (RecordState.AVAILABLE, 0):
        stored.pop()
    return tuple(stored)


def restore_runs(state: ShareState) -> list[Run]:
    """Return the runs of a state."""
    runs, first = list[Run](), state.start_offset
    for size, record_state, delivery_count in state.runs:
        runs.append(Run(first, first + size, record_state, delivery_count))
        first += size
    return runs
