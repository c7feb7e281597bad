"""Finds stores that have forgotten what they had written: disks that were cut short, restored from a backup, or cloned.

Such a store must not vote or acknowledge under its id, because others rely on what it has forgotten. So a broker that
starts asks all living brokers first. They remember of each store which start the cluster has accepted, which start they
hear, how far the store has counted its writes, and how many control records it has written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum

import attrs

from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import RegisterBroker
from dafka.broker.core.metadata.store_record import SentCounter

STARTS_MAX = 16
"""The number of start numbers that a store keeps. A message between brokers has space for them."""

SETTLE_S = 2.0
"""How long a broker that starts waits for all other brokers of its cluster to check its store, in seconds."""

ANSWER_S = 5.0
"""How long it waits for the brokers that it hears, in seconds."""

FORMER_SILENT_S = 5.0
"""How long the former id of a store must have been silent before the store takes its place, in seconds."""

FORMER_RUNS_S = 3.0
"""A broker with the former id runs if it is heard as long after the start of this one, in seconds."""

SIGHTINGS_MIN = 5
"""The least number of signs that show that a former start still runs."""


class StoreProblem(StrEnum):
    """How it shows that a store has forgotten something."""

    START = "the cluster has accepted a later start of it"
    TWIN = "another broker runs with the same store id"
    COUNTER = "another broker knows of later writes to it"
    CONTROL = "another broker has later control records of it"
    RECORDS = "another broker has later records of a log that it leads"


@attrs.frozen
class StoreClaim:
    """What a broker tells of its own store.

    Attributes:
        starts: The latest start numbers that the store has written. The last one is that of the present start.
        applied: The offset up to which the broker has applied the log of metadata.
        counter: How far the store has counted its writes.
        counter_at_start: How far it had counted them before the present start.
        control_end: The sequence after its last control record.
    """

    starts: tuple[str, ...]
    applied: int = 0
    counter: int = 0
    counter_at_start: int = 0
    control_end: int = 0

    @property
    def start(self) -> str:
        """The number of the present start."""
        return self.starts[-1]


def add_start(starts: tuple[str, ...], start: str, accepted: str) -> tuple[str, ...]:
    """Return start numbers and a new one. The accepted one stays, as the cluster asks for it."""
    kept = (*starts, start)[-STARTS_MAX:]
    return kept if accepted in {"", *kept} else (accepted, *kept[1:])


@attrs.frozen
class StoreMemory:
    """What a broker remembers of the store of another one.

    Attributes:
        accepted: The number of the last start that the cluster has accepted; empty if there is none.
        applied: The offset up to which the broker that remembers it has applied the log of metadata.
        running: The number of another start that was heard a moment ago; empty if there is none.
        counter: The highest counter that former starts have sent.
        control_end: The sequence after its last known control record.
    """

    accepted: str = ""
    applied: int = 0
    running: str = ""
    counter: int = 0
    control_end: int = 0

    def hears_other(self, claim: StoreClaim) -> bool:
        """Return whether another start is heard beside one that the cluster has not accepted."""
        return bool(self.running) and self.accepted != claim.start


@attrs.frozen
class StoreVerdict:
    """What a broker finds about what another one tells of its store.

    Attributes:
        memory: What it remembers of the store.
        problem: How the store has forgotten something; None if it has not.
        is_admitted: Whether the broker may take part with this store.
    """

    memory: StoreMemory
    problem: StoreProblem | None
    is_admitted: bool


def find_problem(claim: StoreClaim, memory: StoreMemory) -> StoreProblem | None:
    """Return how what a broker remembers shows that a store has forgotten something; None if it does not."""
    is_later = memory.applied > claim.applied  # otherwise the store knows of later accepted starts itself
    if is_later and memory.accepted not in {"", *claim.starts}:
        return StoreProblem.START
    if memory.hears_other(claim) and memory.running not in claim.starts:
        return StoreProblem.TWIN
    if claim.counter_at_start < memory.counter:
        return StoreProblem.COUNTER
    return StoreProblem.CONTROL if claim.control_end < memory.control_end else None


@attrs.frozen
class _HeardStart:
    claim: StoreClaim
    heard_at: float


class KnownStores:
    """What a broker remembers of the stores of other brokers.

    `state` has the accepted starts. `counters` are the latest counters that stores have sent; the broker must store
    them. A start counts as running until nothing was heard of it for `timeout_s` seconds.
    """

    def __init__(self, state: ClusterState, timeout_s: float) -> None:
        self.counters: dict[str, SentCounter] = {}
        self._state = state
        self._timeout_s = timeout_s
        self._heard: dict[str, dict[str, _HeardStart]] = {}

    def recall(self, store_id: str, claim: StoreClaim, control_end: int, now: float) -> StoreMemory:
        """Return what this broker remembers of a store, whose control records it knows before `control_end`."""
        registered = self._state.brokers.get(store_id)
        accepted = "" if registered is None else registered.start
        running = sorted(self._running(store_id, now).keys() - {claim.start}, key=claim.starts.__contains__)
        start, counter = self.counters.get(store_id, ("", 0))
        counter = 0 if start == claim.start else counter
        return StoreMemory(accepted, self._state.applied, next(iter(running), ""), counter, control_end)

    def judge(self, store_id: str, claim: StoreClaim, control_end: int, now: float, *, is_check: bool) -> StoreVerdict:
        """Return what this broker finds about what another one tells of its store, and record that if it is right.

        Of two starts that are heard, the one that the cluster has not accepted is not recorded: it can be a clone's,
        which writes other records.
        """
        memory = self.recall(store_id, claim, control_end, now)
        problem = find_problem(claim, memory)
        is_admitted = problem is None and not memory.hears_other(claim)
        if is_admitted and not (is_check and memory.running):
            self.record(store_id, claim, now)
        return StoreVerdict(memory, problem, is_admitted)

    def record(self, store_id: str, claim: StoreClaim, now: float) -> None:
        """Record what a broker tells of its store, if it has forgotten nothing."""
        self._heard[store_id] = {**self._running(store_id, now), claim.start: _HeardStart(claim, now)}
        if store_id in self._state.brokers:
            self.counters[store_id] = SentCounter(claim.start, claim.counter)

    def is_trusted(self, store_id: str, start: str) -> bool:
        """Return whether a start of a store was heard, and the cluster has accepted no other one since."""
        found, registered = self._heard.get(store_id, {}).get(start), self._state.brokers.get(store_id)
        if found is None or registered is None:
            return found is not None
        return found.claim.applied >= self._state.applied or registered.start in {"", *found.claim.starts}

    def _running(self, store_id: str, now: float) -> dict[str, _HeardStart]:
        heard = self._heard.get(store_id, {})
        return {start: each for start, each in heard.items() if now - each.heard_at < self._timeout_s}


@attrs.define
class _Sightings:
    """The signs of a former start that one broker has sent."""

    first: float
    latest: float = 0.0
    count: int = 0


class StoreCheck:
    """The check of a broker's own store by others, which it asks again and again.

    Another start of the store may run beside this one, or may have ended a moment ago: it is heard for a while, either
    way. The check waits until that is certain.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._certain_s = max(2 * timeout_s, FORMER_RUNS_S)
        self._suspected: StoreProblem | None = None
        self._answered: set[str] = set()
        self._sightings: dict[str, _Sightings] = {}

    def suspect(self, problem: StoreProblem) -> None:
        """Record that the store has forgotten something."""
        self._suspected = self._suspected or problem

    def answered(self, broker: str, claim: StoreClaim, memory: StoreMemory, now: float) -> None:
        """Process an answer. It does not count while another start is heard."""
        problem = find_problem(claim, memory)
        if problem is not None:
            self.suspect(problem)
        if memory.hears_other(claim):
            self._sight_other(broker, now)
        else:
            self._answered.add(broker)
            self._sightings.pop(broker, None)

    def overheard(self, broker: str, now: float) -> None:
        """Process that another broker answers a round that this start has not asked.

        A tower introduces only one of two brokers with one id. The other one hears the brokers of the cluster, but they
        do not hear it.
        """
        self._sight_other(broker, now)

    def _sight_other(self, broker: str, now: float) -> None:
        """Process a sign of another start. A broker that was stopped sends signs of a former one, but all at once."""
        seen = self._sightings.get(broker)
        if seen is None or now - seen.latest > self._timeout_s:
            seen = self._sightings[broker] = _Sightings(now)
        seen.latest, seen.count = now, seen.count + 1

    def find_problem(self, now: float) -> StoreProblem | None:
        """Return how the store has forgotten something; None if it has not, or if it is not certain yet.

        Another start of it runs if the signs go on for twice the timeout, and for `FORMER_RUNS_S`: they can have been
        on their way for long. It has ended if there was none for as long.
        """
        seen = self._sightings.values()
        if any(each.count >= SIGHTINGS_MIN and each.latest - each.first >= self._certain_s for each in seen):
            return StoreProblem.TWIN
        if self._may_run_twice(now):
            return None
        return StoreProblem.START if self._suspected is StoreProblem.TWIN else self._suspected

    def _may_run_twice(self, now: float) -> bool:
        return any(now - each.latest <= self._certain_s for each in self._sightings.values())

    def unchecked_by(self, others: Collection[str]) -> frozenset[str]:
        """Return the brokers that have not answered."""
        return frozenset(others) - self._answered

    def is_passed(self, others: Collection[str], heard: Collection[str], waited_s: float, now: float) -> bool:
        """Return whether enough of the other brokers have answered, which were asked some seconds ago, without problem.

        At first, all must answer. After `SETTLE_S`, only the heard ones must. After `ANSWER_S` or three times the
        timeout, none must: the others do not hear this broker. While another start may run, the check is not passed.
        """
        missing = self.unchecked_by(others)
        if self._suspected is not None or self._may_run_twice(now):
            return False
        return waited_s >= max(ANSWER_S, 3 * self._timeout_s) or not (
            missing if waited_s < SETTLE_S else missing.intersection(heard)
        )


def takes_place(silent_s: float, age_s: float) -> bool | None:
    """Return whether a store takes the place of its former id; None if that is not certain yet.

    This broker started `age_s` seconds ago, and has heard nothing of the former id for `silent_s` seconds; infinity if
    it never has. What is heard soon after the start can have been on its way for long.
    """
    if age_s < FORMER_RUNS_S:
        return None  # they may not have found each other yet
    if silent_s >= FORMER_SILENT_S:
        return True
    return False if age_s - silent_s >= FORMER_RUNS_S else None


def complete_registration(
    command: RegisterBroker, state: ClusterState, is_heard: Callable[[str], bool]
) -> RegisterBroker:
    """Return a registration with a number, as the controller completes it.

    A store that has given up its former id takes the place of that id, or of the one that has taken its place before: a
    disk can forget that, too. But if another broker is heard with it, the store is a clone of that broker's, and takes
    a number that is free.
    """
    known, former = state.brokers.get(command.store_id), state.members.find_store(command.replaces)
    if known is not None or (former is not None and is_heard(former.store_id)):
        former = None
    number = command.number if known is None else known.number
    if number < 0:
        number = state.members.free_number() if former is None else former.number
    return attrs.evolve(command, number=number, replaces="" if former is None else former.store_id)
