from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import zmq
from trio.testing import MockClock

from dafka.config import Config
from dafka.discovery import Advertisement, Discovery, DiscoveryEvent, Settled, open_discovery
from dafka.discovery.tower import TowerDiscovery, _BeaconClient
from dafka.endpoints import PeerEndpoint
from dafka.errors import DiscoveryError
from dafka.protocol import PeerJoined, PeerLeft, TowersHeard, TowersSilent
from dafka.protocol.presence.beacons import BeaconAction, BeaconMachine
from dafka.records import new_address
from dafka.roles import Tower, serve_tower
from dafka.testing import check_discovery
from dafka.transport import KeyPair, Socket, open_context
from dafka.transport.keys import write_key_file
from dafka.wire import Role, TowerBeacon
from tests.ports import free_endpoints
from tests.roles.helpers import receive_messages
from tests.waiting import DEADLINE_S, wait_until

FREE = "tcp://127.0.0.1:*"
AN_HOUR_MS = 3_600_000


@asynccontextmanager
async def open_tower(sub: str = FREE, pub: str = FREE) -> AsyncIterator[Tower]:
    config = Config().with_tower(sub=sub, pub=pub).with_beacon(timeout_ms=AN_HOUR_MS)
    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve_tower, config)
        nursery.cancel_scope.cancel()


def config_of(*towers: Tower, interval_ms: int = AN_HOUR_MS, timeout_ms: int = 4 * AN_HOUR_MS) -> Config:
    return config_at([(tower.sub_endpoint, tower.pub_endpoint) for tower in towers], interval_ms, timeout_ms)


def config_at(endpoints: list[tuple[str, str]], interval_ms: int, timeout_ms: int) -> Config:
    return Config().with_beacon(
        tower_sub=tuple(sub for sub, _ in endpoints),
        tower_pub=tuple(pub for _, pub in endpoints),
        interval_ms=interval_ms,
        timeout_ms=timeout_ms,
    )


class Node:
    """A node that runs only its discovery.

    Attributes:
        reports: The events that its discovery has reported so far.
    """

    def __init__(self, port: int, host: str = "", address: str = "", role: Role = Role.ANY) -> None:
        self.advertisement = Advertisement(address or new_address(), host, port, role)
        self.reports: list[DiscoveryEvent] = []
        self.discovery: Discovery | None = None
        self._changed = trio.Event()
        self._scope = trio.CancelScope()
        self._stopped = trio.Event()

    @property
    def joined(self) -> PeerJoined:
        return PeerJoined(self.advertisement.address, PeerEndpoint(f"tcp://127.0.0.1:{self.advertisement.port}"))

    @property
    def left(self) -> PeerLeft:
        return PeerLeft(self.advertisement.address, PeerEndpoint(f"tcp://127.0.0.1:{self.advertisement.port}"))

    async def run(self, config: Config, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        discovery = self.discovery = open_discovery(config)
        with trio.CancelScope() as self._scope:
            await discovery.run(self.advertisement, self._take, task_status=task_status)
        self._stopped.set()

    async def stop(self) -> None:
        self._scope.cancel()
        await self._stopped.wait()

    async def wait(self, *reports: DiscoveryEvent) -> None:
        """Wait until each of these was reported."""
        await self.wait_reports(lambda: set(reports) <= set(self.reports))

    async def wait_reports(self, is_reached: Callable[[], bool], seconds: float = 60) -> None:
        with trio.fail_after(seconds):
            while not is_reached():
                await self._changed.wait()

    def _take(self, report: DiscoveryEvent) -> None:
        self.reports.append(report)
        self._changed.set()
        self._changed = trio.Event()


@asynccontextmanager
async def running(*nodes: Node, config: Config) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.run, config)
        yield nursery
        nursery.cancel_scope.cancel()


# Finding each other


async def test_tower_discovery_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(check_discovery.__globals__, "CANCEL_S", DEADLINE_S)  # sockets close in a thread
    peers = [Node(7001), Node(7002)]

    async def stop_peers() -> None:
        for peer in peers:
            await peer.stop()

    async with open_tower() as tower:
        config = config_of(tower, interval_ms=50, timeout_ms=400)
        async with running(*peers, config=config):
            await check_discovery(
                lambda: open_discovery(config),
                Advertisement(new_address(), "", 7003),
                peers=[PeerEndpoint("tcp://127.0.0.1:7001"), PeerEndpoint("tcp://127.0.0.1:7002")],
                stop_peers=stop_peers,
                timeout_s=DEADLINE_S,
            )


async def test_nodes_find_those_that_their_role_needs_without_waiting_for_an_interval() -> None:
    one, two, late = Node(7001, role=Role.CONSUMER), Node(7002, role=Role.PRODUCER), Node(7003, role=Role.PRODUCER)
    async with open_tower() as tower, running(one, two, config=config_of(tower)) as nursery:
        await one.wait(two.joined, Settled())
        await two.wait(one.joined, Settled())
        await nursery.start(late.run, config_of(tower))
        await one.wait(late.joined)
        await late.wait(one.joined, Settled())
    assert [report for report in late.reports if isinstance(report, PeerJoined)] == [one.joined]


# Towers


async def test_restarted_tower_is_found_again() -> None:
    one, two, late = Node(7001), Node(7002), Node(7003)
    async with trio.open_nursery() as nursery:
        sub, pub = free_endpoints(2)
        async with open_tower(sub, pub) as tower:
            config = config_of(tower, interval_ms=50)
            for node in (one, two):
                await nursery.start(node.run, config)
            await one.wait(two.joined, Settled())
            await two.wait(one.joined, Settled())
        async with open_tower(sub, pub):
            await nursery.start(late.run, config)
            await late.wait(one.joined, two.joined, Settled())
            await one.wait(late.joined)
            await two.wait(late.joined)
        assert not [report for report in one.reports + two.reports if isinstance(report, PeerLeft)]
        nursery.cancel_scope.cancel()


async def test_a_tower_that_comes_to_know_the_second_form_is_not_heard_in_the_first_any_more() -> None:
    node = Node(7001)
    async with open_socket(zmq.SocketType.SUB) as subscriber, open_socket(zmq.SocketType.XPUB) as publisher:
        endpoints = subscriber.bind(FREE), publisher.bind(FREE)
        async with running(node, config=config_at([endpoints], AN_HOUR_MS, AN_HOUR_MS)):
            subscriptions: list[bytes] = []
            with trio.fail_after(60):
                for form, prefix in ((b"B", b"\1B"), (b"A", b"\0B")):
                    subscriber.subscribe(form)
                    assert [frames[0] for frames in await subscriber.receive_many()] == [form]
                    while prefix not in subscriptions:
                        subscriptions += [frames[0] for frames in await publisher.receive_many()]
            assert subscriptions.count(b"\1B") == 1


def has_nodes(tower: Tower, count: int) -> bool:
    return tower.statistics().nodes == count


@pytest.mark.parametrize("towers", ["ab ab", "-a -a", "ab ba", "ab b", "b ab", "ab- a", "-b ab"])
async def test_nodes_find_each_other_once_through_all_towers_that_they_send_to_and_hear(towers: str) -> None:
    """The letters name the towers at the SUB and at the PUB endpoints; at a dash is none."""
    one, two = Node(7001), Node(7002)
    async with open_tower() as first, open_tower() as second:
        endpoints = {"a": (first.sub_endpoint, first.pub_endpoint), "b": (second.sub_endpoint, second.pub_endpoint)}
        sub, pub = free_endpoints(2)
        endpoints["-"] = (sub, pub)
        subs, pubs = towers.split()
        config = Config().with_beacon(
            tower_sub=tuple(endpoints[each][0] for each in subs),
            tower_pub=tuple(endpoints[each][1] for each in pubs),
            interval_ms=50,
            timeout_ms=AN_HOUR_MS,
        )
        async with running(one, two, config=config):
            await one.wait(two.joined, TowersHeard(), Settled())
            await two.wait(one.joined, TowersHeard(), Settled())
            for letter, tower in ("a", first), ("b", second):
                await wait_until(partial(has_nodes, tower, 2 if letter in subs else 0))
        assert [report for report in one.reports if isinstance(report, PeerJoined)] == [two.joined]


async def test_nodes_of_a_closed_cluster_find_each_other_and_their_keys_through_towers_with_a_key_each(
    tmp_path: Path,
) -> None:
    pairs = {name: KeyPair.generate(name) for name in ("first", "second", "one", "two")}
    names = {pair.public: name for name, pair in pairs.items()}
    (tmp_path / "all").write_text("".join(f"{key} {name}\n" for key, name in names.items()))
    for name, pair in pairs.items():
        write_key_file(tmp_path / name, pair)

    def closed(config: Config, name: str, *towers: str) -> Config:
        tower_keys = tuple(pairs[each].public for each in towers)
        paths = {"key_file": str(tmp_path / name), "authorized_keys": str(tmp_path / "all")}
        return config.with_security(**paths, tower_keys=tower_keys)

    async with trio.open_nursery() as nursery:
        towers = [
            await nursery.start(serve_tower, closed(Config().with_tower(sub=FREE, pub=FREE), name))
            for name in ("first", "second")
        ]
        nodes = {"one": Node(7001), "two": Node(7002)}
        for name, node in nodes.items():
            await nursery.start(node.run, closed(config_of(*towers), name, "first", "second"))
        for name, other in (("one", "two"), ("two", "one")):
            peer = PeerEndpoint(nodes[other].joined.endpoint.endpoint, pairs[other].public)
            await nodes[name].wait(PeerJoined(nodes[other].advertisement.address, peer), Settled())
        for tower in towers:
            await wait_until(partial(has_nodes, tower, 2))
        nursery.cancel_scope.cancel()


async def test_silence_of_all_towers_and_its_end_are_reported() -> None:
    node = Node(7001)
    sub, pub = free_endpoints(2)
    config = config_at([(sub, pub)], 50, AN_HOUR_MS).with_node(tower_timeout_ms=300)

    def kinds() -> list[type[DiscoveryEvent]]:
        return [type(report) for report in node.reports]

    async with running(node, config=config):
        await node.wait_reports(lambda: kinds() == [TowersSilent])
        silent = node.reports[0]
        assert isinstance(silent, TowersSilent)
        assert silent.seconds >= 0.3
        async with open_tower(sub, pub):
            await node.wait_reports(lambda: TowersHeard in kinds() and Settled in kinds())
        await node.wait_reports(lambda: kinds()[-1] is TowersSilent)
        found = [kind for kind in kinds() if kind is not Settled]
        assert found == [TowersSilent, TowersHeard] * (len(found) // 2) + [TowersSilent], "it reports changes only"


async def test_cancelled_discovery_closes_its_sockets() -> None:
    async with open_tower() as tower:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            async with running(Node(7001), config=config_of(tower)):
                pass
        await wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)


async def test_a_deadline_that_becomes_earlier_wakes_the_discovery_up(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    due, ticked = trio.current_time() + 1000, list[float]()

    def tick(_self: BeaconMachine, now: float) -> list[BeaconAction]:
        nonlocal due
        ticked.append(now)
        due = now + 1000
        return []

    monkeypatch.setattr(BeaconMachine, "deadline", lambda _: due)
    monkeypatch.setattr(BeaconMachine, "tick", tick)
    client = _BeaconClient(Advertisement(new_address(), "", 1), Config(), [], lambda _: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.keep_time)
        await trio.sleep(1)
        expected = due = trio.current_time() + 10
        client._act([])
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert ticked == [pytest.approx(expected)]


def test_tower_takes_no_argument() -> None:
    with pytest.raises(
        DiscoveryError, match=r"^discovery 'tower': expected no argument, not 'here'; name the towers in \[beacon\]"
    ):
        open_discovery(Config().with_node(discovery="tower:here"))


# Invalid messages

UUID = b"A" * 32

NO_BEACONS = [[b"B"], [b"Bx", UUID, b"", b"7001"], [b"B", b"", b"", b"7001"], [b"B", UUID, b"host name", b"7001"]]


@asynccontextmanager
async def open_socket(kind: zmq.SocketType) -> AsyncIterator[Socket]:
    async with open_context(0) as context:
        socket = Socket(context.socket(kind))
        try:
            yield socket
        finally:
            socket.close(0)


async def test_tower_counts_invalid_messages_and_continues() -> None:
    one, two = Node(7001), Node(7002)
    async with (
        open_tower() as tower,
        open_socket(zmq.SocketType.XPUB) as publisher,
        open_socket(zmq.SocketType.XSUB) as subscriber,
    ):
        publisher.connect(tower.sub_endpoint)
        assert await receive_messages(publisher, 2) == [[b"\x01A"], [b"\x01B"]]
        publisher.send_many(NO_BEACONS)
        await wait_until(lambda: tower.statistics().discarded == len(NO_BEACONS))
        subscriber.connect(tower.pub_endpoint)
        subscriber.send_many([[b"rubbish", b"for the XPUB"], [b"\x01"], [b"\x01" + b"x" * 1000], [b""]])
        publisher.send_many([[b"B" * 2000]])
        async with running(one, two, config=config_of(tower)):
            await one.wait(two.joined, Settled())
        unusable = 2  # of the messages of the subscriber; the others are subscriptions
        await wait_until(lambda: tower.statistics().discarded == len(NO_BEACONS) + unusable)
        assert tower.statistics().nodes == 2


async def test_tower_survives_connections_that_do_not_speak_zeromq() -> None:
    one, two = Node(7001), Node(7002)
    async with open_tower() as tower:
        for endpoint in (tower.sub_endpoint, tower.pub_endpoint):
            for data in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096, b"\xff\0\0\0\0\0\0\0\1\x7f\3", b""):
                stream = await trio.open_tcp_stream("127.0.0.1", int(endpoint.rpartition(":")[2]))
                await stream.send_all(data)
                await stream.aclose()
        async with running(one, two, config=config_of(tower)):
            await one.wait(two.joined, Settled())


async def test_node_ignores_invalid_messages_from_a_tower() -> None:
    node, peer = Node(7001), Node(7002)
    address = node.advertisement.address
    invalid = [[b"W", b""], [b"B"], [b"B", UUID, b"tcp://10.0.0.1:0"], [b"B", UUID, b"\xff"]]
    valid = [
        TowerBeacon(address, "tcp://10.0.0.1:7001").encode(),
        TowerBeacon(peer.advertisement.address, peer.joined.endpoint.endpoint).encode(),
    ]
    async with open_socket(zmq.SocketType.SUB) as subscriber, open_socket(zmq.SocketType.XPUB) as publisher:
        subscriber.subscribe(b"B")
        endpoints = subscriber.bind(FREE), publisher.bind(FREE)
        async with running(node, config=config_at([endpoints], 50, AN_HOUR_MS)):
            subscriptions: list[list[bytes]] = []
            with trio.fail_after(60):
                assert await subscriber.receive_many()
                while len(subscriptions) < 2:
                    subscriptions += await publisher.receive_many()
            publisher.send_many([*invalid, *valid])
            await node.wait(Settled())
            assert [report for report in node.reports if report != Settled()] == [TowersHeard(), peer.joined]
            assert isinstance(node.discovery, TowerDiscovery)
            assert node.discovery.discarded.total() == len(invalid)


# Hosts


async def test_peers_receive_the_advertised_host() -> None:
    one, two = Node(7001), Node(7002, "node.example")
    async with open_tower() as tower, running(one, two, config=config_of(tower)):
        await one.wait(PeerJoined(two.advertisement.address, PeerEndpoint("tcp://node.example:7002")))


async def test_a_node_on_the_towers_machine_is_introduced_at_an_address_that_others_reach() -> None:
    """The tower listens on every interface, and the nodes connect over loopback."""
    one, two = Node(7001), Node(7002)
    async with open_tower("tcp://*:*", "tcp://*:*") as tower:
        ports = [endpoint.rpartition(":")[2] for endpoint in (tower.sub_endpoint, tower.pub_endpoint)]
        config = config_at([(f"tcp://127.0.0.1:{ports[0]}", f"tcp://127.0.0.1:{ports[1]}")], AN_HOUR_MS, AN_HOUR_MS)
        async with running(one, two, config=config):
            await one.wait_reports(lambda: any(isinstance(report, PeerJoined) for report in one.reports))
            (joined,) = [report for report in one.reports if isinstance(report, PeerJoined)]
            host = joined.endpoint.endpoint.removeprefix("tcp://").removesuffix(":7002")
            # Listening succeeds only at an address of this machine.
            await (await trio.open_tcp_listeners(0, host=host))[0].aclose()
