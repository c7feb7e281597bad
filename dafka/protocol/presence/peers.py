"""The nodes that are known from the beacons that towers pass on.

A node is identified by its address. Two towers may report it at different hosts: the first endpoint stays as long as
the port is the same. A loopback endpoint is an exception: a tower reports it until a remote node has connected to the
tower, and a remote node replaces it by the next one. A node on another port has restarted: the old endpoint leaves, and
the new one joins. In a closed cluster, nodes with different keys are different nodes, even with the same address.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from dafka import wire
from dafka.endpoints import PeerEndpoint, is_local
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

    def __init__(self, own_address: str, timeout: float, peers_max: int, *, is_remote: bool = False) -> None:
        """Create an empty table.

        Args:
            own_address: The address of the node.
            timeout: Seconds without a beacon after which a node has left.
            peers_max: Nodes known at once.
            is_remote: Whether the node is on another machine than its towers, so that no loopback endpoint is right.
        """
        self.ignored = 0
        self._own_address = own_address
        self._timeout = timeout
        self._peers_max = peers_max
        self._is_remote = is_remote
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
        if endpoint == peer.endpoint or (
            _port(endpoint) == _port(peer.endpoint) and not self._is_correction(peer.endpoint, endpoint)
        ):
            return []
        left = PeerLeft(address, peer.endpoint)
        peer.endpoint = endpoint
        return [left, PeerJoined(address, endpoint)]

    def _is_correction(self, known: PeerEndpoint, heard: PeerEndpoint) -> bool:
        return self._is_remote and is_local(known.endpoint) and not is_local(heard.endpoint)

    def expire(self, now: float) -> list[PeerChange]:
        """Forget the nodes that have been silent for the timeout, and return them."""
        silent = [known for known, peer in self._peers.items() if peer.expires <= now]
        return [PeerLeft(known[0], self._peers.pop(known).endpoint) for known in silent]


def _port(endpoint: PeerEndpoint) -> str:
    return endpoint.endpoint.rpartition(":")[2]
