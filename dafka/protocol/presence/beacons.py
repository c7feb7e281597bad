"""The beacon client of one node: when to send its beacon, and what others' beacons mean.

RFC 46, "Node Discovery and Presence". A node sends its beacon to every tower when it starts, when it hears a new peer,
and each interval. A tower answers nobody in particular: a node knows that it is heard when its own beacon comes back,
and until then it sends ten times as often, so that a beacon lost while connections are being made costs little.
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
"""A cluster in which nodes come and go without a pause counts as found after so many times the settling time."""

UNHEARD_FACTOR = 10
"""So many times as often a node sends its beacon while it has not come back."""

NEWS_PER_S = 20
"""So many beacons a second are sent to newcomers, however many of them there are."""

NEWS_BURST = 20
"""So many at once."""


@attrs.frozen
class Settled:
    """The nodes that were there before this one have been found, as far as they answer."""


@attrs.frozen
class SendBeacon:
    """Send the node's own beacon to every tower."""


DiscoveryEvent: TypeAlias = PeerJoined | PeerLeft | TowersHeard | TowersSilent | RefusedByPeer | Settled


class BeaconMachine:
    """Takes what towers send and the time, in seconds; gives reports, and when to send the own beacon."""

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
        """The node begins."""
        self._heard_at = now
        self._beacon_due = now + self._interval / UNHEARD_FACTOR
        self._watch_due = now + self._watch_interval
        return [SendBeacon()]

    def connected(self, now: float) -> list[DiscoveryEvent | SendBeacon]:
        """A tower's subscription shows that it is connected: the first moment at which a beacon can reach it."""
        return [SendBeacon()]

    def heard(self, messages: Iterable[Sequence[bytes]], now: float) -> list[DiscoveryEvent | SendBeacon]:
        """Takes what towers sent. One beacon answers all newcomers of a batch: many at once do not multiply."""
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
        """The time that `deadline` named has come: beacons, expires silent peers, notices silent towers."""
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
        """When `tick` next has something to do."""
        return min(self._beacon_due, self._watch_due, self._settle_due)

    def _hear(self, frames: Sequence[bytes], now: float, reports: list[DiscoveryEvent | SendBeacon]) -> bool:
        """Takes one message. True where somebody may not know of this node yet: a tower or a newcomer."""
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
