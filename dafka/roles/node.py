"""One node of the mesh: feeds a state machine with what happens, and carries out what it asks for.

One task owns each socket. Messages are drained, decoded and handed to the machine as one batch; the actions that
come back are carried out at once, before anything else runs, so that a machine never sees the world half changed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import trio

from dafka import wire
from dafka.config import Config
from dafka.discovery import Advertisement, Report, Settled, open_discovery
from dafka.errors import TransportError
from dafka.protocol import (
    Action,
    Append,
    Deliver,
    ForeignDialect,
    Machine,
    Notify,
    PeerJoined,
    PeerLeft,
    Publish,
    Skip,
    Subscribe,
)
from dafka.records import RecordBatch
from dafka.roles.exposure import node_warnings
from dafka.roles.feed import EventFeed
from dafka.roles.membership import Membership
from dafka.transport import Mesh, open_mesh, open_security

CONNECT_S = 1.0
"""How long settling waits for connections to the nodes that were found; one that is gone must not hold it up."""


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
        self._machine = machine
        self._mesh = mesh
        self._membership = membership
        self._config = config
        self._dialect = wire.Dialect(config.node.wire)
        self._decoder = wire.BatchDecoder()
        self._encoder = wire.BatchEncoder(self._dialect)
        self._timer = trio.CancelScope()
        self._is_dialect_told = False
        self._endpoints: Counter[str] = Counter()
        self._connected: set[str] = set()
        self._found = trio.Event()
        self._connection = trio.lowlevel.ParkingLot()
        self._on_batch: Callable[[RecordBatch], None] = lambda _: None
        self._on_skip: Callable[[Skip], None] = lambda _: None
        self._on_change: Callable[[], None] = lambda: None

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

    @property
    def peers(self) -> int:
        """How many nodes are connected to."""
        return self._endpoints.total()

    def discarded(self) -> dict[str, int]:
        """Messages thrown away so far, by reason."""
        return dict(
            self._decoder.discarded + self._encoder.discarded + self._machine.discarded + self._membership.discarded
        )

    def act(self, actions: Iterable[Action]) -> None:
        """Carries out actions, in order, without waiting."""
        outbound: list[wire.Inbound] = []
        for action in actions:
            if isinstance(action, Publish):
                outbound.append(action.message)
            elif isinstance(action, (Deliver, Append)):
                self._on_batch(action.batch)
            elif isinstance(action, Skip):
                self._on_skip(action)
            elif isinstance(action, Notify):
                self.events.put(action.event)
            elif isinstance(action, Subscribe):
                self._mesh.subscriber.subscribe(action.prefix)
            else:
                self._mesh.subscriber.unsubscribe(action.prefix)
        if outbound:
            self.send(outbound)
        self._timer.deadline = self._machine.deadline()
        self._on_change()

    def send(self, messages: Iterable[wire.Inbound]) -> None:
        """Publishes messages in this node's dialect."""
        self._mesh.publisher.send_many(self._encoder.encode(messages))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs the node until cancelled; `started` when it listens and advertises itself.

        Raises `DiscoveryError` or `TransportError` where discovery cannot be set up.
        """
        discovery = open_discovery(self._config)
        self.act(self._machine.start(trio.current_time()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive_messages)
            nursery.start_soon(self._receive_subscriptions)
            nursery.start_soon(self._keep_time)
            nursery.start_soon(self._watch_connections)
            nursery.start_soon(self._settle)
            await nursery.start(discovery.run, self._advertisement(), self._discovered)
            task_status.started()

    def _advertisement(self) -> Advertisement:
        host = self._config.beacon.address
        bound_host = self._config.node.bind.partition("://")[2].rpartition(":")[0]
        if not host and bound_host not in ("*", "0.0.0.0", "[::]"):
            host = bound_host
        return Advertisement(self.address, host, self._mesh.port)

    async def _receive_messages(self) -> None:
        while True:
            items, key = await self._mesh.subscriber.receive()
            messages = self._membership.check(self._decoder.decode(items), key)
            self.act(self._machine.receive(messages, trio.current_time()))
            if self._decoder.heard - {self._dialect} and not self._is_dialect_told:
                self._is_dialect_told = True
                (other,) = self._decoder.heard - {self._dialect}
                self.events.put(ForeignDialect(self._dialect.value, other.value))

    async def _receive_subscriptions(self) -> None:
        while True:
            frames = await self._mesh.publisher.receive_many()
            found = [wire.decode_subscription(message[0]) for message in frames]
            subscriptions = [subscription for subscription in found if subscription is not None]
            self.act(self._machine.subscribed(subscriptions, trio.current_time()))

    async def _keep_time(self) -> None:
        while True:
            with trio.CancelScope(deadline=self._machine.deadline()) as self._timer:
                await trio.sleep_forever()
            self.act(self._machine.tick(trio.current_time()))
            await trio.lowlevel.checkpoint()

    async def _watch_connections(self) -> None:
        while True:
            self._connected.update(await self._mesh.subscriber.receive_connections())
            self._connected.intersection_update(self._endpoints)
            self._connection.unpark_all()

    async def _settle(self) -> None:
        """Settled is who has found the others, and is connected to them: what they send from then on is received."""
        await self._found.wait()
        with trio.move_on_after(CONNECT_S):
            while not self._connected.issuperset(self._endpoints):
                await self._connection.park()
        self.settled.set()
        self.act(self._machine.settled(trio.current_time()))

    def _discovered(self, report: Report) -> None:
        if not self._membership.admit(report):
            return
        now = trio.current_time()
        if isinstance(report, Settled):
            self._found.set()
            return
        if isinstance(report, PeerJoined):
            if not self._connect(report.endpoint):
                return
            self.act(self._machine.peer_joined(report.address, now))
        elif isinstance(report, PeerLeft):
            self._disconnect(report.endpoint)
            self.act(self._machine.peer_left(report.address, now))
        self.events.put(report)

    def _connect(self, endpoint: str) -> bool:
        """Connects once, however many nodes are said to be there: a second connection would bring all twice."""
        if not self._endpoints[endpoint]:
            try:
                self._mesh.subscriber.connect(endpoint)
            except TransportError:
                del self._endpoints[endpoint]
                self._machine.discarded["endpoint"] += 1
                return False
        self._endpoints[endpoint] += 1
        return True

    def _disconnect(self, endpoint: str) -> None:
        if self._endpoints[endpoint] == 1:
            self._mesh.subscriber.disconnect(endpoint)
            self._connected.discard(endpoint)
            self._connection.unpark_all()
        self._endpoints[endpoint] -= 1
        self._endpoints += Counter()


@asynccontextmanager
async def open_node(
    address: str, machine: Machine, config: Config, role: str, high_watermark: int
) -> AsyncIterator[Node]:
    """A node that is not running yet, with its sockets bound; closed when the block is left.

    Raises `AddressInUseError` where the configured endpoint cannot be bound, `ConfigError` where its keys are not what
    they should be.
    """
    events = EventFeed(logging.getLogger(f"dafka.{role}"))
    security = open_security(config)
    async with open_mesh(config.node, high_watermark, security, events.put) as mesh:
        for warning in node_warnings(config, mesh.endpoint):
            events.put(warning)
        yield Node(address, machine, mesh, config, events, Membership(address, security, events.put))
