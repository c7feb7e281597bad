"""A simulated cluster: carries out a plan, then waits until every node has everything."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import attrs

from dafka.config import Config
from dafka.endpoints import MessageSource
from dafka.protocol import TowerMachine
from dafka.records import Partition
from dafka.wire import BEACON, REGISTRATION, TOWER_ID_BYTES, WELCOME
from tests.simulation.checks import Checks
from tests.simulation.clock import Clock
from tests.simulation.disk import Disk
from tests.simulation.network import Network, Split
from tests.simulation.nodes import SimulatedNode
from tests.simulation.plan import Member, Plan, Step
from tests.simulation.roles import SimulatedConsumer, SimulatedProducer, SimulatedStore
from tests.simulation.violations import Violation

ROUND_S = 0.25
"""Seconds between two looks at whether every node has everything."""

ROUNDS_MAX = 160
"""Looks after the last fault until every node must have everything: beacons expire, and FETCHes wait for their turn."""

QUIET_S = 1.5
"""Seconds at the end during which nothing may happen any more."""

FORGET_WAITS = 3.0
"""Times the wait of the stores after which they must have forgotten the ended partitions: late records restart it."""

REVERSED_SHARE = 0.2
"""The share of connections on which the subscriptions of a tower arrive in another order than libzmq's."""

TOWER_DIAL_S = 0.02
"""Seconds that connecting to a tower takes, on average."""

TOWER_LOOK_S = 0.25
"""Seconds between two looks at whether a tower has something to do."""


@attrs.define(eq=False)
class _TowerConnection:
    """The two connections between a node and a tower."""

    node: SimulatedNode
    number: int
    prefixes: set[bytes] = attrs.field(factory=set)
    is_up: bool = False
    is_ended: bool = False
    sent_at: float = 0.0
    subscribed_at: float = 0.0
    arrives_at: float = 0.0


class Cluster:
    """The cluster of one plan. `draw` has the random numbers for everything that the plan leaves open."""

    def __init__(self, plan: Plan, note: Callable[[float, str], None] | None = None) -> None:
        self.plan = plan
        self.clock = Clock()
        self.draw = random.Random(plan.draw_seed)
        self.network = Network(self.clock, self.draw)
        self.disks: dict[str, Disk] = {}
        self.producers: dict[str, SimulatedProducer] = {}
        self.stores: dict[str, SimulatedStore] = {}
        self.consumers: dict[str, SimulatedConsumer] = {}
        self.checks = Checks(self)
        self.is_noting = note is not None
        self._note = note
        self._members = {member.name: member for member in plan.members}
        self._numbers: dict[str, int] = {name: number for number, name in enumerate(plan.names, 1)}
        self._lives: Counter[str] = Counter()
        self._down: dict[str, Step | None] = {}
        self._partitions: dict[str, list[Partition]] = {}
        self._dropped_ends: dict[Partition, int] = {}
        self._other_disks: dict[str, Disk] = {}
        self._disk_slowness: dict[str, float] = {}
        self._next_port = 5000
        self._ports: dict[str, int] = {}
        self._towers: dict[str, TowerMachine] = {}
        self.tower_names = [member.name for member in plan.members if member.role == "tower"]
        self._first_form_only = draw_first_form(plan)
        self._reversed_share = REVERSED_SHARE
        self._heard_by: dict[tuple[str, str], _TowerConnection] = {}
        self._connections_made = 0
        self._connection_numbers: set[int] = set()
        self._subscribers: dict[str, dict[bytes, dict[_TowerConnection, None]]] = {}

    def run(self) -> None:
        """Carry out the plan. Raise `Violation` if a promise is broken."""
        for member in self.plan.members:
            self.clock.at(member.joins, self._start, member)
        for step in self.plan.steps:
            self.clock.at(step.time, self._begin, step)
        while self.clock.now <= self.plan.ends:
            self._run_round()
        self.note("all is well from here on")
        self._converge()
        self.checks.check_end()
        if self.plan.forgets:
            self.clock.run(self.clock.now + FORGET_WAITS * self.plan.config.store.forget_empty_after_ms / 1000)
            self._converge()
            self.checks.check_forgotten()

    def _converge(self) -> None:
        """Run until every node has everything, and still has it after a quiet time.

        A node may learn of an ended partition in the quiet time, and then needs a moment until it knows that it has
        ended. A node that loses something again and again never converges.
        """
        for rounds in range(ROUNDS_MAX):
            if not self.checks.find_missing():
                self.note("every node has everything")
                self.clock.run(self.clock.now + QUIET_S)
                if not self.checks.find_missing():
                    return
            if rounds + 1 < ROUNDS_MAX:
                self._run_round()
        missing = self.checks.find_missing() or "nothing, but not for long"
        raise Violation("not converged", f"{missing}, {ROUNDS_MAX * ROUND_S:.0f} s after the last fault")

    def note(self, text: str) -> None:
        if self._note is not None:
            self._note(self.clock.now, text)

    def nodes(self) -> list[SimulatedNode]:
        return [*self.producers.values(), *self.stores.values(), *self.consumers.values()]

    def partitions_of(self, name: str) -> list[Partition]:
        return self._partitions.get(name, [])

    def is_alive(self, partition: Partition) -> bool:
        """Return whether the partition's producer is running."""
        return any(producer.partition == partition for producer in self.producers.values())

    def final_end(self, partition: Partition) -> int:
        """Return the end that every store and consumer must reach in this partition."""
        for producer in self.producers.values():
            if producer.partition == partition:
                return producer.machine.next_sequence
        return max((store.disk.end(partition) for store in self.stores.values()), default=0)

    def dropped_end(self, partition: Partition) -> int:
        """Return the end of the records that the producer has dropped although no store had them (`min_stores` 0)."""
        if self.plan.config.producer.min_stores:
            return 0
        ends = [each.machine.earliest_sequence for each in self.producers.values() if each.partition == partition]
        self._dropped_ends[partition] = max([self._dropped_ends.get(partition, 0), *ends])
        return self._dropped_ends[partition]

    def disk_delay(self) -> float:
        return self.plan.disk_s * (0.5 + self.draw.random()) * max(self._disk_slowness.values(), default=1.0)

    def send_to_tower(self, node: SimulatedNode, tower: int, frames: list[bytes]) -> None:
        name = self.tower_names[tower]
        connection = self._heard_by.get((node.name, name))
        if connection is not None and frames[0].startswith(self._tower_prefixes(name)):
            connection.sent_at = max(connection.sent_at, self.clock.now + self.network.delay())
            self.clock.at(connection.sent_at, self._reach_tower, name, node, connection, frames)

    def subscribe_at_tower(self, node: SimulatedNode, tower: int, frame: bytes) -> None:
        name = self.tower_names[tower]
        connection = self._heard_by.get((node.name, name))
        if connection is not None and connection.is_up:
            connection.subscribed_at = max(connection.subscribed_at, self.clock.now + self.network.delay())
            self.clock.at(connection.subscribed_at, self._record_subscription, name, connection, [frame])

    def wake(self, node: SimulatedNode, delay: float) -> None:
        self.clock.after(delay, node.look)

    def _run_round(self) -> None:
        self.clock.run(self.clock.now + ROUND_S)
        self.checks.check_copies()

    # Nodes that start and end

    def _start(self, member: Member) -> None:
        name = member.name
        self._down.pop(name, None)
        if member.role == "tower":
            self._start_tower(name)
            return
        self._lives[name] += 1
        self.note(f"{name} starts")
        node = self._make(member, self._port(member))
        node.lag, node.queue_max = member.lag, member.queue_max
        hosts = ("10.0.0", "10.1.0") if self.plan.second_network else ("10.0.0",)
        self.network.listen([f"tcp://{host_of(host, self._numbers[name])}:{node.port}" for host in hosts], node)
        node.start()
        if isinstance(node, SimulatedConsumer):
            for topic in member.topics:
                node.subscribe_topic(topic)
        self._greet(node)

    def _make(self, member: Member, port: int) -> SimulatedNode:
        name, config = member.name, self.plan.config
        life = f"{name}r{self._lives[name]}" if self._lives[name] > 1 else name
        if member.role == "store":
            disk = self.disks.setdefault(name, Disk())
            self.stores[name] = store = SimulatedStore(self, name, config, disk, port)
            return store
        disk = self._other_disks.setdefault(name, Disk())
        if member.role == "producer":
            partition = Partition(member.topics[0], name if member.spool else life)
            self.producers[name] = producer = SimulatedProducer(
                self, name, partition, config, disk if member.spool else None, port
            )
            if partition not in self.partitions_of(name):
                self._partitions.setdefault(name, []).append(partition)
            ends = self.checks.published_ends
            ends[partition] = max(ends.get(partition, 0), producer.machine.next_sequence)
            return producer
        settings = config.with_consumer(offset_reset="earliest" if member.earliest else "latest")
        self.consumers[name] = consumer = SimulatedConsumer(self, name, life, settings, disk, port, member.since)
        consumer.taking_s = member.pace
        return consumer

    def _port(self, member: Member) -> int:
        if not (member.fixed_port and member.name in self._ports):
            self._next_port += 1
            self._ports[member.name] = self._next_port
        return self._ports[member.name]

    def _take_away(self, name: str) -> SimulatedNode | None:
        node = self.producers.pop(name, None) or self.stores.pop(name, None) or self.consumers.pop(name, None)
        if node is not None:
            for pair in [pair for pair in self._heard_by if pair[0] == name]:
                self._end_tower_connection(pair)
        return node

    # Towers

    def _start_tower(self, name: str) -> None:
        self._subscribers[name] = {}
        identity = self.draw.randbytes(TOWER_ID_BYTES)
        tower = self._towers[name] = TowerMachine(
            Config(), "10.0.0.254", self._connection_numbers.__contains__, tower_id=identity
        )
        self._tick_tower(name, tower)
        self._greet()

    def _look_at_tower(self, name: str, tower: TowerMachine) -> None:
        if self.clock.now >= tower.deadline() or self._towers.get(name) is not tower:
            self._tick_tower(name, tower)
        else:
            self.clock.after(TOWER_LOOK_S, self._look_at_tower, name, tower)

    def _tick_tower(self, name: str, tower: TowerMachine) -> None:
        if self._towers.get(name) is tower:
            self._spread(name, tower.tick(self.clock.now))
            self.clock.after(TOWER_LOOK_S, self._look_at_tower, name, tower)

    def _tower_prefixes(self, name: str) -> tuple[bytes, ...]:
        return (BEACON,) if name in self._first_form_only else (REGISTRATION, BEACON)

    def _greet(self, *nodes: SimulatedNode) -> None:
        """Connect the towers and these nodes, or all nodes, as far as they can reach each other."""
        for tower in self._towers:
            for node in nodes or self.nodes():
                if (node.name, tower) not in self._heard_by and self.network.reaches(node.name, tower):
                    self._connections_made += 1
                    self._connection_numbers.add(self._connections_made)
                    connection = _TowerConnection(node, self._connections_made)
                    self._heard_by[node.name, tower] = connection
                    self.clock.after(TOWER_DIAL_S * self.draw.random(), self._hear_node, node, tower, connection)
                    self.clock.after(TOWER_DIAL_S * self.draw.random(), self._hear_tower, node, tower, connection)

    def _hear_node(self, node: SimulatedNode, tower: str, connection: _TowerConnection) -> None:
        if self._heard_by.get((node.name, tower)) is connection:
            number = self.tower_names.index(tower)
            known = (BEACON,) if node.name in self._first_form_only else self._tower_prefixes(tower)
            frames = [b"\1" + prefix for prefix in known]
            if self.draw.random() < self._reversed_share:
                frames.reverse()
            for frame in frames:  # they may be read one by one
                node.arrive_tower_subscriptions(number, [frame])

    def _hear_tower(self, node: SimulatedNode, tower: str, connection: _TowerConnection) -> None:
        if self._heard_by.get((node.name, tower)) is connection:
            connection.is_up = True
            number = self.tower_names.index(tower)
            connection.arrives_at = self.clock.now
            node.arrive_from_tower(number, [WELCOME])
            prefixes = [b"\1" + prefix for prefix in sorted(node.tower_prefixes[number])]
            self._record_subscription(tower, connection, prefixes)

    def _part(self) -> None:
        for name, tower in list(self._heard_by):
            if tower not in self._towers or not self.network.reaches(name, tower):
                self._end_tower_connection((name, tower))

    def _end_tower_connection(self, pair: tuple[str, str]) -> None:
        connection = self._heard_by.pop(pair)
        self._connection_numbers.remove(connection.number)
        if pair[1] in self._towers:
            self._towers[pair[1]].connection_ended(connection.number, self.clock.now)
        self._record_subscription(pair[1], connection, [b"\0" + prefix for prefix in sorted(connection.prefixes)])
        connection.is_ended = True
        number = self.tower_names.index(pair[1])
        unsubscriptions = [b"\0" + each for each in self._tower_prefixes(pair[1])]
        connection.node.arrive_tower_subscriptions(number, unsubscriptions)

    def _record_subscription(self, name: str, connection: _TowerConnection, frames: Sequence[bytes]) -> None:
        tower = self._towers.get(name)
        if tower is None or connection.is_ended:
            return
        heard = []
        for frame in frames:
            prefix = frame[1:]
            subscribers = self._subscribers[name].setdefault(prefix, {})
            if frame[0]:
                connection.prefixes.add(prefix)
                subscribers[connection] = None
                heard.append(frame)
            else:
                connection.prefixes.discard(prefix)
                subscribers.pop(connection, None)
                heard += [] if subscribers else [frame]
        if name not in self._first_form_only:
            self._spread(name, tower.receive_subscriptions(heard, self.clock.now))

    def _reach_tower(self, name: str, node: SimulatedNode, connection: _TowerConnection, frames: list[bytes]) -> None:
        tower = self._towers.get(name)
        if tower is None or self._heard_by.get((node.name, name)) is not connection:
            return
        if not self.network.reaches(node.name, name):
            return
        host = "10.1.0" if self.plan.second_network and name == "T2" else "10.0.0"
        source = MessageSource(host_of(host, self._numbers[node.name]), "", connection.number)
        self._spread(name, tower.receive([(frames, source)], self.clock.now))

    def _spread(self, name: str, messages: Sequence[list[bytes]]) -> None:
        """Send messages of a tower to the nodes that subscribe to them. They stay in order."""
        number = self.tower_names.index(name)
        by_prefix = self._subscribers[name]
        for frames in messages:
            topic = frames[0]
            receivers: dict[_TowerConnection, None] = {}
            for length in range(len(topic) + 1):
                receivers |= by_prefix.get(topic[:length], {})
            for connection in receivers:
                if self.network.reaches(connection.node.name, name):
                    connection.arrives_at = max(connection.arrives_at, self.clock.now + self.network.delay())
                    self.clock.at(connection.arrives_at, self._reach_node, connection, number, frames)

    def _reach_node(self, connection: _TowerConnection, number: int, frames: list[bytes]) -> None:
        if not connection.is_ended:
            connection.node.arrive_from_tower(number, frames)

    # Faults

    def _begin(self, step: Step) -> None:
        self.note(str(step)[10:].strip())
        getattr(self, "_step_" + step.kind.replace(" ", "_"))(step)

    def _step_publish(self, step: Step) -> None:
        for name in step.who:
            if name in self.producers:
                self.producers[name].publish_records(int(step.amount))

    def _step_save_positions(self, step: Step) -> None:
        for name in step.who:
            if name in self.consumers:
                self.consumers[name].save_positions()

    def _step_crash(self, step: Step) -> None:
        self._go_down(step, is_crash=True)

    def _step_stop(self, step: Step) -> None:
        self._go_down(step, is_crash=False)

    def _step_die(self, step: Step) -> None:
        self._go_down(step, is_crash=True, comes_back=False)

    def _go_down(self, step: Step, *, is_crash: bool, comes_back: bool = True) -> None:
        for name in step.who:
            if name in self.producers:
                self.dropped_end(self.producers[name].partition)
            node = self._take_away(name)
            if not isinstance(node, (SimulatedProducer, SimulatedStore, SimulatedConsumer)):
                continue
            if is_crash:
                node.crash()
            else:
                node.stop()
            self._down[name] = step
            if comes_back:
                self.clock.after(step.seconds, self._come_back, name, step)

    def _come_back(self, name: str, step: Step) -> None:
        if self._down.get(name) is step:
            self._start(self._members[name])

    def _step_pause(self, step: Step) -> None:
        for node in self._named(step.who):
            node.is_paused = True
            self.clock.after(step.seconds, self._resume, node)

    def _resume(self, node: SimulatedNode) -> None:
        if node.is_alive:
            node.resume()

    def _step_cut(self, step: Step) -> None:
        self._split(step, step.who[:1] if len(step.who) == 1 else step.who, is_cut=True)

    def _step_stall(self, step: Step) -> None:
        self._split(step, step.who, is_cut=False)

    def _step_cut_link(self, step: Step) -> None:
        self._split(step, step.who[:1], step.who[1:], is_cut=True)

    def _step_stall_link(self, step: Step) -> None:
        self._split(step, step.who[:1], step.who[1:], is_cut=False)

    def _split(self, step: Step, left: Sequence[str], right: Sequence[str] = (), *, is_cut: bool) -> None:
        right = right or [name for name in self.plan.names if name not in left]
        split = Split(frozenset(left), frozenset(right), is_cut)
        self.network.split(split)
        if is_cut:
            self._part()
        self.clock.after(step.seconds, self._heal, split)

    def _heal(self, split: Split) -> None:
        self.network.heal(split)
        self._greet()

    def _step_reset(self, step: Step) -> None:
        self.network.reset(*step.who)

    def _step_tower_down(self, step: Step) -> None:
        for name in step.who:
            if self._towers.pop(name, None) is not None:
                self._part()
                self.clock.after(step.seconds, self._start, self._members[name])

    def _step_disk_full(self, step: Step) -> None:
        for name in step.who:
            disk = self.disks.setdefault(name, Disk())
            disk.is_full = True
            self.clock.after(step.seconds, setattr, disk, "is_full", False)

    def _step_disk_slow(self, step: Step) -> None:
        name = step.who[0]
        self._disk_slowness[name] = 30.0
        self.clock.after(step.seconds, self._disk_slowness.__setitem__, name, 1.0)

    def _step_clock_jump(self, step: Step) -> None:
        self.disks.setdefault(step.who[0], Disk()).clock_offset_ms += int(step.amount)

    def _step_loss(self, step: Step) -> None:
        self.network.loss = step.amount
        self.clock.after(step.seconds, setattr, self.network, "loss", 0.0)

    def _step_repeat(self, step: Step) -> None:
        self.network.repeat = step.amount
        self.clock.after(step.seconds, setattr, self.network, "repeat", 0.0)

    def _step_slow_network(self, step: Step) -> None:
        self.network.slowness = step.amount
        self.clock.after(step.seconds, setattr, self.network, "slowness", 1.0)

    def _step_unsubscribe(self, step: Step) -> None:
        for name in step.who:
            if name in self.consumers:
                consumer = self.consumers[name]
                topics = list(consumer.machine.topics)
                for topic in topics:
                    consumer.unsubscribe_topic(topic)
                self.clock.after(step.seconds, self._subscribe_again, consumer, topics)

    def _subscribe_again(self, consumer: SimulatedConsumer, topics: Sequence[str]) -> None:
        for topic in topics if consumer.is_alive else ():
            consumer.subscribe_topic(topic)

    def _named(self, names: Sequence[str]) -> list[SimulatedNode]:
        return [node for node in self.nodes() if node.name in names]


def draw_first_form(plan: Plan) -> frozenset[str]:
    """Return the towers and nodes of a plan that know only the first form of beacons, as those of libdafka."""
    draw = random.Random(plan.draw_seed + 1)
    return frozenset(member.name for member in plan.members if draw.random() < 0.2)


def host_of(network: str, number: int) -> str:
    """Return the address of a node in a network such as `10.0.0`; a network has 250 addresses, and others follow it."""
    prefix, _, last = network.rpartition(".")
    return f"{prefix}.{int(last) + number // 250}.{number % 250 + 1}"
