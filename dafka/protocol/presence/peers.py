"""Who is out there, by the beacons that towers pass on. Bookkeeping alone: beacons and the time in, changes out.

A node is known by its address. The same node may show at two endpoints, through towers that see different hosts:
the first stays, as long as the port is the same. A node that comes back on another port has restarted: the old
endpoint goes, the new one comes. In a closed cluster nodes with different keys are different ones, whatever address
they claim.
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
    """Attributes:
    ignored: beacons of nodes beyond `peers_max`.
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
        """Takes one beacon; a new or moved node is a change."""
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
        """Forgets the nodes that have been silent for the timeout."""
        silent = [known for known, peer in self._peers.items() if peer.expires <= now]
        return [PeerLeft(known[0], self._peers.pop(known).endpoint) for known in silent]


def _port(endpoint: PeerEndpoint) -> str:
    return endpoint.endpoint.rpartition(":")[2]
