"""The base class of all roles that are nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from dafka.config import Config
from dafka.errors import DiscoveryError
from dafka.protocol import Event, Machine, Node, NodeCallbacks, ResetPosition, TowersHeard, TowersSilent
from dafka.protocol.actions import Effect
from dafka.records import RecordBatch
from dafka.roles.events import EventFeed, log_discards
from dafka.roles.logging_events import ClusterFound
from dafka.roles.sockets import NodeSockets
from dafka.roles.statistics import Health
from dafka.roles.trio_context import bind_to_process


class NodeRole:
    """A role that is a node of the mesh. After its block, its methods raise `trio.ClosedResourceError`."""

    address: str
    """The node's address."""
    endpoint: str
    """The endpoint that other nodes connect to."""
    events: EventFeed
    """The events of the node since it was opened; an async iterable."""

    def __init__(self, machine: Machine, sockets: NodeSockets, config: Config) -> None:
        """Connect a machine with its sockets."""
        bind_to_process(self)
        self._is_closed = False
        self._changed = trio.lowlevel.ParkingLot()
        self._attach(machine, sockets, config)

    def _attach(self, machine: Machine, sockets: NodeSockets, config: Config) -> None:
        """Begin as a node with this machine and these sockets."""
        self.address = sockets.address
        self.endpoint = sockets.endpoint
        self.events = sockets.events
        callbacks = NodeCallbacks(
            on_records=self._on_records,
            on_reset_position=self._on_reset_position,
            on_event=self._on_event,
            on_settled=self._on_settled,
            on_effect=self._on_effect,
            on_change=self._on_change,
        )
        self._node = Node(machine, sockets, callbacks, config.node.connecting_max)
        self._sockets = sockets
        self._is_settled = False
        self._is_tower_silent = False
        self._is_tower_heard = False
        self._beacon = config.beacon
        self._tower_timeout_s = config.node.tower_timeout_ms / 1000
        self._towers = config.beacon.tower_pub if config.node.discovery == "tower" else ()

    async def wait_settled(self) -> None:
        """Wait until the node has found the nodes of a running cluster, and is connected to them."""
        await trio.lowlevel.checkpoint()
        await self._wait_for(lambda: self._is_settled)

    @property
    def peers(self) -> int:
        """The number of nodes that this one is connected to, or connecting to."""
        return self._node.peers

    def unheard_towers(self) -> tuple[str, ...]:
        """Return the endpoints of the towers if none of them is heard; otherwise nothing."""
        return () if self._is_tower_heard else tuple(self._towers)

    def health(self) -> Health:
        """Return the node's health: whether it has found its cluster, and hears a tower."""
        if self._is_tower_silent:
            return Health(unready="no tower is heard")
        return Health(unready="" if self._is_settled else "the cluster is not found yet")

    def discarded(self) -> dict[str, int]:
        """Return the messages discarded so far, by reason."""
        return dict(+(self._sockets.discarded() + self._node.discarded()))

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a change of the node has made a condition true."""
        self._check_open()
        while not condition():
            await self._changed.park()
            self._check_open()

    def _close(self) -> None:
        """Refuse more calls, and end the events."""
        self._refuse_calls()
        self.events.end()

    def _refuse_calls(self) -> None:
        """Make new and waiting calls raise `trio.ClosedResourceError`."""
        self._is_closed = True
        self._changed.unpark_all()
        self._on_change()

    def _check_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError(f"this {type(self).__name__.lower()} is closed")

    def _check_found(self, *, stores: int = 1) -> None:
        """Raise `DiscoveryError` if no cluster has been found, or no store although one is needed.

        Call this after waiting for `[node] tower_timeout_ms`. The error says whether a tower was heard.
        """
        seconds = self._tower_timeout_s
        sub, pub = ", ".join(self._beacon.tower_sub), ", ".join(self._beacon.tower_pub)
        if self._is_settled:
            if not stores:
                raise DiscoveryError(f"no store was found within {seconds:g} s through the tower at {pub}")
            return
        if not self._is_tower_heard:
            raise DiscoveryError(
                f"no tower answered at {pub} within {seconds:g} s; start one with `dafka up`, or name another"
            )
        raise DiscoveryError(
            f"the tower at {pub} is heard, but what is sent to {sub} did not come back from it within {seconds:g} s: "
            "both must be endpoints of the same tower"
        )

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[trio.Nursery]:
        """Run the node for the length of a block, with a nursery for more tasks, and close it."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._run_node)
            try:
                yield nursery
            finally:
                self._close()
                nursery.cancel_scope.cancel()

    async def _run_node(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the node until cancelled. It is started when it listens and advertises itself."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log_discards, self.discarded, self.events.log)
            nursery.start_soon(self.events.log_unanswered)
            await nursery.start(self._sockets.run, self._node)
            task_status.started()

    def _on_records(self, batch: RecordBatch) -> None:
        raise NotImplementedError

    def _on_reset_position(self, reset: ResetPosition) -> None:
        raise NotImplementedError

    def _on_event(self, event: Event) -> None:
        if isinstance(event, (TowersHeard, TowersSilent)):
            self._is_tower_silent = isinstance(event, TowersSilent)
            self._is_tower_heard = not self._is_tower_silent
        self.events.put(event)

    def _on_settled(self) -> None:
        self._is_settled = True
        self._changed.unpark_all()
        self.events.log.write(ClusterFound(self._node.peers))

    def _on_effect(self, effect: Effect) -> None:
        raise NotImplementedError

    def _on_change(self) -> None:
        self._changed.unpark_all()
