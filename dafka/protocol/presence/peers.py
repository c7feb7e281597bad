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
from dafka.protocol.events import PeerJoined, PeerLeft

Change: TypeAlias = PeerJoined | PeerLeft


@attrs.define
class _Peer:
    endpoint: str
    place: str
    expires: float


class Peers:
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

    def heard(self, beacon: wire.TowerBeacon, now: float) -> list[Change]:
        """Takes one beacon; a new or moved node is a change."""
        address, endpoint = beacon.address, beacon.endpoint
        if address == self._own_address:
            return []
        peer = self._peers.get((address, beacon.key))
        if peer is None:
            if len(self._peers) >= self._peers_max:
                self.ignored += 1
                return []
            self._peers[address, beacon.key] = _Peer(endpoint, beacon.place, now + self._timeout)
            return [PeerJoined(address, beacon.place)]
        peer.expires = now + self._timeout
        if endpoint.rpartition(":")[2] == peer.endpoint.rpartition(":")[2]:
            return []
        left = PeerLeft(address, peer.place)
        peer.endpoint, peer.place = endpoint, beacon.place
        return [left, PeerJoined(address, peer.place)]

    def expire(self, now: float) -> list[Change]:
        """Forgets the nodes that have been silent for the timeout."""
        silent = [known for known, peer in self._peers.items() if peer.expires <= now]
        return [PeerLeft(known[0], self._peers.pop(known).place) for known in silent]
