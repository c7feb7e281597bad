"""Tower scenarios: announcing nodes to each other, whatever else the tower receives."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Sequence

import trio

from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._nodes import MIB
from dafka_conformance.testbed.discovery import TowerClient
from dafka_conformance.testbed.network import Sockets, new_address
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()

EVERYWHERE = "tcp://*:*"
BEACONS_COUNT = 150
CLIENTS_COUNT = 20
NODES_PER_CLIENT = 5
MIXED_ROUNDS = 5
SILENCE_S = 2.5
"""More than two beacon intervals. A tower that repeats beacons would have done so by then."""


async def open_client(testbed: Testbed, label: str) -> TowerClient:
    """Connect a node to the tower and wait for the welcome message. Raise `UnmetError` if none arrives."""
    client = testbed.tower_client(label)
    is_welcomed = await testbed.wait(lambda: client.welcomes > 0)
    testbed.check_running("tower.welcome")
    testbed.require_clause("tower.welcome", is_welcomed, f"the subscriber {label} was not sent the welcome message W")
    return client


async def announce_until_received(
    testbed: Testbed, client: TowerClient, *observers: TowerClient, clause: str = "tower.forwards"
) -> None:
    """Announce a new node until all observers have received its beacon. Raise `UnmetError` if one does not."""
    address = new_address()
    testbed.trace.name_node(address, client.label)
    client.announce(address, "tcp://127.0.0.1:9")
    await expect_received(testbed, address, client, *observers, clause=clause)
    client.withdraw(address)


async def expect_received(
    testbed: Testbed, address: bytes, *observers: TowerClient, clause: str = "tower.forwards"
) -> None:
    """Wait until all observers have received a beacon of the node. Raise `UnmetError` if one does not."""
    for observer in observers:
        is_there = await testbed.wait(lambda observer=observer: address in observer.endpoints)  # type: ignore[misc]
        testbed.check_running(clause)
        text = f"beacons of {testbed.trace.show(address)} were sent, but none was forwarded to {observer.label}"
        testbed.require_clause(clause, is_there, text)


@SCENARIOS.add("tower.welcome", "tower.welcome")
async def welcome(testbed: Testbed) -> None:
    """Every new subscriber is sent the welcome message."""
    for number in range(1, 4):
        await open_client(testbed, f"N{number}")


@SCENARIOS.add("tower.forwards", "tower.forwards", "grammar.tower-beacon")
async def forwards(testbed: Testbed) -> None:
    """Each beacon of a node is forwarded to all, with its UUID and its endpoint."""
    sender, other = await open_client(testbed, "N1"), await open_client(testbed, "N2")
    await announce_until_received(testbed, sender, sender, other)
    address = new_address()
    for _ in range(BEACONS_COUNT):
        sender.send([b"B", address, b"198.51.100.7", b"4711"], uuid=address)
    for client in (sender, other):
        await testbed.wait(lambda client=client: len(client.endpoints.get(address, ())) >= BEACONS_COUNT)  # type: ignore[misc]
        received = client.endpoints.get(address, [])
        text = f"of {BEACONS_COUNT} beacons of a node, {client.label} was sent {len(received)}"
        testbed.require_clause("tower.forwards", len(received) == BEACONS_COUNT, text)
        wrong = next((endpoint for endpoint in received if endpoint != "tcp://198.51.100.7:4711"), "")
        text = f"the beacon of a node at 198.51.100.7, port 4711, has the endpoint {wrong}"
        testbed.check_clause("tower.forwards", not wrong, text)


@SCENARIOS.add("tower.peer-address", "tower.peer-address")
async def peer_address(testbed: Testbed) -> None:
    """A node without a host is announced with an IP address that others can connect to."""
    client = await open_client(testbed, "N1")
    with Sockets() as sockets:
        endpoint = sockets.publisher().bind(EVERYWHERE)
        address = new_address()
        client.announce(address, endpoint)
        await expect_received(testbed, address, client)
        announced = client.endpoints[address][0]
        host = announced.removeprefix("tcp://").rpartition(":")[0]
        try:
            found = ipaddress.ip_address(host.strip("[]").partition("%")[0])
        except ValueError:
            found = None
        text = f"a node without a host is announced at {announced}: expected an IP address"
        testbed.require_clause("tower.peer-address", found is not None, text)
        assert found is not None
        # A connection to it may work on the node's own machine only.
        text = f"a node without a host is announced at {announced}, which is a wildcard: expected a single address"
        testbed.require_clause("tower.peer-address", not found.is_unspecified, text)
        caller = sockets.subscriber()
        monitor = sockets.monitor(caller)
        caller.connect(announced)
        with trio.move_on_after(4 * testbed.patience) as scope:
            await monitor.receive_many()
        text = f"a node without a host is announced at {announced}, which does not accept connections"
        testbed.check_clause("tower.peer-address", not scope.cancelled_caught, text)


@SCENARIOS.add("tower.given-host", "tower.given-host")
async def given_host(testbed: Testbed) -> None:
    """A node's host is forwarded unchanged, whether it is a name or an address."""
    client = await open_client(testbed, "N1")
    for host in (b"node-7.example.org", b"203.0.113.9", b"localhost", b"[2001:db8::7]"):
        address = new_address()
        client.announce(address, "tcp://127.0.0.1:4711", host)
        await expect_received(testbed, address, client)
        client.withdraw(address)
        announced = client.endpoints[address][0]
        shown = host.decode("ascii")
        text = f"the beacon of a node with the host {shown} has the endpoint {announced}"
        testbed.check_clause("tower.given-host", announced == f"tcp://{shown}:4711", text)


@SCENARIOS.add("tower.later-nodes", "tower.forwards")
async def later_nodes(testbed: Testbed) -> None:
    """A node that joins later receives the next beacons of earlier nodes, and they receive its beacons."""
    first = await open_client(testbed, "N1")
    address = new_address()
    first.announce(address, "tcp://127.0.0.1:9")
    await expect_received(testbed, address, first)
    second = await open_client(testbed, "N2")
    await expect_received(testbed, address, second)
    await announce_until_received(testbed, second, first, second)
    third = await open_client(testbed, "N3")
    await expect_received(testbed, address, third)


@SCENARIOS.add("tower.mixed-hosts", "tower.given-host", "tower.peer-address", "grammar.tower-beacon")
async def mixed_hosts(testbed: Testbed) -> None:
    """Nodes with and without a host on the same connection and port are not confused."""
    client = await open_client(testbed, "N1")
    await announce_until_received(testbed, client, client)
    silent, given = new_address(), (new_address(), new_address())
    hosts = (b"203.0.113.9", b"198.51.100.7")
    for _ in range(MIXED_ROUNDS):
        for address, host in zip(given, hosts, strict=True):
            client.send([b"B", address, host, b"4711"], uuid=address, host=host)
        client.send([b"B", silent, b"", b"4711"], uuid=silent)
    for address in (*given, silent):
        await testbed.wait(lambda address=address: len(client.endpoints.get(address, ())) >= MIXED_ROUNDS)  # type: ignore[misc]
        announced = client.endpoints.get(address, [])
        text = f"of {MIXED_ROUNDS} beacons of {testbed.trace.show(address)}, mixed with others' at the same port, "
        testbed.require_clause(
            "tower.forwards", len(announced) == MIXED_ROUNDS, text + f"{len(announced)} were forwarded"
        )
    for address, host in zip(given, hosts, strict=True):
        expected = f"tcp://{host.decode('ascii')}:4711"
        wrong = next((endpoint for endpoint in client.endpoints[address] if endpoint != expected), "")
        text = f"the beacon of a node with the host {host.decode('ascii')} has the endpoint {wrong}"
        testbed.check_clause("tower.given-host", not wrong, text)
    named = [endpoint for endpoint in client.endpoints[silent] if any(host.decode() in endpoint for host in hosts)]
    text = f"a node without a host is announced at {named[0] if named else ''}: the host of another node"
    testbed.check_clause("tower.peer-address", not named, text)


@SCENARIOS.add("tower.moved-node", "tower.forwards")
async def moved_node(testbed: Testbed) -> None:
    """A node that has moved is announced at its new endpoint."""
    client, address = await open_client(testbed, "N1"), new_address()
    for host, port in ((b"203.0.113.9", b"4711"), (b"203.0.113.9", b"4712"), (b"198.51.100.7", b"4712")):
        endpoint = f"tcp://{host.decode('ascii')}:{port.decode('ascii')}"
        client.announce(address, endpoint, host)
        is_announced = await testbed.wait(lambda endpoint=endpoint: endpoint in client.endpoints.get(address, ()))  # type: ignore[misc]
        testbed.check_running("tower.forwards")
        announced = client.endpoints.get(address, ["none"])[-1]
        text = f"a node's beacons now have {endpoint}, but the last one that was forwarded has {announced}"
        testbed.require_clause("tower.forwards", is_announced, text)
    client.withdraw(address)


@SCENARIOS.add("tower.silent-node", "tower.forwards")
async def silent_node(testbed: Testbed) -> None:
    """A tower announces a node only when the node sends a beacon, so that others notice when it disappears."""
    client, other = await open_client(testbed, "N1"), await open_client(testbed, "N2")
    gone = new_address()
    testbed.trace.name_node(gone, "N3")
    client.send([b"B", gone, b"203.0.113.9", b"4711"], uuid=gone)
    if not await testbed.wait(lambda: gone in other.endpoints):
        # The first one may have been lost while connecting.
        client.send([b"B", gone, b"203.0.113.9", b"4711"], uuid=gone)
    await expect_received(testbed, gone, other)
    count = len(other.endpoints[gone])
    await trio.sleep(SILENCE_S)
    await announce_until_received(testbed, client, other)
    await announce_until_received(testbed, await open_client(testbed, "N4"), other)
    again = len(other.endpoints[gone]) - count
    text = f"{again} further tower beacons announced a node that had sent only one beacon"
    testbed.check_clause("tower.forwards", again == 0, text)


@SCENARIOS.add("tower.many-nodes", "tower.forwards")
async def many_nodes(testbed: Testbed) -> None:
    """A hundred nodes are announced to each other."""
    clients = [testbed.tower_client(f"N{number}") for number in range(CLIENTS_COUNT)]
    is_welcomed = await testbed.wait(lambda: all(client.welcomes for client in clients))
    missing = sum(not client.welcomes for client in clients)
    text = f"{missing} of {CLIENTS_COUNT} subscribers were not sent the welcome message"
    testbed.require_clause("tower.welcome", is_welcomed, text)
    addresses = {new_address() for _ in range(CLIENTS_COUNT * NODES_PER_CLIENT)}
    for number, address in enumerate(sorted(addresses)):
        clients[number % CLIENTS_COUNT].announce(address, f"tcp://127.0.0.1:{10_000 + number}")
    await testbed.wait(lambda: all(addresses <= client.endpoints.keys() for client in clients))
    worst = max(clients, key=lambda client: len(addresses - client.endpoints.keys()))
    missing = len(addresses - worst.endpoints.keys())
    testbed.check_clause(
        "tower.forwards", missing == 0, f"{missing} of {len(addresses)} nodes were not announced to another"
    )


@SCENARIOS.add("tower.vanished-node", "robust.vanished-peer")
async def vanished_node(testbed: Testbed) -> None:
    """Nodes that disappear without notice do not affect the others."""
    for number in range(1, 4):
        gone = await open_client(testbed, f"N{number}")
        await announce_until_received(testbed, gone, gone)
        gone.vanish()
        testbed.trace.add_note(f"{gone.label} disappears")
    first, second = await open_client(testbed, "N4"), await open_client(testbed, "N5")
    await announce_until_received(testbed, first, second, clause="robust.vanished-peer")


def malformed_beacons() -> list[tuple[str, Sequence[bytes]]]:
    """Return malformed node beacons: the fault and the frames of each."""
    address = new_address()
    return [
        ("the frame B alone", [b"B"]),
        ("two frames", [b"B", address]),
        ("three frames", [b"B", address, b""]),
        ("a fifth frame", [b"B", address, b"", b"4711", b"more"]),
        ("twenty frames", [b"B", address, b"", b"4711", *[b"x"] * 16]),
        ("a type that only starts with B", [b"BEACON", address, b"", b"4711"]),
        ("no port", [b"B", address, b"", b""]),
        ("a port that is not a number", [b"B", address, b"", b"port"]),
        ("the port 0", [b"B", address, b"", b"0"]),
        ("the port 70000", [b"B", address, b"", b"70000"]),
        ("a negative port", [b"B", address, b"", b"-1"]),
        ("a port of many digits", [b"B", address, b"", b"9" * 400]),
        ("an empty UUID", [b"B", b"", b"", b"4711"]),
        ("a host with blanks", [b"B", address, b"a host\n", b"4711"]),
        ("a host of %-signs", [b"B", address, b"%s%n%s%n", b"4711"]),
        ("garbage", [b"B", bytes(range(256)), bytes(range(256)), bytes(range(256))]),
        ("1 MiB of UUID", [b"B", b"A" * MIB, b"", b"4711"]),
        ("1 MiB of host", [b"B", address, b"a" * MIB, b"4711"]),
        ("1 MiB of type", [b"B" * MIB]),
    ]


@SCENARIOS.add("tower.malformed-beacons", "robust.malformed", "grammar.tower-beacon")
async def malformed(testbed: Testbed) -> None:
    """Malformed beacons are not forwarded as malformed tower beacons, and do not stop the tower."""
    bad, good, observer = [await open_client(testbed, f"N{number}") for number in range(1, 4)]
    for what, frames in malformed_beacons():
        bad.send(frames, what)
        # The tower may disconnect a client that sent a malformed beacon, so the next beacon may be lost.
        await announce_until_received(testbed, bad, observer, clause="robust.malformed")
    await announce_until_received(testbed, good, observer, clause="robust.malformed")
    testbed.check_running("robust.malformed")


@SCENARIOS.add("tower.rubbish", "robust.malformed")
async def rubbish(testbed: Testbed) -> None:
    """Connections that do not speak ZeroMQ do not affect the tower."""
    client = await open_client(testbed, "N1")
    for endpoint in (testbed.discovery.sub_endpoint, testbed.discovery.pub_endpoint):
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64, b"\xff\0\0\0\0\0\0\0\0\x7f" + b"\xff" * 600):
            stream = await trio.open_tcp_stream(host, int(port))
            testbed.trace.add_note(f"garbage is sent to {endpoint}")
            with contextlib.suppress(trio.BrokenResourceError):  # the tower may disconnect
                await stream.send_all(data)
            await stream.aclose()
    await announce_until_received(testbed, client, client, clause="robust.malformed")
    await announce_until_received(testbed, await open_client(testbed, "N2"), client, clause="robust.malformed")
