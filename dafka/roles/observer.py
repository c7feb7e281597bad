"""The observer: a cluster as its towers see it, and how far each store is behind each producer."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio
import zmq

from dafka import wire
from dafka.config import Config
from dafka.endpoints import PeerEndpoint
from dafka.errors import ConfigError, TransportError, WireError
from dafka.groups import single_exception
from dafka.protocol import ClusterSurvey, Event, PeerJoined, PeerLeft, RefusedByPeer, SurveyMachine
from dafka.records import new_address
from dafka.roles.advice import describe_event
from dafka.roles.arguments import check_topics
from dafka.roles.role import NodeRole
from dafka.roles.sockets import NodeSockets, open_sockets
from dafka.transport import listen, open_context, open_security


class Observer(NodeRole):
    """Made by `open_observer`.

    Attributes:
        address: the observer's node address.
    """

    def __init__(
        self,
        machine: SurveyMachine,
        sockets: NodeSockets,
        config: Config,
        context: zmq.Context[zmq.Socket[bytes]],
        nursery: trio.Nursery,
    ) -> None:
        super().__init__(machine, sockets, config)
        self._machine = machine
        self._config = config
        self._context = context
        self._nursery = nursery
        self._security = open_security(config)
        self._listening: dict[str, tuple[PeerEndpoint, trio.CancelScope]] = {}
        self._changed = trio.lowlevel.ParkingLot()

    async def survey(self, seconds: float) -> ClusterSurvey:
        """Asks every store how far it has come, and waits until all have told, or cannot be expected to any more.

        The first time that takes a beacon interval, later a third of a second; a second and a half where somebody says
        nothing, or is libdafka's. A cluster in which nodes keep coming and going is given up after `seconds`. What is
        known then is the result; its times are seconds since 1970.
        """
        machine = self._machine
        self._node.act(machine.begin(trio.current_time()))
        with trio.move_on_after(seconds):
            while not machine.is_complete:
                await self._changed.park()
        return machine.survey(trio.current_time()).at(time.time())

    def listen_to_towers(self) -> None:
        """Begins to hear each tower by itself: discovery does not tell which of them it has a beacon from."""
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
                partial(self._note_refusal, endpoint),
            )

    def _hear_tower(self, endpoint: str, messages: list[list[bytes]]) -> None:
        nodes = self._machine.node_table
        nodes.tower_heard(endpoint, trio.current_time())
        for frames in messages:
            with suppress(WireError):
                beacon = wire.TowerBeacon.decode(frames, has_key=self._security is not None)
                nodes.seen(endpoint, beacon, trio.current_time())

    def _note_refusal(self, endpoint: str, event: RefusedByPeer) -> None:
        self._machine.node_table.tower_refused(endpoint, describe_event(event))

    def _on_event(self, event: Event) -> None:
        super()._on_event(event)
        if isinstance(event, (PeerJoined, PeerLeft)):
            self._machine.found(event, trio.current_time())
            self._node.act(())

    def _on_change(self) -> None:
        """After everything that happened: listens to the stores that are there, and to no others."""
        stores = self._machine.stores
        for address, (peer, scope) in list(self._listening.items()):
            if stores.get(address) != peer:
                scope.cancel()
                del self._listening[address]
        for address in stores.keys() - self._listening.keys():
            self._listening[address] = stores[address], trio.CancelScope()
            self._nursery.start_soon(self._listen_to_store, address, *self._listening[address])
        self._changed.unpark_all()

    async def _listen_to_store(self, address: str, peer: PeerEndpoint, scope: trio.CancelScope) -> None:
        if self._security is not None and peer.key not in self._security.authorized:
            return
        decoder = wire.BatchDecoder()

        def take(messages: list[list[bytes]]) -> None:
            self._machine.told(address, decoder.decode(messages), trio.current_time())
            self._node.act(())

        def made(_: str) -> None:
            self._machine.connected(trio.current_time())
            self._node.act(())

        def refused(_: RefusedByPeer) -> None:
            pass  # the node itself tells of it

        prefixes = self._machine.listening_prefixes()
        with scope, suppress(TransportError):
            await listen(self._context, self._security, peer, prefixes, take, made, refused)


@asynccontextmanager
async def open_observer(topics: Iterable[str] = (), config: Config | None = None) -> AsyncIterator[Observer]:
    """An observer, for the length of a block. Where `topics` are named, it looks at these alone.

    Raises `ConfigError` for topics that cannot be, keys that are not what they should be, and a discovery without
    towers; `AddressInUseError` where the node cannot listen; `TransportError` where a tower's endpoint is none.
    """
    config = config or Config()
    if config.node.discovery != "tower":
        raise ConfigError(
            f"[node] discovery is {config.node.discovery!r}: expected 'tower', since it is the towers that are asked"
        )
    machine = SurveyMachine(new_address(), config, check_topics(topics, config))
    with single_exception():
        async with (
            open_sockets(machine.address, config, "observer", config.consumer.high_watermark) as sockets,
            open_context(0) as context,
            trio.open_nursery() as nursery,
        ):
            observer = Observer(machine, sockets, config, context, nursery)
            observer.listen_to_towers()
            await nursery.start(observer._run_node)
            try:
                yield observer
            finally:
                nursery.cancel_scope.cancel()
