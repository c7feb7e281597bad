"""One node of the mesh: feeds a state machine with what happens, and carries out what it asks for.

One task owns each socket. Messages are drained, decoded and handed to the machine as one batch; what it wants done is
done at once, before anything else runs (`dafka.protocol.Driver`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager

import trio

from dafka import wire
from dafka.config import Config
from dafka.discovery import Advertisement, Discovery, DiscoveryEvent, open_discovery
from dafka.endpoints import PeerEndpoint
from dafka.errors import TransportError
from dafka.protocol import (
    HOSTILE_REASONS,
    Action,
    ClusterFound,
    Driver,
    Event,
    ForeignDialect,
    Machine,
    Skip,
    Started,
    Stopped,
    TowersHeard,
    TowersSilent,
)
from dafka.records import RecordBatch
from dafka.roles.discards import watch_discards
from dafka.roles.exposure import node_warnings
from dafka.roles.feed import EventFeed
from dafka.roles.health import Health
from dafka.roles.membership import Membership
from dafka.transport import Mesh, open_mesh, open_security


class Node:
    """Attributes:
    address: the node's own.
    events: what happened to it.
    settled: set when the nodes that were there before have been found, and are connected to.
    """

    def __init__(
        self, address: str, machine: Machine, mesh: Mesh, config: Config, events: EventFeed, membership: Membership
    ) -> None:
        self.address = address
        self.events = events
        self.settled = trio.Event()
        self._driver = Driver(machine, self, config.node.connecting_max)
        self._machine = machine
        self._mesh = mesh
        self._membership = membership
        self._config = config
        self._dialect = wire.Dialect(config.node.wire)
        self._decoder = wire.BatchDecoder()
        self._encoder = wire.BatchEncoder(self._dialect)
        self._discovery: Discovery | None = None
        self._timer = trio.CancelScope()
        self._is_dialect_told = False
        self._is_tower_silent = False
        self._on_batch: Callable[[RecordBatch], None] = lambda _: None
        self._on_skip: Callable[[Skip], None] = lambda _: None
        self._on_change: Callable[[], None] = lambda: None
        self._on_report: Callable[[DiscoveryEvent], None] = lambda _: None

    @property
    def endpoint(self) -> str:
        """Where other nodes connect to this one."""
        return self._mesh.endpoint

    def on_batch(self, handler: Callable[[RecordBatch], None]) -> None:
        """Who takes the records that the machine delivers or wants appended."""
        self._on_batch = handler

    def on_skip(self, handler: Callable[[Skip], None]) -> None:
        """Who lets a stored partition go on elsewhere; only a store is asked to."""
        self._on_skip = handler

    def on_change(self, handler: Callable[[], None]) -> None:
        """Who wants to look at the machine after each time something happened to it."""
        self._on_change = handler

    def on_report(self, handler: Callable[[DiscoveryEvent], None]) -> None:
        """Who wants to know whom discovery finds, where, and whom it loses."""
        self._on_report = handler

    @property
    def peers(self) -> int:
        """How many nodes are connected to."""
        return len(self._driver.links)

    def discarded(self) -> dict[str, int]:
        """Messages thrown away so far, by reason."""
        found: Counter[str] = Counter()
        for each in (self._decoder, self._encoder, self._machine, self._membership, self._mesh.publisher):
            found.update(each.discarded)
        found.update(self._mesh.subscriber.discarded)
        found.update(getattr(self._discovery, "discarded", ()))  # a plugin's may not count
        return dict(+found)

    def health(self) -> Health:
        """Whether the node stands in its cluster."""
        if self._is_tower_silent:
            return Health(unready="no tower is heard")
        return Health(unready="" if self.settled.is_set() else "the cluster is not found yet")

    def act(self, actions: Iterable[Action]) -> None:
        """Carries out actions, in order, without waiting."""
        self._driver.act(actions)

    def send(self, messages: Iterable[wire.BatchedMessage]) -> None:
        """Publishes messages in this node's dialect."""
        self._mesh.publisher.send_many(self._encoder.encode(messages))

    def subscribe(self, prefix: bytes) -> None:
        """See `Surroundings.subscribe`."""
        self._mesh.subscriber.subscribe(prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        """See `Surroundings.unsubscribe`."""
        self._mesh.subscriber.unsubscribe(prefix)

    def connect(self, endpoint: PeerEndpoint) -> bool:
        """See `Surroundings.connect`."""
        try:
            self._mesh.subscriber.connect_peer(endpoint)
        except TransportError:
            return False
        return True

    def disconnect(self, endpoint: PeerEndpoint) -> None:
        """See `Surroundings.disconnect`."""
        self._mesh.subscriber.disconnect_peer(endpoint)

    def take(self, batch: RecordBatch) -> None:
        """See `Surroundings.take`."""
        self._on_batch(batch)

    def skip(self, skip: Skip) -> None:
        """See `Surroundings.skip`."""
        self._on_skip(skip)

    def notify(self, event: Event) -> None:
        """See `Surroundings.notify`."""
        if isinstance(event, (TowersHeard, TowersSilent)):
            self._is_tower_silent = isinstance(event, TowersSilent)
        self.events.put(event)

    def changed(self) -> None:
        """See `Surroundings.changed`."""
        self._timer.deadline = self._driver.deadline()
        if self._driver.links.is_settled and not self.settled.is_set():
            self.settled.set()
            self.events.log.write(ClusterFound(self.peers))
        self._on_change()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs the node until cancelled; `started` when it listens and advertises itself.

        Raises `DiscoveryError` or `TransportError` where discovery cannot be set up.
        """
        discovery = open_discovery(self._config)
        self._discovery = discovery
        self.act(self._machine.start(trio.current_time()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive_messages)
            nursery.start_soon(self._receive_subscriptions)
            nursery.start_soon(self._keep_time)
            nursery.start_soon(self._watch_connections)
            nursery.start_soon(self._mesh.publisher.watch)
            nursery.start_soon(self._mesh.subscriber.watch)
            nursery.start_soon(watch_discards, self.discarded, self.events.log)
            await nursery.start(discovery.run, self._advertisement(), self._discovered)
            self.events.log.write(Started((self.endpoint,)))
            task_status.started()

    def _advertisement(self) -> Advertisement:
        host = self._config.beacon.address
        bound_host = self._config.node.bind.partition("://")[2].rpartition(":")[0]
        if not host and bound_host not in ("*", "0.0.0.0", "[::]"):
            host = bound_host
        return Advertisement(self.address, host, self._mesh.port)

    async def _receive_messages(self) -> None:
        subscriber, hostile = self._mesh.subscriber, 0
        while True:
            items, source = await subscriber.receive()
            messages = self._membership.check(
                self._decoder.decode(items), source, subscriber.endpoint_of(source) if source else ""
            )
            self.act(self._machine.receive(messages, trio.current_time()))
            hostile, before = self._hostile(), hostile
            subscriber.judge(source, hostile - before)
            if self._decoder.heard - {self._dialect} and not self._is_dialect_told:
                self._is_dialect_told = True
                (other,) = self._decoder.heard - {self._dialect}
                self.events.put(ForeignDialect(self._dialect.value, other.value))

    def _hostile(self) -> int:
        """Messages so far that no honest node sends."""
        machine = self._machine.discarded
        others = self._decoder.discarded.total() + self._membership.discarded.total()
        return others + sum(machine[reason] for reason in HOSTILE_REASONS)

    async def _receive_subscriptions(self) -> None:
        while True:
            frames = await self._mesh.publisher.receive_many()
            found = [wire.decode_subscription(message[0]) for message in frames]
            subscriptions = [subscription for subscription in found if subscription is not None]
            self.act(self._machine.subscribed(subscriptions, trio.current_time()))

    async def _keep_time(self) -> None:
        while True:
            with trio.CancelScope(deadline=self._driver.deadline()) as self._timer:
                await trio.sleep_forever()
            self._driver.tick(trio.current_time())
            await trio.lowlevel.checkpoint()

    async def _watch_connections(self) -> None:
        while True:
            self._driver.connected(await self._mesh.subscriber.receive_connections(), trio.current_time())

    def _discovered(self, report: DiscoveryEvent) -> None:
        if self._membership.admit(report):
            self._on_report(report)
            self._driver.discovered(report, trio.current_time())
            self._timer.deadline = self._driver.deadline()


@asynccontextmanager
async def open_node(
    address: str, machine: Machine, config: Config, role: str, high_watermark: int
) -> AsyncIterator[Node]:
    """A node that is not running yet, with its sockets bound; closed when the block is left.

    Raises `AddressInUseError` where the configured endpoint cannot be bound, `ConfigError` where its keys are not what
    they should be.
    """
    events = EventFeed(logging.getLogger(f"dafka.{role}"), address)
    security = open_security(config)
    with ExitStack() as closed:
        async with open_mesh(config.node, high_watermark, security, events.put) as mesh:
            closed.callback(events.log.write, Stopped())
            for warning in node_warnings(config, mesh.endpoint):
                events.put(warning)
            yield Node(address, machine, mesh, config, events, Membership(address, security, events.put))
