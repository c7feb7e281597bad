"""Balances replicas: decides which brokers store the logs that one broker leads, as brokers come, go and fill up.

A leader changes the replicas of its logs one step at a time. A broker that is dead for good is replaced in one step. A
broker that can still provide its data is replaced in two: its successor is added first, and the broker is removed when
all others are in sync.

New logs are placed by the same plan, so that a log which was just placed stays where it is. Nothing moves unless
something has changed: see `Reason`. A broker that is new, or has come back, announces that it awaits its share, until
it has it. Logs move from more loaded brokers only then, and only to such brokers.

Balancing needs no coordinator: every broker knows the replicas of all logs, so each computes the same moves, and
executes the moves of the logs that it leads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs

from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.broker.core.metadata.replica_placement import (
    BrokerSpace,
    LogPlacement,
    Reason,
    Reassignment,
    choose_replicas,
)
from dafka.protocol.rendezvous import weigh_node

RETRY_S = 5.0
"""How long a reassignment can take until it is requested again."""

PLANNING_S = 5.0
"""The time between two plans."""

SHARE_S = 10.0
"""A broker has its share when no log was planned for it for this time, in seconds. It can hear of logs late."""


@attrs.frozen(kw_only=True)
class BalancerSettings:
    """When replicas are changed, and how many at once."""

    replace_replicas_after_s: float = 60.0
    full_bytes: int = 0  # with less free space, a broker gets no replicas, and leads only if it must
    moves_max: int = 2  # logs that a leader copies, and that a broker receives for its share, at once


@attrs.frozen
class _Cluster:
    """The brokers at one moment, with how many replicas each has, without replicas that will be removed."""

    alive: frozenset[str]
    leaving: frozenset[str]  # their replicas are replaced as soon as the successors are in sync
    gone: frozenset[str]  # dead for too long
    spaces: tuple[BrokerSpace, ...]  # the living brokers, as placement sees them
    usable: frozenset[str]  # accept more replicas
    racks: Mapping[str, str]
    sharing: frozenset[str]  # await their share
    loads: Counter[str] = attrs.field(factory=Counter)
    surplus: dict[str, tuple[str, ...]] = attrs.field(factory=dict)

    def staying(self, replicas: Iterable[str]) -> tuple[str, ...]:
        """Return the replicas that need no successor."""
        if not self.gone and not self.leaving:
            return tuple(replicas)
        return tuple(each for each in replicas if each not in self.gone and each not in self.leaving)

    def choose_surplus(self, log: LogPlacement, added: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the surplus replicas of a log, to which some replicas are added.

        They are ordered by three criteria: racks with the most replicas of the log first, then brokers that await no
        share, then the most loaded brokers. The leader can be one of them.
        """
        kept = list(self.staying((*log.replicas, *added)))
        found = []
        while len(kept) > log.wanted:
            used = Counter(self.racks.get(each, "") for each in kept)
            worst = max(
                kept,
                key=lambda each: (
                    used[self.racks.get(each, "")],
                    each not in self.sharing,
                    self.loads[each],
                    each != log.leader,
                    weigh_node(log.name, each),
                ),
            )
            kept.remove(worst)
            found.append(worst)
        return tuple(found)


class Balancer:
    """Decides which brokers store the logs that one broker leads."""

    def __init__(self, own: str, settings: BalancerSettings) -> None:
        self._own = own
        self._settings = settings
        self._dead_since: dict[str, float] = {}
        self._requested: dict[str, tuple[tuple[str, ...], float]] = {}
        self._next_plan_at = float("-inf")
        self._shared_at: float | None = None
        self._has_share = False
        self._cluster: _Cluster | None = None
        self._ineligible: frozenset[str] = frozenset()
        self._handed_over: dict[str, frozenset[str]] = {}
        self._replaced: frozenset[str] = frozenset()

    def ineligible_leaders(self, log: str) -> frozenset[str]:
        """Return the brokers that lead a log only if no other replica can, as of the last call of `advance`."""
        handed_over = self._handed_over.get(log)
        return self._ineligible if handed_over is None else self._ineligible | handed_over

    @property
    def replaced(self) -> frozenset[str]:
        """The brokers whose replicas get successors: those that are drained, or have been dead for too long."""
        return self._replaced

    @property
    def has_share(self) -> bool:
        """Whether this broker has awaited its share of the logs, and now has it."""
        return self._has_share

    def explain(self, log: LogPlacement, assigned: tuple[str, ...] = ()) -> Reason | None:
        """Return why the replicas of a log are changing, as of the last call of `advance`; None if they are not.

        `assigned` are the replicas that an operator has chosen.
        """
        cluster = self._cluster
        if assigned and set(assigned) != set(log.replicas):
            return Reason.ASKED
        if cluster is None or log.is_fixed:
            return None
        staying = cluster.staying(log.replicas)
        missing = self._missing(log, cluster)
        if len(log.replicas) > len(staying) and (missing or len(staying) >= log.wanted):
            return Reason.DRAINED if cluster.gone.isdisjoint(log.replicas) else Reason.DEAD
        if not missing and len(log.replicas) > log.wanted:
            return Reason.SURPLUS if cluster.sharing.isdisjoint(log.replicas) else Reason.SHARE
        return Reason.MISSING if missing else None

    def place_logs(
        self,
        brokers: Iterable[BrokerRegistration],
        alive: Collection[str],
        logs: Iterable[LogPlacement],
        names: Sequence[str],
        wanted: int,
        now: float,
        unwritable: frozenset[str] = frozenset(),
    ) -> list[tuple[str, ...]]:
        """Choose the replicas of new logs, given all existing logs and all brokers, living or not.

        Return this broker alone if no broker accepts replicas.
        """
        cluster = self._survey(list(brokers), frozenset(alive), unwritable, list(logs), now)
        placed: list[tuple[str, ...]] = []
        for name in names:
            chosen = choose_replicas(name, cluster.spaces, wanted, cluster.loads) or (self._own,)
            cluster.loads.update(chosen)
            placed.append(chosen)
        return placed

    def advance(
        self,
        brokers: Iterable[BrokerRegistration],
        alive: Collection[str],
        logs: Iterable[LogPlacement],
        now: float,
        unwritable: frozenset[str] = frozenset(),
    ) -> list[Reassignment]:
        """Return the logs whose replicas change next, given all logs of the cluster and all brokers, living or not.

        The logs of other leaders serve to count the replicas of each broker. The caller makes the changes at once. One
        that fails is requested again some time later.
        """
        found = sorted(logs, key=lambda log: log.name)
        cluster = self._survey(list(brokers), frozenset(alive), unwritable, found, now)
        led = [each for each in found if each.leader == self._own and not each.is_fixed]
        self._forget_finished(led, now)
        changes = [
            Reassignment(log.name, replicas, self.explain(log) or Reason.SURPLUS)
            for log in led
            if log.name not in self._requested and (replicas := self._without_surplus(log, cluster)) != log.replicas
        ]
        busy = {each.log for each in changes} | self._requested.keys()
        capacity = self._settings.moves_max - sum(
            log.name in self._requested or (log.name not in busy and self._is_catching_up(log, cluster)) for log in led
        )
        waiting = [log for log in led if log.name not in busy and self._missing(log, cluster)]
        waiting.sort(key=lambda log: (len(cluster.alive.intersection(log.in_sync)), log.name))
        changes += [
            Reassignment(log.name, self._with_missing(log, cluster), self.explain(log) or Reason.MISSING)
            for log in waiting[: max(capacity, 0)]
        ]
        capacity -= len(waiting)
        plan = self._share(found, cluster, now)
        idle = [
            each
            for each in plan
            if each[0].leader == self._own and each[0].name not in busy and not self._is_catching_up(each[0], cluster)
        ]
        changes += [
            Reassignment(log.name, (*log.replicas, broker), Reason.SHARE) for log, broker in idle[: max(capacity, 0)]
        ]
        replicas_of = {log.name: log.replicas for log in led}
        self._requested.update((each.log, (replicas_of[each.log], now)) for each in changes)
        return changes

    # State

    def _survey(
        self,
        brokers: list[BrokerRegistration],
        alive: frozenset[str],
        unwritable: frozenset[str],
        logs: list[LogPlacement],
        now: float,
    ) -> _Cluster:
        alive |= {self._own}
        known = {each.address for each in brokers} | {each for log in logs for each in log.replicas}
        dead = known - alive
        self._dead_since = {each: min(self._dead_since.get(each, now), now) for each in dead}
        gone = frozenset(
            each for each in dead if now - self._dead_since[each] >= self._settings.replace_replicas_after_s
        )
        full = unwritable | {each.address for each in brokers if each.free_bytes < self._settings.full_bytes}
        leaving = frozenset(each.address for each in brokers if each.is_draining)
        self._ineligible = full | leaving
        self._replaced = gone | leaving
        usable = alive - full - leaving
        spaces = tuple(
            BrokerSpace(each.address, each.free_bytes, each.rack, each.address in usable)
            for each in sorted(brokers, key=lambda each: each.address)
            if each.address in alive
        )
        racks = {each.address: each.rack for each in brokers}
        usable &= racks.keys()
        sharing = frozenset(each.address for each in brokers if each.awaits_share)
        cluster = self._cluster = _Cluster(alive, leaving & alive, gone, spaces, usable, racks, sharing)
        cluster.loads.update(each for log in logs for each in cluster.staying(log.replicas))
        self._handed_over = {}
        for log in logs:
            if not log.is_fixed:
                cluster.surplus[log.name] = surplus = cluster.choose_surplus(log)
                cluster.loads.subtract(surplus)
                if log.leader in surplus:
                    self._handed_over[log.name] = frozenset({log.leader})
        return cluster

    def _forget_finished(self, led: list[LogPlacement], now: float) -> None:
        """Forget the requested changes that were made, or that have taken too long."""
        replicas_of = {log.name: log.replicas for log in led}
        self._requested = {
            name: (before, at)
            for name, (before, at) in self._requested.items()
            if replicas_of.get(name) == before and at <= now < at + RETRY_S
        }

    @staticmethod
    def _is_catching_up(log: LogPlacement, cluster: _Cluster) -> bool:
        """Return whether a replica is still copying the log."""
        return any(each in cluster.alive and each not in log.in_sync for each in log.replicas)

    # Steps

    def _without_surplus(self, log: LogPlacement, cluster: _Cluster) -> tuple[str, ...]:
        """Return the replicas of a log without those that have a successor.

        It keeps all of them until the living replicas in sync are more than half of the rest. Without the drained ones,
        a dead replica could be half of all, and nothing more would be acknowledged.
        """
        staying = cluster.staying(log.replicas)
        removed: set[str] = set()
        if len(staying) >= log.wanted:
            removed.update(cluster.gone)
        if self._is_synced(staying, log) and not self._missing(log, cluster):
            removed.update(cluster.leaving)
            removed.update(cluster.surplus.get(log.name, ()))
        kept = tuple(each for each in log.replicas if each not in removed or each == self._own)
        in_sync = cluster.alive.intersection(kept, log.in_sync)
        return kept if 2 * len(in_sync) > len(kept) else log.replicas

    @staticmethod
    def _is_synced(replicas: tuple[str, ...], log: LogPlacement) -> bool:
        return bool(replicas) and all(each in log.in_sync for each in replicas)

    @staticmethod
    def _missing(log: LogPlacement, cluster: _Cluster) -> int:
        """Return how many replicas a log needs and can get."""
        staying = cluster.staying(log.replicas)
        return max(min(log.wanted - len(staying), len(cluster.usable.difference(staying))), 0)

    def _with_missing(self, log: LogPlacement, cluster: _Cluster) -> tuple[str, ...]:
        """Return the replicas of a log with new ones for those that are missing or dead for good."""
        staying = cluster.staying(log.replicas)
        gone = [each for each in log.replicas if each in cluster.gone]
        # Acknowledgements wait for more than half of the replicas, so the replicas in sync must remain more than half.
        spare = 2 * sum(each in log.in_sync for each in log.replicas) - 1 - len(log.replicas)
        count = max(min(self._missing(log, cluster), spare + len(gone)), 1)
        chosen = choose_replicas(log.name, cluster.spaces, len(staying) + count, cluster.loads, staying)
        cluster.loads.update(chosen[len(staying) :])
        return (*(each for each in log.replicas if each not in gone[:count]), *chosen[len(staying) :])

    def _share(self, logs: list[LogPlacement], cluster: _Cluster, now: float) -> list[tuple[LogPlacement, str]]:
        """Return the logs that get a replica on a broker that awaits its share, if a plan is due."""
        if self._own not in cluster.sharing:
            self._shared_at = None
        elif self._shared_at is None or now < self._shared_at:
            self._shared_at = now
        plan: list[tuple[LogPlacement, str]] = []
        if cluster.sharing and not self._next_plan_at - PLANNING_S <= now < self._next_plan_at:
            self._next_plan_at = now + PLANNING_S
            receiving = Counter(
                each
                for log in logs
                if len(log.replicas) > log.wanted and not log.is_fixed
                for each in log.replicas[log.wanted :]
            )
            plan = self._plan_moves(logs, cluster, receiving)
            if self._shared_at is not None and receiving[self._own]:
                self._shared_at = now
        self._has_share = self._shared_at is not None and now >= self._shared_at + SHARE_S
        return plan

    def _plan_moves(
        self, logs: list[LogPlacement], cluster: _Cluster, receiving: Counter[str]
    ) -> list[tuple[LogPlacement, str]]:
        """Return the logs that get a replica on a broker that awaits its share. Every broker plans the same ones.

        Each replica comes from the most loaded broker, so that as few as possible move. The logs are added to those
        that each broker is receiving.
        """
        loads = cluster.loads
        settled = {
            log.name: log
            for log in logs
            if log.leader
            and not log.is_fixed
            and len(log.replicas) == len(cluster.staying(log.replicas)) == log.wanted
            and cluster.alive.issuperset(log.replicas)
        }
        plan: list[tuple[LogPlacement, str]] = []
        for broker in sorted(cluster.usable & cluster.sharing, key=lambda each: (loads[each], each)):
            while receiving[broker] < self._settings.moves_max:
                found = [
                    (-loads[removed], weigh_node(log.name, broker), log.name, removed)
                    for log in settled.values()
                    if broker not in log.replicas
                    and (removed := cluster.choose_surplus(log, (broker,))[0]) != broker
                    and loads[removed] >= loads[broker] + 2
                ]
                if not found:
                    break
                *_, name, removed = min(found)
                plan.append((settled.pop(name), broker))
                receiving[broker] += 1
                loads[broker] += 1
                loads[removed] -= 1
        return plan
