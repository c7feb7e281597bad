"""Scenarios for producers, consumers and stores: discovery through the tower, and peers that disappear."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from dafka_conformance.grammar import describe_address_fault
from dafka_conformance.model import Role
from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._nodes import MIB, SERIES_MAX, is_regular, silence_s, until_dropped
from dafka_conformance.scenarios._store import ask_heads, fetch_back, save
from dafka_conformance.targets.base import Ability
from dafka_conformance.testbed.discovery import ScriptedTower
from dafka_conformance.testbed.expectations import UnmetError
from dafka_conformance.testbed.known_records import record_content
from dafka_conformance.testbed.network import Sockets, new_address, wait_free
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.target_nodes import TargetNode
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()

ROLES = (Role.PRODUCER, Role.CONSUMER, Role.STORE)
BEACON_INTERVAL_MAX_S = 10.0
STARTED_S = 1.0
"""The time after its start during which a node may send beacons more often."""
NEW_PEERS_COUNT = 6
TOWER_AWAY_S = 0.5
RECONNECT_MAX_S = 4.0
"""The time within which a node that has not given up a peer tries to connect to it."""
REPEATED_COUNT = 20


def every_role(
    name: str, *clauses: str, feeds: bool = False, shares_target: bool = False
) -> Callable[[Callable[[Testbed], Awaitable[None]]], Callable[[Testbed], Awaitable[None]]]:
    """Return a decorator that adds a scenario for each role but the tower.

    Args:
        name: The name without the role.
        *clauses: The ids of the clauses that it tests.
        feeds: Whether a producer is given records, to check that it still works.
        shares_target: Whether it can run on a target that has already run other scenarios.

    Returns:
        The decorator.
    """

    def add(run: Callable[[Testbed], Awaitable[None]]) -> Callable[[Testbed], Awaitable[None]]:
        for role in ROLES:
            # Only nodes that the suite starts use its tower.
            needs = {Ability.START, Ability.FEED} if feeds and role is Role.PRODUCER else {Ability.START}
            SCENARIOS.add(f"{role.title}.{name}", *clauses, needs=needs, shares_target=shares_target)(run)
        return run

    return add


def scripted_tower(testbed: Testbed) -> ScriptedTower:
    """Return the suite's tower. The target has no other, because these scenarios start it."""
    assert isinstance(testbed.discovery, ScriptedTower)
    return testbed.discovery


async def check_works(testbed: Testbed, clause: str) -> None:
    """Check that the target still works with a new peer. Raise `UnmetError` if it does not."""
    testbed.check_running(clause)
    if testbed.role is Role.PRODUCER:
        sequence = testbed.message_checks.published_count(testbed.address)
        place = len(testbed.received)
        await testbed.feed([record_content(testbed.address, sequence)])
        await testbed.expect("RECORD", clause, lambda message: message["sequence"] == sequence, since=place)
        return
    label = f"P{next(number for number in range(1, 100) if f'P{number}' not in testbed.peers)}"
    producer = await testbed.add_peer(label)
    producer.add_records(3)
    producer.answers_requests = True
    await testbed.send(producer, "HEAD", producer.topic, address=producer.address, subject=producer.topic, sequence=2)
    await testbed.expect("FETCH", clause, lambda message: message.topic == producer.address)
    if testbed.role is Role.STORE:
        await testbed.expect(
            "ACK", clause, lambda message: (message.topic, message["sequence"]) == (producer.address, 2)
        )
    testbed.remove_peer(label)


async def expect_discovered(testbed: Testbed, label: str, clause: str, when: str) -> ScriptedPeer:
    """Add a peer, and check that the target connects to it. Raise `UnmetError` if it does not."""
    try:
        return await testbed.add_peer(label)
    except UnmetError:
        testbed.check_running(clause)
        testbed.check_clause(clause, False, f"the target did not connect to a node that was announced {when}")
        raise


async def beacons_of(testbed: Testbed, node: TargetNode, clause: str, count: int = 3) -> list[float]:
    """Return the times of the node's next beacons. Raise `UnmetError` if it stops sending them."""
    first = len(node.beacons)
    for number in range(1, count + 1):
        is_there = await testbed.wait(lambda number=number: len(node.beacons) >= first + number, BEACON_INTERVAL_MAX_S)  # type: ignore[misc]
        testbed.check_running(clause)
        text = f"no further beacon arrived within {BEACON_INTERVAL_MAX_S * testbed.patience:g} s"
        testbed.require_clause(clause, is_there, text)
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
async def beacons(testbed: Testbed) -> None:
    """A node sends beacons at regular intervals, and one at once when it discovers a new peer."""
    if not any(map(describe_address_fault, testbed.nodes)):  # if so, the beacon is reported
        testbed.check_clause("address.uuid", True)
    listeners = scripted_tower(testbed).listeners
    testbed.check_clause(
        "beacon.subscriber-connected", listeners > 0, "the target did not subscribe to the tower's beacons"
    )
    await trio.sleep(STARTED_S)
    nodes = list(testbed.nodes.values())
    intervals: list[float] = []

    async def measure(node: TargetNode) -> None:
        for _ in range(SERIES_MAX):
            times = await beacons_of(testbed, node, "beacon.interval")
            gaps = [times[1] - times[0], times[2] - times[1]]
            if is_regular(gaps):
                break
        text = f"beacons arrived after {gaps[0]:.1f} s and {gaps[1]:.1f} s, not at a regular interval"
        testbed.check_clause("beacon.interval", is_regular(gaps), text)
        intervals.append(sum(gaps) / 2)

    for node in nodes:
        await measure(node)
    await _expect_answers_to_new_peers(testbed, nodes[0], intervals[0])


async def _expect_answers_to_new_peers(testbed: Testbed, node: TargetNode, interval: float) -> None:
    """Announce new peers faster than the interval, and check that more beacons arrive than the interval explains."""
    place, begin = len(node.beacons), trio.current_time()

    def surplus() -> float:
        return len(node.beacons) - place - (trio.current_time() - begin) / interval - 1

    wanted = NEW_PEERS_COUNT / 2
    with new_peers(testbed, NEW_PEERS_COUNT) as announce:
        for _ in range(NEW_PEERS_COUNT):
            count = len(node.beacons)
            announce()
            await testbed.wait(lambda count=count: len(node.beacons) > count, 0.3 * interval / testbed.patience)  # type: ignore[misc]
        is_there = await testbed.wait(lambda: surplus() >= wanted, interval)
    found = len(node.beacons) - place
    text = (
        f"when {NEW_PEERS_COUNT} new peers were announced, {found} beacons arrived within "
        f"{trio.current_time() - begin:.1f} s, no more than the interval of {interval:.1f} s explains"
    )
    testbed.check_clause("beacon.on-new-peer", is_there, text)


@contextmanager
def new_peers(testbed: Testbed, count: int) -> Iterator[Callable[[], None]]:
    """Yield a function that announces a new, silent node. It can be called up to `count` times."""
    tower = scripted_tower(testbed)
    with Sockets() as sockets:
        unknown = [(new_address(), testbed.loopback.bind(sockets.publisher())) for _ in range(count)]
        known: list[bytes] = []

        def announce() -> None:
            address, endpoint = unknown.pop()
            known.append(address)
            testbed.trace.add_note("the tower announces a new node")
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
    shares_target=True,
)
async def discovers(testbed: Testbed) -> None:
    """A node connects once to each announced peer, subscribes there, and accepts connections."""
    tower = scripted_tower(testbed)
    first = await testbed.add_peer("C1")
    for _ in range(REPEATED_COUNT):
        tower.announce(first.address, first.endpoint)
    second = await testbed.add_peer(
        "C2"
    )  # beacons arrive in order: once it connects to C2, it has received all those of C1
    for peer in (first, second):
        await _expect_subscribed(testbed, peer)
        most = testbed.target.node_counts.get(testbed.role, 1)
        prefix, count = max(peer.subscriptions.items(), key=lambda item: item[1])
        text = (
            f"{peer.label} was announced repeatedly, and the target subscribed to {prefix[:1].decode('latin-1')} there "
            f"{count} times: it is connected more than once"
        )
        testbed.check_clause("subscriber.connects", count <= most, text)


async def _expect_subscribed(testbed: Testbed, peer: ScriptedPeer) -> None:
    """Check that the target has a subscription at the peer, which shows that it has a subscriber socket."""
    is_there = await testbed.wait(lambda: bool(+peer.subscriptions))
    text = f"the {testbed.role.title} subscribes to nothing at {peer.label}"
    testbed.require_clause("subscription.registered", is_there, text)


@every_role("malformed-beacons", "robust.malformed", feeds=True, shares_target=True)
async def malformed_beacons(testbed: Testbed) -> None:
    """A node ignores a tower's malformed beacons and still discovers peers."""
    tower = scripted_tower(testbed)
    address = new_address()
    for what, frames in [
        ("the frame B alone", [b"B"]),
        ("two frames", [b"B", address]),
        ("a node beacon", [b"B", address, b"", b"4711"]),
        ("ten frames", [b"B", address, b"tcp://127.0.0.1:4711", *[b"more"] * 7]),
        ("a welcome of two frames", [b"W", b"more"]),
        ("a type that only starts with B", [b"Beacon", address, b"tcp://127.0.0.1:4711"]),
        ("an empty endpoint", [b"B", new_address(), b""]),
        ("an endpoint without port", [b"B", new_address(), b"tcp://127.0.0.1"]),
        ("the port 0", [b"B", new_address(), b"tcp://127.0.0.1:0"]),
        ("the port 70000", [b"B", new_address(), b"tcp://127.0.0.1:70000"]),
        ("a port that is not a number", [b"B", new_address(), b"tcp://127.0.0.1:port"]),
        ("an unknown scheme", [b"B", new_address(), b"gopher://127.0.0.1:4711"]),
        ("an endpoint of %-signs", [b"B", new_address(), b"%s%n%s%n%s%n"]),
        ("an endpoint with a NUL", [b"B", new_address(), b"tcp://127.0.0.1\0:4711"]),
        ("garbage", [b"B", bytes(range(256)), bytes(range(256))]),
        ("an empty UUID", [b"B", b"", b"tcp://127.0.0.1:0"]),
        ("1 MiB of endpoint", [b"B", new_address(), b"tcp://" + b"a" * MIB + b":4711"]),
        ("1 MiB of UUID", [b"B", b"A" * MIB, b"tcp://127.0.0.1:0"]),
    ]:
        tower.send(frames, what)
    peer = await expect_discovered(testbed, "C1", "robust.malformed", "after malformed beacons")
    await _expect_subscribed(testbed, peer)
    await check_works(testbed, "robust.malformed")


@every_role("vanished-peer", "robust.vanished-peer", feeds=True, shares_target=True)
async def vanished_peer(testbed: Testbed) -> None:
    """Peers that disappear without notice do not prevent a node from serving the others."""
    other = await testbed.add_peer("C1")
    for label in ("P1", "C2", "P2"):
        await testbed.add_peer(label)
        testbed.remove_peer(label)
        await check_works(testbed, "robust.vanished-peer")
    await _expect_subscribed(testbed, other)


@every_role("silent-peer", "subscriber.connects", "robust.vanished-peer")
async def silent_peer(testbed: Testbed) -> None:
    """A node may disconnect from a silent peer; it connects again when the peer returns, and works meanwhile."""
    tower = scripted_tower(testbed)
    other = await testbed.add_peer("C2")  # added before the peer, so that a node that drops both drops this one first
    peer = await testbed.add_peer("P1" if testbed.role is Role.STORE else "C1")
    await _expect_subscribed(testbed, peer)
    if testbed.role is Role.STORE:
        await save(testbed, peer, 0, 4)
    before = dict(+peer.subscriptions)
    await until_dropped(testbed, peer)  # a node may keep it: `closed-peer` has one that cannot be kept
    testbed.check_running("subscriber.connects")
    if testbed.role is not Role.PRODUCER:  # the suite may not be able to feed a producer
        await check_works(testbed, "robust.vanished-peer")
    if testbed.role is Role.STORE:
        await _expect_kept(testbed, peer, 4, " whose producer had become silent")
    tower.announce(peer.address, peer.endpoint)
    is_back = await testbed.wait(lambda: all(peer.subscriptions[prefix] >= count for prefix, count in before.items()))
    lost = [event for event in testbed.trace.events if (event.receiver, event.label) == (other.label, "unsubscribe")]
    text = f"its connection to {other.label}, which the tower continued to announce, was dropped too"
    testbed.check_clause("subscriber.connects", not lost, text)
    text = "the connection to a silent peer was dropped and not restored when the peer returned"
    testbed.require_clause("subscriber.connects", is_back, text)
    if testbed.role is Role.STORE:
        await save(testbed, peer, 5, 9, clause="subscriber.connects")


@every_role("closed-peer", "subscriber.disconnects", "subscriber.connects", "robust.vanished-peer")
async def closed_peer(testbed: Testbed) -> None:
    """A node may give up a peer that is silent or closed; it connects again when the peer returns."""
    gone = await testbed.add_peer("P1" if testbed.role is Role.STORE else "C1")
    await _expect_subscribed(testbed, gone)
    if testbed.role is Role.STORE:
        await save(testbed, gone, 0, 4)
    before = dict(+gone.subscriptions)
    is_dropped = await until_dropped(testbed, gone)
    testbed.remove_peer(gone.label)
    if not is_dropped:  # it may keep a silent peer while the connection lives
        await trio.sleep(silence_s(testbed))
        is_dropped = not await _count_calls(testbed, gone.endpoint)
    testbed.check_running("subscriber.connects")
    text = f"{silence_s(testbed):g} s after a silent peer was closed, the target still tried to connect to it"
    testbed.check_clause("subscriber.disconnects", is_dropped, text)
    if testbed.role is not Role.PRODUCER:  # the suite may not be able to feed a producer
        await check_works(testbed, "robust.vanished-peer")
    if testbed.role is Role.STORE:
        await _expect_kept(testbed, gone, 4, " whose producer had left")
    try:
        back = await testbed.add_peer(gone.label, returning=gone)
    except UnmetError:
        testbed.check_clause("subscriber.connects", False, f"{gone.label} returned, and the target did not connect")
        raise
    is_back = await testbed.wait(lambda: all(back.subscriptions[prefix] >= count for prefix, count in before.items()))
    text = "the connection to a peer that had left was not restored when the peer returned"
    testbed.require_clause("subscriber.connects", is_back, text)
    if testbed.role is Role.STORE:
        await save(testbed, back, 5, 9, clause="subscriber.connects")


async def _count_calls(testbed: Testbed, endpoint: str) -> int:
    """Return how many connections the target makes to the endpoint of a closed peer within some seconds."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    testbed.trace.add_note("the suite listens for connections to the closed peer")
    await wait_free(endpoint)
    (listener,) = await trio.open_tcp_listeners(int(port), host=host)
    calls = 0
    async with listener:
        with trio.move_on_after(RECONNECT_MAX_S * max(testbed.patience, 1.0)):
            while True:
                stream = await listener.accept()
                calls += 1
                await stream.aclose()
    return calls


async def _expect_kept(testbed: Testbed, producer: ScriptedPeer, head: int, why: str) -> None:
    """Check that the store still serves the head and records of a partition. Raise `UnmetError` if it does not."""
    clause, partition = "robust.vanished-peer", producer.partition
    consumer = await testbed.add_peer("C1")
    await ask_heads(testbed, consumer)
    found = await testbed.receive(
        "DIRECT-HEAD", lambda each: (each.topic, each["sequence"]) == (consumer.address, head)
    )
    text = f"no DIRECT-HEAD of {head} arrived for a partition{why}"
    ended = testbed.exit_message()
    testbed.require_clause(clause, found is not None, ended or text, missing="" if ended else "DIRECT-HEAD")
    await fetch_back(testbed, consumer, partition, 0, head, clause=clause, after=why)
    testbed.remove_peer(consumer.label)


@every_role("tower-restart", "tower.restart", "beacon.publisher-connected", "beacon.subscriber-connected", feeds=True)
async def tower_restart(testbed: Testbed) -> None:
    """After a tower restarts, a node continues to send beacons and discovers new peers."""
    await testbed.restart_tower(TOWER_AWAY_S)
    for node in list(testbed.nodes.values()):
        await beacons_of(testbed, node, "tower.restart", 1)
    await testbed.wait(lambda: scripted_tower(testbed).listeners > 0)
    is_heard = scripted_tower(testbed).listeners > 0
    testbed.require_clause(
        "tower.restart", is_heard, "after the tower's restart, the target did not subscribe to its beacons again"
    )
    await expect_discovered(testbed, "C1", "tower.restart", "after its restart")
    await check_works(testbed, "tower.restart")
