"""The peers that are known by the beacons that towers pass on. Beacons and the time go in, changes come out.

A node is identified by its address. Two towers may see the same node at different hosts; the endpoint seen first is
kept while the port is the same. A node that returns with another port has restarted, so the new endpoint replaces the
old one. In a closed cluster, nodes with different keys are different nodes, even if they use the same address.
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
    """The peers of one node.

    Attributes:
        ignored: Beacons of further nodes that were ignored because `peers_max` nodes are known.
    """

    def __init__(self, own_address: str, timeout: float, peers_max: int) -> None:
        self.ignored = 0
        self._own_address = own_address
        self._timeout = timeout
        self._peers_max = peers_max
        self._peers: dict[tuple[str, str], _Peer] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def heard(self, beacon: wire.TowerBeacon, now: float) -> list[PeerChange]:
        """Process a beacon, and return the changes: a node is new, or has moved to another port."""
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
        """Forget the nodes that have been silent for the timeout, and return the changes."""
        silent = [known for known, peer in self._peers.items() if peer.expires <= now]
        return [PeerLeft(known[0], self._peers.pop(known).endpoint) for known in silent]


def _port(endpoint: PeerEndpoint) -> str:
    return endpoint.endpoint.rpartition(":")[2]
