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
from dafka.protocol import Claims, Event, Started, Stopped
from dafka.roles.discards import watch_discards
from dafka.roles.exposure import exposed
from dafka.roles.health import Health
from dafka.roles.log import NodeLog
from dafka.transport import Socket, open_context, open_guard, open_security
from dafka.wire import BEACON, WELCOME, NodeBeacon, TowerBeacon

NODES_MAX = 100_000
"""Nodes counted; further ones are introduced all the same."""


@attrs.frozen
class TowerStatistics:
    """Beacons passed on, beacons thrown away as malformed, and distinct nodes heard."""

    beacons: int
    discarded: int
    nodes: int


class Tower:
    """Attributes:
    sub_endpoint: where nodes send their beacons.
    pub_endpoint: where nodes hear of each other.
    """

    def __init__(self, sub_endpoint: str, pub_endpoint: str, claims: Claims | None = None) -> None:
        self.sub_endpoint = sub_endpoint
        self.pub_endpoint = pub_endpoint
        self._claims = claims
        self._beacons = 0
        self._discarded: Counter[str] = Counter()
        self._nodes: dict[str, str] = {}

    def statistics(self) -> TowerStatistics:
        """What this tower has done so far."""
        return TowerStatistics(self._beacons, self._discarded.total(), len(self._nodes))

    def health(self) -> Health:
        """How it does, as a supervisor asks: it listens, and needs nobody."""
        return Health()

    def discarded(self) -> dict[str, int]:
        """Beacons thrown away so far, by reason."""
        return dict(self._discarded)

    def admit(self, frames: list[bytes], key: str) -> bool:
        """Is a beacon from the holder of this key to be heard? Not where its address is another key's."""
        if self._claims is None:
            return True
        try:
            address = NodeBeacon.decode(frames).address
        except WireError:
            return True  # which `forward` finds, and counts
        if not self._claims.claim(address, key):
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
            publisher = Socket(context.socket(zmq.SocketType.XPUB))
            stack.callback(publisher.close, 0)
            publisher.set_options(xpub_welcome_msg=WELCOME, sndhwm=0)
            subscriber.set_options(maxmsgsize=1024)
            subscriber.subscribe(BEACON)
            bind: Callable[[Socket, str], str] = Socket.bind
            claims = None
            if security is not None:
                bind = (await stack.enter_async_context(open_guard(context, security, warn))).bind
                claims = Claims(security.authorised.__contains__)
            pub_endpoint = bind(publisher, config.tower.pub_address)
            tower = Tower(bind(subscriber, config.tower.sub_address), pub_endpoint, claims)
            for warning in exposed(config, (tower.sub_endpoint, tower.pub_endpoint)):
                warn(warning)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_forward_beacons, tower, subscriber, publisher)
                nursery.start_soon(_drain_subscriptions, publisher)
                nursery.start_soon(watch_discards, tower.discarded, log)
                log.write(Started((tower.sub_endpoint, tower.pub_endpoint)))
                closed.callback(log.write, Stopped())
                task_status.started(tower)


async def _forward_beacons(tower: Tower, subscriber: Socket, publisher: Socket) -> None:
    own_address = _own_address(tower.sub_endpoint)
    while True:
        frames, peer, key = await subscriber.receive_with_key()
        forwarded = tower.forward(frames, peer, own_address) if tower.admit(frames, key) else None
        if forwarded is not None:
            # In a closed cluster whoever hears of a node must know whom to expect there.
            publisher.send_many([[*forwarded, key.encode("ascii")] if key else forwarded])


async def _drain_subscriptions(publisher: Socket) -> None:
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
