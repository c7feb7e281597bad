"""Connections by their descriptors: what identifies them, ends them and descriptor_limits their number."""

from __future__ import annotations

import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from dafka.transport import is_other_machine, raise_descriptors_max
from dafka.transport.connections import (
    CONNECTIONS_MIN,
    RESERVED_DESCRIPTORS,
    Connection,
    connections_max,
    descriptors_max,
    end_connection,
    find_connection,
    has_peer_closed,
    is_open,
    unsent_bytes,
)
from tests.waiting import poll_until


@contextmanager
def connected(host: str = "127.0.0.1") -> Iterator[tuple[socket.socket, socket.socket]]:
    """Open the two ends of a connection: the accepted one and the one that connected."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.create_server((host, 0), family=family) as server,
        socket.create_connection(server.getsockname()[:2], timeout=60) as peer,
    ):
        accepted, _ = server.accept()
        with accepted:
            yield accepted, peer


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection_has_the_addresses_of_its_two_ends(host: str) -> None:
    with suppress(OSError), connected(host) as (accepted, peer):
        found = find_connection(accepted.fileno())
        assert found == Connection(accepted.getsockname()[:2], peer.getsockname()[:2])
        assert (found.own_host, found.host, found.port) == (host, host, accepted.getsockname()[1])
    ends = Connection(("10.0.0.1", 5), ("10.0.0.2", 6))
    assert (ends.own_host, ends.host, ends.port) == ("10.0.0.1", "10.0.0.2", 5)


def test_a_connection_that_is_not_tcp_has_no_addresses() -> None:
    one, other = socket.socketpair()
    with one, other:
        found = find_connection(one.fileno())
        assert found is not None
        assert (found.own_host, found.host, found.port) == ("", "", 0)


def test_what_is_no_connection_is_none() -> None:
    with open(__file__, "rb") as file, socket.socket() as unconnected:
        for descriptor in (file.fileno(), unconnected.fileno(), 10**6, -1):
            assert find_connection(descriptor) is None
            assert not is_open(descriptor, Connection(None, None))
            assert not end_connection(descriptor, Connection(None, None))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells that the peer has closed its side")
def test_a_connection_whose_peer_has_closed_its_side_is_not_open() -> None:
    """A node that restarts must not be refused because of its own former connection, which has not been read yet."""
    with connected() as (accepted, peer):
        found = find_connection(accepted.fileno())
        assert found is not None
        assert is_open(accepted.fileno(), found)
        assert not has_peer_closed(accepted.fileno())
        peer.sendall(b"unread")
        assert accepted.recv(1, socket.MSG_PEEK) == b"u"
        assert not has_peer_closed(accepted.fileno())
        peer.shutdown(socket.SHUT_WR)
        poll_until(lambda: has_peer_closed(accepted.fileno()))
        assert not is_open(accepted.fileno(), found)
        assert find_connection(accepted.fileno()) == found


@pytest.mark.skipif(sys.platform != "linux", reason="other systems may not report it")
def test_the_bytes_that_the_system_has_not_sent_are_counted() -> None:
    with connected() as (accepted, _):
        assert unsent_bytes(accepted.fileno()) == 0
        accepted.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                accepted.send(bytes(2**16))
        assert unsent_bytes(accepted.fileno()) > 2**12
    assert unsent_bytes(10**6) == 0


@pytest.mark.parametrize(
    ("host", "is_other"),
    [
        *(("127.0.0.1", False), ("127.9.9.9", False), ("[::1]", False), ("0.0.0.0", False), ("localhost", False)),
        *(("192.0.2.1", True), ("[2001:db8::1]", True), ("2001:db8::1", True), ("256.1.1.1", False), ("", False)),
    ],
)
def test_only_an_ip_address_of_another_machine_is_one(host: str, is_other: bool) -> None:
    if ":" in host and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    assert is_other_machine(host) is is_other


def test_the_limit_of_descriptors_is_the_soft_one_until_it_is_raised(descriptor_limits: tuple[int, int]) -> None:
    _, hard = descriptor_limits
    if hard in (resource.RLIM_INFINITY, 0):
        pytest.skip("this machine has no limit")
    lower = hard - 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (lower, hard))
    assert descriptors_max() == lower
    assert raise_descriptors_max() == hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


@pytest.mark.parametrize("others", [0, 7])
def test_connections_may_take_three_quarters_of_the_descriptors_that_are_not_reserved(
    others: int, descriptor_limits: tuple[int, int]
) -> None:
    descriptors = min(descriptor_limits[1], 1024)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptor_limits[1]))
    allowed = (descriptors - RESERVED_DESCRIPTORS) * 3 // 4 - others
    assert connections_max(10**6, others) == connections_max(allowed, others) == allowed
    assert connections_max(allowed - 1, others) == allowed - 1
    assert connections_max(0, others) == connections_max(1, 10**9) == CONNECTIONS_MIN
