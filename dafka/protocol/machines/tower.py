"""The tower's state machine: it returns the messages to publish (RFC 46, "Node Discovery and Presence").

A tower introduces nodes to each other, with the endpoint at which each can be reached. It carries no records. In a
closed cluster, it adds the authenticated key of the node.

It passes each beacon of the first form on to all nodes that use this form, as RFC 46 says. It announces each node once
to the nodes that use the second form and want its role (`dafka.wire.directory`). Each form contains all nodes.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from dafka import wire
from dafka.config import Config
from dafka.endpoints import MessageSource
from dafka.errors import WireError
from dafka.protocol.machines.head_intervals import GrowingInterval
from dafka.protocol.presence.beacon_registry import BeaconRegistry
from dafka.protocol.presence.identity import KeyIdentity
from dafka.protocol.presence.node_directory import NodeDirectory
from dafka.protocol.trust import TowerHostAmbiguous
from dafka.records import TEXT_BYTES_MAX, decode_text

KEY_CONFLICT = "address of another key"

PULSE_S = 1.0
"""The longest time between two heartbeats after a change, in seconds."""

PULSE_MAX_S = 10.0
"""The longest time between two heartbeats while nothing changes, in seconds."""

PROMPT_PULSES = 12
"""The number of heartbeats in quick succession after a change, so that a node that missed the change notices it."""

PULSES_PER_TIMEOUT = 4
"""The number of heartbeats in the time after which a silent node is gone."""

TICK_S = 0.25
"""Seconds until nodes whose connections have ended are announced together, and waiting requests are checked again."""

REGISTRATION_S = 60.0
"""The longest time between two registrations of a node, in seconds. The end of its connection shows earlier that it is
gone; registrations show that a connected node is not paused."""

REGISTRATION_TIMEOUTS = 0.75
"""The same, in timeouts, while a node may have lost its address, or nodes of the first form listen: they receive each
registration as a beacon, and drop a node whose beacons stop."""

INTRODUCTIONS_S = 0.25
"""Seconds between two introductions of all nodes to new subscribers of the first form."""

PREFIXES_MAX = 1000
"""The maximum number of different subscriptions to beacons of the first form that are remembered."""

NO_TOWER_ID = bytes(wire.TOWER_ID_BYTES)


class TowerMachine:
    """The rules of one tower. `beacons` counts the accepted ones of both forms.

    Nodes on loopback are introduced at `own_host`, at which other machines reach this one. It is an assumption until a
    node reaches the tower at an address other than loopback.

    Args:
        config: `[tower] nodes_max` and `[beacon] timeout_ms` apply.
        own_host: The host at which other machines presumably reach this one.
        is_connected: Returns whether a connection, by the number in `MessageSource`, still exists.
        identity: The keys of nodes in a closed cluster; None in a plain cluster.
        tower_id: Eight random bytes that identify this incarnation of the tower.
    """

    def __init__(
        self,
        config: Config,
        own_host: str,
        is_connected: Callable[[int], bool],
        identity: KeyIdentity | None = None,
        tower_id: bytes = NO_TOWER_ID,
    ) -> None:
        timeout_s = config.beacon.timeout_ms / 1000
        self._registration_s = max(REGISTRATION_S, REGISTRATION_TIMEOUTS * timeout_s)
        self._registration_soon_s = REGISTRATION_TIMEOUTS * timeout_s
        self.registry = BeaconRegistry(config.tower.nodes_max, timeout_s, is_connected, self._registration_s)
        self.beacons = 0
        self.own_host = own_host
        self._nodes_max = config.tower.nodes_max
        self._presumed_host = own_host
        self._reached_hosts: set[str] = set()
        self._identity = identity
        self._discarded: Counter[str] = Counter()
        self._directory = NodeDirectory(tower_id)
        self._known: dict[tuple[bytes, str, str], tuple[wire.Registration, wire.DirectoryEntry]] = {}
        self._known_host = own_host
        self._first_form_prefixes: set[bytes] = set()
        self._introduction_due = float("inf")
        self._introduced_at = float("-inf")
        pulse_s = min(PULSE_S, timeout_s / PULSES_PER_TIMEOUT)
        self._tick_s = min(TICK_S, pulse_s)
        self._tick_due = float("inf")
        self._pulses = GrowingInterval(pulse_s, PULSE_MAX_S, PROMPT_PULSES)
        self._pulse_due = 0.0
        self._announced_changes = 0
        self._are_registrations_urgent = False

    @property
    def discarded(self) -> Counter[str]:
        """Beacons that were not accepted, by reason."""
        return self._discarded + self.registry.discarded

    def receive(self, messages: Iterable[tuple[Sequence[bytes], MessageSource]], now: float) -> list[list[bytes]]:
        """Handle messages from nodes, and return the messages to publish."""
        published: list[list[bytes]] = []
        for frames, source in messages:
            if frames[0] == wire.REGISTRATION:
                forwarded = self._register(frames, source, now)
            else:
                forwarded = self.forward_beacon(frames, source, now)
            if forwarded is not None:
                published.append(forwarded)
        published += self._directory.take_messages(now)
        self._record_news(now)
        return published

    def connection_ended(self, number: int, now: float) -> None:
        """Record that a node's connection has ended, by the number in `MessageSource`."""
        self.registry.forget_connection(number)
        self._tick_due = min(self._tick_due, now + self._tick_s)

    def deadline(self) -> float:
        """Return when to call `tick`."""
        return min(self._tick_due, self._pulse_due, self._introduction_due, self.registry.deadline())

    def reached_at(self, address: str) -> TowerHostAmbiguous | None:
        """Record the address of this machine, which may be empty or invalid, at which a node has reached the tower.

        The presumed host is kept if nodes reach the tower there; otherwise the first address is the tower's host.
        Return a warning if nodes have reached the tower at another address, too.
        """
        host = _remote_host(address)
        if not host or host in self._reached_hosts:
            return None
        is_first = not self._reached_hosts
        self._reached_hosts.add(host)
        if is_first:
            self.own_host = host
            return None
        if host == self._presumed_host:
            self.own_host, host = host, self.own_host
        return TowerHostAmbiguous(self.own_host, host)

    def forward_beacon(self, frames: Sequence[bytes], source: MessageSource, now: float) -> list[bytes] | None:
        """Return the beacon to publish for one of the first form; None if it is discarded."""
        try:
            beacon = wire.NodeBeacon.decode(frames)
        except WireError as error:
            self._discarded[error.field] += 1
            return None
        if not self._admit(beacon.address, source, now, may_be_late=False):
            return None
        entry = wire.DirectoryEntry(beacon.address, self._endpoint(beacon, source), source.key)
        self._directory.put_node(entry, None)
        return _first_form(entry)

    def receive_subscriptions(self, subscriptions: Iterable[bytes], now: float) -> list[list[bytes]]:
        """Handle subscription frames of nodes, and return the messages to publish."""
        for frame in subscriptions:
            is_active, prefix = frame[:1] == b"\1", frame[1:]
            if prefix[:1] == wire.INBOX:
                if 1 < len(prefix) <= TEXT_BYTES_MAX + 1:
                    self._directory.record_inbox(
                        decode_text(prefix[1:]), is_open=is_active, inboxes_max=self._nodes_max
                    )
                    self._restart_pulses(now)
            elif prefix[:1] in (b"", wire.BEACON):
                if not is_active:
                    self._first_form_prefixes.discard(prefix)
                elif len(self._first_form_prefixes) < PREFIXES_MAX:
                    self._first_form_prefixes.add(prefix)
                    self._introduction_due = max(now, self._introduced_at + INTRODUCTIONS_S)
        published = self._introductions(now) + self._directory.take_messages(now)
        self._record_news(now)
        return published

    def tick(self, now: float) -> list[list[bytes]]:
        """Forget silent nodes and ended connections, and return the messages to publish."""
        for address in self.registry.expire(now):
            self._directory.remove_node(address)
        published = self._introductions(now) + self._directory.take_messages(now)
        self._tick_due = float("inf")
        self._record_news(now)
        return published + self._due_pulse(now)

    def _register(self, frames: Sequence[bytes], source: MessageSource, now: float) -> list[bytes] | None:
        """Handle a beacon of the second form. Return it in the first form if any node uses that."""
        try:
            registration, entry = self._decode_registration(frames, source)
        except WireError as error:
            self._discarded[error.field] += 1
            return None
        if not self._admit(entry.address, source, now, may_be_late=True):
            return None
        self._directory.put_node(entry, registration.wanted)
        if registration.asks_directory:
            self._directory.ask(entry.address)
        return _first_form(entry) if self._first_form_prefixes else None

    def _decode_registration(
        self, frames: Sequence[bytes], source: MessageSource
    ) -> tuple[wire.Registration, wire.DirectoryEntry]:
        """Decode a registration, or find it among the known ones: each node repeats its own all the time."""
        known = (frames[-1], source.host, source.key)
        if self.own_host != self._known_host:
            self._known.clear()
            self._known_host = self.own_host
        found = self._known.get(known) if len(frames) == 2 else None
        if found is None:
            registration = wire.Registration.decode(frames)
            address, endpoint = registration.address, self._endpoint(registration, source)
            entry = wire.DirectoryEntry(address, endpoint, source.key, registration.role, registration.formats)
            if len(self._known) >= 2 * self._nodes_max:
                self._known.clear()
            found = self._known[known] = registration, entry
        return found

    def _admit(self, address: str, source: MessageSource, now: float, *, may_be_late: bool) -> bool:
        if not self.registry.admit_beacon(address, source.connection, now, may_be_late=may_be_late):
            return False
        if self._identity is not None and not self._identity.claim_address(address, source.key):
            self._discarded[KEY_CONFLICT] += 1
            return False
        self.beacons += 1
        return True

    def _endpoint(self, beacon: wire.NodeBeacon | wire.Registration, source: MessageSource) -> str:
        host = beacon.host or reachable_host(source.host, self.own_host)
        return f"tcp://{host}:{beacon.port}"

    def _restart_pulses(self, now: float) -> None:
        self._pulses.restart()
        self._pulse_due = min(self._pulse_due, now + self._pulses.shortest_s)

    def _record_news(self, now: float) -> None:
        """Schedule the next pulse and tick after something may have changed."""
        if self._directory.has_requests:
            self._tick_due = min(self._tick_due, now + self._tick_s)
        are_urgent = bool(self._first_form_prefixes) or self.registry.is_address_claimed(now)
        is_news = are_urgent and not self._are_registrations_urgent
        if is_news or self._directory.count_changes() != self._announced_changes:
            self._restart_pulses(now)
        if is_news:
            self._pulse_due = now
        self._are_registrations_urgent = are_urgent
        self._announced_changes = self._directory.count_changes()

    def _due_pulse(self, now: float) -> list[list[bytes]]:
        if now < self._pulse_due:
            return []
        pause_s = self._pulses.next_wait_s()
        self._pulse_due = now + pause_s
        registration_s = self._registration_soon_s if self._are_registrations_urgent else self._registration_s
        return [self._directory.pulse(max(int(registration_s * 1000), 1), int(pause_s * 1000))]

    def _introductions(self, now: float) -> list[list[bytes]]:
        """Introduce nodes that use the second form to new subscribers of the first, before the next registration."""
        if now < self._introduction_due:
            return []
        self._introduction_due, self._introduced_at = float("inf"), now
        return [_first_form(entry) for entry in self._directory.second_form_entries()]


def _first_form(entry: wire.DirectoryEntry) -> list[bytes]:
    return wire.TowerBeacon(entry.address, entry.endpoint, entry.key).encode()


def reachable_host(host: str, own_host: str) -> str:
    """Return the host, for an endpoint, at which other machines reach a node whose connection comes from this address.

    The address may be empty or invalid. `own_host` is the host of the tower's machine, for nodes on loopback.
    """
    return _remote_host(host) or own_host


def _remote_host(address: str) -> str:
    """Return the host of an endpoint at this IP address; empty if the address is invalid or loopback."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return ""
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if parsed.is_loopback:
        return ""
    return f"[{parsed}]" if parsed.version == 6 else str(parsed)
