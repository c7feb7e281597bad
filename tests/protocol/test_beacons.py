"""The first form of beacons: when a node sends its own, when it is settled, and what it reports of its towers."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import BeaconMachine, IntroducedAtLoopback
from dafka.protocol.actions import SendToTower, SubscribeAtTower
from dafka.protocol.events import PeerJoined, PeerLeft, TowersHeard, TowersSilent
from dafka.protocol.presence.beacons import (
    NEW_NODE_BEACONS_BURST,
    NEW_NODE_BEACONS_PER_S,
    PREFIXES_MAX,
    SETTLE_PERIODS_MAX,
    UNECHOED_FACTOR,
    BeaconAction,
    Settled,
)
from dafka.protocol.presence.directory_client import (
    INTERVAL_MIN_S,
    JITTER,
    PAUSE_MAX_S,
    PULSES_MAX,
    SILENT_TIMEOUTS,
)

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
    assert warnings(client, wire.TowerBeacon("C", "tcp://10.0.0.2:4004")) == []
    assert warnings(client, own) == [IntroducedAtLoopback(HERE, REMOTE)]
    assert warnings(client, own) == []


# With a tower of the first form


SETTLE_S, INTERVAL_S, TIMEOUT_S = 0.5, 1.0, 4.0
CONFIG = Config().with_beacon(settle_ms=500, interval_ms=1000, timeout_ms=4000)
OWN = wire.TowerBeacon("ME", HERE)


def make_node(towers: int = 1, *, is_echoed: bool = False, config: Config = CONFIG) -> BeaconMachine:
    """Return a node whose first tower has subscribed to beacons, and has perhaps sent its beacon back."""
    node = BeaconMachine(wire.NodeBeacon("ME", "", 4001), config, towers=towers)
    node.start(0.0)
    node.tower_subscribed(0, [b"\1B"], 0.0)
    if is_echoed:
        hear(node, OWN, now=0.0)
    return node


def peer(number: int) -> wire.TowerBeacon:
    return wire.TowerBeacon(f"P{number}", f"tcp://10.0.0.1:{5000 + number}")


def hear(node: BeaconMachine, *beacons: wire.TowerBeacon, now: float, tower: int = 0) -> list[BeaconAction]:
    return node.heard(tower, [beacon.encode() for beacon in beacons], now)


def sent(actions: Sequence[BeaconAction]) -> list[int]:
    """Return the numbers of the towers that the node's beacon is sent to."""
    beacon = wire.NodeBeacon("ME", "", 4001).encode()
    return [action.tower for action in actions if isinstance(action, SendToTower) and action.frames == beacon]


def run_until_settled(node: BeaconMachine, until: float) -> float:
    """Call `tick` whenever it is due, and return when the node is settled; infinity if not until a time."""
    while (now := node.deadline()) <= until:
        if Settled() in node.tick(now):
            return now
    return inf


def test_a_node_sends_its_beacon_often_until_it_comes_back() -> None:
    node = BeaconMachine(wire.NodeBeacon("ME", "", 4001), CONFIG)
    node.start(0.0)
    actions = node.tower_subscribed(0, [b"\1B"], 0.0)
    assert actions[0] == SubscribeAtTower(0, b"B")
    assert sent(actions) == [0]
    hasty_s = INTERVAL_S / UNECHOED_FACTOR
    for number in range(1, 4):
        assert node.deadline() == pytest.approx(number * hasty_s)
        assert sent(node.tick(number * hasty_s - 0.01)) == []
        assert sent(node.tick(number * hasty_s)) == [0]
    assert sent(hear(node, OWN, now=0.35)) == []
    assert sent(node.tick(0.34 + INTERVAL_S)) == []
    assert sent(node.tick(0.35 + INTERVAL_S)) == [0]
    assert sent(hear(node, OWN, now=1.5)) == []
    assert sent(node.tick(0.34 + 2 * INTERVAL_S)) == []
    assert sent(node.tick(0.35 + 2 * INTERVAL_S)) == [0]


def test_a_node_answers_new_nodes_at_once_and_all_of_a_batch_together() -> None:
    node = make_node(is_echoed=True)
    actions = hear(node, peer(1), peer(2), now=0.1)
    assert [action.address for action in actions if isinstance(action, PeerJoined)] == ["P1", "P2"]
    assert sent(actions) == [0]
    assert sent(hear(node, peer(1), peer(2), OWN, now=0.2)) == []
    assert sent(node.heard(0, [[wire.WELCOME]], 0.3)) == [0], "the tower has just begun to hear this node"


def test_very_many_new_nodes_are_answered_together() -> None:
    node = make_node(is_echoed=True)
    answers = [sent(hear(node, peer(number), now=0.1)) for number in range(NEW_NODE_BEACONS_BURST + 2)]
    assert answers == [*[[0]] * NEW_NODE_BEACONS_BURST, [], []]
    assert node.deadline() == pytest.approx(0.1 + 1 / NEW_NODE_BEACONS_PER_S)
    assert sent(node.tick(node.deadline())) == [0]
    assert node.deadline() > 0.1 + SETTLE_S - 0.2


def test_a_node_is_settled_when_no_node_was_new_for_the_time() -> None:
    assert run_until_settled(make_node(), 10.0) == inf, "no tower has sent its beacon back"
    assert run_until_settled(make_node(is_echoed=True), 10.0) == SETTLE_S
    node = make_node(is_echoed=True)
    hear(node, peer(1), now=0.3)
    hear(node, peer(1), now=0.4)  # it is not new
    assert run_until_settled(node, 10.0) == pytest.approx(0.3 + SETTLE_S)
    assert run_until_settled(node, 10.0) == inf, "it is reported once"


def test_a_node_is_settled_although_new_nodes_come_without_end() -> None:
    node = make_node(is_echoed=True)
    settled_at = inf
    number = 0
    while settled_at == inf:
        hear(node, peer(number), now=0.4 * number)
        number += 1
        settled_at = run_until_settled(node, 0.4 * number)
    assert 0.4 * (SETTLE_PERIODS_MAX - 1) < settled_at <= SETTLE_S * SETTLE_PERIODS_MAX


def test_a_node_waits_for_its_other_towers_but_not_without_end() -> None:
    node = make_node(towers=2, is_echoed=True)
    # The other tower has not answered at all: it gets one more period.
    assert run_until_settled(node, 10.0) == pytest.approx(2 * SETTLE_S)
    node = make_node(towers=2, is_echoed=True)
    node.tower_subscribed(1, [b"\1B"], 0.1)
    hear(node, OWN, now=0.2, tower=1)
    assert run_until_settled(node, 10.0) == pytest.approx(SETTLE_S)


def test_a_node_waits_long_for_the_directory_of_a_tower_that_it_has_found() -> None:
    node = make_node(towers=2, is_echoed=True)
    node.tower_subscribed(1, [b"\1" + wire.REGISTRATION], 0.1)
    assert run_until_settled(node, 10.0) == pytest.approx(SETTLE_S + SETTLE_PERIODS_MAX * SETTLE_S)


def listed(node: BeaconMachine, tower: bytes, now: float) -> None:
    """Send the node a whole directory of a tower."""
    for frames in wire.encode_pages("ME", tower, {}, [], 1000):
        node.heard(0, [frames], now)


def test_a_tower_that_has_sent_its_directory_once_keeps_the_second_form() -> None:
    node = BeaconMachine(wire.NodeBeacon("ME", "", 4001), CONFIG)
    node.start(0.0)
    node.tower_subscribed(0, [b"\1" + wire.REGISTRATION, b"\1B"], 0.0)
    listed(node, b"T" * 8, 0.0)
    now = 0.0
    for number in range(2 * PULSES_MAX):
        now = 0.1 * number
        node.heard(0, [wire.Pulse(b"restarts", 1000, {}).encode()], now)
        assert SubscribeAtTower(0, b"B") not in node.tick(now)


def make_listed(*, pause_ms: int = 1000) -> BeaconMachine:
    """Return a node that has the directory of a tower, and has heard its pulse."""
    node = BeaconMachine(wire.NodeBeacon("ME", "", 4001), CONFIG)
    node.start(0.0)
    node.tower_subscribed(0, [b"\1" + wire.REGISTRATION], 0.0)
    listed(node, b"T" * 8, 0.0)
    node.heard(0, [wire.Pulse(b"T" * 8, 60_000, {}, pause_ms).encode()], 0.0)
    return node


def asks_directory(actions: Sequence[BeaconAction]) -> bool:
    sent_frames = [action.frames for action in actions if isinstance(action, SendToTower)]
    return any(wire.Registration.decode(frames).asks_directory for frames in sent_frames)


@pytest.mark.parametrize(("tower", "number", "asks"), [(b"T" * 8, 1, False), (b"T" * 8, 2, True), (b"U" * 8, 1, True)])
def test_a_change_that_does_not_follow_the_directory_makes_a_node_ask_for_it(
    tower: bytes, number: int, asks: bool
) -> None:
    entry = wire.DirectoryEntry("A", "tcp://10.0.0.1:1", "", wire.Role.STORE)
    changes = wire.encode_changes(wire.Role.STORE, tower, number, [(True, entry.encode())])
    assert asks_directory(make_listed().heard(0, [changes], 0.1)) is asks


@pytest.mark.parametrize(("pause_ms", "is_tower_silent"), [(0, True), (1000, True), (10_000, False)])
def test_a_tower_is_not_silent_before_its_next_pulse_is_due(pause_ms: int, is_tower_silent: bool) -> None:
    node = make_listed(pause_ms=pause_ms)
    hear(node, peer(1), now=0.0)
    left = []
    while (now := node.deadline()) < 6.0:
        left += [each.is_tower_silent for each in node.tick(now) if isinstance(each, PeerLeft)]
    assert left == [is_tower_silent]


def test_a_tower_cannot_announce_a_silence_without_end() -> None:
    node = BeaconMachine(wire.NodeBeacon("ME", "", 4001), CONFIG)
    node.start(0.0)
    node.tower_subscribed(0, [b"\1" + wire.REGISTRATION], 0.0)
    listed(node, b"T" * 8, 0.0)
    node.heard(0, [wire.Pulse(b"T" * 8, 10_000_000, {}, 2**32 - 1).encode()], 0.0)
    asked = [
        now
        for now in (PAUSE_MAX_S + SILENT_TIMEOUTS * TIMEOUT_S - 0.1, PAUSE_MAX_S + SILENT_TIMEOUTS * TIMEOUT_S)
        for action in node.tick(now)
        if isinstance(action, SendToTower) and wire.Registration.decode(action.frames).asks_directory
    ]
    assert asked == [PAUSE_MAX_S + SILENT_TIMEOUTS * TIMEOUT_S]


def test_a_beacon_goes_to_every_tower_that_knows_the_form() -> None:
    node = make_node(towers=3)
    assert sent(node.tower_subscribed(2, [b"\1"], 0.0)) == [2], "it subscribes to everything"
    assert sent(node.tick(0.1)) == [0, 2]
    assert sent(node.tower_subscribed(1, [b"\1X"], 0.0)) == []
    assert sent(node.tower_subscribed(1, [b"\1B"], 0.15)) == [1]
    assert sent(node.tick(0.2)) == [0, 1, 2]


def test_a_tower_that_has_connected_again_gets_the_beacon_at_once() -> None:
    node = make_node(is_echoed=True)
    assert node.tower_subscribed(0, [b"\0B"], 1.0) == []
    assert node.tower_subscribed(0, [b"\1B"], 2.0) == [SendToTower(0, wire.NodeBeacon("ME", "", 4001).encode())]


def test_a_tower_that_subscribes_to_very_much_is_not_remembered_without_limit() -> None:
    node = BeaconMachine(wire.NodeBeacon("ME", "", 4001), CONFIG)
    node.start(0.0)
    node.tower_subscribed(0, [b"\1X%d" % number for number in range(PREFIXES_MAX)], 0.0)
    assert node.tower_subscribed(0, [b"\1B"], 0.0) == []
    node.tower_subscribed(0, [b"\0X1"], 0.0)
    assert sent(node.tower_subscribed(0, [b"\1B"], 0.0)) == [0]


def test_silent_towers_are_reported_each_minute_until_one_is_heard() -> None:
    config = CONFIG.with_node(tower_timeout_ms=5000)
    node = make_node(config=config)
    times = [number / 10 for number in range(1, 1500)]
    reports = [each for now in times for each in node.tick(now) if isinstance(each, TowersSilent)]
    assert [each.seconds for each in reports] == pytest.approx([5.0, 65.0, 125.0], abs=1)
    assert {each.towers for each in reports} == {config.beacon.tower_pub}
    assert TowersHeard() in hear(node, OWN, now=150.0)
    assert TowersHeard() not in hear(node, OWN, now=150.1)
    assert [each for each in node.tick(154.9) if isinstance(each, TowersSilent)] == []
    assert [each for each in node.tick(155.9) if isinstance(each, TowersSilent)] != []


def test_the_silence_of_towers_is_told_from_that_of_one_node() -> None:
    node = make_node(is_echoed=True)
    hear(node, peer(1), peer(2), now=1.0)
    for number in range(2, 8):
        hear(node, OWN, peer(2), now=float(number))
        left = [each for each in node.tick(float(number)) if isinstance(each, PeerLeft)]
        assert not any(each.is_tower_silent for each in left)
    left = []
    while (now := node.deadline()) < 20.0:
        left += [each for each in node.tick(now) if isinstance(each, PeerLeft)]
    assert [(each.address, each.is_tower_silent) for each in left] == [("P2", True)]


def pulse(interval_ms: int) -> list[bytes]:
    return wire.Pulse(b"T" * 8, interval_ms, {}).encode()


def test_a_tower_that_sends_no_directory_gets_beacons_of_the_first_form() -> None:
    node = BeaconMachine(wire.NodeBeacon("ME", "", 4001), CONFIG)
    node.start(0.0)
    assert sent(node.tower_subscribed(0, [b"\1" + wire.REGISTRATION, b"\1B"], 0.0)) == []
    for number in range(PULSES_MAX):
        assert SubscribeAtTower(0, b"B") not in node.tick(0.01 * number), "the directory may still come"
        node.heard(0, [pulse(1000)], 0.01 * number)
    actions = node.tick(0.2)
    assert SubscribeAtTower(0, b"B") in actions
    assert sent(actions) == [0]


def test_a_tower_cannot_make_a_node_register_without_a_pause() -> None:
    node = BeaconMachine(wire.NodeBeacon("ME", "", 4001), CONFIG, draw=lambda: 1.0)
    node.start(0.0)
    node.tower_subscribed(0, [b"\1" + wire.REGISTRATION], 0.0)
    node.heard(0, wire.encode_pages("ME", b"T" * 8, {}, [], 1000), 0.5)
    node.heard(0, [pulse(0)], 0.5)
    assert node.deadline() == pytest.approx(0.5 + INTERVAL_MIN_S * (1 - JITTER))
    assert len(node.tick(0.6)) == 1
    assert node.deadline() == pytest.approx(0.6 + INTERVAL_MIN_S * (1 - JITTER))


def test_rubbish_is_discarded_and_counted() -> None:
    node = make_node(is_echoed=True)
    assert node.heard(0, [[b"rubbish"], [b"B"], [b""]], 0.1) == []
    assert node.discarded.total() == 3
    crowded = make_node(config=CONFIG.with_node(peers_max=1), is_echoed=True)
    hear(crowded, peer(1), peer(2), now=0.1)
    assert crowded.discarded == {"too many nodes": 1}
    assert len(crowded.peers) == 1
