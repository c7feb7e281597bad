"""The observer role: surveys a cluster's nodes, and the lag of each store for each producer."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from functools import partial

import trio
import zmq

from dafka import wire
from dafka.config import Config
from dafka.endpoints import PeerEndpoint
from dafka.errors import ConfigError, TransportError, WireError
from dafka.exceptions import unwrap_group
from dafka.protocol import ClusterSurvey, Event, PeerJoined, PeerLeft, RefusedByPeer, SurveyMachine
from dafka.records import new_address
from dafka.roles.arguments import check_topics
from dafka.roles.role import NodeRole
from dafka.roles.sockets import NodeSockets, batch_bytes_max, open_sockets
from dafka.roles.trio_context import trio_block
from dafka.transport import listen, open_context, open_security


class Observer(NodeRole):
    """Observes a cluster without taking part in it. `open_observer` creates one.

    It has separate connections to towers and stores, which run in its nursery. After the block, its methods raise
    `trio.ClosedResourceError`.
    """

    def __init__(
        self,
        machine: SurveyMachine,
        sockets: NodeSockets,
        config: Config,
        context: zmq.Context[zmq.Socket[bytes]],
        nursery: trio.Nursery,
    ) -> None:
        """Create the observer. Programs call `open_observer` instead."""
        super().__init__(machine, sockets, config)
        self._machine = machine
        self._config = config
        self._context = context
        self._nursery = nursery
        self._security = open_security(config)
        self._listening: dict[str, tuple[PeerEndpoint, trio.CancelScope]] = {}

    async def survey(self, timeout_s: float) -> ClusterSurvey:
        """Ask every store for its partitions, and wait until all have answered.

        The first survey takes a beacon interval, later ones a third of a second; a second and a half if a store does
        not answer, or is libdafka's.

        Args:
            timeout_s: The seconds after which to give up waiting, because nodes keep joining and leaving.

        Returns:
            The survey. Its times are seconds since 1970.
        """
        self._check_open()
        machine = self._machine
        self._node.act(machine.begin_round(trio.current_time()))
        with trio.move_on_after(timeout_s):
            await self._wait_for(lambda: machine.is_complete)
        return machine.survey(trio.current_time()).with_time(time.time())

    async def list_topics(self, timeout_s: float) -> tuple[str, ...]:
        """Return the topics that stores hold, or that running producers and consumers use, in alphabetical order.

        With `wire = "rfc46"`, libdafka's stores fail, since they cannot read requests in that dialect, and their topics
        are left out.

        Args:
            timeout_s: The seconds after which to give up waiting for answers.

        Returns:
            The names of the topics.
        """
        return tuple(topic.name for topic in (await self.survey(timeout_s)).topics)

    def _listen_to_towers(self) -> None:
        """Connect to each tower separately: discovery does not report which of them sent a beacon."""
        endpoints = self._config.beacon.tower_pub
        for index, endpoint in enumerate(endpoints):
            key = "" if self._security is None else self._security.tower_key(index, len(endpoints))
            self._nursery.start_soon(
                listen,
                self._context,
                self._security,
                PeerEndpoint(endpoint, key),
                (wire.WELCOME, wire.BEACON),
                partial(self._hear_tower, endpoint),
                lambda _: None,
                partial(self._record_refusal, endpoint),
            )

    def _hear_tower(self, endpoint: str, messages: list[list[bytes]]) -> None:
        nodes = self._machine.node_table
        nodes.tower_heard(endpoint, trio.current_time())
        for frames in messages:
            with suppress(WireError):
                beacon = wire.TowerBeacon.decode(frames, has_key=self._security is not None)
                nodes.record_beacon(endpoint, beacon, trio.current_time())

    def _record_refusal(self, endpoint: str, event: RefusedByPeer) -> None:
        self._machine.node_table.tower_refused(endpoint, str(event))

    def _on_event(self, event: Event) -> None:
        super()._on_event(event)
        if isinstance(event, (PeerJoined, PeerLeft)):
            self._machine.record_discovery(event, trio.current_time())
            self._node.act(())

    def _on_change(self) -> None:
        """Keep separate connections to exactly the stores that the machine needs."""
        stores = self._machine.stores
        for address, (peer, scope) in list(self._listening.items()):
            if stores.get(address) != peer:
                scope.cancel()
                del self._listening[address]
        for address in stores.keys() - self._listening.keys():
            self._listening[address] = stores[address], trio.CancelScope()
            self._nursery.start_soon(self._listen_to_store, address, *self._listening[address])
        super()._on_change()

    async def _listen_to_store(self, address: str, peer: PeerEndpoint, scope: trio.CancelScope) -> None:
        if self._security is not None and peer.key not in self._security.authorized:
            return
        decoder = wire.BatchDecoder(batch_bytes_max(self._config.node))

        def receive(messages: list[list[bytes]]) -> None:
            self._node.act(self._machine.receive_from_store(address, decoder.decode(messages), trio.current_time()))

        def record_connected(_: str) -> None:
            self._machine.store_connected(trio.current_time())
            self._node.act(())

        def ignore_refusal(_: RefusedByPeer) -> None:
            pass  # the node's own connection to the store reports it

        prefixes = self._machine.listening_prefixes()
        with scope, suppress(TransportError):
            await listen(self._context, self._security, peer, prefixes, receive, record_connected, ignore_refusal)


@trio_block
async def open_observer(topics: Iterable[str] = (), config: Config | None = None) -> AsyncIterator[Observer]:
    """Open an observer for the length of a block.

    Args:
        topics: The topics to look at; by default all.
        config: The settings; by default those of `Config()`. Its discovery must be by towers.

    Yields:
        The observer.

    Raises:
        ConfigError: A topic, a key or the configuration is invalid.
        AddressInUseError: The node cannot listen at its endpoint.
        TransportError: The endpoint of a tower is invalid.
    """
    config = config or Config()
    if config.node.discovery != "tower":
        raise ConfigError(
            f"[node] discovery is {config.node.discovery!r}: expected 'tower', because an observer asks the towers"
        )
    machine = SurveyMachine(new_address(), config, check_topics(topics, config))
    with unwrap_group():
        async with (
            open_sockets(machine.address, config, wire.Role.OBSERVER, config.consumer.high_watermark) as sockets,
            open_context(0) as context,
            trio.open_nursery() as nursery,
        ):
            observer = Observer(machine, sockets, config, context, nursery)
            observer._listen_to_towers()
            async with observer._running():
                yield observer
            nursery.cancel_scope.cancel()
