"""Nodes of a simulated cluster: the real machines and the code around them, on a virtual clock.

Only waiting, sockets and disks are simulated. Everything else is the code that `dafka.roles` runs: `Node`,
`BeaconMachine`, and for each role `CommitQueue`, `FetchResponder` and `DeliveryBuffer`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dafka import wire
from dafka.config import Config
from dafka.endpoints import ConnectionChange, PeerEndpoint
from dafka.protocol import (
    BeaconAction,
    BeaconMachine,
    Event,
    Machine,
    Node,
    NodeCallbacks,
    ResetPosition,
    SendToTower,
    SubscribeAtTower,
    UnsubscribeAtTower,
)
from dafka.protocol.actions import Action
from dafka.records import RecordBatch
from dafka.wire import NodeBeacon, Role
from tests.simulation.network import Link, find_receivers, topic_frame
from tests.simulation.violations import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

BUSY_MAX = 50
"""The number of times that a machine may ask to be called again without time passing."""


class SimulatedNode:
    """The common part of all roles: one life of a node. A restart creates another one.

    Attributes:
        name: Its name in the plan.
        address: Its node address.
        lag: Seconds until it handles what has arrived.
        sent: Messages published so far, by kind. Records count one by one.
        handled: Messages, subscriptions and connections handled so far. Messages that arrive together count as one.
    """

    ROLE = Role.ANY

    def __init__(self, cluster: Cluster, name: str, address: str, machine: Machine, config: Config, port: int) -> None:
        self.cluster = cluster
        self.name = name
        self.address = address
        self.port = port
        self.prefixes: Counter[bytes] = Counter()
        self.outgoing: list[Link] = []
        self.subscribers: dict[bytes, dict[Link, None]] = {}
        self.queue_max = 1_000_000
        self.lag = 0.0
        self.is_alive = True
        self.is_paused = False
        self.started_at = cluster.clock.now
        self.settled_at: float | None = None
        self.sent: Counter[str] = Counter()
        self.subscriptions_heard = 0
        self.handled = 0
        callbacks = NodeCallbacks(
            on_records=self.on_records,
            on_reset_position=self.on_reset_position,
            on_event=self.on_event,
            on_settled=self.on_settled,
            on_effect=lambda _: None,
            on_change=self.on_change,
        )
        self.role_machine = machine
        self.node = Node(machine, self, callbacks)
        self.beacons = BeaconMachine(
            NodeBeacon(address, "", port),
            config,
            role=self.ROLE,
            towers=len(cluster.tower_names),
            draw=random.Random(cluster.draw.random()).random,
        )
        self.tower_prefixes: tuple[set[bytes], ...] = tuple(set() for _ in cluster.tower_names)
        """Its subscriptions at each tower."""
        self._links: dict[PeerEndpoint, Link] = {}
        self._timer_at = float("inf")
        self._is_waking = False
        self._messages: list[tuple[Link, Sequence[wire.BatchedMessage]]] = []
        self._subscriptions: list[bytes] = []
        self._connections: list[ConnectionChange] = []
        self._from_towers: list[tuple[int, list[bytes]]] = []
        self._busy = 0
        self._busy_at = -1.0

    def start(self) -> None:
        self.node.start(self.cluster.clock.now)
        self._follow_beacons(self.beacons.start(self.cluster.clock.now))

    def vanish(self) -> None:
        self.is_alive = False
        self.cluster.network.vanish(self)

    def resume(self) -> None:
        """Continue after a pause. Everything that has arrived meanwhile is there at once."""
        self.is_paused = False
        self._wake()
        self._arm()

    # Input from the network and from towers

    def arrive(self, link: Link, messages: Sequence[wire.BatchedMessage]) -> None:
        """Take messages that arrive at the subscriber. `link.taken` is called when they are handled."""
        self._messages.append((link, messages))
        self._wake()

    def arrive_subscriptions(self, frames: Sequence[bytes]) -> None:
        self._subscriptions += frames
        self._wake()

    def arrive_connection(self, endpoint: str) -> None:
        self._connections.append(ConnectionChange(PeerEndpoint(endpoint), is_made=True))
        self._wake()

    def arrive_loss(self, endpoint: str) -> None:
        self._connections.append(ConnectionChange(PeerEndpoint(endpoint), is_made=False))
        self._wake()

    def arrive_from_tower(self, tower: int, frames: list[bytes]) -> None:
        self._from_towers.append((tower, frames))
        self._wake()

    def arrive_tower_subscriptions(self, tower: int, frames: Sequence[bytes]) -> None:
        if self.is_alive:
            self._follow_beacons(self.beacons.tower_subscribed(tower, frames, self.cluster.clock.now))

    # The interface `NodeIO`

    def publish(self, messages: Sequence[wire.BatchedMessage]) -> None:
        self.cluster.checks.on_sent(self, messages)
        wanted: dict[Link, list[wire.BatchedMessage]] = {}
        for message in messages:
            for link in find_receivers(self.subscribers, topic_frame(message)):
                wanted.setdefault(link, []).append(message)
        for link in sorted(wanted, key=lambda each: each.number):
            link.push(wanted[link])

    def subscribe(self, prefix: bytes) -> None:
        self.prefixes[prefix] += 1
        if self.prefixes[prefix] == 1:
            self._tell_publishers(b"\1" + prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        self.prefixes[prefix] -= 1
        if not self.prefixes[prefix]:
            del self.prefixes[prefix]
            self._tell_publishers(b"\0" + prefix)

    def connect(self, endpoint: PeerEndpoint) -> bool:
        if endpoint in self._links:
            raise Violation("connected twice", f"{self.name} to {endpoint}")
        self._links[endpoint] = self.cluster.network.connect(self, endpoint.endpoint)
        return True

    def disconnect(self, endpoint: PeerEndpoint) -> None:
        self.cluster.network.disconnect(self._links.pop(endpoint))

    def set_timer(self, deadline: float) -> None:
        self._arm()

    def on_records(self, batch: RecordBatch) -> None:
        raise NotImplementedError

    def on_reset_position(self, reset: ResetPosition) -> None:
        raise NotImplementedError

    def on_event(self, event: Event) -> None:
        self.cluster.checks.on_notified(self, event)

    def on_settled(self) -> None:
        self.settled_at = self.cluster.clock.now
        self.cluster.checks.on_settled(self)

    def on_change(self) -> None:
        """See `NodeCallbacks`."""

    def act(self, actions: Iterable[Action]) -> None:
        self.node.act(actions)

    # Time

    def after(self, delay: float, act: object, *arguments: object) -> None:
        """Schedule a call in a number of seconds. A node that has ended drops it, and a paused node makes it later."""
        self.cluster.clock.after(delay, self._do, act, arguments)

    def _do(self, act: object, arguments: tuple[object, ...]) -> None:
        if self.is_paused:
            self.cluster.clock.after(0.05, self._do, act, arguments)
        elif self.is_alive:
            assert callable(act)
            act(*arguments)

    def _arm(self) -> None:
        deadline = min(self.node.deadline(), self.beacons.deadline())
        if deadline < self._timer_at:
            self._timer_at = deadline
            self.cluster.clock.at(max(deadline, self.cluster.clock.now), self._tick, deadline)

    def _tick(self, timer_at: float) -> None:
        if timer_at != self._timer_at:
            return
        self._timer_at = float("inf")
        if not self.is_alive or self.is_paused:
            return
        now = self.cluster.clock.now
        self._check_busy(now)
        if self.beacons.deadline() <= now:
            self._follow_beacons(self.beacons.tick(now))
        if self.node.deadline() <= now:
            self.node.tick(now)
        self._arm()

    def _check_busy(self, now: float) -> None:
        self._busy = self._busy + 1 if now == self._busy_at else 0
        self._busy_at = now
        if self._busy > BUSY_MAX:
            raise Violation("busy", f"{self.name} asks to be called again and again without time passing")

    def _wake(self) -> None:
        if not self._is_waking and self.is_alive and not self.is_paused:
            self._is_waking = True
            self.cluster.wake(self, self.lag + 0.0005 * self.cluster.draw.random())

    @property
    def waiting(self) -> int:
        return len(self._messages) + len(self._subscriptions) + len(self._connections) + len(self._from_towers)

    def look(self) -> None:
        """Give the machine the messages that have arrived, one batch per socket, in a random order of the sockets."""
        self._is_waking = False
        if not self.is_alive or self.is_paused:
            return
        self.handled += self.waiting
        looks = [self._look_at_messages, self._look_at_subscriptions, self._look_at_connections, self._look_at_towers]
        if self.cluster.draw.random() < 0.5:
            looks.reverse()
        for look in looks:
            look(self.cluster.clock.now)

    def _look_at_messages(self, now: float) -> None:
        if not self._messages:
            return
        arrived, self._messages = self._messages, []
        messages: list[wire.BatchedMessage] = []
        for link, part in arrived:
            link.taken(part)
            messages += part
        self.node.receive(messages, now)
        self.cluster.checks.on_bounded(self)

    def _look_at_subscriptions(self, now: float) -> None:
        if not self._subscriptions:
            return
        frames, self._subscriptions = self._subscriptions, []
        found = [wire.decode_subscription(frame) for frame in frames]
        subscriptions = [subscription for subscription in found if subscription is not None]
        self.subscriptions_heard += len(subscriptions)
        self.node.receive_subscriptions(subscriptions, now)

    def _look_at_connections(self, now: float) -> None:
        if self._connections:
            changes, self._connections = self._connections, []
            self.node.connections_changed(changes, now)

    def _look_at_towers(self, now: float) -> None:
        messages, self._from_towers = self._from_towers, []
        for tower in dict.fromkeys(number for number, _ in messages):
            own = [frames for number, frames in messages if number == tower]
            self._follow_beacons(self.beacons.heard(tower, own, now))

    def _follow_beacons(self, actions: Iterable[BeaconAction]) -> None:
        for action in actions:
            if isinstance(action, SendToTower):
                self.sent["beacon"] += 1
                self.cluster.send_to_tower(self, action.tower, action.frames)
            elif isinstance(action, SubscribeAtTower):
                self.tower_prefixes[action.tower].add(action.prefix)
                self.cluster.subscribe_at_tower(self, action.tower, b"\1" + action.prefix)
            elif isinstance(action, UnsubscribeAtTower):
                self.tower_prefixes[action.tower].discard(action.prefix)
                self.cluster.subscribe_at_tower(self, action.tower, b"\0" + action.prefix)
            else:
                self.node.discovered(action, self.cluster.clock.now)
        self._arm()

    def _tell_publishers(self, frame: bytes) -> None:
        for link in self._links.values():
            if link.is_up:
                link.send_subscriptions([frame])
