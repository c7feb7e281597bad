"""The limits on the subscriptions of each connection, of each host and of all connections."""

from __future__ import annotations

from random import Random

import attrs
import pytest

from dafka.transport.accepted import AcceptedConnection
from dafka.transport.connections import Connection
from dafka.transport.publisher import (
    COUNT_MIN,
    HOSTS_MAX,
    MANY_NAMES,
    MANY_SUBSCRIPTIONS,
    NAMES_MAX,
    NO_SUBSCRIPTION,
    PENALTY_MAX,
    PENALTY_S,
    TOTAL_FACTOR,
    SubscriptionLimits,
)

BYTES_MAX, COUNT_MAX = 1000, 200


@attrs.define
class Connections:
    """Stands for the accepted connections. A connection's number determines its host, and it ends only once."""

    ended: list[int] = attrs.field(factory=list)
    hosts: dict[int, str] = attrs.field(factory=dict)

    def identify(self, connection: AcceptedConnection) -> Connection | None:
        if connection.number in self.ended:
            return None
        return Connection(("127.0.0.1", 1), (self.hosts.get(connection.number, f"10.0.0.{connection.number}"), 2))

    def end(self, connection: AcceptedConnection) -> Connection | None:
        ends = self.identify(connection)
        self.ended.append(connection.number)
        return ends


class Peers:
    """Peers that send messages to a publisher with limits."""

    def __init__(self, bytes_max: int = BYTES_MAX, count_max: int = COUNT_MAX) -> None:
        self.connections = Connections()
        self.limits = SubscriptionLimits(self.connections, bytes_max, count_max)  # type: ignore[arg-type]
        self._opened: dict[int, AcceptedConnection] = {}

    def send(self, number: int, message: bytes, now: float = 0.0) -> bool:
        connection = self._opened.setdefault(number, AcceptedConnection(number, number, 0.0))
        return self.limits.accept_message(connection, message, now)

    def count_accepted(self, number: int, now: float = 0.0, tries: int = 2 * COUNT_MAX) -> int:
        """Return how many messages of a connection are accepted at once."""
        return sum(self.send(number, b"\0Hx", now) for _ in range(tries))

    @property
    def ended(self) -> list[int]:
        return self.connections.ended

    @property
    def discarded(self) -> dict[str, int]:
        return dict(self.limits.discarded)


@pytest.mark.parametrize(("size", "is_accepted"), [(BYTES_MAX, True), (BYTES_MAX + 1, False)])
def test_a_connection_may_subscribe_for_exactly_the_bytes_allowed(size: int, is_accepted: bool) -> None:
    for first in (size, 100, size - 100):
        peers = Peers()
        assert peers.send(1, b"\1" + b"H" * (first - 1)) is (is_accepted if first == size else True)
        if first != size:
            assert peers.send(1, b"\1" + b"H" * (size - first - 1)) is is_accepted
        assert peers.ended == ([] if is_accepted else [1])
        assert peers.discarded == ({} if is_accepted else {MANY_SUBSCRIPTIONS: 1})


def test_only_subscriptions_count_as_bytes() -> None:
    peers = Peers(count_max=10_000)
    for _ in range(10):
        assert peers.send(1, b"\0" + b"H" * BYTES_MAX)
        assert not peers.send(1, b"\2" + b"H" * BYTES_MAX)
        assert not peers.send(1, b"")
    assert (peers.ended, peers.discarded) == ([], {NO_SUBSCRIPTION: 20})


def test_beyond_the_bytes_of_all_connections_the_largest_are_ended() -> None:
    for seed in range(20):
        random = Random(seed)
        peers = Peers(count_max=10**6)
        used: dict[int, int] = {}
        ended: list[int] = []
        for _ in range(300):
            number, size = random.randrange(1, 15), random.randrange(2, 200)
            if random.random() < 0.1:
                peers.limits.forget_connection(number)
                peers._opened.pop(number, None)
                used.pop(number, None)
                ended = [each for each in ended if each != number]
                peers.connections.ended = [*ended]
                continue
            is_accepted = peers.send(number, b"\1" + b"H" * (size - 1))
            if number not in ended:
                used[number] = used.get(number, 0) + size
                if used[number] > BYTES_MAX:
                    ended.append(number)
                    del used[number]
                while sum(used.values()) > TOTAL_FACTOR * BYTES_MAX:
                    assert not set(peers.ended) - set(ended) - set(used)
                    largest = max(used.values())
                    new = [each for each in peers.ended if each not in ended]
                    assert used[new[0]] == largest
                    ended.append(new[0])
                    del used[new[0]]
            assert is_accepted == (number not in ended)
            assert peers.ended == ended


def test_a_connection_subscribes_for_a_limited_number_of_addresses() -> None:
    peers = Peers(bytes_max=10**6, count_max=10**6)
    names = [b"%032X" % number for number in range(NAMES_MAX + 2)]
    for count, name in enumerate(names):
        for command in b"EKLW":
            assert peers.send(1, b"\1%c%b" % (command, name)) is (count < NAMES_MAX)
    for command in b"MBFHG":
        assert all(peers.send(1, b"\1%c%b" % (command, name)) for name in names)
    assert all(peers.send(1, b"\1E" + name) for name in names[:NAMES_MAX])
    assert peers.send(1, b"\1E")
    assert peers.send(2, b"\1E" + names[-1])
    assert (peers.ended, peers.discarded) == ([], {MANY_NAMES: 8})


def offend(peers: Peers, number: int, now: float, host: str = "10.0.0.1") -> None:
    """End the connection with this number from a host for its bytes."""
    peers.connections.hosts[number] = host
    assert not peers.send(number, b"\1" * (BYTES_MAX + 1), now)


def test_each_offence_of_a_host_halves_what_its_new_connections_may_send_at_once() -> None:
    count_max = COUNT_MIN << (PENALTY_MAX + 2)
    peers = Peers(count_max=count_max)
    for offences in range(PENALTY_MAX + 3):
        number = 100 + offences
        peers.connections.hosts[number] = "10.0.0.1"
        allowed = count_max >> min(offences, PENALTY_MAX)
        assert peers.count_accepted(number, 1.0, allowed) == allowed
        assert not peers.send(number, b"\0Hx", 1.0)  # ends it: one more offence
    assert peers.count_accepted(2, 1.0, count_max) == count_max


def test_a_penalty_lasts_from_the_last_offence_and_then_the_host_is_forgiven() -> None:
    peers = Peers()
    offend(peers, 1, 0.0)
    offend(peers, 2, 20.0)
    peers.connections.hosts |= dict.fromkeys(range(3, 9), "10.0.0.1")
    assert peers.count_accepted(3, 20.0 + PENALTY_S - 0.01) == COUNT_MIN
    offend(peers, 4, 100.0)
    assert peers.count_accepted(5, 100.0 + PENALTY_S - 0.01) == COUNT_MAX // 2
    assert peers.count_accepted(6, 200.0 + PENALTY_S) == COUNT_MAX
    offend(peers, 7, 300.0)
    assert peers.count_accepted(8, 300.0 + PENALTY_S) == COUNT_MAX


def test_the_number_of_remembered_hosts_is_limited_and_known_ones_are_still_punished() -> None:
    peers = Peers(count_max=4 * COUNT_MIN)
    for number in range(HOSTS_MAX + 5):
        offend(peers, number, 0.0, f"host {number}")
    offend(peers, 5000, 0.0, "host 0")
    peers.connections.hosts |= {6000: "host 0", 6001: f"host {HOSTS_MAX + 1}", 6002: "host 1"}
    allowed = [peers.count_accepted(number, 0.0, 5 * COUNT_MIN) for number in (6000, 6001, 6002)]
    assert allowed == [COUNT_MIN, 4 * COUNT_MIN, 2 * COUNT_MIN]
