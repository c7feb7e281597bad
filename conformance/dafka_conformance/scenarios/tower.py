"""What a tower must do: introduce nodes to each other, whatever else it is sent."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Sequence

import trio

from dafka_conformance.play.scenario import Registry
from dafka_conformance.scenarios._nodes import MIB
from dafka_conformance.stage.addresses import new_address
from dafka_conformance.stage.network import Sockets
from dafka_conformance.stage.stage import Stage
from dafka_conformance.stage.towers import TowerLink

SCENARIOS = Registry()

EVERYWHERE = "tcp://*:*"
BEACONS_COUNT = 150
LINKS_COUNT = 20
NODES_OF_LINK = 5
MIXED_ROUNDS = 5
SILENCE_S = 2.5
"""Longer than two beacon intervals: a tower that repeats what it knows does so meanwhile."""


async def open_link(stage: Stage, label: str) -> TowerLink:
    """A node's connections to the tower, which has greeted it. Raises `UnmetError`."""
    link = stage.tower_link(label)
    is_greeted = await stage.wait(lambda: link.welcomes > 0)
    stage.check_alive("tower.welcome")
    stage.require("tower.welcome", is_greeted, f"the subscriber {label} was not greeted with the message W")
    return link


async def introduce(stage: Stage, link: TowerLink, *hearers: TowerLink, clause: str = "tower.forwards") -> None:
    """A node that is new sends beacons, until all of these have heard of it. Raises `UnmetError`."""
    address = new_address()
    stage.trace.name(address, link.label)
    link.announce(address, "tcp://127.0.0.1:9")
    await expect_introduced(stage, address, link, *hearers, clause=clause)
    link.withdraw(address)


async def expect_introduced(stage: Stage, address: bytes, *hearers: TowerLink, clause: str = "tower.forwards") -> None:
    """The node's beacons, which go on being sent, come out at all of these. Raises `UnmetError`."""
    for hearer in hearers:
        is_there = await stage.wait(lambda hearer=hearer: address in hearer.endpoints)  # type: ignore[misc]
        stage.check_alive(clause)
        text = f"beacons of {stage.trace.show(address)} were sent, and {hearer.label} was told nothing of it"
        stage.require(clause, is_there, text)


@SCENARIOS.add("tower.welcome", "tower.welcome")
async def welcome(stage: Stage) -> None:
    """Every new subscriber is greeted with the welcome message."""
    for number in range(1, 4):
        await open_link(stage, f"N{number}")


@SCENARIOS.add("tower.forwards", "tower.forwards", "grammar.tower-beacon")
async def forwards(stage: Stage) -> None:
    """Each beacon of a node goes out to all, with its UUID and its endpoint."""
    sender, other = await open_link(stage, "N1"), await open_link(stage, "N2")
    await introduce(stage, sender, sender, other)
    address = new_address()
    for _ in range(BEACONS_COUNT):
        sender.send([b"B", address, b"198.51.100.7", b"4711"], uuid=address)
    for link in (sender, other):
        await stage.wait(lambda link=link: len(link.endpoints.get(address, ())) >= BEACONS_COUNT)  # type: ignore[misc]
        heard = link.endpoints.get(address, [])
        text = f"of {BEACONS_COUNT} beacons of a node, {link.label} was sent {len(heard)}"
        stage.require("tower.forwards", len(heard) == BEACONS_COUNT, text)
        wrong = next((endpoint for endpoint in heard if endpoint != "tcp://198.51.100.7:4711"), "")
        text = f"the beacon of a node at 198.51.100.7, port 4711, tells the endpoint {wrong}"
        stage.check("tower.forwards", not wrong, text)


@SCENARIOS.add("tower.peer-address", "tower.peer-address")
async def peer_address(stage: Stage) -> None:
    """A node that names no host is told of at an IP address at which it can be connected to."""
    link = await open_link(stage, "N1")
    with Sockets() as sockets:
        endpoint = sockets.publisher().bind(EVERYWHERE)
        address = new_address()
        link.announce(address, endpoint)
        await expect_introduced(stage, address, link)
        told = link.endpoints[address][0]
        host = told.removeprefix("tcp://").rpartition(":")[0]
        try:
            found = ipaddress.ip_address(host.strip("[]").partition("%")[0])
        except ValueError:
            found = None
        text = f"a node without host is told of at {told}: no IP address"
        stage.require("tower.peer-address", found is not None, text)
        assert found is not None
        # Connecting to it may work on the node's own machine, and does so nowhere else.
        text = f"a node without host is told of at {told}, which stands for any address of a machine, not for one"
        stage.require("tower.peer-address", not found.is_unspecified, text)
        caller = sockets.subscriber()
        monitor = sockets.monitor(caller)
        caller.connect(told)
        with trio.move_on_after(4 * stage.patience) as scope:
            await monitor.receive_many()
        text = f"a node without host is told of at {told}, where it cannot be connected to"
        stage.check("tower.peer-address", not scope.cancelled_caught, text)


@SCENARIOS.add("tower.given-host", "tower.given-host")
async def given_host(stage: Stage) -> None:
    """A host that a node names is passed on as it is, be it a name or an address."""
    link = await open_link(stage, "N1")
    for host in (b"node-7.example.org", b"203.0.113.9", b"localhost", b"[2001:db8::7]"):
        address = new_address()
        link.announce(address, "tcp://127.0.0.1:4711", host)
        await expect_introduced(stage, address, link)
        link.withdraw(address)
        told = link.endpoints[address][0]
        shown = host.decode("ascii")
        text = f"the beacon of a node that gave the host {shown} tells the endpoint {told}"
        stage.check("tower.given-host", told == f"tcp://{shown}:4711", text)


@SCENARIOS.add("tower.later-nodes", "tower.forwards")
async def later_nodes(stage: Stage) -> None:
    """Who joins later hears of those that were there before, by their next beacons, and they of it."""
    first = await open_link(stage, "N1")
    address = new_address()
    first.announce(address, "tcp://127.0.0.1:9")
    await expect_introduced(stage, address, first)
    second = await open_link(stage, "N2")
    await expect_introduced(stage, address, second)
    await introduce(stage, second, first, second)
    third = await open_link(stage, "N3")
    await expect_introduced(stage, address, third)


@SCENARIOS.add("tower.mixed-hosts", "tower.given-host", "tower.peer-address", "grammar.tower-beacon")
async def mixed_hosts(stage: Stage) -> None:
    """Nodes with and without a host, behind the same connection and at the same port, are not mistaken for another."""
    link = await open_link(stage, "N1")
    await introduce(stage, link, link)
    silent, given = new_address(), (new_address(), new_address())
    hosts = (b"203.0.113.9", b"198.51.100.7")
    for _ in range(MIXED_ROUNDS):
        for address, host in zip(given, hosts, strict=True):
            link.send([b"B", address, host, b"4711"], uuid=address, host=host)
        link.send([b"B", silent, b"", b"4711"], uuid=silent)
    for address in (*given, silent):
        await stage.wait(lambda address=address: len(link.endpoints.get(address, ())) >= MIXED_ROUNDS)  # type: ignore[misc]
        told = link.endpoints.get(address, [])
        text = f"of {MIXED_ROUNDS} beacons of {stage.trace.show(address)}, sent in turn with others' at the same port, "
        stage.require("tower.forwards", len(told) == MIXED_ROUNDS, text + f"{len(told)} were passed on")
    for address, host in zip(given, hosts, strict=True):
        expected = f"tcp://{host.decode('ascii')}:4711"
        wrong = next((endpoint for endpoint in link.endpoints[address] if endpoint != expected), "")
        text = f"the beacon of a node that gave the host {host.decode('ascii')} tells the endpoint {wrong}"
        stage.check("tower.given-host", not wrong, text)
    named = [endpoint for endpoint in link.endpoints[silent] if any(host.decode() in endpoint for host in hosts)]
    text = f"a node without host is told of at {named[0] if named else ''}: at the host of another node"
    stage.check("tower.peer-address", not named, text)


@SCENARIOS.add("tower.moved-node", "tower.forwards")
async def moved_node(stage: Stage) -> None:
    """A node that has moved is told of at its new endpoint."""
    link, address = await open_link(stage, "N1"), new_address()
    for host, port in ((b"203.0.113.9", b"4711"), (b"203.0.113.9", b"4712"), (b"198.51.100.7", b"4712")):
        endpoint = f"tcp://{host.decode('ascii')}:{port.decode('ascii')}"
        link.announce(address, endpoint, host)
        is_told = await stage.wait(lambda endpoint=endpoint: endpoint in link.endpoints.get(address, ()))  # type: ignore[misc]
        stage.check_alive("tower.forwards")
        told = link.endpoints.get(address, ["none"])[-1]
        text = f"a node's beacons name {endpoint} now; the last endpoint that was told of it is {told}"
        stage.require("tower.forwards", is_told, text)
    link.withdraw(address)


@SCENARIOS.add("tower.silent-node", "tower.forwards")
async def silent_node(stage: Stage) -> None:
    """A tower tells of a node when that sends a beacon, and at no other time: others must notice that it is gone."""
    link, other = await open_link(stage, "N1"), await open_link(stage, "N2")
    gone = new_address()
    stage.trace.name(gone, "N3")
    link.send([b"B", gone, b"203.0.113.9", b"4711"], uuid=gone)
    if not await stage.wait(lambda: gone in other.endpoints):
        # Connecting may have cost the first one.
        link.send([b"B", gone, b"203.0.113.9", b"4711"], uuid=gone)
    await expect_introduced(stage, gone, other)
    count = len(other.endpoints[gone])
    await trio.sleep(SILENCE_S)
    await introduce(stage, link, other)
    await introduce(stage, await open_link(stage, "N4"), other)
    again = len(other.endpoints[gone]) - count
    text = f"{again} further tower beacons told of a node that had sent one beacon alone"
    stage.check("tower.forwards", again == 0, text)


@SCENARIOS.add("tower.many-nodes", "tower.forwards")
async def many_nodes(stage: Stage) -> None:
    """A hundred nodes are introduced to each other."""
    links = [stage.tower_link(f"N{number}") for number in range(LINKS_COUNT)]
    is_greeted = await stage.wait(lambda: all(link.welcomes for link in links))
    text = f"{sum(not link.welcomes for link in links)} of {LINKS_COUNT} subscribers were not greeted"
    stage.require("tower.welcome", is_greeted, text)
    addresses = {new_address() for _ in range(LINKS_COUNT * NODES_OF_LINK)}
    for number, address in enumerate(sorted(addresses)):
        links[number % LINKS_COUNT].announce(address, f"tcp://127.0.0.1:{10_000 + number}")
    await stage.wait(lambda: all(addresses <= link.endpoints.keys() for link in links))
    worst = max(links, key=lambda link: len(addresses - link.endpoints.keys()))
    missing = len(addresses - worst.endpoints.keys())
    stage.check("tower.forwards", missing == 0, f"{missing} of {len(addresses)} nodes were not made known to another")


@SCENARIOS.add("tower.vanished-node", "robust.vanished-peer")
async def vanished_node(stage: Stage) -> None:
    """Nodes that vanish without a word do not hinder the others."""
    for number in range(1, 4):
        gone = await open_link(stage, f"N{number}")
        await introduce(stage, gone, gone)
        gone.vanish()
        stage.trace.note(f"{gone.label} is gone")
    first, second = await open_link(stage, "N4"), await open_link(stage, "N5")
    await introduce(stage, first, second, clause="robust.vanished-peer")


def malformed_beacons() -> list[tuple[str, Sequence[bytes]]]:
    """What no node beacon may be: what is wrong with it, and its frames."""
    address = new_address()
    return [
        ("the frame B alone", [b"B"]),
        ("two frames", [b"B", address]),
        ("three frames", [b"B", address, b""]),
        ("a fifth frame", [b"B", address, b"", b"4711", b"more"]),
        ("twenty frames", [b"B", address, b"", b"4711", *[b"x"] * 16]),
        ("a type that only begins with B", [b"BEACON", address, b"", b"4711"]),
        ("no port", [b"B", address, b"", b""]),
        ("a port that is no number", [b"B", address, b"", b"port"]),
        ("the port 0", [b"B", address, b"", b"0"]),
        ("the port 70000", [b"B", address, b"", b"70000"]),
        ("a negative port", [b"B", address, b"", b"-1"]),
        ("a port of many digits", [b"B", address, b"", b"9" * 400]),
        ("an empty UUID", [b"B", b"", b"", b"4711"]),
        ("a host with blanks", [b"B", address, b"a host\n", b"4711"]),
        ("a host of %-signs", [b"B", address, b"%s%n%s%n", b"4711"]),
        ("rubbish", [b"B", bytes(range(256)), bytes(range(256)), bytes(range(256))]),
        ("1 MiB of UUID", [b"B", b"A" * MIB, b"", b"4711"]),
        ("1 MiB of host", [b"B", address, b"a" * MIB, b"4711"]),
        ("1 MiB of type", [b"B" * MIB]),
    ]


@SCENARIOS.add("tower.malformed-beacons", "robust.malformed", "grammar.tower-beacon")
async def malformed(stage: Stage) -> None:
    """Malformed beacons are not passed on as something that is no tower beacon, and the tower goes on."""
    bad, good, hearer = [await open_link(stage, f"N{number}") for number in range(1, 4)]
    for what, frames in malformed_beacons():
        bad.send(frames, what)
        # The first may come too late: whoever sent what is malformed may be disconnected for it, and connects again.
        await introduce(stage, bad, hearer, clause="robust.malformed")
    await introduce(stage, good, hearer, clause="robust.malformed")
    stage.check_alive("robust.malformed")


@SCENARIOS.add("tower.rubbish", "robust.malformed")
async def rubbish(stage: Stage) -> None:
    """Who connects and speaks anything but ZeroMQ does no harm."""
    link = await open_link(stage, "N1")
    for endpoint in (stage.introductions.sub_endpoint, stage.introductions.pub_endpoint):
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        for octets in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64, b"\xff\0\0\0\0\0\0\0\0\x7f" + b"\xff" * 600):
            stream = await trio.open_tcp_stream(host, int(port))
            stage.trace.note(f"rubbish is sent to {endpoint}")
            with contextlib.suppress(trio.BrokenResourceError):  # it hangs up, which is well done
                await stream.send_all(octets)
            await stream.aclose()
    await introduce(stage, link, link, clause="robust.malformed")
    await introduce(stage, await open_link(stage, "N2"), link, clause="robust.malformed")
