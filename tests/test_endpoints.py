"""Endpoints, hosts, ports and keys: which texts are one, and which are not."""

from __future__ import annotations

import pytest
import zmq

from dafka import endpoints
from dafka.endpoints import PeerEndpoint, parse_tower

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
HOSTS = ("h", "10.0.0.1", "node-1.example.org", "a_b", "[::1]", "[fe80::1%eth0]", "h" * 255)
NO_HOSTS = ("", "::1", "[]", "[::1", "a b", "a/b", "a:1", "*", "h\0", "h\n", "ø", "h" * 256)
PORTS = ("1", "80", "9999", "65535")
NO_PORTS = ("", "0", "65536", "+1", "-1", "080", " 80", "80\n", "8_0", "1e3", "100000", "\u0663", "x")


def test_hosts_and_ports_of_peers() -> None:
    assert all(map(endpoints.is_host, HOSTS))
    assert not any(map(endpoints.is_host, NO_HOSTS))
    assert all(map(endpoints.is_port, PORTS))
    assert not any(map(endpoints.is_port, NO_PORTS))
    for host in HOSTS:
        assert all(endpoints.is_peer_endpoint(f"tcp://{host}:{port}") for port in PORTS)
        assert not any(endpoints.is_peer_endpoint(f"tcp://{host}:{port}") for port in NO_PORTS)
        assert endpoints.split_tcp_endpoint(f"tcp://{host}:80") == (host, "80")
    assert not any(endpoints.is_peer_endpoint(f"tcp://{host}:80") for host in NO_HOSTS)
    assert not any(map(endpoints.is_peer_endpoint, ("ipc://h:80", "tcp:/h:80", "h:80", "tcp://h", " tcp://h:80")))


LOCAL = "tcp://127.0.0.1:80 tcp://127.9.9.9:80 tcp://localhost:80 tcp://lo:* tcp://[::1]:80 ipc:///tmp/x inproc://x"
ELSEWHERE = (
    "tcp://10.0.0.1:80 tcp://[fe80::1]:80 tcp://eth0:80 tcp://*:80 tcp://0.0.0.0:80 tcp://localhost.example.org:80"
)


def test_endpoints_that_only_this_machine_reaches() -> None:
    for texts, is_local in ((LOCAL, True), (ELSEWHERE, False)):
        for endpoint in texts.split():
            assert endpoints.is_local(endpoint) is is_local, endpoint


TOWERS: list[tuple[str, str, str]] = [
    ("h", "tcp://h:5556", "tcp://h:5557"),
    (" h:7000 ", "tcp://h:7000", "tcp://h:7001"),
    ("h:7000:80", "tcp://h:7000", "tcp://h:80"),
    ("[fd00::1]:1:2", "tcp://[fd00::1]:1", "tcp://[fd00::1]:2"),
    ("h:65534", "tcp://h:65534", "tcp://h:65535"),
    ("h:65535:1", "tcp://h:65535", "tcp://h:1"),
]


def test_a_tower_has_two_endpoints() -> None:
    for text, sub, pub in TOWERS:
        assert parse_tower(text) == (sub, pub)


NO_TOWERS = ["", "h:", "h:0", "h:65535", "h:65536:1", "h:1:0", "h:1:65536", "h:5:5", "h:1:2:3"]
NO_TOWERS += ["a b", "tcp://h", "::1", "h" * 256]


def test_other_texts_are_no_tower() -> None:
    for text in NO_TOWERS:
        with pytest.raises(ValueError, match="expected"):
            parse_tower(text)


BINDABLE = ("tcp://*:*", "tcp://eth0:80", "tcp://h:0", "tcp://h:65535", "ipc://x", "inproc://x")
NOT_BINDABLE = ("tcp://:80", "tcp://h:", "tcp://h", "tcp://h:65536", "tcp://h:x", "ipc://", "udp://h:1", "tcp:h:1", "")


def test_endpoints_that_a_node_may_bind() -> None:
    assert all(map(endpoints.is_endpoint, BINDABLE))
    assert not any(map(endpoints.is_endpoint, NOT_BINDABLE))


def test_forms_of_addresses() -> None:
    assert [endpoints.is_address(host) for host in ("10.0.0.1", "[::1]", "h", "10.h", "")] == [True, True] + [False] * 3
    assert endpoints.is_ipv6_endpoint("tcp://[::1]:1")
    assert not endpoints.is_ipv6_endpoint("tcp://h:1")


def test_a_key_encodes_32_bytes() -> None:
    assert endpoints.is_key(KEY)
    for wrong in (KEY[:-1], KEY + "0", "~" + KEY[1:], "é" + KEY[1:], KEY[:-1] + "\n", ""):
        assert not endpoints.is_key(wrong)
    largest = "%nSc0"  # 2**32 - 1
    assert zmq.utils.z85.decode(largest) == b"\xff" * 4
    assert endpoints.is_key(largest * 8)
    for group in range(8):
        assert not endpoints.is_key(largest * group + "%nSc1" + largest * (7 - group))


@pytest.mark.parametrize("text", ["tcp://h:1", f"tcp://h:1 {KEY}"])
def test_a_peer_s_endpoint_survives_as_text(text: str) -> None:
    endpoint, _, key = text.partition(" ")
    assert PeerEndpoint.parse(f"  {text}  ") == PeerEndpoint(endpoint, key)
    assert str(PeerEndpoint.parse(text)) == text
