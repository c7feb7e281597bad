"""The beacon client of one node (RFC 46, "Node Discovery and Presence").

There are two forms of beacons. The subscriptions of a tower show which forms it knows. The node uses the second form
with every tower that knows it (`DirectoryClient`), and the first form with others.

In the first form, which RFC 46 specifies, a node sends its beacon to the towers when it starts, when it hears of a new
node, and in each interval. A tower does not answer a node directly: a node knows that a tower hears it when its own
beacon comes back. Until then, it sends ten times as often, so that a beacon lost while connections are being made
causes little delay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import attrs

from dafka import wire
from dafka.config import Config
from dafka.endpoints import is_local, split_tcp_endpoint
from dafka.errors import WireError
from dafka.protocol.actions import SendToTower, SubscribeAtTower, TowerAction, UnsubscribeAtTower
from dafka.protocol.events import PeerJoined, PeerLeft, TowersHeard, TowersSilent
from dafka.protocol.presence.directory_client import DirectoryClient
from dafka.protocol.presence.peers import MANY_NODES, PeerTable
from dafka.protocol.token_bucket import TokenBucket
from dafka.protocol.trust import IntroducedAtLoopback, RefusedByPeer
from dafka.wire import Role

SETTLE_PERIODS_MAX = 10
"""Settling periods after which the nodes count as found, even if nodes still come and go."""

SILENT_INTERVALS = 2
"""After this many intervals without a message of any tower, missing beacons of nodes are attributed to the towers."""

UNECHOED_FACTOR = 10
"""How many times as often a node sends its beacon until a tower has sent it back."""

NEW_NODE_BEACONS_PER_S = 20
"""Beacons sent per second for new nodes in the long run, however many there are."""

NEW_NODE_BEACONS_BURST = 20
"""Beacons sent for new nodes at once."""

PREFIXES_MAX = 16
"""The maximum number of remembered subscriptions of one tower. A correct tower has one or two."""

SILENCE_INTERVAL_S = 60.0
"""Seconds after which a node reports again that it still hears no tower."""

_EVERY_ROLE = (Role.PRODUCER, Role.STORE, Role.CONSUMER, Role.READER, Role.OBSERVER, Role.ANY)

WANTED_ROLES: dict[Role, tuple[Role, ...]] = {
    Role.PRODUCER: (Role.STORE, Role.CONSUMER, Role.OBSERVER, Role.ANY),
    Role.STORE: _EVERY_ROLE,
    Role.CONSUMER: (Role.PRODUCER, Role.STORE, Role.OBSERVER, Role.ANY),
    Role.READER: (Role.STORE, Role.OBSERVER, Role.ANY),
    Role.OBSERVER: _EVERY_ROLE,
    Role.ANY: _EVERY_ROLE,
}
"""By the role of a node, the roles that it connects to, because it receives messages from them.

| role | hears |
| --- | --- |
| producer | ACKs, FETCHes and GET-HEADS of stores; FETCHes and GET-HEADS of consumers; the questions of observers |
| store | records and heads of producers; FETCHes, answers and greetings of all others |
| consumer | records, heads and answers of producers and stores |
| reader | answers of stores, which alone know which records are durable |
| observer | everything |

Observers learn the roles and topics of nodes from their subscriptions, so every node connects to observers. All nodes
connect to nodes whose role is unknown. The relation is symmetric: a node answers on connections that its peer has made.
"""

_SECOND_FORM = (wire.PULSE, wire.INBOX, wire.ROLE_CHANGES)


@attrs.frozen
class Settled:
    """There was enough time to find the nodes that were running before this one."""


DiscoveryEvent: TypeAlias = (
    PeerJoined | PeerLeft | TowersHeard | TowersSilent | RefusedByPeer | IntroducedAtLoopback | Settled
)

BeaconAction: TypeAlias = DiscoveryEvent | TowerAction


@attrs.define
class _Tower:
    """One tower: its subscriptions, and the forms of beacons that are used with it."""

    client: DirectoryClient
    prefixes: set[bytes] = attrs.field(factory=set)
    uses_first_form: bool = False

    @property
    def is_found(self) -> bool:
        return self.uses_first_form or self.client.is_active

    @property
    def knows_second_form(self) -> bool:
        return wire.REGISTRATION in self.prefixes and not self.client.has_failed

    @property
    def knows_first_form(self) -> bool:
        return any(prefix[:1] in (b"", wire.BEACON) for prefix in self.prefixes)


class BeaconMachine:
    """The beacon client of one node: it takes messages from towers, and returns events and actions for the sockets.

    Args:
        beacon: The node's own beacon.
        config: `[beacon]`, `[node]` and `[security]` apply.
        role: The node's role.
        towers: The number of towers.
        draw: Returns a random number from 0 to 1, which spreads the waits of nodes that start together.
        is_other_machine: Returns whether the host of an endpoint is another machine.
    """

    def __init__(
        self,
        beacon: wire.NodeBeacon,
        config: Config,
        *,
        role: Role = Role.ANY,
        towers: int = 1,
        draw: Callable[[], float] = lambda: 0.5,
        is_other_machine: Callable[[str], bool] = lambda host: False,
    ) -> None:
        settings = config.beacon
        self.discarded: Counter[str] = Counter()
        self.peers = PeerTable(
            beacon.address,
            settings.timeout_ms / 1000,
            config.node.peers_max,
            is_remote=not any(map(is_local, settings.tower_pub)),
        )
        self._own_address = beacon.address
        self._beacon = beacon.encode()
        self._tower_endpoints = tuple(settings.tower_pub)
        self._is_other_machine = is_other_machine
        self._remote_peer = ""
        self._is_loopback_reported = False
        self._has_keys = bool(config.security.key_file)
        registration = wire.Registration(beacon.address, beacon.host, beacon.port, role, WANTED_ROLES[role])
        self._towers = [
            _Tower(
                DirectoryClient(
                    number, registration, self.peers, settings, draw, has_key=self._has_keys, discarded=self.discarded
                )
            )
            for number in range(towers)
        ]
        self._interval = settings.interval_ms / 1000
        self._watch_interval = min(settings.interval_ms, settings.timeout_ms / 4) / 1000
        self._silence = SILENT_INTERVALS * settings.interval_ms / 1000
        self._settle = settings.settle_ms / 1000
        self._tower_timeout = config.node.tower_timeout_ms / 1000
        self._heard_at = 0.0
        self._changed_at = 0.0
        self._is_silent: bool | None = None
        self._silence_due = float("inf")
        self._is_echoed = False
        self._beacon_due = float("inf")
        self._watch_due = float("inf")
        self._settle_due = float("inf")
        self._settle_periods = 0
        self._is_first_form_settled = False
        self._complete_at = float("inf")
        self._settled_due = float("inf")
        self._is_settled = False
        self._new_node_bucket = TokenBucket(NEW_NODE_BEACONS_PER_S, NEW_NODE_BEACONS_BURST, 0.0)

    def start(self, now: float) -> list[BeaconAction]:
        """Start at this time, in seconds on any steady clock."""
        self._heard_at = now
        self._watch_due = now + self._watch_interval
        return [SubscribeAtTower(tower, wire.WELCOME) for tower in range(len(self._towers))]

    def tower_subscribed(self, number: int, frames: Iterable[bytes], now: float) -> list[BeaconAction]:
        """Handle subscription frames of a tower, which show that it is connected and which forms it knows."""
        tower = self._towers[number]
        is_new = False
        for frame in frames:
            if frame[:1] == b"\0":
                tower.prefixes.discard(frame[1:])
            elif frame[:1] == b"\1" and len(tower.prefixes) < PREFIXES_MAX:
                tower.prefixes.add(frame[1:])
                is_new = True
        return self._choose_form(number, now) if is_new else []

    def heard(self, number: int, messages: Iterable[Sequence[bytes]], now: float) -> list[BeaconAction]:
        """Handle messages of a tower. One beacon introduces this node to all new nodes of the batch."""
        actions: list[BeaconAction] = []
        is_wanted = False
        for frames in messages:
            is_wanted = self._hear(frames, number, now, actions) or is_wanted
        if is_wanted:
            if self._new_node_bucket.try_take(now):
                actions += self._send_beacons()
            else:
                self._beacon_due = min(self._beacon_due, now + 1 / NEW_NODE_BEACONS_PER_S)
        return actions + self._report_settled(now)

    def tick(self, now: float) -> list[BeaconAction]:
        """Do what is due: send the beacon, forget silent nodes, report silent towers."""
        actions: list[BeaconAction] = []
        for number, tower in enumerate(self._towers):
            actions += tower.client.tick(now)
            if tower.client.is_active and tower.client.has_failed:
                actions += self._choose_form(number, now)
        if now >= self._watch_due:
            self._watch_due = now + self._watch_interval
            are_listed = all(tower.client.is_complete for tower in self._towers)
            silence = now - self._heard_at
            pause_s = max(tower.client.pause_s for tower in self._towers)  # no pulse is due before that
            is_tower_silent = silence >= self._silence + pause_s
            actions += self.peers.expire(now, are_listed=are_listed, is_tower_silent=is_tower_silent)
            if not self._is_silent:
                self._silence_due = self._heard_at + self._tower_timeout + pause_s
            if now >= self._silence_due:
                self._is_silent = True
                self._silence_due = now + SILENCE_INTERVAL_S
                actions.append(TowersSilent(silence, self._tower_endpoints))
        if now >= self._settle_due:
            self._settle_periods += 1
            self._settle_due = self._changed_at + self._settle
            if self._settle_due <= now or self._settle_periods >= SETTLE_PERIODS_MAX:
                self._settle_due = float("inf")
                self._is_first_form_settled = True
        if now >= self._beacon_due:
            self._beacon_due = now + self._interval / (1 if self._is_echoed else UNECHOED_FACTOR)
            actions += self._send_beacons()
            if not any(tower.uses_first_form for tower in self._towers):
                self._beacon_due = float("inf")
        return actions + self._report_settled(now)

    def deadline(self) -> float:
        """Return the time of the next `tick`."""
        clients = min(tower.client.deadline() for tower in self._towers)
        return min(self._beacon_due, self._watch_due, self._settle_due, self._settled_due, clients)

    def _choose_form(self, number: int, now: float) -> list[BeaconAction]:
        """Choose the form for a tower that has just connected or reconnected."""
        tower = self._towers[number]
        actions: list[BeaconAction] = []
        if tower.knows_second_form:
            if tower.uses_first_form:
                tower.uses_first_form = False
                actions.append(UnsubscribeAtTower(number, wire.BEACON))
            return actions + (tower.client.connected(now) if tower.client.is_active else tower.client.start(now))
        if not tower.knows_first_form:
            return []
        if tower.client.is_active:
            actions += tower.client.stop(now)
        if not tower.uses_first_form:
            tower.uses_first_form = True
            actions.append(SubscribeAtTower(number, wire.BEACON))
        if self._beacon_due == float("inf"):
            self._beacon_due = now + self._interval / UNECHOED_FACTOR
        return [*actions, SendToTower(number, self._beacon)]

    def _send_beacons(self) -> list[BeaconAction]:
        """Send the beacon of the first form to every tower that uses it."""
        return [SendToTower(number, self._beacon) for number, each in enumerate(self._towers) if each.uses_first_form]

    def _hear(self, frames: Sequence[bytes], number: int, now: float, reports: list[BeaconAction]) -> bool:
        """Handle one message. Return whether it is from a tower or a node that may not know this node's beacon yet."""
        self._heard_at = now
        if self._is_silent is not False:
            self._is_silent = False
            reports.append(TowersHeard())
        if list(frames) == [wire.WELCOME]:
            return True
        client = self._towers[number].client
        if client.is_active and frames[0][:1] in _SECOND_FORM:
            self._hear_second_form(client, frames, now, reports)
            return False
        try:
            beacon = wire.TowerBeacon.decode(frames, has_key=self._has_keys)
        except WireError as error:
            self.discarded[error.field] += 1
            return False
        if beacon.address == self._own_address:
            if not self._is_echoed:
                self._is_echoed = True
                self._beacon_due = now + self._interval
                self._changed_at = now
                self._settle_due = now + self._settle
            self._check_introduction(beacon.endpoint, reports)
            return False
        ignored = self.peers.ignored
        changes = self.peers.heard(beacon, now)
        if self.peers.ignored > ignored:
            self.discarded[MANY_NODES] += 1
        if changes:
            self._changed_at = now
            reports += changes
            self._record_remote_peer(beacon.endpoint)
        return bool(changes)

    def _report_settled(self, now: float) -> list[BeaconAction]:
        """Report once that the nodes were found: by all towers, or by one if the others take too long."""
        if self._is_settled:
            return []
        found = [tower for tower in self._towers if tower.is_found]
        complete = [tower for tower in found if self._is_complete(tower)]
        if not complete:
            self._settled_due = float("inf")  # a directory that was complete may have to be requested again
            return []
        self._complete_at = min(self._complete_at, now)
        periods = 0
        if len(complete) < len(self._towers):
            periods = 1 if len(complete) == len(found) else SETTLE_PERIODS_MAX
        self._settled_due = self._complete_at + periods * self._settle
        if now < self._settled_due:
            return []
        self._settled_due = float("inf")
        self._is_settled = True
        return [Settled()]

    def _is_complete(self, tower: _Tower) -> bool:
        return tower.client.is_complete if tower.client.is_active else self._is_first_form_settled

    def _hear_second_form(
        self, client: DirectoryClient, frames: Sequence[bytes], now: float, reports: list[BeaconAction]
    ) -> None:
        had_remote_peer = bool(self._remote_peer)
        changes = client.heard(frames, now)
        reports += changes
        for change in changes:
            if isinstance(change, PeerJoined):
                self._record_remote_peer(change.endpoint.endpoint)
        if client.is_complete:
            if self._remote_peer and not had_remote_peer and is_local(client.own_endpoint):
                reports += client.ask(now)  # the tower may have learned a better address since
            else:
                self._check_introduction(client.own_endpoint, reports)

    def _check_introduction(self, endpoint: str, reports: list[BeaconAction]) -> None:
        """Report once that a tower introduces this node at an endpoint where other machines cannot reach it."""
        if self._remote_peer and not self._is_loopback_reported and is_local(endpoint):
            self._is_loopback_reported = True
            reports.append(IntroducedAtLoopback(endpoint, self._remote_peer))

    def _record_remote_peer(self, endpoint: str) -> None:
        if self._remote_peer or is_local(endpoint):
            return
        parts = split_tcp_endpoint(endpoint)
        if parts is not None and self._is_other_machine(parts[0]):
            self._remote_peer = endpoint
