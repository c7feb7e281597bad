"""The nodes that are known from the beacons that towers pass on.

A node is identified by its address. Two towers can report it at different hosts: the first endpoint is kept as long as
the port is the same. A loopback endpoint is an exception: a tower reports it until a remote node has connected to the
tower, and remote nodes replace it by the next reported one. A node on another port has restarted: the old endpoint
leaves, and the new one joins. In a closed cluster, nodes with different keys are different nodes, even with the same
address.

A tower that sends beacons of the first form repeats them, and a node is gone when they stop. A tower that uses the
second form lists a node once, and reports when it is gone; a node stays as long as any tower lists it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TypeAlias

import attrs

from dafka import wire
from dafka.endpoints import PeerEndpoint, is_local
from dafka.protocol.events import PeerJoined, PeerLeft

PeerChange: TypeAlias = PeerJoined | PeerLeft

MANY_NODES = "too many nodes"


@attrs.define
class _Peer:
    endpoint: PeerEndpoint
    expires: float
    listed_by: dict[int, wire.Role] = attrs.field(factory=dict)
    """The role that the node has according to each tower that lists it."""
    is_role_known: bool = False
    """Whether a tower has ever listed it, because its role is wanted."""


class PeerTable:
    """A table of known nodes. `ignored` counts the beacons of nodes beyond the limit.

    A node has left after `timeout` seconds without a beacon. If the own node is on another machine than its towers
    (`is_remote`), no loopback endpoint is right.
    """

    def __init__(self, own_address: str, timeout: float, peers_max: int, *, is_remote: bool = False) -> None:
        self.ignored = 0
        self._own_address = own_address
        self._timeout = timeout
        self._peers_max = peers_max
        self._is_remote = is_remote
        self._peers: dict[tuple[str, str], _Peer] = {}

    def __len__(self) -> int:
        """Return the number of known nodes."""
        return len(self._peers)

    @property
    def has_capacity(self) -> bool:
        """Whether there is room for another node."""
        return len(self._peers) < self._peers_max

    def heard(self, beacon: wire.TowerBeacon, now: float) -> list[PeerChange]:
        """Handle a beacon, and return the changes: none, unless the node is new or has restarted on another port."""
        return self._record_peer(beacon, now + self._timeout)

    def listed(self, entry: wire.DirectoryEntry, tower: int) -> list[PeerChange]:
        """Record that a tower lists a node, and return the changes as `heard` does."""
        changes = self._record_peer(entry, float("-inf"))
        peer = self._peers.get((entry.address, entry.key))
        if peer is not None:
            peer.listed_by[tower] = entry.role
            peer.is_role_known = True
        return changes

    def unlisted(self, entry: wire.DirectoryEntry, tower: int, now: float) -> list[PeerChange]:
        """Record that a tower has removed a node from this role. Return the change if no other entry is left."""
        peer = self._peers.get((entry.address, entry.key))
        if peer is None or peer.listed_by.get(tower) is not entry.role:
            return []
        del peer.listed_by[tower]
        left = self._forget_silent([(entry.address, entry.key)], now)
        return [PeerLeft(address, peer.endpoint) for address, peer in left]

    def keep_listed(self, tower: int, nodes: Container[tuple[str, str]], now: float) -> None:
        """Record that a tower lists only these nodes, by address and key. Others are gone when silent for the timeout.

        A tower that has restarted may not have heard of all nodes yet.
        """
        for known, peer in self._peers.items():
            if tower in peer.listed_by and known not in nodes:
                del peer.listed_by[tower]
                peer.expires = max(peer.expires, now + self._timeout)

    def expire(self, now: float, *, are_listed: bool = False, is_tower_silent: bool = False) -> list[PeerChange]:
        """Forget the nodes that no tower lists and that have been silent for the timeout, and return them.

        If the towers list all wanted nodes (`are_listed`), a node that no tower lists is unwanted.
        """
        return [
            PeerLeft(address, peer.endpoint, are_listed and not peer.is_role_known, is_tower_silent)
            for address, peer in self._forget_silent(list(self._peers), now)
        ]

    def _record_peer(self, beacon: wire.TowerBeacon | wire.DirectoryEntry, expires: float) -> list[PeerChange]:
        address, endpoint = beacon.address, beacon.peer_endpoint
        if address == self._own_address:
            return []
        peer = self._peers.get((address, beacon.key))
        if peer is None:
            if not self.has_capacity:
                self.ignored += 1
                return []
            self._peers[address, beacon.key] = _Peer(endpoint, expires)
            return [PeerJoined(address, endpoint)]
        peer.expires = max(peer.expires, expires)
        if endpoint == peer.endpoint or (
            _port(endpoint) == _port(peer.endpoint) and not self._is_correction(peer.endpoint, endpoint)
        ):
            return []
        left = PeerLeft(address, peer.endpoint)
        peer.endpoint = endpoint
        return [left, PeerJoined(address, endpoint)]

    def _is_correction(self, known: PeerEndpoint, heard: PeerEndpoint) -> bool:
        return self._is_remote and is_local(known.endpoint) and not is_local(heard.endpoint)

    def _forget_silent(self, nodes: Iterable[tuple[str, str]], now: float) -> list[tuple[str, _Peer]]:
        silent = [known for known in nodes if not self._peers[known].listed_by and self._peers[known].expires <= now]
        return [(known[0], self._peers.pop(known)) for known in silent]


def _port(endpoint: PeerEndpoint) -> str:
    return endpoint.endpoint.rpartition(":")[2]
