"""What every node must do towards the tower and its peers, whether it is a producer, a consumer or a store."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from dafka_conformance.model import Role
from dafka_conformance.play.scenario import Registry
from dafka_conformance.scenarios._nodes import MIB, SERIES_MAX, is_regular, silence_s, until_dropped
from dafka_conformance.scenarios._store import ask_heads, fetch_back, save
from dafka_conformance.stage.addresses import new_address
from dafka_conformance.stage.findings import UnmetError
from dafka_conformance.stage.ledger import content_of
from dafka_conformance.stage.meeting import TargetNode
from dafka_conformance.stage.network import LOOPBACK, Sockets
from dafka_conformance.stage.peer import Peer
from dafka_conformance.stage.stage import Stage
from dafka_conformance.stage.towers import PlayedTower
from dafka_conformance.targets.base import Ability

SCENARIOS = Registry()

ROLES = (Role.PRODUCER, Role.CONSUMER, Role.STORE)
BEACON_INTERVAL_MAX_S = 10.0
STARTED_S = 1.0
"""A node may send its first beacons more often, until it is known."""
NEWCOMERS_COUNT = 6
TOWER_AWAY_S = 0.5
REPEATED_COUNT = 20
_ADDRESS = re.compile(rb"[0-9A-F]{32}")


def every_role(
    name: str, *clauses: str, feeds: bool = False, shares: bool = False
) -> Callable[[Callable[[Stage], Awaitable[None]]], Callable[[Stage], Awaitable[None]]]:
    """Adds a scenario for each role of node. `feeds`: is the node to show that it still does its work?"""

    def add(play: Callable[[Stage], Awaitable[None]]) -> Callable[[Stage], Awaitable[None]]:
        for role in ROLES:
            # The suite's own tower is needed, which only nodes that it starts are told of.
            needs = {Ability.START, Ability.FEED} if feeds and role is Role.PRODUCER else {Ability.START}
            SCENARIOS.add(f"{role.title}.{name}", *clauses, needs=needs, shares=shares)(play)
        return play

    return add


def played_tower(stage: Stage) -> PlayedTower:
    """The suite's tower: these scenarios start their target, which has no other."""
    assert isinstance(stage.introductions, PlayedTower)
    return stage.introductions


async def works(stage: Stage, clause: str) -> None:
    """The target does with a new peer what its role is for. Raises `UnmetError`."""
    stage.check_alive(clause)
    if stage.role is Role.PRODUCER:
        sequence = stage.watch.published(stage.address)
        place = len(stage.heard)
        await stage.feed([content_of(stage.address, sequence)])
        await stage.expect("RECORD", clause, lambda message: message["sequence"] == sequence, since=place)
        return
    label = f"P{next(number for number in range(1, 100) if f'P{number}' not in stage.peers)}"
    producer = await stage.join(label)
    producer.hold(3)
    producer.answers = True
    await stage.say(producer, "HEAD", producer.topic, address=producer.address, subject=producer.topic, sequence=2)
    await stage.expect("FETCH", clause, lambda message: message.topic == producer.address)
    if stage.role is Role.STORE:
        await stage.expect("ACK", clause, lambda message: (message.topic, message["sequence"]) == (producer.address, 2))
    stage.leave(label)


async def expect_discovered(stage: Stage, label: str, clause: str, when: str) -> Peer:
    """A node joins, and is connected to. Raises `UnmetError`."""
    try:
        return await stage.join(label)
    except UnmetError:
        stage.check_alive(clause)
        stage.check(clause, False, f"a node that the tower told of {when} was not connected to")
        raise


async def beacons_of(stage: Stage, node: TargetNode, clause: str, count: int = 3) -> list[float]:
    """When the node's next beacons came. Raises `UnmetError` where it sends no more."""
    first = len(node.beacons)
    for number in range(1, count + 1):
        is_there = await stage.wait(lambda number=number: len(node.beacons) >= first + number, BEACON_INTERVAL_MAX_S)  # type: ignore[misc]
        stage.check_alive(clause)
        text = f"no further beacon came within {BEACON_INTERVAL_MAX_S * stage.patience:g} s"
        stage.require(clause, is_there, text)
    return node.beacons[first : first + count]


@every_role(
    "beacons",
    "beacon.interval",
    "grammar.node-beacon",
    "address.uuid",
    "beacon.sockets",
    "beacon.publisher-connected",
    "beacon.subscriber-connected",
    "publisher.address-sent",
    "beacon.on-new-peer",
)
async def beacons(stage: Stage) -> None:
    """A node tells the tower of itself at regular intervals, and at once when it hears of a new peer."""
    for address in stage.nodes:
        text = f"the address {stage.trace.show(address)} ({address!r}) is not of 32 upper-case hexadecimal digits"
        stage.check("address.uuid", _ADDRESS.fullmatch(address) is not None, text)
    listeners = played_tower(stage).listeners
    stage.check("beacon.subscriber-connected", listeners > 0, "nobody subscribed to the tower's beacons")
    await trio.sleep(STARTED_S)
    nodes = list(stage.nodes.values())
    intervals: list[float] = []

    async def measure(node: TargetNode) -> None:
        for _ in range(SERIES_MAX):
            times = await beacons_of(stage, node, "beacon.interval")
            gaps = [times[1] - times[0], times[2] - times[1]]
            if is_regular(gaps):
                break
        text = f"beacons came after {gaps[0]:.1f} s and then {gaps[1]:.1f} s, not at a regular interval"
        stage.check("beacon.interval", is_regular(gaps), text)
        intervals.append(sum(gaps) / 2)

    for node in nodes:
        await measure(node)
    await _expect_answers_to_newcomers(stage, nodes[0], intervals[0])


async def _expect_answers_to_newcomers(stage: Stage, node: TargetNode, interval: float) -> None:
    """Newcomers come faster than its interval lasts: more beacons must come than that accounts for."""
    place, begin = len(node.beacons), trio.current_time()

    def surplus() -> float:
        return len(node.beacons) - place - (trio.current_time() - begin) / interval - 1

    wanted = NEWCOMERS_COUNT / 2
    with newcomers(stage, NEWCOMERS_COUNT) as announce:
        for _ in range(NEWCOMERS_COUNT):
            count = len(node.beacons)
            announce()
            await stage.wait(lambda count=count: len(node.beacons) > count, 0.3 * interval / stage.patience)  # type: ignore[misc]
        is_there = await stage.wait(lambda: surplus() >= wanted, interval)
    found = len(node.beacons) - place
    text = (
        f"when {NEWCOMERS_COUNT} new peers were made known, {found} beacons came within "
        f"{trio.current_time() - begin:.1f} s, no more than its interval of {interval:.1f} s accounts for"
    )
    stage.check("beacon.on-new-peer", is_there, text)


@contextmanager
def newcomers(stage: Stage, count: int) -> Iterator[Callable[[], None]]:
    """Gives a function that makes one more node known, of up to `count`: one that says nothing."""
    tower = played_tower(stage)
    with Sockets() as sockets:
        unknown = [(new_address(), sockets.publisher().bind(LOOPBACK)) for _ in range(count)]
        known: list[bytes] = []

        def announce() -> None:
            address, endpoint = unknown.pop()
            known.append(address)
            stage.trace.note("the tower tells of a new node")
            tower.announce(address, endpoint)

        yield announce
        for address in known:
            tower.withdraw(address)


@every_role(
    "discovers",
    "subscriber.connects",
    "subscriber.socket",
    "subscription.registered",
    "publisher.bound",
    "publisher.address-sent",
    shares=True,
)
async def discovers(stage: Stage) -> None:
    """A node connects to each peer that it is told of, once, makes its subscriptions there, and can be connected to."""
    tower = played_tower(stage)
    first = await stage.join("C1")
    for _ in range(REPEATED_COUNT):
        tower.announce(first.address, first.endpoint)
    second = await stage.join("C2")  # what it is told comes in order: it has heard all that was said of C1
    for peer in (first, second):
        await _expect_subscribed(stage, peer)
        most = stage.target.node_counts.get(stage.role, 1)
        prefix, count = max(peer.subscriptions.items(), key=lambda item: item[1])
        text = (
            f"it was told of {peer.label} again and again, and subscribed to {prefix[:1].decode('latin-1')} there "
            f"{count} times: it is connected more than once"
        )
        stage.check("subscriber.connects", count <= most, text)


async def _expect_subscribed(stage: Stage, peer: Peer) -> None:
    """It has subscribed to something that concerns it, by which its further socket is known."""
    is_there = await stage.wait(lambda: bool(+peer.subscriptions))
    text = f"the {stage.role.title} subscribes to nothing at {peer.label}"
    stage.require("subscription.registered", is_there, text)


@every_role("malformed-beacons", "robust.malformed", feeds=True, shares=True)
async def malformed_beacons(stage: Stage) -> None:
    """A node pays no heed to malformed beacons of a tower, and still discovers peers."""
    tower = played_tower(stage)
    address = new_address()
    for what, frames in [
        ("the frame B alone", [b"B"]),
        ("two frames", [b"B", address]),
        ("a node beacon", [b"B", address, b"", b"4711"]),
        ("ten frames", [b"B", address, b"tcp://127.0.0.1:4711", *[b"more"] * 7]),
        ("a welcome of two frames", [b"W", b"more"]),
        ("a type that only begins with B", [b"Beacon", address, b"tcp://127.0.0.1:4711"]),
        ("an empty endpoint", [b"B", new_address(), b""]),
        ("an endpoint without port", [b"B", new_address(), b"tcp://127.0.0.1"]),
        ("the port 0", [b"B", new_address(), b"tcp://127.0.0.1:0"]),
        ("the port 70000", [b"B", new_address(), b"tcp://127.0.0.1:70000"]),
        ("a port that is no number", [b"B", new_address(), b"tcp://127.0.0.1:port"]),
        ("an unknown scheme", [b"B", new_address(), b"gopher://127.0.0.1:4711"]),
        ("an endpoint of %-signs", [b"B", new_address(), b"%s%n%s%n%s%n"]),
        ("an endpoint with a NUL", [b"B", new_address(), b"tcp://127.0.0.1\0:4711"]),
        ("rubbish", [b"B", bytes(range(256)), bytes(range(256))]),
        ("an empty UUID", [b"B", b"", b"tcp://127.0.0.1:0"]),
        ("1 MiB of endpoint", [b"B", new_address(), b"tcp://" + b"a" * MIB + b":4711"]),
        ("1 MiB of UUID", [b"B", b"A" * MIB, b"tcp://127.0.0.1:0"]),
    ]:
        tower.send(frames, what)
    peer = await expect_discovered(stage, "C1", "robust.malformed", "after malformed beacons")
    await _expect_subscribed(stage, peer)
    await works(stage, "robust.malformed")


@every_role("vanished-peer", "robust.vanished-peer", feeds=True, shares=True)
async def vanished_peer(stage: Stage) -> None:
    """Peers that vanish without a word do not hinder a node from serving the others."""
    other = await stage.join("C1")
    for label in ("P1", "C2", "P2"):
        await stage.join(label)
        stage.leave(label)
        await works(stage, "robust.vanished-peer")
    await _expect_subscribed(stage, other)


@every_role("silent-peer", "subscriber.disconnects", "subscriber.connects", "robust.vanished-peer")
async def silent_peer(stage: Stage) -> None:
    """Whether a node drops its connection to a peer that fell silent; it connects again when that is back.

    Meanwhile it goes on with its work, and a store has what a silent producer published.
    """
    tower = played_tower(stage)
    other = await stage.join("C2")  # before the peer: a node that forgets both forgets this one first
    peer = await stage.join("P1" if stage.role is Role.STORE else "C1")
    await _expect_subscribed(stage, peer)
    if stage.role is Role.STORE:
        await save(stage, peer, 0, 4)
    before = dict(+peer.subscriptions)
    is_dropped = await until_dropped(stage, peer)
    stage.check_alive("subscriber.connects")
    text = f"{silence_s(stage):g} s after the last sign of a peer, its connection was still there"
    stage.check("subscriber.disconnects", is_dropped, text)
    if stage.role is not Role.PRODUCER:  # a producer may be one that cannot be told to publish
        await works(stage, "robust.vanished-peer")
    if stage.role is Role.STORE:
        await _expect_kept(stage, peer, 4, ", whose producer had fallen silent")
    tower.announce(peer.address, peer.endpoint)
    is_back = await stage.wait(lambda: all(peer.subscriptions[prefix] >= count for prefix, count in before.items()))
    lost = [event for event in stage.trace.events if (event.receiver, event.label) == (other.label, "unsubscribe")]
    text = f"its connection to {other.label}, of which the tower went on telling, was dropped, too"
    stage.check("subscriber.connects", not lost, text)
    text = "the connection to a peer that was silent for some time was dropped, and not made again when it was back"
    stage.require("subscriber.connects", is_back, text)
    if stage.role is Role.STORE:
        await save(stage, peer, 5, 9, clause="subscriber.connects")


async def _expect_kept(stage: Stage, producer: Peer, head: int, why: str) -> None:
    """A consumer is told the head of a producer's partition, and sent its records. Raises `UnmetError`."""
    clause, partition = "robust.vanished-peer", producer.partition
    consumer = await stage.join("C1")
    await ask_heads(stage, consumer)
    found = await stage.hear("DIRECT-HEAD", lambda each: (each.topic, each["sequence"]) == (consumer.address, head))
    text = f"no DIRECT-HEAD of {head} came for a partition{why}"
    stage.require(clause, found is not None, stage.died() or text)
    await fetch_back(stage, consumer, partition, 0, head, clause=clause, after=why)
    stage.leave(consumer.label)


@every_role("tower-restart", "tower.restart", "beacon.publisher-connected", "beacon.subscriber-connected", feeds=True)
async def tower_restart(stage: Stage) -> None:
    """When a tower went away and came back, a node goes on with its beacons, and discovers newcomers."""
    await stage.restart_tower(TOWER_AWAY_S)
    for node in list(stage.nodes.values()):
        await beacons_of(stage, node, "tower.restart", 1)
    await stage.wait(lambda: played_tower(stage).listeners > 0)
    is_heard = played_tower(stage).listeners > 0
    stage.require("tower.restart", is_heard, "once the tower was back, nobody subscribed to its beacons again")
    await expect_discovered(stage, "C1", "tower.restart", "once it was back")
    await works(stage, "tower.restart")
