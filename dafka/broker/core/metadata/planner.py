"""Plans which brokers keep the logs of a cluster. The controller alone plans, from the state of the cluster.

A log moves for these reasons only: it has fewer replicas than it should, or a broker that keeps it is drained, has been
forgotten, has been dead for too long, or has damaged records of it. An operator can ask for other moves. So logs that
nobody has asked to move stay where they are while their brokers live.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

import attrs

from dafka.broker.core.metadata.brokers import Brokers
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import ChangeReplicas
from dafka.broker.core.metadata.log_replicas import LogReplicas, Reason
from dafka.broker.core.metadata.topic_settings import MAJORITY, availability_of
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import name_log
from dafka.protocol.rendezvous import rank_nodes, weigh_node

CANDIDATES = 3
"""How many brokers are considered for a replica. The one with the most free space gets it, as in Franz."""

NONE: Mapping[str, int] = MappingProxyType({})
"""No numbers of logs."""

LOADS_APART = 1
"""How many more logs than the least loaded broker a candidate can have."""


@attrs.frozen(kw_only=True)
class PlannerSettings:
    """The settings of a planner."""

    replicas: int = 3  # of topics that do not say how many
    replace_replicas_after_s: float = 60.0
    full_bytes: int = 0  # with less free space, a broker gets no replicas
    moves_max: int = 32  # logs that a broker copies at once; each waits for some seconds before it votes


@attrs.frozen
class Candidate:
    """A broker that can get replicas."""

    store_id: str
    free_bytes: int = 0
    rack: str = ""
    is_alive: bool = True


def choose_replicas(
    log: str,
    candidates: Collection[Candidate],
    count: int,
    loads: Mapping[str, int],
    kept: Collection[str] = (),
    racks: Mapping[str, str] | None = None,
    *,
    led: Mapping[str, int] = NONE,
    followed: Mapping[str, int] = NONE,
) -> tuple[str, ...]:
    """Choose the replicas of a log, the kept ones first; fewer than `count` if there are not enough candidates.

    The first replica is to lead. A living broker goes before one that is not heard, and a rack with fewer replicas of
    the log before others. Of the brokers there, those remain that are to lead, or to follow, the fewest logs of the
    topic, and then those with about the fewest logs. Three of these are drawn, and the one with the most free space is
    chosen. The name of the log draws them, so a choice can be repeated.

    Args:
        log: The name of the log.
        candidates: The brokers that can get replicas.
        count: How many replicas the log should have.
        loads: How many logs each broker has.
        kept: The replicas that remain.
        racks: The racks of the kept replicas.
        led: How many logs of the topic each broker is to lead.
        followed: How many logs of the topic each broker is to follow.

    Returns:
        The chosen brokers.
    """
    chosen = list(kept)
    used = Counter((racks or {}).get(each, "") for each in chosen)
    while len(chosen) < count:
        free = [each for each in candidates if each.store_id not in chosen]
        if not free:
            break
        best = min((not each.is_alive, used[each.rack]) for each in free)
        free = [each for each in free if (not each.is_alive, used[each.rack]) == best]
        shares = followed if chosen else led
        fewest = min(shares.get(each.store_id, 0) for each in free)
        free = [each for each in free if shares.get(each.store_id, 0) == fewest]
        least = min(loads.get(each.store_id, 0) for each in free)
        free = [each for each in free if loads.get(each.store_id, 0) <= least + LOADS_APART]
        drawn = sorted(free, key=lambda each: weigh_node(log, each.store_id))[:CANDIDATES]
        found = max(drawn, key=lambda each: each.free_bytes)
        chosen.append(found.store_id)
        used[found.rack] += 1
    return tuple(chosen)


@attrs.frozen
class _Members:
    """The brokers of the cluster at one moment."""

    registered: frozenset[str]
    alive: frozenset[str]
    gone: frozenset[str]  # not heard for too long
    draining: frozenset[str]
    candidates: tuple[Candidate, ...]  # the living brokers that can get replicas
    racks: Mapping[str, str]
    damaged: Mapping[str, frozenset[str]]  # by log, the living brokers that have damaged records of it
    copying: Mapping[str, frozenset[str]]  # by log, the living brokers that can copy it anew, as theirs is damaged

    def stays(self, store_id: str) -> bool:
        """Return whether a replica needs no successor."""
        return store_id in self.registered and store_id not in self.gone and store_id not in self.draining

    def spread(self, replicas: Iterable[str]) -> list[int]:
        """Return how many replicas each rack has, the most first: the smaller, the better they are spread."""
        return sorted(Counter(self.racks.get(each, "") for each in replicas).values(), reverse=True)


class Planner:
    """Plans the replicas of logs, given the state of the cluster and the brokers that the controller hears."""

    def __init__(self, state: ClusterState, brokers: Brokers, settings: PlannerSettings) -> None:
        self._state = state
        self._brokers = brokers
        self._settings = settings
        self._silent_since: dict[str, float] = {}
        self._placed: Counter[str] = Counter()
        self._resting: tuple[object, ...] = ()
        self._now = float("-inf")

    def begin(self) -> None:
        """Begin as a new controller, or after this one has stalled: for how long others are silent is not known."""
        self._silent_since.clear()
        self.forget_placed()

    def forget_placed(self) -> None:
        """Forget the placements that `place` has chosen: the state has them, or they were not made."""
        self._placed.clear()

    # New logs

    def place(self, topic: Topic) -> tuple[tuple[str, ...], ...]:
        """Return the placement of a topic, of which it chooses the part that is missing.

        It is this broker alone if none can take replicas. Brokers that are not heard are the last choice. The brokers
        are to lead and to follow as many logs of the topic each, as far as their racks allow it.
        """
        count = topic.replica_count or self._settings.replicas
        members = self._survey()
        silent = members.registered - members.alive - members.gone - members.draining
        candidates = (*members.candidates, *(self._describe(each, is_alive=False) for each in sorted(silent)))
        loads = self._state.replicas.counts + self._placed
        placed = list(topic.placement[: topic.log_count])
        led = Counter(leader for leader, *_ in placed)
        followed = Counter(each for _, *others in placed for each in others)
        for number in range(len(placed), topic.log_count):
            name = name_log(topic.topic_id, number)
            chosen = choose_replicas(name, candidates, count, loads, led=led, followed=followed)
            leader, *others = chosen or (self._brokers.own.address,)
            loads.update((leader, *others))
            self._placed.update((leader, *others))
            led[leader] += 1
            followed.update(others)
            placed.append((leader, *rank_nodes(name, others)))
        return tuple(placed)

    # Existing logs

    def advance(self, now: float) -> list[ChangeReplicas]:
        """Return the changes to order next, given all commands that were ordered before.

        Few logs move at once, and none while more than a third of the brokers is silent.
        """
        self._now = now
        silent = self._state.brokers.keys() - self._brokers.alive
        self._silent_since = {each: self._silent_since.get(each, now) for each in silent}
        members = self._survey()
        found = (members, self._state.applied)
        if 3 * len(members.registered - members.alive) > len(members.registered) or found == self._resting:
            return []
        changes = list(self._find_changes(members))
        self._resting = () if changes else found
        return changes

    def _find_changes(self, members: _Members) -> Iterator[ChangeReplicas]:
        table = self._state.replicas
        loads = table.counts.copy()
        receiving = Counter(each for found in table.changing.values() for each in found.added)
        # The offsets of groups and the states of transactions are needed first.
        for topic in sorted(self._state.topics.values(), key=lambda each: (not each.name.startswith("$"), each.name)):
            for number in range(topic.log_count):
                present = table.of(topic, number)
                name = name_log(topic.topic_id, number)
                replicas = self._find_replicas(name, topic, present, members, loads, receiving)
                if replicas is not None and set(replicas) != set(present.replicas):
                    added = [each for each in replicas if each not in present.replicas]
                    loads.update(added)
                    receiving.update(added)
                    reason = _find_reason(name, present, replicas, members)
                    yield ChangeReplicas(
                        topic.topic_id, number, replicas, reason, present.assigned_count, present.generation + 1
                    )

    def _find_replicas(
        self,
        name: str,
        topic: Topic,
        present: LogReplicas,
        members: _Members,
        loads: Mapping[str, int],
        receiving: Mapping[str, int],
    ) -> tuple[str, ...] | None:
        """Return the replicas that a log should have; None if it stays as it is for now.

        It does if too few of its replicas live to agree on others. A change under way is replaced only if a broker
        that should keep the log is gone. A dead broker remains a replica as long as it has no successor, because it can
        come back.
        """
        if present.is_changing and all(
            each in members.registered and each not in members.gone for each in present.replicas
        ):
            return None
        voting = present.former or present.replicas
        if 2 * len(members.alive.intersection(voting)) <= len(voting):
            return None
        staying = [each for each in present.replicas if members.stays(each)]
        damaged = members.damaged.get(name, frozenset())
        if (
            availability_of(topic) == MAJORITY
            and members.alive.issuperset(present.replicas)
            and damaged.issubset(present.replicas)
        ):
            staying = _without_damaged(staying, damaged, members.copying.get(name, frozenset()))
        wanted = present.count(topic, self._settings.replicas)
        if len(staying) >= wanted and len(staying) == len(present.replicas):
            return None
        usable = [each for each in members.candidates if each.store_id not in {*staying, *damaged}]
        with_room = [each for each in usable if receiving.get(each.store_id, 0) < self._settings.moves_max]

        def choose(candidates: Collection[Candidate]) -> tuple[str, ...]:
            return choose_replicas(name, candidates, wanted, loads, staying, members.racks)

        chosen = choose(with_room)
        if not chosen and not members.registered.issuperset(present.replicas):
            # All brokers are being drained: the living ones keep the log until one of them can take it.
            return tuple(each for each in voting if each in members.alive)
        is_short = len(chosen) - len(staying) < min(wanted - len(staying), len(usable))
        has_worse_racks = with_room != usable and members.spread(chosen) > members.spread(choose(usable))
        if is_short or not chosen or has_worse_racks:
            return None  # until brokers have room, also in the best racks
        waiting = [each for each in present.replicas if each in members.gone and each not in members.draining]
        replicas = (*chosen, *waiting[: max(wanted - len(chosen), 0)])
        return replicas if present.assigned_count else tuple(rank_nodes(name, replicas))

    # Brokers

    def _survey(self) -> _Members:
        registered = frozenset(self._state.brokers)
        alive = registered & self._brokers.alive
        draining = frozenset(each.store_id for each in self._state.brokers.values() if each.is_draining)
        usable = sorted(alive - draining - self._brokers.unwritable)
        candidates = [self._describe(each) for each in usable]
        after_s = self._settings.replace_replicas_after_s
        return _Members(
            registered,
            alive,
            frozenset(each for each, since in self._silent_since.items() if self._now - since >= after_s) & registered,
            draining,
            tuple(each for each in candidates if each.free_bytes >= self._settings.full_bytes),
            {each.address: each.rack for each in self._brokers.all() if each.rack},
            self._brokers.living_by_log(lambda each: each.damaged_logs),
            self._brokers.living_by_log(lambda each: each.logs_to_copy),
        )

    def _describe(self, store_id: str, *, is_alive: bool = True) -> Candidate:
        found = self._brokers.find(store_id)
        if found is None:
            return Candidate(store_id, is_alive=is_alive)
        return Candidate(store_id, found.free_bytes, found.rack, is_alive)


def find_ineligible_leaders(state: ClusterState, brokers: Brokers, full_bytes: int) -> frozenset[str]:
    """Return the brokers that lead a log only if no other replica can: drained, full and stopping ones."""
    draining = (each.store_id for each in state.brokers.values() if each.is_draining)
    unfit = (each.address for each in brokers.all() if each.is_stopping or each.free_bytes < full_bytes)
    return brokers.unwritable.union(draining, unfit)


def _without_damaged(replicas: list[str], damaged: frozenset[str], copying: frozenset[str]) -> list[str]:
    """Return replicas without one that can copy the log anew; all of them if none is whole.

    Further damaged ones stay until this one is copied anew: they can have what it misses.
    """
    first = "" if damaged.issuperset(replicas) else min(copying.intersection(replicas), default="")
    return [each for each in replicas if each != first]


def _find_reason(name: str, present: LogReplicas, replicas: Iterable[str], members: _Members) -> Reason:
    removed = frozenset(present.replicas).difference(replicas)
    if removed - members.registered:
        return Reason.FORGOTTEN
    if removed & members.draining:
        return Reason.DRAINED
    if removed & members.damaged.get(name, frozenset()):
        return Reason.DAMAGED
    return Reason.DEAD if removed else Reason.MISSING
