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
from dafka.protocol.trust import TowerHostAmbiguous

KEY_CONFLICT = "address of another key"


class TowerMachine:
    """The rules of one tower.

    Attributes:
        registry: The nodes that the tower introduces.
        beacons: Beacons passed on.
        own_host: The host at which other machines reach this one. Nodes on loopback are introduced at it. It is an
            assumption until a node has reached the tower at an address other than loopback.
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
            own_host: The host at which other machines presumably reach this one.
            is_connected: Returns whether a connection, by the number in `MessageSource`, still exists.
            identity: The keys of nodes in a closed cluster; None in a plain cluster.
        """
        self.registry = BeaconRegistry(config.tower.nodes_max, config.beacon.timeout_ms / 1000, is_connected)
        self.beacons = 0
        self.own_host = own_host
        self._presumed_host = own_host
        self._reached_hosts: set[str] = set()
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

    def reached_at(self, address: str) -> TowerHostAmbiguous | None:
        """Note the address of this machine at which a node has reached the tower.

        The presumed host is kept if nodes reach the tower there; otherwise the first address is the tower's host.

        Args:
            address: The IP address; may be empty or invalid.

        Returns:
            A warning if nodes have reached the tower at another address, too.
        """
        host = _remote_host(address)
        if not host or host in self._reached_hosts:
            return None
        is_first = not self._reached_hosts
        self._reached_hosts.add(host)
        if is_first:
            self.own_host = host
            return None
        if host == self._presumed_host:
            self.own_host, host = host, self.own_host
        return TowerHostAmbiguous(self.own_host, host)

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
    return _remote_host(host) or own_host


def _remote_host(address: str) -> str:
    """Return the host of an endpoint at this IP address; empty if the address is invalid or loopback."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return ""
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if parsed.is_loopback:
        return ""
    return f"[{parsed}]" if parsed.version == 6 else str(parsed)
