"""The beacon client of one node (RFC 46, "Node Discovery and Presence").

A node sends its beacon to every tower when it starts, when it hears of a new node, and in each interval. A tower does
not answer a node directly: a node knows that a tower hears it when its own beacon comes back. Until then it sends ten
times as often, so that a beacon lost while connections are being made causes little delay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import attrs

from dafka.config import Config
from dafka.endpoints import is_local, split_tcp_endpoint
from dafka.errors import WireError
from dafka.protocol.events import PeerJoined, PeerLeft, TowersHeard, TowersSilent
from dafka.protocol.presence.peers import PeerTable
from dafka.protocol.token_bucket import TokenBucket
from dafka.protocol.trust import IntroducedAtLoopback, RefusedByPeer
from dafka.wire import WELCOME, TowerBeacon

SETTLE_PERIODS_MAX = 10
"""Settling periods after which the nodes count as found, even if nodes still come and go."""

UNECHOED_FACTOR = 10
"""How many times as often a node sends its beacon until a tower has sent it back."""

NEW_NODE_BEACONS_PER_S = 20
"""Beacons sent per second for new nodes in the long run, however many there are."""

NEW_NODE_BEACONS_BURST = 20
"""Beacons sent for new nodes at once."""


@attrs.frozen
class Settled:
    """There was enough time to find the nodes that were running before this one."""


@attrs.frozen
class SendBeacon:
    """Send the node's own beacon to every tower."""


DiscoveryEvent: TypeAlias = (
    PeerJoined | PeerLeft | TowersHeard | TowersSilent | RefusedByPeer | IntroducedAtLoopback | Settled
)


class BeaconMachine:
    """The beacon client of one node: it takes messages from towers, and returns events and `SendBeacon` actions.

    Attributes:
        discarded: Beacons discarded, by reason.
        peers: The known nodes.
    """

    def __init__(
        self, own_address: str, config: Config, is_other_machine: Callable[[str], bool] = lambda host: False
    ) -> None:
        """Create the client of a node.

        Args:
            own_address: The address of the node.
            config: The configuration. `[beacon]`, `[node]` and `[security]` apply.
            is_other_machine: Returns whether the host of an endpoint is another machine.
        """
        beacon = config.beacon
        self.discarded: Counter[str] = Counter()
        self.peers = PeerTable(
            own_address,
            beacon.timeout_ms / 1000,
            config.node.peers_max,
            is_remote=not any(map(is_local, beacon.tower_pub)),
        )
        self._own_address = own_address
        self._towers = tuple(beacon.tower_pub)
        self._is_other_machine = is_other_machine
        self._remote_peer = ""
        self._is_loopback_reported = False
        self._has_keys = bool(config.security.key_file)
        self._interval = beacon.interval_ms / 1000
        self._watch_interval = min(beacon.interval_ms, beacon.timeout_ms / 4) / 1000
        self._settle = beacon.settle_ms / 1000
        self._tower_timeout = config.node.tower_timeout_ms / 1000
        self._heard_at = 0.0
        self._changed_at = 0.0
        self._is_silent: bool | None = None
        self._is_echoed = False
        self._beacon_due = float("inf")
        self._watch_due = float("inf")
        self._settle_due = float("inf")
        self._settle_periods = 0
        self._new_node_bucket = TokenBucket(NEW_NODE_BEACONS_PER_S, NEW_NODE_BEACONS_BURST, 0.0)

    def start(self, now: float) -> list[DiscoveryEvent | SendBeacon]:
        """Start at this time, in seconds on any steady clock."""
        self._heard_at = now
        self._beacon_due = now + self._interval / UNECHOED_FACTOR
        self._watch_due = now + self._watch_interval
        return [SendBeacon()]

    def connected(self, now: float) -> list[DiscoveryEvent | SendBeacon]:
        """Note that a tower has subscribed: only now can a beacon reach it."""
        return [SendBeacon()]

    def heard(self, messages: Iterable[Sequence[bytes]], now: float) -> list[DiscoveryEvent | SendBeacon]:
        """Handle messages from towers. One beacon introduces this node to all new nodes of the batch."""
        actions: list[DiscoveryEvent | SendBeacon] = []
        is_wanted = False
        for frames in messages:
            is_wanted = self._hear(frames, now, actions) or is_wanted
        if is_wanted:
            if self._new_node_bucket.try_take(now):
                actions.append(SendBeacon())
            else:
                self._beacon_due = min(self._beacon_due, now + 1 / NEW_NODE_BEACONS_PER_S)
        return actions

    def tick(self, now: float) -> list[DiscoveryEvent | SendBeacon]:
        """Do what is due: send the beacon, forget silent nodes, report silent towers."""
        actions: list[DiscoveryEvent | SendBeacon] = []
        if now >= self._watch_due:
            self._watch_due = now + self._watch_interval
            actions += self.peers.expire(now)
            silence = now - self._heard_at
            if silence >= self._tower_timeout and not self._is_silent:
                self._is_silent = True
                actions.append(TowersSilent(silence, self._towers))
        if now >= self._settle_due:
            self._settle_periods += 1
            self._settle_due = self._changed_at + self._settle
            if self._settle_due <= now or self._settle_periods >= SETTLE_PERIODS_MAX:
                self._settle_due = float("inf")
                actions.append(Settled())
        if now >= self._beacon_due:
            self._beacon_due = now + self._interval / (1 if self._is_echoed else UNECHOED_FACTOR)
            actions.append(SendBeacon())
        return actions

    def deadline(self) -> float:
        """Return the time of the next `tick`."""
        return min(self._beacon_due, self._watch_due, self._settle_due)

    def _hear(self, frames: Sequence[bytes], now: float, reports: list[DiscoveryEvent | SendBeacon]) -> bool:
        """Handle one message. Return whether it is from a tower or a node that may not know this node yet."""
        self._heard_at = now
        if self._is_silent is not False:
            self._is_silent = False
            reports.append(TowersHeard())
        if list(frames) == [WELCOME]:
            return True
        try:
            beacon = TowerBeacon.decode(frames, has_key=self._has_keys)
        except WireError as error:
            self.discarded[error.field] += 1
            return False
        if beacon.address == self._own_address:
            if not self._is_echoed:
                self._is_echoed = True
                self._beacon_due = now + self._interval
                self._changed_at = now
                self._settle_due = now + self._settle
            if self._remote_peer and not self._is_loopback_reported and is_local(beacon.endpoint):
                self._is_loopback_reported = True
                reports.append(IntroducedAtLoopback(beacon.endpoint, self._remote_peer))
            return False
        ignored = self.peers.ignored
        changes = self.peers.heard(beacon, now)
        if self.peers.ignored > ignored:
            self.discarded["too many nodes"] += 1
        if changes:
            self._changed_at = now
            reports += changes
            self._note_remote_peer(beacon.endpoint)
        return bool(changes)

    def _note_remote_peer(self, endpoint: str) -> None:
        if self._remote_peer or is_local(endpoint):
            return
        parts = split_tcp_endpoint(endpoint)
        if parts is not None and self._is_other_machine(parts[0]):
            self._remote_peer = endpoint
