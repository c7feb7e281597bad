"""The nodes that are known from the beacons that towers pass on.

A node is identified by its address. Two towers may report it at different hosts: the first endpoint stays as long as
the port is the same. A node that appears on another port has restarted: the old endpoint leaves, and the new one joins.
In a closed cluster, nodes with different keys are different nodes, even with the same address.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from dafka import wire
from dafka.endpoints import PeerEndpoint
from dafka.protocol.events import PeerJoined, PeerLeft

PeerChange: TypeAlias = PeerJoined | PeerLeft


@attrs.define
class _Peer:
    endpoint: PeerEndpoint
    expires: float


class PeerTable:
    """A table of known nodes.

    Attributes:
        ignored: Beacons of nodes beyond the limit.
    """

    def __init__(self, own_address: str, timeout: float, peers_max: int) -> None:
        """Create an empty table for a node with this address. The timeout is in seconds."""
        self.ignored = 0
        self._own_address = own_address
        self._timeout = timeout
        self._peers_max = peers_max
        self._peers: dict[tuple[str, str], _Peer] = {}

    def __len__(self) -> int:
        """Return the number of known nodes."""
        return len(self._peers)

    def heard(self, beacon: wire.TowerBeacon, now: float) -> list[PeerChange]:
        """Handle a beacon, and return the changes: none, unless the node is new or has restarted on another port."""
        address, endpoint = beacon.address, beacon.peer_endpoint
        if address == self._own_address:
            return []
        peer = self._peers.get((address, beacon.key))
        if peer is None:
            if len(self._peers) >= self._peers_max:
                self.ignored += 1
                return []
            self._peers[address, beacon.key] = _Peer(endpoint, now + self._timeout)
            return [PeerJoined(address, endpoint)]
        peer.expires = now + self._timeout
        if _port(endpoint) == _port(peer.endpoint):
            return []
        left = PeerLeft(address, peer.endpoint)
        peer.endpoint = endpoint
        return [left, PeerJoined(address, endpoint)]

    def expire(self, now: float) -> list[PeerChange]:
        """Forget the nodes that have been silent for the timeout, and return them."""
        silent = [known for known, peer in self._peers.items() if peer.expires <= now]
        return [PeerLeft(known[0], self._peers.pop(known).endpoint) for known in silent]


def _port(endpoint: PeerEndpoint) -> str:
    return endpoint.endpoint.rpartition(":")[2]
