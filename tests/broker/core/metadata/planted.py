"""Planted bugs: one mistake each in how a cluster agrees, which the simulation of clusters must notice.

`python -m tests.broker.core.metadata.planted` prints the first seed that shows each of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from dafka.broker.core.metadata.log_replicas import LogReplicas, ReplicaTable
from dafka.broker.core.replication.leader_lease import LeaseRounds
from dafka.errors import StorageFormatError
from tests.broker.core.metadata.script import TopicBroker
from tests.broker.core.metadata.simulation import SimulatedBroker, run_seed
from tests.broker.core.replication.brokers import KeptLog

SEEDS_MAX = 2000


class Bug(NamedTuple):
    """A function or method that does something else: what `change` returns for the right one."""

    seed: int  # shows it, and soon
    owner: Any
    name: str
    change: Callable[[Any], Any]


def observe_the_end(apply: Callable[[TopicBroker], None]) -> Callable[[TopicBroker], None]:
    def apply_all(self: TopicBroker) -> None:
        kept = self.metadata
        if kept is not None:
            mark, end = kept.replica._mark, kept.replica.local_epochs.log_end().end_offset
            before, mark.offset = mark.offset, max(end, mark.offset)
            apply(self)
            mark.offset = before

    return apply_all


ORDERED: dict[tuple[str, str], LogReplicas] = {}


def remember_ordered(change_replicas: Callable[[SimulatedBroker], None]) -> Callable[[SimulatedBroker], None]:
    def remember(self: SimulatedBroker) -> None:
        for log in self.logs:
            found = self.find_ordered(log)
            if found is not None:
                ORDERED[self.name, log] = found
        change_replicas(self)

    return remember


def begin_with_present_replicas(_: object) -> Callable[[TopicBroker, str], tuple[str, ...]]:
    def first_replicas(self: TopicBroker, log: str) -> tuple[str, ...]:
        found = self.find_ordered(log)
        return self.world.voters if found is None else found.replicas

    return first_replicas


def drop_when_ordered(_: object) -> Callable[[KeptLog], None]:
    def drop(self: KeptLog) -> None:
        ordered = ORDERED.get((self.broker.name, self.name))
        if ordered is not None and self.broker.name not in ordered.replicas and self.led is None:
            self.branches.clear()
            self.copying.clear()
            self.dropped += 1
            self._restore_held()

    return drop


def store_state_late(_: object) -> Callable[[TopicBroker], None]:
    def store(self: TopicBroker) -> None:
        """Store up to where commands are applied at once, and the state later."""
        changes, self.applied = self.state.take_records(), self.state.applied

        def stored() -> None:
            for key, value in changes:
                if value is None:
                    self.stored.pop(key, None)
                else:
                    self.stored[key] = value

        if self.is_up:
            self.world.write(self, stored)
        else:
            stored()

    return store


BUGS: dict[str, Bug] = {
    "a broker applies commands that are not committed": Bug(1500, TopicBroker, "apply", observe_the_end),
    "a log begins with its present replicas": Bug(1102, TopicBroker, "first_replicas", begin_with_present_replicas),
    "a change counts as made when its leader begins it": Bug(
        1711, LogReplicas, "order",
        lambda order: lambda self, *arguments, **options: order(self, *arguments, **options).finish(),
    ),
    "a deleted topic keeps its ordered replicas": Bug(59, ReplicaTable, "remove", lambda _: lambda _self, _topic: []),
    "the offset of applied commands is stored before the state": Bug(730, TopicBroker, "store", store_state_late),
    "a leader lease counts from when the answer comes": Bug(
        806, LeaseRounds, "begin",
        lambda begin: lambda self, now, *, can_write: begin(self, now + 2.0, can_write=can_write),
    ),
    "a replica drops its copy when others are ordered": Bug(434, KeptLog, "drop", drop_when_ordered),
}  # fmt: skip


def is_noticed(name: str, seed: int) -> bool:
    """Return whether a seed shows a bug: it breaks a promise, or something that brokers take for granted."""
    bug = BUGS[name]
    ORDERED.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bug.owner, bug.name, bug.change(getattr(bug.owner, bug.name)))
        patch.setattr(SimulatedBroker, "change_replicas", remember_ordered(SimulatedBroker.change_replicas))
        try:
            run_seed(seed)
        except (AssertionError, StorageFormatError):
            return True
        return False


if __name__ == "__main__":
    for each in sys.argv[1:] or BUGS:
        print(f"{each}: {next((seed for seed in range(SEEDS_MAX) if is_noticed(each, seed)), None)}", flush=True)
