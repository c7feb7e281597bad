"""The beacon client of one node: sends the node's beacon and processes the beacons of others.

RFC 46, "Node Discovery and Presence". A node sends its beacon to every tower when it starts, when it hears a new peer,
and each interval. A tower publishes each beacon to all nodes, so a node knows that it is heard when its own beacon
comes back. Until then it sends ten times as often, because a beacon may be lost while connections are being made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import attrs

from dafka.config import Config
from dafka.errors import WireError
from dafka.protocol.events import PeerJoined, PeerLeft, TowersHeard, TowersSilent
from dafka.protocol.presence.peers import PeerTable
from dafka.protocol.token_bucket import TokenBucket
from dafka.protocol.trust import RefusedByPeer
from dafka.wire import WELCOME, TowerBeacon

SETTLE_PERIODS_MAX = 10
"""The longest time until a node counts as settled, in settling times, if nodes keep joining and leaving."""

UNHEARD_FACTOR = 10
"""The factor by which a node sends its beacon more often until the beacon has come back."""

NEWS_PER_S = 20
"""The maximum number of beacons per second that are sent because of new nodes."""

NEWS_BURST = 20
"""The maximum number of such beacons that are sent at once."""


@attrs.frozen
class Settled:
    """Discovery has found the nodes that were there before this one."""


@attrs.frozen
class SendBeacon:
    """Send the node's own beacon to every tower."""


DiscoveryEvent: TypeAlias = PeerJoined | PeerLeft | TowersHeard | TowersSilent | RefusedByPeer | Settled


class BeaconMachine:
    """The state machine of one node's beacon client. Times are in seconds.

    It takes the messages of towers, and returns events and requests to send the node's own beacon.
    """

    def __init__(self, own_address: str, config: Config) -> None:
        beacon = config.beacon
        self.discarded: Counter[str] = Counter()
        self.peers = PeerTable(own_address, beacon.timeout_ms / 1000, config.node.peers_max)
        self._own_address = own_address
        self._has_keys = bool(config.security.key_file)
        self._interval = beacon.interval_ms / 1000
        self._watch_interval = min(beacon.interval_ms, beacon.timeout_ms / 4) / 1000
        self._settle = beacon.settle_ms / 1000
        self._tower_timeout = config.node.tower_timeout_ms / 1000
        self._heard_at = 0.0
        self._news_at = 0.0
        self._is_silent: bool | None = None
        self._is_echoed = False
        self._beacon_due = float("inf")
        self._watch_due = float("inf")
        self._settle_due = float("inf")
        self._settle_periods = 0
        self._news_bucket = TokenBucket(NEWS_PER_S, NEWS_BURST, 0.0)

    def start(self, now: float) -> list[DiscoveryEvent | SendBeacon]:
        """Send the first beacon."""
        self._heard_at = now
        self._beacon_due = now + self._interval / UNHEARD_FACTOR
        self._watch_due = now + self._watch_interval
        return [SendBeacon()]

    def connected(self, now: float) -> list[DiscoveryEvent | SendBeacon]:
        """Send a beacon to a tower that has just connected, as its subscription shows."""
        return [SendBeacon()]

    def heard(self, messages: Iterable[Sequence[bytes]], now: float) -> list[DiscoveryEvent | SendBeacon]:
        """Process messages of towers. One beacon answers all new nodes of a batch, so that many cause no flood."""
        actions: list[DiscoveryEvent | SendBeacon] = []
        is_wanted = False
        for frames in messages:
            is_wanted = self._hear(frames, now, actions) or is_wanted
        if is_wanted:
            if self._news_bucket.try_take(now):
                actions.append(SendBeacon())
            else:
                self._beacon_due = min(self._beacon_due, now + 1 / NEWS_PER_S)
        return actions

    def tick(self, now: float) -> list[DiscoveryEvent | SendBeacon]:
        """Do what is due: send a beacon, drop silent peers, report silent towers."""
        actions: list[DiscoveryEvent | SendBeacon] = []
        if now >= self._watch_due:
            self._watch_due = now + self._watch_interval
            actions += self.peers.expire(now)
            silence = now - self._heard_at
            if silence >= self._tower_timeout and not self._is_silent:
                self._is_silent = True
                actions.append(TowersSilent(silence))
        if now >= self._settle_due:
            self._settle_periods += 1
            self._settle_due = self._news_at + self._settle
            if self._settle_due <= now or self._settle_periods >= SETTLE_PERIODS_MAX:
                self._settle_due = float("inf")
                actions.append(Settled())
        if now >= self._beacon_due:
            self._beacon_due = now + self._interval / (1 if self._is_echoed else UNHEARD_FACTOR)
            actions.append(SendBeacon())
        return actions

    def deadline(self) -> float:
        """Return when to call `tick`."""
        return min(self._beacon_due, self._watch_due, self._settle_due)

    def _hear(self, frames: Sequence[bytes], now: float, reports: list[DiscoveryEvent | SendBeacon]) -> bool:
        """Process one message. Return whether its sender may not know this node yet: a tower or a new node."""
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
                self._news_at = now
                self._settle_due = now + self._settle
            return False
        ignored = self.peers.ignored
        changes = self.peers.heard(beacon, now)
        if self.peers.ignored > ignored:
            self.discarded["too many nodes"] += 1
        if changes:
            self._news_at = now
            reports += changes
        return bool(changes)
