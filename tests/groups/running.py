"""Runs one seed: a group among faults, and then in peace, where it must handle everything."""

from __future__ import annotations

from collections.abc import Callable

from dafka.protocol.groups import GroupMember, GroupView
from tests.groups.checker import Checker
from tests.groups.processes import TOPIC, Process
from tests.groups.world import Plan, World

MakeMember = Callable[..., GroupMember]


def plan_of(seed: int) -> Plan:
    """Return how rough the world of a seed is."""
    stores = (1, 3, 1, 2, 5)[seed % 5]
    return Plan(
        stores=stores,
        members=2 + seed % 4,
        partitions=3 + seed % 6,
        required=(0, stores // 2 + 1)[seed // 5 % 2],
        loss=(0.0, 0.02, 0.1)[seed % 3],
        slow_s=(0.005, 0.02, 0.1)[seed // 3 % 3],
        fault_s=(1.5, 4.0)[seed // 2 % 2],
    )


class Faults:
    """Kills, freezes and starts processes, cuts links, and stops stores."""

    def __init__(self, world: World, checker: Checker, make_member: MakeMember, make_view: Callable[[], GroupView]):
        self.processes: list[Process] = []
        self._world = world
        self._checker = checker
        self._make_member = make_member
        self._make_view = make_view
        self._started = 0

    def start_process(self) -> None:
        name = f"m{self._started}"
        self._started += 1
        self.processes.append(Process(name, self._world, self._checker, self._make_member, self._make_view))

    def living(self) -> list[Process]:
        return [each for each in self.processes if each.is_alive]

    def strike(self) -> None:
        """Let something go wrong once all processes know how many stores there are, and go on."""
        world = self._world
        if world.is_calm:
            return
        if all(map(self._knows_stores, self.living())):
            self._strike()
        world.later(world.draw.expovariate(1 / world.plan.fault_s), self.strike)

    def _strike(self) -> None:
        world = self._world
        draw, living = world.draw, self.living()
        kind = draw.choice(["kill", "leave", "freeze", "hang", "cut", "cut", "isolate", "split", "store", "start"])
        heal_s = draw.choice([0.3, 2.0, 5.0, 9.0])
        if kind in {"kill", "leave"} and living:
            process = draw.choice(living)
            if kind == "leave" and not process.is_frozen:
                process.leave()
            else:
                process.die()
        elif kind in {"freeze", "hang"} and living:
            self._freeze(draw.choice(living), heal_s, is_cut_off=kind == "hang")
        elif kind == "cut" and living:
            self._cut([(draw.choice(living).host, draw.choice(world.stores).name)], heal_s)
        elif kind == "isolate" and living:
            host = draw.choice(living).host
            self._cut([(host, store.name) for store in world.stores], heal_s)
        elif kind == "split":
            sides = [{each for each in self._names() if draw.random() < 0.5}]
            self._cut([(one, other) for one in sides[0] for other in self._names() if other not in sides[0]], heal_s)
        elif kind == "store":
            store = draw.choice(world.stores)
            store.is_up = False
            world.later(heal_s, lambda: setattr(store, "is_up", True))
        if len(self.living()) < world.plan.members and draw.random() < 0.7 and self._are_seen():
            self.start_process()

    def heal(self) -> None:
        world = self._world
        world.is_calm = True
        world.cut.clear()
        for store in world.stores:
            store.is_up = True
        for process in self.living():
            if process.is_frozen:
                process.thaw()
        while len(self.living()) < 2:
            self.start_process()

    def _freeze(self, process: Process, heal_s: float, *, is_cut_off: bool) -> None:
        process.freeze()
        self._world.later(heal_s, process.thaw)
        if is_cut_off:
            cut_s = heal_s + self._world.draw.uniform(-1.0, 1.0)
            self._cut([(process.host, store.name) for store in self._world.stores], cut_s)

    def _are_seen(self) -> bool:
        """Return whether a process that starts sees enough stores: all, if it is not told how many there are."""
        return bool(self._world.plan.required) or all(store.is_up for store in self._world.stores)

    def _knows_stores(self, process: Process) -> bool:
        """Return whether a process knows how many stores there are, if it is not told how many must confirm."""
        known = max(process.view.own_stores, process.view.stores)
        return bool(self._world.plan.required) or known >= len(self._world.stores)

    def _names(self) -> list[str]:
        return [each.host for each in self.living()] + [each.name for each in self._world.stores]

    def _cut(self, pairs: list[tuple[str, str]], heal_s: float) -> None:
        links = {frozenset(pair) for pair in pairs} - self._world.cut
        self._world.cut |= links
        self._world.later(heal_s, lambda: self._world.cut.difference_update(links))


def run_seed(
    seed: int,
    make_member: MakeMember = GroupMember,
    make_view: Callable[[], GroupView] = GroupView,
    plan: Plan | None = None,
) -> Checker:
    """Run one seed; raise `AssertionError` if something is not as promised."""
    plan = plan or plan_of(seed)
    world, checker = World(seed, plan), Checker()
    faults = Faults(world, checker, make_member, make_view)
    for _ in range(world.draw.randint(1, plan.members)):
        faults.start_process()
    world.produce()
    world.run_until(5.0)
    faults.strike()
    world.run_until(plan.trouble_s)
    faults.heal()
    world.run_until(plan.trouble_s + plan.calm_s)
    checker.check_end(world.ends, TOPIC, faults.living())
    return checker
