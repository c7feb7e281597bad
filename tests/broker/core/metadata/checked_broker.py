"""Simulated brokers whose stores are checked by others when they start, as those of running ones are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.store_check import (
    KnownStores,
    StoreCheck,
    StoreClaim,
    StoreMemory,
    StoreProblem,
    add_start,
)
from dafka.broker.core.metadata.store_record import SentCounter
from dafka.broker.core.replication.records import EpochStart, LeaderAndEpoch
from tests.broker.core.replication.brokers import ALIVE_S, Broker, KeptLog

ASK_S = 0.05

Ends: TypeAlias = Mapping[tuple[str, LeaderAndEpoch], int]
"""How many records a broker has of branches of logs."""


class CheckedBroker(Broker):
    """A broker whose store is checked. It gives up its name if the store has forgotten something."""

    state: ClusterState
    checks_store = True

    def __init__(self, name: str, number: int, world: Any, link: str) -> None:
        super().__init__(name, number, world)
        self._link = link
        self.starts: tuple[str, ...] = ()
        self.replaces = ""
        self.ids_given_up = 0
        self.counters: dict[str, SentCounter] = {}
        self.counter = self.counter_at_start = self.written = 0
        self.is_checked = False
        self.unchecked: frozenset[str] = frozenset()
        self.heard_at: dict[str, float] = {}

    @property
    def link(self) -> str:
        return self._link

    @property
    def is_running(self) -> bool:
        return super().is_running and self.is_checked

    @property
    def claim(self) -> StoreClaim:
        control_end = len(self.control.get(self.name, ()))
        return StoreClaim(self.starts, self.state.applied, self.counter, self.counter_at_start, control_end)

    @abstractmethod
    def load(self) -> None:
        """Restore the state of the cluster."""

    @abstractmethod
    def register(self) -> None:
        """Request a registration of this start until it is accepted."""

    # The check

    def start(self, kept_log: Callable[[str, Broker], KeptLog] = KeptLog) -> None:
        if self.is_up:
            return
        if not self.checks_store:
            self.is_checked = True
            super().start(kept_log)
            return
        self.load()
        registered = self.state.brokers.get(self.name)
        accepted = "" if registered is None else registered.start
        self.starts = add_start(self.starts, f"{self.link}-{self.generation}", accepted)
        self.counter_at_start = self.counter
        self.known = KnownStores(self.state, ALIVE_S)
        self.known.counters = self.counters
        self.heard_at = {}
        self.check = StoreCheck(ALIVE_S)
        self.generation += 1
        self.is_up, self.is_checked = True, False
        self._wait_checked(self.generation, self.world.now, kept_log)

    def _wait_checked(self, generation: int, begun: float, kept_log: Callable[[str, Broker], KeptLog]) -> None:
        if generation != self.generation:
            return
        others = self.state.brokers.keys() - {self.name}
        heard = [each for each, at in self.heard_at.items() if self.world.now - at < ALIVE_S]
        if self.check.find_problem(self.world.now) is not None:
            self.give_up(kept_log)
        elif self.check.is_passed(others, heard, self.world.now - begun, self.world.now):
            self.is_up, self.is_checked = False, True
            super().start(kept_log)
            self.known = KnownStores(self.state, ALIVE_S)
            self.known.counters = self.counters
            self.unchecked = self.check.unchecked_by(others)
            self.register()
        else:
            for other in self._others():
                self.world.send(self, other, partial(other.check_store, self, self.claim))
            self.world.later(ASK_S, partial(self._wait_checked, generation, begun, kept_log))

    def give_up(self, kept_log: Callable[[str, Broker], KeptLog]) -> None:
        self.crash()
        self.ids_given_up += 1  # a disk that forgets does not take it back: each new id is used once
        if self.name in self.state.brokers or not self.replaces:
            self.replaces = self.name
        self.name, self.starts = self.link + "'" * self.ids_given_up, ()
        self.start(kept_log)

    def answered(self, broker: str, start: str, memory: StoreMemory, ends: Ends) -> None:
        if start != self.starts[-1]:
            return
        self.check.answered(broker, self.claim, memory, self.world.now)
        self.unchecked -= {broker}
        own = {(log, branch): len(ids) for log, found in self.branches.items() for branch, (_, ids) in found.items()}
        kept = {each: end for each, end in ends.items() if not self._is_deleted(each[0])}
        if not self.is_checked and any(end > own.get(each, 0) for each, end in kept.items()):
            self.check.suspect(StoreProblem.RECORDS)
        if self.is_checked and self.check.find_problem(self.world.now) is not None:
            self.give_up(type(next(iter(self.logs.values()))))

    def _is_deleted(self, log: str) -> bool:
        return log.partition("/")[0] in self.state.deleted_ids

    # Others

    def _others(self) -> list[CheckedBroker]:
        return [each for each in self.world.brokers.values() if isinstance(each, CheckedBroker) and each is not self]

    def check_store(self, other: CheckedBroker, claim: StoreClaim) -> None:
        """Answer the check of another store."""
        self._admit(other, claim, is_check=True)

    def _admit(self, other: CheckedBroker, claim: StoreClaim, *, is_check: bool) -> bool:
        """Return whether another store has forgotten nothing, and tell its broker if it asks, or if it has."""
        self.heard_at[other.name] = self.world.now
        control_end = len(self.control.get(other.name, ()))
        found = self.known.judge(other.name, claim, control_end, self.world.now, is_check=is_check)
        if is_check or not found.is_admitted:
            answered = partial(other.answered, self.name, claim.start, found.memory, self._ends_of(other.name))
            self.world.send(self, other, answered)
        return found.is_admitted

    def _ends_of(self, name: str) -> Ends:
        starts = [each for made in self.control.values() for each in made if isinstance(each, EpochStart)]
        return {
            (log, branch): len(ids)
            for log, found in self.branches.items()
            for branch, (_, ids) in found.items()
            if branch.leader == name
            and all(each.leader_epoch.epoch <= branch.epoch for each in starts if each.log == log)
        }

    def hear(self, other: Broker, *arguments: Any, **options: Any) -> None:
        assert isinstance(other, CheckedBroker)
        if not self.checks_store:
            super().hear(other, *arguments, **options)
            return
        if other.name == self.name or not self._admit(other, other.claim, is_check=False) or not self.is_checked:
            return
        if other.name in self.unchecked:
            self.world.send(self, other, partial(other.check_store, self, self.claim))
        else:
            super().hear(other, *arguments, **options)

    def copy_control(self, other: Broker, maker: str) -> None:
        if self.is_checked and other.name not in self.unchecked:
            super().copy_control(other, maker)

    def copy_branch(self, other: Broker, log: str, branch: LeaderAndEpoch) -> None:
        if self.is_checked and other.name not in self.unchecked:
            super().copy_branch(other, log, branch)

    def _show_life(self, others: list[Broker]) -> None:
        branches = [ids for found in self.branches.values() for _, ids in found.values()]
        written = len(self.control.get(self.name, ())) + sum(map(len, branches))
        self.counter += written != self.written
        self.written = written
        super()._show_life(others)
