from __future__ import annotations

from dafka import wire
from dafka.config import Config
from dafka.protocol import BeaconMachine, IntroducedAtLoopback

HERE, LOCAL, REMOTE = "tcp://127.0.0.1:4001", "tcp://10.0.0.1:4002", "tcp://10.0.0.2:4003"


def make_client() -> BeaconMachine:
    beacon = wire.NodeBeacon("ME", "", 4001)
    client = BeaconMachine(beacon, Config(), is_other_machine=lambda host: host == "10.0.0.2")
    client.start(0.0)
    client.tower_subscribed(0, [b"\1B"], 0.0)
    return client


def warnings(client: BeaconMachine, *beacons: wire.TowerBeacon) -> list[IntroducedAtLoopback]:
    events = client.heard(0, [beacon.encode() for beacon in beacons], 1.0)
    return [event for event in events if isinstance(event, IntroducedAtLoopback)]


def test_a_node_that_is_introduced_at_loopback_warns_once_if_there_are_other_machines() -> None:
    client = make_client()
    own = wire.TowerBeacon("ME", HERE)
    assert warnings(client, own, wire.TowerBeacon("A", LOCAL), own) == []
    assert warnings(client, wire.TowerBeacon("B", REMOTE)) == []
    assert warnings(client, own) == [IntroducedAtLoopback(HERE, REMOTE)]
    assert warnings(client, own) == []


def test_a_node_that_is_introduced_at_another_address_does_not_warn() -> None:
    client = make_client()
    own = wire.TowerBeacon("ME", "tcp://10.0.0.1:4001")
    assert warnings(client, wire.TowerBeacon("B", REMOTE), own) == []
