"""The brokers of a cluster: what they publish about themselves, and which of them are alive."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection
from math import inf
from typing import Any

import attrs

from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.errors import StorageFormatError
from dafka.protocol.format_errors import format_errors

BROKERS_TOPIC = "$brokers"
"""The topic in which each broker publishes its registration, in its own partition."""

BROKER_VERSION = 1
"""The version of these records."""


@attrs.frozen(kw_only=True)
class BrokerRegistration:
    """The registration of a broker: what it publishes about itself.

    Attributes:
        address: Its node address, which is that of its storage.
        number: Its number, the broker id of Kafka; unique in the cluster. It is -1 until the broker is registered.
        cluster_id: The id of its cluster; empty if it belongs to none yet.
        first_voters: The first voters of its cluster's log of metadata.
        is_open: Whether its cluster serves clients.
        initial_brokers: How many brokers must be there for its cluster to be formed.
        rack: Its rack or zone; empty if it has none.
        kafka_listener: Where Kafka clients reach it, `HOST:PORT`; empty if they do not.
        http_url: Where HTTP clients reach it; empty if they do not.
        free_bytes: The free space of its storage, in bytes.
        is_draining: Whether it hands its logs to other brokers before it is removed.
        is_stopping: Whether it is about to end, so that others lead its logs.
        under_replicated_logs: How many of the logs that it leads have fewer replicas in sync than they should.
        damaged_logs: The names of the logs of which it has found damaged records in its storage; see `name_log`.
        logs_to_copy: The damaged logs that it can copy anew from other brokers, when it is no replica for a moment.
        unreadable_logs: The damaged logs that it cannot load, so that it neither votes nor acknowledges there.
        forwarding_key: The key with which brokers sign client requests that they forward to it; new at each start, and
            empty if all brokers have the same secret file.
    """

    address: str
    number: int = -1
    cluster_id: str = ""
    first_voters: tuple[str, ...] = ()
    is_open: bool = False
    initial_brokers: int = 1
    rack: str = ""
    kafka_listener: str = ""
    http_url: str = ""
    free_bytes: int = 0
    is_draining: bool = False
    is_stopping: bool = False
    under_replicated_logs: int = 0
    damaged_logs: tuple[str, ...] = ()
    logs_to_copy: tuple[str, ...] = ()
    unreadable_logs: tuple[str, ...] = ()
    forwarding_key: str = attrs.field(default="", repr=False)


class Brokers:
    """The brokers of a cluster, as far as one of them knows. It is one of them, and always alive.

    A broker counts as dead after `timeout_s` seconds without a heartbeat. Time during which this broker has stalled is
    added, because heartbeats wait unread meanwhile: so it replaces no leader too soon. Only the brokers in `heard` were
    heard within this time for sure.
    """

    def __init__(self, own: BrokerRegistration, timeout_s: float) -> None:
        self.own = own
        self._timeout_s = timeout_s
        self._known: dict[str, BrokerRegistration] = {}
        self._heard: dict[str, float] = {}
        self._stalled_s: dict[str, float] = {}
        self._alive = self.heard = frozenset((own.address,))
        self._advertised = self._alive
        self._failing: set[str] = set()
        self._unwritable = self._replaceable = frozenset[str]()
        self._followed: dict[str, float] = {}
        self._has_forgotten = False

    def all(self) -> list[BrokerRegistration]:
        """Return all brokers by number, living or not."""
        return sorted((self.own, *self._known.values()), key=lambda each: (each.number, each.address))

    def living(self) -> list[BrokerRegistration]:
        """Return the living brokers by number."""
        return [each for each in self.all() if each.address in self._alive]

    def living_by_log(self, logs_of: Callable[[BrokerRegistration], Collection[str]]) -> dict[str, frozenset[str]]:
        """Return the addresses of the living brokers by the logs that their registrations name."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for broker in self.living():
            for log in logs_of(broker):
                found[log].add(broker.address)
        return {log: frozenset(brokers) for log, brokers in found.items()}

    def advertised(self) -> list[BrokerRegistration]:
        """Return the brokers that clients see, by number.

        These are the living ones. While this broker hears fewer than half of the brokers that it advertised last, it
        still advertises them: it is more likely cut off than they are dead.
        """
        return [each for each in self.all() if each.address in self._advertised]

    def is_alive(self, address: str) -> bool:
        """Return whether a broker is alive."""
        return address in self._alive

    def find(self, address: str) -> BrokerRegistration | None:
        """Return the broker with an address; None if there is none."""
        return self.own if address == self.own.address else self._known.get(address)

    def find_number(self, number: int) -> BrokerRegistration | None:
        """Return the broker with a number, preferably a living one; None if there is none."""
        return next((each for each in (*self.living(), *self.all()) if each.number == number), None)

    def leader_of(self, leader_and_isr: LeaderAndIsr) -> str:
        """Return the address that clients get as the leader of a log; empty if there is none."""
        if leader_and_isr.is_led:
            return self.own.address
        return leader_and_isr.leader if self.is_alive(leader_and_isr.leader) else leader_and_isr.presumed_leader

    @property
    def is_alone(self) -> bool:
        """Whether no other broker belongs to the cluster, or has belonged to it."""
        return not self._known and not self._has_forgotten

    @property
    def alive(self) -> frozenset[str]:
        """The addresses of the living brokers."""
        return self._alive

    @property
    def unwritable(self) -> frozenset[str]:
        """The addresses of the living brokers that cannot write, for example because their disk is full."""
        return self._unwritable

    @property
    def replaceable(self) -> frozenset[str]:
        """The addresses of the living brokers that cannot write, and that this one has not promised to follow.

        Others can lead in their place; see `may_answer`.
        """
        return self._replaceable

    def record_registration(self, broker: BrokerRegistration) -> None:
        """Record what another broker of the cluster publishes about itself."""
        if broker.address != self.own.address:
            self._known[broker.address] = broker

    def forget(self, address: str) -> None:
        """Forget a broker that no longer belongs to the cluster."""
        self._has_forgotten = True
        self._known.pop(address, None)
        self._failing.discard(address)
        self._followed.pop(address, None)
        self._advertised -= {address}

    def record_heartbeat(self, address: str, now: float) -> None:
        """Record a heartbeat of a broker."""
        self._heard[address] = now
        self._stalled_s.pop(address, None)

    def expect(self, address: str, now: float) -> None:
        """Count a broker as alive that was known before this one was restarted.

        It can lead logs. This broker heard it a moment ago, so it relies on this broker not to follow another leader.
        """
        self._heard.setdefault(address, now)
        self._followed.setdefault(address, now)

    def may_answer(self, address: str, now: float, *, can_write: bool) -> bool:
        """Return whether to answer the round of a broker. An answer promises that replicas follow it for the timeout.

        They must have known since the last `check_alive` that they do: before, they can elect another leader. A broker
        that cannot write is followed as well while fewer than two others can, since nobody can be elected in its place.
        """
        if not can_write:
            if len(self._alive - self._failing - {address}) >= 2:
                return False
            self._followed[address] = now
        return address in self._alive and address not in self._replaceable

    def record_storage(self, address: str, *, can_write: bool) -> None:
        """Record whether a broker can write."""
        if can_write:
            self._failing.discard(address)
        else:
            self._failing.add(address)

    def is_heard(self, address: str, now: float) -> bool:
        """Return whether a broker, of this cluster or not, was heard a moment ago, or is this one."""
        return address == self.own.address or self.silent_s(address, now) < self._timeout_s

    def silent_s(self, address: str, now: float) -> float:
        """Return for how many seconds another broker has sent no heartbeat; infinity if it never has.

        Time during which this broker has stalled does not count.
        """
        return now - self._heard.get(address, -inf) - self._stalled_s.get(address, 0.0)

    def check_alive(self, now: float, stalled_s: float = 0.0) -> bool:
        """Update which brokers are alive and can write. Return whether anything has changed.

        This broker itself has stalled for `stalled_s` seconds.
        """
        if stalled_s:
            self._stalled_s = {each: self._stalled_s.get(each, 0.0) + stalled_s for each in self._heard}
        for each, at in self._heard.items():
            if self.silent_s(each, now) < 0:  # the clock can be set back
                self._heard[each] = min(at, now)
                self._stalled_s[each] = now - self._heard[each]
        self._followed = {each: min(at, now) for each, at in self._followed.items()}
        before = self._alive, self._unwritable, self._replaceable, self.heard
        own = frozenset((self.own.address,))
        self._alive = own.union(each for each in self._known if self.is_heard(each, now))
        self.heard = own.union(each for each in self._known if now - self._heard.get(each, -inf) < self._timeout_s)
        self._unwritable = self._alive & self._failing
        followed = (each for each, at in self._followed.items() if now - at < self._timeout_s)
        self._replaceable = self._unwritable.difference(followed)
        if 2 * len(self._alive & self._advertised) >= len(self._advertised):
            self._advertised = self._alive
        return before != (self._alive, self._unwritable, self._replaceable, self.heard)


def encode_broker(broker: BrokerRegistration) -> bytes:
    """Return the value of a broker's record."""
    fields = attrs.asdict(broker, filter=attrs.filters.exclude("address"))
    if not broker.is_stopping:  # newer than the first release, which neither writes nor needs it
        del fields["is_stopping"]
    return json.dumps({"version": BROKER_VERSION, **fields}, separators=(",", ":")).encode()


def decode_broker(address: str, value: bytes) -> BrokerRegistration:
    """Return the registration of the broker with the address of the record's partition.

    Raise `StorageFormatError` if it is malformed, or a newer version of dafka has written it.
    """
    with format_errors("the record of a broker"):
        fields = json.loads(value)
        if fields.pop("version") > BROKER_VERSION:
            raise StorageFormatError("the record of a broker has a newer version: update dafka on this broker")
        kinds: dict[str, Callable[[Any], Any]] = {
            each.name: type(each.default) for each in attrs.fields(BrokerRegistration) if each.name != "address"
        }
        return BrokerRegistration(
            address=address, **{name: kind(fields[name]) for name, kind in kinds.items() if name in fields}
        )
