"""Beacons of the first form: which frames are one, with and without a key."""

import itertools

import pytest

from dafka.endpoints import is_peer_endpoint
from dafka.errors import WireError
from dafka.records import decode_text
from dafka.wire import NodeBeacon, TowerBeacon

KEY = b"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
UUID = b"FC83322A248C4C30A13C28A5D5649931"
GOOD_HOSTS = [b"127.0.0.1", b"node-1.example.org", b"a_b", b"[::1]", b"[fe80::1%eth0]", b"h" * 255]
BAD_HOSTS = [b"::1", b"[]", b"[::1", b"a b", b"a/b", b"a:1", b"*", b"h\0", b"h\n", b"\xc3\xb8", b"tcp://h", b"h" * 256]
GOOD_PORTS = [b"1", b"80", b"5556", b"65535"]
BAD_PORTS = [b"", b"0", b"65536", b"+1", b"-1", b"080", b" 80", b"80\n", b"8_0", b"1e3", b"100000", b"\xd9\xa3", b"x"]

BAD_ENDPOINTS = [b"", b"tcp://", b"tcp://h", b"tcp://:80", b"h:80", b"TCP://h:80", b"ipc://h:80", b"udp://h:80"]
BAD_ENDPOINTS += [b"tcp://h:80/", b"tcp://h:80/x", b"tcp://h:80:81", b" tcp://h:80", b"tcp://h:80 ", b"tcp://h:80\n"]
BAD_ENDPOINTS += [b"tcp://h:80\0", b"tcp://a;b:80", b"tcp://u@h:80", b"tcp://eth0;h:80", b"tcp://h:80;tcp://i:80"]


def rejected_field(kind: type[NodeBeacon | TowerBeacon], frames: list[bytes], **options: bool) -> str:
    with pytest.raises(WireError) as caught:
        kind.decode(frames, **options)
    return caught.value.field


def test_beacons_survive_decoding_and_encoding() -> None:
    for address, host, port in itertools.product([UUID, b"u", b"u" * 255, b"\xff\xfe"], GOOD_HOSTS, GOOD_PORTS):
        for own_host in (b"", host):
            beacon = NodeBeacon.decode([b"B", address, own_host, port])
            assert beacon == NodeBeacon(decode_text(address), own_host.decode(), int(port))
            assert beacon.encode() == [b"B", address, own_host, port]
        endpoint = b"tcp://%s:%s" % (host, port)
        introduced = TowerBeacon.decode([b"B", address, endpoint])
        assert introduced == TowerBeacon(decode_text(address), endpoint.decode())
        assert introduced.encode() == [b"B", address, endpoint]


def test_ports_hosts_and_addresses_outside_their_rules_are_rejected() -> None:
    for port in BAD_PORTS:
        assert rejected_field(NodeBeacon, [b"B", UUID, b"h", port]) == "port"
        assert rejected_field(TowerBeacon, [b"B", UUID, b"tcp://h:" + port]) in ("port", "endpoint")
    for host in BAD_HOSTS:
        assert rejected_field(NodeBeacon, [b"B", UUID, host, b"80"]) == "host"
        assert rejected_field(TowerBeacon, [b"B", UUID, b"tcp://%s:80" % host]) == "endpoint"
    for endpoint in BAD_ENDPOINTS:
        assert rejected_field(TowerBeacon, [b"B", UUID, endpoint]) == "endpoint"
        assert not is_peer_endpoint(endpoint.decode())
    for uuid in (b"", b"u" * 256):
        assert rejected_field(NodeBeacon, [b"B", uuid, b"h", b"80"]) == "uuid"
        assert rejected_field(TowerBeacon, [b"B", uuid, b"tcp://h:80"]) == "uuid"


def test_another_kind_or_number_of_frames_is_rejected() -> None:
    for kind in (b"", b"b", b"W", b"BB"):
        assert rejected_field(NodeBeacon, [kind, UUID, b"h", b"80"]) == "type"
        assert rejected_field(TowerBeacon, [kind, UUID, b"tcp://h:80"]) == "type"
    for count in range(6):
        frames = [b"B", UUID, b"h", b"80", b""][:count]
        if count != 4:
            assert rejected_field(NodeBeacon, frames) == "frames"
        if count != 3:
            assert rejected_field(TowerBeacon, frames) == "frames"
            assert rejected_field(TowerBeacon, [b"B", b"N", b"tcp://h:80", KEY, b""][:count]) == "frames"
        if count != 4:
            keyed = [b"B", b"N", b"tcp://h:80", KEY, b""][:count]
            assert rejected_field(TowerBeacon, keyed, has_key=True) == "frames"


def test_a_closed_clusters_beacon_carries_a_key() -> None:
    frames = [b"B", b"N", b"tcp://h:80", KEY]
    beacon = TowerBeacon.decode(frames, has_key=True)
    assert (beacon, beacon.peer_endpoint.key) == (TowerBeacon("N", "tcp://h:80", KEY.decode()), KEY.decode())
    assert beacon.encode() == frames
    for wrong in (b"", KEY[:-1], KEY + b"0", b"~" + KEY[1:], b"\xff" * 40):
        assert rejected_field(TowerBeacon, [*frames[:3], wrong], has_key=True) == "key"
