"""Who is out there, by the beacons that towers pass on. Bookkeeping alone: beacons and the time in, changes out.

A node is known by its address. The same node may show at two endpoints, through towers that see different hosts:
the first stays, as long as the port is the same. A node that comes back on another port has restarted: the old
endpoint goes, the new one comes.
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
        self._peers: dict[str, _Peer] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def heard(self, beacon: wire.TowerBeacon, now: float) -> list[Change]:
        """Takes one beacon; a new or moved node is a change."""
        address, endpoint = beacon.address, beacon.endpoint
        if address == self._own_address:
            return []
        peer = self._peers.get(address)
        if peer is None:
            if len(self._peers) >= self._peers_max:
                self.ignored += 1
                return []
            self._peers[address] = _Peer(endpoint, now + self._timeout)
            return [PeerJoined(address, endpoint)]
        peer.expires = now + self._timeout
        if endpoint.rpartition(":")[2] == peer.endpoint.rpartition(":")[2]:
            return []
        left = PeerLeft(address, peer.endpoint)
        peer.endpoint = endpoint
        return [left, PeerJoined(address, endpoint)]

    def expire(self, now: float) -> list[Change]:
        """Forgets the nodes that have been silent for the timeout."""
        silent = [address for address, peer in self._peers.items() if peer.expires <= now]
        return [PeerLeft(address, self._peers.pop(address).endpoint) for address in silent]
