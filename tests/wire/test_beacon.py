import pytest

from dafka.endpoints import is_peer_endpoint
from dafka.errors import WireError
from dafka.wire import NodeBeacon, TowerBeacon

UUID = b"FC83322A248C4C30A13C28A5D5649931"
GOOD_HOSTS = [b"127.0.0.1", b"node-1.example.org", b"a_b", b"[::1]", b"[fe80::1%eth0]", b"h" * 255]
BAD_HOSTS = [b"::1", b"[]", b"[::1", b"a b", b"a/b", b"a:1", b"*", b"h\0", b"h\n", b"\xc3\xb8", b"tcp://h", b"h" * 256]
GOOD_PORTS = [b"1", b"80", b"5556", b"65535"]
BAD_PORTS = [b"", b"0", b"65536", b"+1", b"-1", b"080", b" 80", b"80\n", b"8_0", b"1e3", b"100000", b"\xd9\xa3", b"x"]

BAD_ENDPOINTS = [b"", b"tcp://", b"tcp://h", b"tcp://:80", b"h:80", b"TCP://h:80", b"ipc://h:80", b"udp://h:80"]
BAD_ENDPOINTS += [b"tcp://h:80/", b"tcp://h:80/x", b"tcp://h:80:81", b" tcp://h:80", b"tcp://h:80 ", b"tcp://h:80\n"]
BAD_ENDPOINTS += [b"tcp://h:80\0", b"tcp://a;b:80", b"tcp://u@h:80", b"tcp://eth0;h:80", b"tcp://h:80;tcp://i:80"]


def rejected_field(kind: type[NodeBeacon | TowerBeacon], frames: list[bytes]) -> str:
    with pytest.raises(WireError) as caught:
        kind.decode(frames)
    return caught.value.field


@pytest.mark.parametrize("host", [b"", *GOOD_HOSTS])
@pytest.mark.parametrize("port", GOOD_PORTS)
def test_a_node_beacon_survives_decoding_and_encoding(host: bytes, port: bytes) -> None:
    beacon = NodeBeacon.decode([b"B", UUID, host, port])
    assert beacon == NodeBeacon(UUID.decode(), host.decode(), int(port))
    assert beacon.encode() == [b"B", UUID, host, port]


@pytest.mark.parametrize("host", GOOD_HOSTS)
@pytest.mark.parametrize("port", GOOD_PORTS)
def test_a_tower_beacon_survives_decoding_and_encoding(host: bytes, port: bytes) -> None:
    endpoint = b"tcp://%s:%s" % (host, port)
    beacon = TowerBeacon.decode([b"B", UUID, endpoint])
    assert beacon == TowerBeacon(UUID.decode(), endpoint.decode())
    assert beacon.encode() == [b"B", UUID, endpoint]


@pytest.mark.parametrize("port", BAD_PORTS)
def test_a_port_outside_1_to_65535_is_rejected(port: bytes) -> None:
    assert rejected_field(NodeBeacon, [b"B", UUID, b"h", port]) == "port"
    assert rejected_field(TowerBeacon, [b"B", UUID, b"tcp://h:" + port]) in ("port", "endpoint")


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_an_invalid_host_is_rejected(host: bytes) -> None:
    assert rejected_field(NodeBeacon, [b"B", UUID, host, b"80"]) == "host"
    assert rejected_field(TowerBeacon, [b"B", UUID, b"tcp://%s:80" % host]) == "endpoint"


@pytest.mark.parametrize("endpoint", BAD_ENDPOINTS)
def test_an_endpoint_with_more_than_a_host_and_a_port_is_rejected(endpoint: bytes) -> None:
    assert rejected_field(TowerBeacon, [b"B", UUID, endpoint]) == "endpoint"
    assert not is_peer_endpoint(endpoint.decode())


@pytest.mark.parametrize("uuid", [b"", b"u" * 256])
def test_an_address_outside_1_to_255_bytes_is_rejected(uuid: bytes) -> None:
    assert rejected_field(NodeBeacon, [b"B", uuid, b"h", b"80"]) == "uuid"
    assert rejected_field(TowerBeacon, [b"B", uuid, b"tcp://h:80"]) == "uuid"


def test_an_address_need_not_be_utf_8() -> None:
    assert NodeBeacon.decode([b"B", b"\xff\xfe", b"", b"80"]).encode()[1] == b"\xff\xfe"


@pytest.mark.parametrize("kind", [b"", b"b", b"W", b"BB"])
def test_a_first_frame_other_than_b_is_rejected(kind: bytes) -> None:
    assert rejected_field(NodeBeacon, [kind, UUID, b"h", b"80"]) == "type"
    assert rejected_field(TowerBeacon, [kind, UUID, b"tcp://h:80"]) == "type"


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
def test_another_number_of_frames_is_rejected(count: int) -> None:
    frames = [b"B", UUID, b"h", b"80", b""][:count]
    if count != 4:
        assert rejected_field(NodeBeacon, frames) == "frames"
    if count != 3:
        assert rejected_field(TowerBeacon, frames) == "frames"
