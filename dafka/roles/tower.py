"""The tower: introduces nodes to each other, and carries no records (RFC 46, "Node Discovery and Presence")."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack

import attrs
import trio
import zmq

from dafka.config import Config
from dafka.errors import WireError
from dafka.groups import single_exception
from dafka.protocol import Event, KeyIdentity
from dafka.roles.events import NodeLog, log_discards
from dafka.roles.exposure import exposed
from dafka.roles.log_events import Started, Stopped
from dafka.roles.reception import TowerConnections
from dafka.roles.statistics import Health
from dafka.transport import MessageSource, PublisherSocket, Socket, open_context, open_security, open_zap_handler
from dafka.transport.mesh import HANDSHAKE_MS
from dafka.transport.socket import BaseSocket
from dafka.wire import BEACON, WELCOME, NodeBeacon, TowerBeacon

NODES_MAX = 10_000
"""Nodes counted where there is no reception."""

BEACON_BYTES_MAX = 1024
"""The largest frame that a tower takes."""

DRAIN_MAX = 200
"""Beacons taken at a time: a few milliseconds' work."""

QUEUE_MAX = 10_000
"""Beacons queued for one slow node before further ones to it are dropped."""


@attrs.frozen
class TowerStatistics:
    """Beacons passed on, beacons thrown away, and the nodes that are there."""

    beacons: int
    discarded: int
    nodes: int


class Tower:
    """Attributes:
    sub_endpoint: where nodes send their beacons.
    pub_endpoint: where nodes hear of each other.
    """

    def __init__(
        self,
        sub_endpoint: str,
        pub_endpoint: str,
        claims: KeyIdentity | None = None,
        reception: TowerConnections | None = None,
    ) -> None:
        self.sub_endpoint = sub_endpoint
        self.pub_endpoint = pub_endpoint
        self._claims = claims
        self._reception = reception
        self._beacons = 0
        self._discarded: Counter[str] = Counter()
        self._nodes: dict[str, str] = {}

    def statistics(self) -> TowerStatistics:
        """What this tower has done so far."""
        if self._reception is None:
            return TowerStatistics(self._beacons, self._discarded.total(), len(self._nodes))
        discarded = self._discarded.total() + self._reception.discarded.total()
        return TowerStatistics(self._beacons, discarded, len(self._reception))

    def health(self) -> Health:
        """How it does, as a supervisor asks: it listens, and needs nobody."""
        return Health()

    def discarded(self) -> dict[str, int]:
        """Beacons and subscriptions thrown away so far, and connections ended, by reason."""
        if self._reception is None:
            return dict(self._discarded)
        return dict(self._discarded + self._reception.discarded + self._reception.subscriptions_discarded)

    def hears(self, frames: list[bytes], origin: MessageSource) -> bool:
        """May this connection introduce this node? Not beyond its limits, nor by an address that is another key's."""
        try:
            address = NodeBeacon.decode(frames).address
        except WireError:
            return True  # which `forward` finds, and counts
        if self._reception is not None and not self._reception.admit(address, origin, trio.current_time()):
            return False
        if self._claims is not None and not self._claims.claim(address, origin.key):
            self._discarded["another key's address"] += 1
            return False
        return True

    def forward(self, frames: list[bytes], peer: str, own_address: str) -> list[bytes] | None:
        """The beacon to publish for one that came from the IP address `peer`; None where it is malformed."""
        try:
            beacon = NodeBeacon.decode(frames)
            host = beacon.host or _reachable(peer, own_address)
            forwarded = TowerBeacon(beacon.address, f"tcp://{host}:{beacon.port}")
        except WireError as error:
            self._discarded[error.field] += 1
            return None
        self._beacons += 1
        if len(self._nodes) < NODES_MAX:
            self._nodes[forwarded.address] = forwarded.endpoint
        return forwarded.encode()


async def serve_tower(
    config: Config | None = None, *, task_status: trio.TaskStatus[Tower] = trio.TASK_STATUS_IGNORED
) -> None:
    """Runs a tower until cancelled; `started` gives the `Tower` once it listens.

    Raises `AddressInUseError` where it cannot listen at `config.tower`'s endpoints, `ConfigError` where its keys are
    not what they should be.
    """
    config = config or Config()
    security = open_security(config)
    log = NodeLog(logging.getLogger("dafka.tower"))

    def warn(event: Event) -> None:
        log.write(event, logging.WARNING)

    with single_exception(), ExitStack() as closed:
        async with open_context(0) as context, AsyncExitStack() as stack:
            subscriber = Socket(context.socket(zmq.SocketType.SUB))
            stack.callback(subscriber.close, 0)
            publisher = PublisherSocket(context.socket(zmq.SocketType.XPUB), config.node)
            stack.callback(publisher.close, 0)
            limits = {"maxmsgsize": BEACON_BYTES_MAX, "handshake_ivl": HANDSHAKE_MS}
            publisher.set_options(xpub_welcome_msg=WELCOME, xpub_verbose=1, sndhwm=QUEUE_MAX, **limits)
            subscriber.set_options(**limits)
            subscriber.subscribe(BEACON)
            bind: Callable[[BaseSocket, str], str] = _bind
            claims = None
            if security is not None:
                bind = (await stack.enter_async_context(open_zap_handler(context, security, warn))).bind
                claims = KeyIdentity(security.authorized.__contains__)
            pub_endpoint = bind(publisher, config.tower.pub)
            sub_endpoint = bind(subscriber, config.tower.sub)
            reception = TowerConnections(sub_endpoint, publisher, config)
            tower = Tower(sub_endpoint, pub_endpoint, claims, reception)
            for warning in exposed(config, (tower.sub_endpoint, tower.pub_endpoint)):
                warn(warning)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_forward_beacons, tower, subscriber, publisher)
                nursery.start_soon(_drain_subscriptions, publisher)
                nursery.start_soon(publisher.watch)
                nursery.start_soon(reception.watch)
                nursery.start_soon(log_discards, tower.discarded, log)
                log.write(Started((tower.sub_endpoint, tower.pub_endpoint)))
                closed.callback(log.write, Stopped())
                task_status.started(tower)


def _bind(socket: BaseSocket, endpoint: str) -> str:
    return socket.bind(endpoint)


async def _forward_beacons(tower: Tower, subscriber: Socket, publisher: PublisherSocket) -> None:
    own_address = _own_address(tower.sub_endpoint)
    while True:
        outbound: list[list[bytes]] = []
        for frames, origin in await subscriber.receive_with_sources(DRAIN_MAX):
            forwarded = tower.forward(frames, origin.peer, own_address) if tower.hears(frames, origin) else None
            if forwarded is not None:
                # In a closed cluster whoever hears of a node must know whom to expect there.
                outbound.append([*forwarded, origin.key.encode("ascii")] if origin.key else forwarded)
        publisher.send_many(outbound)


async def _drain_subscriptions(publisher: PublisherSocket) -> None:
    while True:
        await publisher.receive_many()


def _reachable(peer: str, own_address: str) -> str:
    """The host at which a node can be reached that was seen at this IP address."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return own_address
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        return own_address
    return f"[{address}]" if address.version == 6 else str(address)


def _own_address(sub_endpoint: str) -> str:
    """The address at which others reach this machine: for nodes that the tower sees at a loopback address.

    A tower that listens on a loopback address alone has no others.
    """
    host = sub_endpoint.partition("://")[2].rpartition(":")[0]
    if host.startswith("127.") or not sub_endpoint.startswith("tcp://"):
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; it asks which interface faces that network.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
