"""The second form of beacons, as one node uses it with one tower.

The node registers with its role and the roles that it wants, and repeats that as a heartbeat. The tower sends it the
directory of the wanted nodes, and then changes. The node asks for the directory again when the number of a change or a
pulse shows that it has missed a message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import attrs

from dafka import wire
from dafka.config import BeaconConfig
from dafka.errors import WireError
from dafka.protocol.actions import SendToTower, SubscribeAtTower, TowerAction, UnsubscribeAtTower
from dafka.protocol.presence.peers import MANY_NODES, PeerChange, PeerTable

UNANSWERED_FACTOR = 10
"""How many times as often a node registers at first, until the tower has sent the directory."""

INTERVAL_MIN_S = 0.01
"""The shortest time between two registrations, whatever a tower asks for."""

JITTER = 0.25
"""Waits are shortened at random by up to this fraction, so that nodes that start together do not stay in step."""

SILENT_TIMEOUTS = 2
"""Timeouts for which the next pulse of a tower can be overdue before its directory is no longer trusted."""

PAUSE_MAX_S = 60.0
"""The longest time between two pulses that a tower may announce."""

PULSES_MAX = 10
"""Pulses without a directory after which the node uses the first form. Then it registers with another tower than the
one that it hears, because the endpoints of two towers are configured in different orders."""


class DirectoryClient:
    """The registration of one node with the tower of this number, and the directory of this tower.

    Nodes of the directory are added to `peers`; discarded messages are counted by reason. `draw` returns a random
    number from 0 to 1.
    """

    def __init__(
        self,
        tower: int,
        registration: wire.Registration,
        peers: PeerTable,
        config: BeaconConfig,
        draw: Callable[[], float],
        *,
        has_key: bool,
        discarded: Counter[str],
    ) -> None:
        self.is_active = False
        """Whether the second form is used with this tower."""
        self.is_complete = False
        """Whether the directory has been received completely, and no message was missed since."""
        self.has_failed = False
        """Whether the tower sends pulses but no directory."""
        self.own_endpoint = ""
        """The endpoint at which the tower introduces this node, according to its directory."""
        self.pause_s = 0.0
        """The longest time until the tower's next pulse, from its last one on."""
        self._tower = tower
        self._refresh = registration.encode()
        self._request = attrs.evolve(registration, asks_directory=True).encode()
        self._address = registration.address
        self._wanted = registration.wanted
        self._inbox = wire.inbox_topic(registration.address)
        self._prefixes = [wire.PULSE, *map(wire.changes_topic, registration.wanted), self._inbox]
        self._peers = peers
        self._draw = draw
        self._has_key = has_key
        self._discarded = discarded
        interval_s, timeout_s = config.interval_ms / 1000, config.timeout_ms / 1000
        self._first_wait_s = interval_s / UNANSWERED_FACTOR
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._silence_s = SILENT_TIMEOUTS * timeout_s
        self._wait_s = self._first_wait_s
        self._due = float("inf")
        self._heard_at = 0.0
        self._tower_id = b""
        self._numbers: dict[wire.Role, int] = {}
        self._pages = 0
        self._listed: set[tuple[str, str]] = set()
        self._pulses = 0
        self._ignored = 0

    def start(self, now: float) -> list[TowerAction]:
        """Use the second form: subscribe, and register."""
        self.is_active = True
        self._heard_at = now
        return [*(SubscribeAtTower(self._tower, prefix) for prefix in self._prefixes), *self.connected(now)]

    def stop(self, now: float) -> list[TowerAction]:
        """Stop using the second form: the tower does not know it."""
        self.is_active = self.is_complete = False
        self.pause_s = 0.0
        self._due = float("inf")
        self._peers.keep_listed(self._tower, (), now)
        return [UnsubscribeAtTower(self._tower, prefix) for prefix in self._prefixes]

    def connected(self, now: float) -> list[TowerAction]:
        """Register with a tower that has just subscribed to registrations."""
        self.is_complete = False
        self._pulses = 0
        self._wait_s = self._first_wait_s
        return self._register(now)

    def heard(self, frames: Sequence[bytes], now: float) -> list[PeerChange | TowerAction]:
        """Handle a message of the tower in the second form."""
        self._heard_at = now
        topic = frames[0]
        try:
            if topic == wire.PULSE:
                return self._hear_pulse(wire.Pulse.decode(frames), now)
            if topic[:1] == wire.ROLE_CHANGES:
                return self._hear_changes(wire.RoleChanges.decode(frames, has_key=self._has_key), now)
            return self._hear_page(wire.DirectoryPage.decode(frames, self._address, has_key=self._has_key), now)
        except WireError as error:
            self._discarded[error.field] += 1
            return []

    def ask(self, now: float) -> list[PeerChange | TowerAction]:
        """Ask for the directory again after a missed message, unless it has been requested."""
        return [*self._ask(now)] if self.is_complete else []

    def tick(self, now: float) -> list[TowerAction]:
        """Register when due; stop trusting the directory of a tower that has been silent for long."""
        if not self.is_active:
            return []
        if self.is_complete and now - self._heard_at >= self._silence_s + self.pause_s:
            self._peers.keep_listed(self._tower, (), now)
            return self._ask(now)
        if self.is_complete and self._peers.ignored > self._ignored and self._peers.has_capacity:
            return self._ask(now)  # nodes that did not fit into the table are listed nowhere else
        return self._register(now) if now >= self._due else []

    def deadline(self) -> float:
        """Return when to call `tick`."""
        return self._due

    def _ask(self, now: float) -> list[TowerAction]:
        self.is_complete = False
        self._wait_s = self._first_wait_s
        return self._register(now)

    def _register(self, now: float) -> list[TowerAction]:
        if self.is_complete:
            self._wait_s = self._interval_s
        self._due = self._next_due(now, self._wait_s)
        self._wait_s = min(2 * self._wait_s, self._interval_s, self._timeout_s)
        return [SendToTower(self._tower, self._refresh if self.is_complete else self._request)]

    def _next_due(self, now: float, wait_s: float) -> float:
        return now + wait_s * (1 - JITTER * self._draw())

    def _hear_pulse(self, pulse: wire.Pulse, now: float) -> list[PeerChange | TowerAction]:
        self.pause_s = min(pulse.pause_ms / 1000, PAUSE_MAX_S)
        if not self.is_complete:
            self._pulses += 1
            self.has_failed = not self._tower_id and self._pulses >= PULSES_MAX
            return []
        self._interval_s = max(pulse.interval_ms / 1000, INTERVAL_MIN_S)
        self._due = min(self._due, self._next_due(now, self._interval_s))
        is_current = pulse.tower == self._tower_id and all(
            self._numbers.get(role, 0) == pulse.numbers.get(role, 0) for role in self._wanted
        )
        if not is_current:
            return self.ask(now)
        # Nodes that hear the same pulse register together, which costs the tower far less than one by one.
        return [*self._register(now)] if self._due <= now + self.pause_s else []

    def _hear_changes(self, message: wire.RoleChanges, now: float) -> list[PeerChange | TowerAction]:
        actions: list[PeerChange | TowerAction] = []
        for is_joined, entry in message.changes:
            if is_joined:
                actions += self._add_entry(entry)
            else:
                actions += self._peers.unlisted(entry, self._tower, now)
        if self.is_complete:
            is_next = message.number == self._numbers.get(message.role, 0) + 1
            self._numbers[message.role] = message.number
            if not is_next or message.tower != self._tower_id:
                actions += self.ask(now)
        return actions

    def _hear_page(self, page: wire.DirectoryPage, now: float) -> list[PeerChange | TowerAction]:
        if page.index == 0:
            self._pages = 0
            self._listed.clear()
        if page.index != self._pages:
            self._pages = -1  # a page is missing
            return self.ask(now)
        self._pages += 1
        changes: list[PeerChange | TowerAction] = []
        for entry in page.entries:
            self._listed.add((entry.address, entry.key))
            changes += self._add_entry(entry)
        if page.is_last:
            self._peers.keep_listed(self._tower, self._listed, now)
            self._listed = set()
            self._tower_id, self._numbers = page.tower, dict(page.numbers)
            self._ignored = self._peers.ignored
            self.is_complete = True
            self._wait_s = self._interval_s
            self._due = self._next_due(now, self._wait_s)
        return changes

    def _add_entry(self, entry: wire.DirectoryEntry) -> list[PeerChange]:
        if entry.address == self._address:
            self.own_endpoint = entry.endpoint
            return []
        ignored = self._peers.ignored
        changes = self._peers.listed(entry, self._tower)
        self._discarded[MANY_NODES] += self._peers.ignored - ignored
        return changes
