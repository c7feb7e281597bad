"""Runs the simulated brokers with faults drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from dafka.broker.core.replication.settings import Availability
from tests.broker.core.replication.brokers import Broker, KeptLog
from tests.broker.core.replication.history import Violation
from tests.broker.core.replication.read_log import Indexed
from tests.broker.core.replication.world import World

FAULTS_S = 15.0
SPLIT_S = 10.0
SETTLING_S = 9.0
ONE_MOMENT_S = 1.0
FULL_S = 4.0
HEALING_S = 24.0
JOINING_S = 20.0
"""Seconds after which replicas that have joined count for majorities, and their leader stays."""

MOVING_S = 3.0
"""For how many seconds one of the logs may have no leader while they move to preferred ones."""

REBALANCING_S = 40.0
PRODUCING_S = FAULTS_S + SPLIT_S + SETTLING_S + 2 * ONE_MOMENT_S + MOVING_S + FULL_S


def run_seed(seed: int, availability: Availability) -> World:
    if seed % 4 == 3:
        world = World(seed, availability, 4 + seed % 2, 3, 2, balances=True)
    else:
        world = World(seed, availability, 3 if seed % 3 else 5)
        if seed % 6 == 0:
            world.place_on(3)
    faults = Faults(world)
    _begin(world, faults)
    world.run_until(FAULTS_S)
    faults.end()
    _split_for_long(world)
    world.run_until(FAULTS_S + SPLIT_S)
    if availability is Availability.MAJORITY and not faults.has_moves:
        _check_progress(world, "more than half of the replicas are connected")
    world.down.clear()
    world.run_until(FAULTS_S + SPLIT_S + SETTLING_S)
    world.check_tables(age_s=1.0)
    _check_progress(world, "all replicas are connected")
    _run_while(world, _is_moving, MOVING_S)
    if _fill_disk_of_leader(world):
        _check_progress(world, "the disk of one broker is full")
    world.run_until(FAULTS_S + SPLIT_S + HEALING_S)
    _run_while(world, _is_balancing, REBALANCING_S if world.balances else 0.0)
    _run_while(world, _is_joining, JOINING_S)
    _run_while(world, _is_moving, MOVING_S)
    world.check_end()
    return world


def _begin(world: World, faults: Faults) -> None:
    draw = world.draw
    for broker in world.brokers.values():
        if broker.name not in world.reserve:
            world.later(draw.uniform(0, 0.5), broker.start)
    world.later(0.6, lambda: _produce(world))
    world.later(draw.uniform(1, 2), faults.go_on)
    world.crash_after_write = draw.choice([0, 0.02, 0.1])
    world.skipped = draw.choice([0.0, 0.3, 0.8])
    world.compacts = draw.random() < 0.5


def _produce(world: World) -> None:
    """Append at each broker that leads: clients may still talk to a leader that was replaced."""
    if world.now >= PRODUCING_S:
        _end_all_transactions(world)
        return
    for broker in world.brokers.values():
        for kept in broker.logs.values() if broker.is_running else ():
            if kept.led is not None:
                count = world.draw.randint(1, 5)
                ids = [Indexed.make(f"{kept.led.epoch}:{world.sent + number}") for number in range(count)]
                if kept.append(ids):
                    world.sent += len(ids)
                if world.has_transactions:
                    kept.append(kept.history.transactions.produce())
    _end_transactions(world)
    world.later(world.draw.uniform(0.02, 0.15), lambda: _produce(world))


def _end_transactions(world: World, *, all_of_them: bool = False) -> None:
    for history in world.histories.values() if world.has_transactions else ():
        history.transactions.decide(history.acknowledged, all_of_them=all_of_them)
    for broker in world.brokers.values() if world.has_transactions else ():
        for kept in broker.logs.values() if broker.is_running else ():
            if kept.led is not None and kept.can_append:
                kept.append(kept.history.transactions.end((kept.led, kept.led_since), kept.history.acknowledged))


def _end_all_transactions(world: World) -> None:
    _end_transactions(world, all_of_them=True)
    world.later(0.1, lambda: _end_all_transactions(world))


def _check_progress(world: World, why: str) -> None:
    before = {log: len(each.acknowledged) for log, each in world.histories.items()}
    world.run_until(world.now + ONE_MOMENT_S)
    for log, history in world.histories.items():
        if len(history.acknowledged) == before[log]:
            raise Violation(f"{why}, and nothing is acknowledged in {log}")


def _run_while(world: World, is_so: Callable[[World], bool], within_s: float) -> None:
    for _ in range(int(within_s)):
        if not is_so(world):
            break
        world.run_until(world.now + 1)


def _is_balancing(world: World) -> bool:
    wanted = min(world.wanted, sum(each.is_up for each in world.brokers.values()))
    return any(
        len(kept.replica.replicas) != wanted or len(kept.replica.in_sync()) not in {0, wanted}
        for broker in world.brokers.values()
        if broker.is_up
        for kept in broker.logs.values()
    )


def _is_moving(world: World) -> bool:
    """Return whether nobody leads one of the logs: the leader has promised to follow the next one."""
    brokers = [each for each in world.brokers.values() if each.is_up]
    return any(all(broker.logs[log].led is None for broker in brokers) for log in world.histories)


def _is_joining(world: World) -> bool:
    for log in world.histories:
        latest = {broker.logs[log].replica.latest for broker in world.brokers.values() if broker.is_up}
        if len(latest) > 1 or any(row.learners for row in latest):
            return True
    return False


def _split_for_long(world: World) -> None:
    names = [each.name for each in world.brokers.values() if each.is_up]
    side = set(world.draw.sample(names, len(names) // 2 + 1))
    others = [each for each in names if each not in side]
    if world.draw.random() < 0.7:
        world.down |= {(one, other) for one in side for other in others}
    if world.draw.random() < 0.7:
        world.down |= {(other, one) for one in side for other in others}


def _fill_disk_of_leader(world: World) -> bool:
    log = world.draw.choice(sorted(world.histories))
    leaders = [each for each in world.brokers.values() if each.is_up and each.logs[log].led is not None]
    if not leaders:
        raise Violation(f"nobody leads {log}")
    leader = leaders[0]
    leader.full_until = world.now + FULL_S + ONE_MOMENT_S
    world.run_until(world.now + FULL_S)
    return all(len(each.replica.replicas) > 2 for each in leader.logs.values())


class Faults:
    """What goes wrong, one thing after another."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.draw = world.draw
        self.has_moves = world.balances or self.draw.random() < 0.5
        self._kinds: list[Callable[[], None]] = [
            self._crash,
            self._crash_leader,
            self._split,
            self._split_one_way,
            self._cut,
            self._isolate,
            self._slow_down,
            self._flap,
            self._lose_control,
            self._fill_disk,
            self._set_clock,
            self._crash_leader_and_set_clocks,
            self._heal,
            self._heal,
            self._heal,
        ]
        if self.draw.random() < 0.1:
            self._kinds.append(self._lose_power)
        if world.has_leases:
            self._kinds = [
                each for each in self._kinds if each not in (self._set_clock, self._crash_leader_and_set_clocks)
            ]
            self._kinds += [self._stop_process, self._stop_process]
        if world.has_handovers:
            self._kinds += [self._hand_over] * 5
        if world.balances:
            self._kinds += [self._drain, self._drain, self._add_broker]
        elif self.has_moves:
            self._kinds += [self._move, self._move_and_crash, self._replace_holder]
        world.drops = self.has_moves

    def go_on(self) -> None:
        if self.world.now >= FAULTS_S:
            return
        self.draw.choice(self._kinds)()
        self.world.later(self.draw.expovariate(self.draw.choice([0.5, 2, 10])), self.go_on)

    def end(self) -> None:
        world = self.world
        world.crash_after_write = 0
        world.down.clear()
        world.deaf.clear()
        world.stalled.clear()
        world.slow_s, world.skipped = 0.01, 0.0
        for broker in world.brokers.values():
            broker.full_until = 0.0
            broker.is_draining = False
            if broker.name not in world.reserve or broker.generation:
                broker.start()

    def _brokers(self) -> list[Broker]:
        return [each for each in self.world.brokers.values() if each.generation]

    def _draw_broker(self) -> Broker:
        return self.draw.choice(self._brokers())

    def _draw_leader(self) -> Broker:
        led_epoch = [
            each for each in self._brokers() if each.is_up and any(kept.led is not None for kept in each.logs.values())
        ]
        return self.draw.choice(led_epoch or self._brokers())

    def _stop(self, broker: Broker) -> None:
        if broker.is_up:
            broker.crash()
            self.world.later(self.draw.choice([0.02, 0.2, 1, 3]) * self.draw.random(), broker.start)

    def _crash(self) -> None:
        self._stop(self._draw_broker())

    def _crash_leader(self) -> None:
        self._stop(self._draw_leader())

    def _stop_process(self) -> None:
        """Stop the process of a broker that leads for a while, as SIGSTOP does."""
        broker = self._draw_leader()
        if broker.is_up:
            until = self.world.now + self.draw.choice([0.3, 1.0, 3.0]) * self.draw.random()
            broker.stopped_until = max(until, broker.stopped_until)
            self.world.call_at(broker.stopped_until, broker.check_leases)

    def _lose_power(self) -> None:
        for broker in self._brokers():
            self._stop(broker)

    def _draw_side(self) -> tuple[set[str], set[str]]:
        names = set(self.world.brokers)
        side = set(self.draw.sample(sorted(names), self.draw.randint(1, len(names) - 1)))
        return side, names - side

    def _split(self) -> None:
        side, others = self._draw_side()
        self.world.down |= {pair for one in side for other in others for pair in ((one, other), (other, one))}

    def _split_one_way(self) -> None:
        side, others = self._draw_side()
        self.world.down |= {(one, other) for one in side for other in others}

    def _cut(self) -> None:
        names = list(self.world.brokers)
        self.world.down.add((self.draw.choice(names), self.draw.choice(names)))

    def _isolate(self) -> None:
        name = self._draw_broker().name
        self.world.down |= {pair for other in self.world.brokers for pair in ((name, other), (other, name))}

    def _flap(self) -> None:
        side, others = self._draw_side()
        links = {(one, other) for one in sorted(side) for other in sorted(others) if self.draw.random() < 0.7}
        at = 0.0
        for _ in range(self.draw.randint(2, 6)):
            self.world.later(at, lambda: self.world.down.update(links) if self.world.now < FAULTS_S else None)
            at += self.draw.uniform(0.1, 1.2)
            self.world.later(at, lambda: self.world.down.difference_update(links))
            at += self.draw.uniform(0.1, 1.2)

    def _lose_control(self) -> None:
        names = list(self.world.brokers)
        deaf = {(self.draw.choice(names), self.draw.choice(names)) for _ in range(self.draw.choice([1, 2, 4]))}
        self.world.deaf |= deaf
        self.world.later(self.draw.uniform(0.2, 4), lambda: self.world.deaf.difference_update(deaf))

    def _fill_disk(self) -> None:
        self._draw_broker().full_until = self.world.now + self.draw.uniform(0.2, 4)

    def _set_clock(self) -> None:
        self._draw_broker().clock_s += self.draw.choice([-3600.0, -5.0, -0.5, 0.5, 5.0, 3600.0])

    def _crash_leader_and_set_clocks(self) -> None:
        def set_clocks() -> None:
            if self.world.now < FAULTS_S:
                for broker in self._brokers():
                    broker.clock_s += jump_s

        jump_s = self.draw.choice([-3600.0, -5.0, 5.0])
        self._crash_leader()
        self.world.later(self.draw.uniform(0.3, 1.5), set_clocks)

    def _slow_down(self) -> None:
        self.world.slow_s = self.draw.choice([0.001, 0.01, 0.1, 0.3])

    def _heal(self) -> None:
        self.world.down.clear()

    # Changes of replicas

    def _move(self) -> None:
        names = sorted(self.world.brokers)
        for broker in self._brokers():
            for kept in broker.logs.values() if broker.is_running else ():
                replicas = self.draw.sample(names, self.draw.choice([3, len(names)]))
                self._change(kept, replicas)

    def _change(self, kept: KeptLog, replicas: Sequence[str]) -> None:
        """Order replicas, and tell one broker, which may lead no longer."""
        generation = self.world.order_replicas(kept.name, replicas)
        kept.act(kept.wake_up().elections.change_replicas(replicas, generation))

    def _move_and_crash(self) -> None:
        self._move()
        self.world.later(self.draw.uniform(0.01, 0.2), self._crash_leader)

    def _replace_holder(self) -> None:
        leader = self._draw_leader()
        led = [each for each in leader.logs.values() if each.led is not None and len(each.replica.replicas) >= 3]
        if not leader.is_up or not led:
            return
        kept = self.draw.choice(led)
        holder, slow, *rest = self.draw.sample([e for e in kept.replica.replicas if e != leader.name], 2)
        further = [each for each in self.world.brokers if each not in kept.replica.replicas]
        others = [slow, *rest, *further]
        self.world.stalled.update(others)
        links = {pair for each in self.world.brokers for pair in ((holder, each), (each, holder))}

        def replace() -> None:
            if self.draw.random() < 0.7:
                self.world.down.update(links)
            if leader.is_up:
                replicas = (leader.name, slow, *self.draw.sample(further, min(1, len(further))))
                self._change(leader.logs[kept.name], replicas)

        def crash() -> None:
            self.world.stalled.difference_update(others)
            if leader.is_up and self.world.now < FAULTS_S:
                leader.crash()
                self.world.later(3, leader.start)

        at = self.draw.uniform(0.1, 0.5)
        self.world.later(at, replace)
        self.world.later(at + self.draw.uniform(0.05, 0.3), crash)

    def _drain(self) -> None:
        broker = self._draw_broker()
        broker.is_draining = not broker.is_draining

    def _hand_over(self) -> None:
        """Have a broker ask another one to lead its logs, as it does before it stops; often it stops at once."""
        leader, successor = self._draw_leader(), self._draw_broker()
        for log, kept in leader.logs.items() if leader.is_running else ():
            if kept.led is not None:
                self.world.send(leader, successor, partial(successor.take_leadership, log, leader.name))
        if self.draw.random() < 0.5:
            self.world.later(self.draw.uniform(0, 0.1), lambda: self._stop(leader))

    def _add_broker(self) -> None:
        further = [name for name in self.world.reserve if not self.world.brokers[name].generation]
        if further:
            self.world.brokers[further[0]].start()
