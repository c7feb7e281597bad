"""The tower's state machine: it returns the beacons to publish (RFC 46, "Node Discovery and Presence").

A tower passes each node's beacon on to all nodes, with the endpoint at which that node can be reached. It carries no
records. In a closed cluster it adds the key with which the node has authenticated itself.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from dafka import wire
from dafka.config import Config
from dafka.endpoints import MessageSource
from dafka.errors import WireError
from dafka.protocol.presence.beacon_registry import BeaconRegistry
from dafka.protocol.presence.identity import KeyIdentity

KEY_CONFLICT = "address of another key"


class TowerMachine:
    """The rules of one tower.

    Attributes:
        registry: The nodes that the tower introduces.
        beacons: Beacons passed on.
        own_host: The host at which other machines reach this one. Nodes on loopback are introduced at it.
    """

    def __init__(
        self,
        config: Config,
        own_host: str,
        is_connected: Callable[[int], bool],
        identity: KeyIdentity | None = None,
    ) -> None:
        """Create the machine of a tower that knows no nodes.

        Args:
            config: `[tower] nodes_max` and `[beacon] timeout_ms` apply.
            own_host: The host at which other machines reach this one.
            is_connected: Returns whether a connection, by the number in `MessageSource`, still exists.
            identity: The keys of nodes in a closed cluster; None in a plain cluster.
        """
        self.registry = BeaconRegistry(config.tower.nodes_max, config.beacon.timeout_ms / 1000, is_connected)
        self.beacons = 0
        self.own_host = own_host
        self._identity = identity
        self._discarded: Counter[str] = Counter()

    @property
    def discarded(self) -> Counter[str]:
        """Beacons that were not passed on, by reason."""
        return self._discarded + self.registry.discarded

    def receive(self, messages: Iterable[tuple[Sequence[bytes], MessageSource]], now: float) -> list[list[bytes]]:
        """Handle messages from nodes, and return the beacons to publish."""
        forwarded = (self.forward_beacon(frames, source, now) for frames, source in messages)
        return [frames for frames in forwarded if frames is not None]

    def forward_beacon(self, frames: Sequence[bytes], source: MessageSource, now: float) -> list[bytes] | None:
        """Return the beacon to publish for one that a node sent; None if it is discarded."""
        try:
            beacon = wire.NodeBeacon.decode(frames)
        except WireError as error:
            self._discarded[error.field] += 1
            return None
        if not self.registry.admit_beacon(beacon.address, source.connection, now):
            return None
        if self._identity is not None and not self._identity.claim_address(beacon.address, source.key):
            self._discarded[KEY_CONFLICT] += 1
            return None
        self.beacons += 1
        host = beacon.host or reachable_host(source.host, self.own_host)
        return wire.TowerBeacon(beacon.address, f"tcp://{host}:{beacon.port}", source.key).encode()

    def tick(self, now: float) -> None:
        """Forget silent nodes."""
        self.registry.expire(now)


def reachable_host(host: str, own_host: str) -> str:
    """Return the host at which other machines reach a node.

    Args:
        host: The IP address that the node's connection comes from; may be empty or invalid.
        own_host: The host of the tower's machine, for nodes that connect over loopback.

    Returns:
        A host for an endpoint; an IPv6 address is in brackets.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return own_host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        return own_host
    return f"[{address}]" if address.version == 6 else str(address)
