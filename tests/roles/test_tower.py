from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import zmq

from dafka import Config, Tower, TowerStatistics, serve_tower
from dafka.endpoints import MessageSource
from dafka.errors import AddressInUseError
from dafka.protocol import TowerHostAmbiguous, TowerMachine
from dafka.transport import Socket, open_context
from tests.roles.helpers import DEADLINE_S, check_leaves_nothing

FREE = "tcp://127.0.0.1:*"


def tower_config(sub: str = FREE, pub: str = FREE) -> Config:
    return Config().with_tower(sub=sub, pub=pub)


@asynccontextmanager
async def open_tower(config: Config | None = None) -> AsyncIterator[Tower]:
    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve_tower, config or tower_config())
        nursery.cancel_scope.cancel()


class Client:
    """A node without a machine, which sends raw frames to the tower and receives its frames."""

    def __init__(self, publisher: Socket, subscriber: Socket) -> None:
        self._publisher = publisher
        self._subscriber = subscriber

    def say(self, *messages: list[bytes]) -> None:
        self._publisher.send_many(messages)

    async def hear(self, count: int) -> list[list[bytes]]:
        heard: list[list[bytes]] = []
        with trio.fail_after(DEADLINE_S):
            while len(heard) < count:
                heard += await self._subscriber.receive_many()
        return heard


@asynccontextmanager
async def open_client(tower: Tower) -> AsyncIterator[Client]:
    """Open a node that is connected to the tower in both directions."""
    async with open_context(0) as context:
        publisher, subscriber = Socket(context.socket(zmq.SocketType.XPUB)), Socket(context.socket(zmq.SocketType.SUB))
        try:
            subscriber.subscribe(b"W")
            subscriber.subscribe(b"B")
            client = Client(publisher, subscriber)
            # The greeting may come before the tower knows the subscriptions; a second connection takes longer.
            subscriber.connect(tower.pub_endpoint)
            assert await client.hear(1) == [[b"W"]]
            publisher.connect(tower.sub_endpoint)
            with trio.fail_after(DEADLINE_S):
                assert await publisher.receive_many() == [[b"\1A"], [b"\1B"]]
            yield client
        finally:
            publisher.close(0)
            subscriber.close(0)


async def test_beacons_are_forwarded_to_all_nodes() -> None:
    async with open_tower() as tower, open_client(tower) as first, open_client(tower) as second:
        first.say([b"B", b"NODE1", b"10.0.0.7", b"5000"])
        forwarded = [b"B", b"NODE1", b"tcp://10.0.0.7:5000"]
        assert await first.hear(1) == [forwarded]
        assert await second.hear(1) == [forwarded]
        assert tower.statistics() == TowerStatistics(beacons=1, discarded=0, nodes=1)


async def test_empty_host_over_loopback_is_loopback_at_a_tower_on_loopback() -> None:
    async with open_tower() as tower, open_client(tower) as client:
        client.say([b"B", b"NODE1", b"", b"5000"])
        assert await client.hear(1) == [[b"B", b"NODE1", b"tcp://127.0.0.1:5000"]]


async def test_beacon_of_a_node_repeats_and_counts_one_node() -> None:
    async with open_tower() as tower, open_client(tower) as client:
        for _ in range(3):
            client.say([b"B", b"NODE1", b"", b"5000"])
        client.say([b"B", b"NODE2", b"", b"5001"])
        assert len(await client.hear(4)) == 4
        assert tower.statistics() == TowerStatistics(beacons=4, discarded=0, nodes=2)


async def test_rubbish_is_counted_and_not_forwarded() -> None:
    rubbish = [
        [b"B"],
        [b"B", b"NODE1", b"host"],
        [b"B", b"NODE1", b"host", b"5000", b"more"],
        [b"B", b"", b"host", b"5000"],
        [b"B", b"x" * 256, b"host", b"5000"],
        [b"B", b"NODE1", b"host", b"0"],
        [b"B", b"NODE1", b"host", b"65536"],
        [b"B", b"NODE1", b"host", b"-1"],
        [b"B", b"NODE1", b"host", b"port"],
        [b"B", b"NODE1", b"ho st", b"5000"],
        [b"B", b"NODE1", b"host:5000;tcp://other", b"5000"],
        [b"B", b"NODE1", b"\xff", b"5000"],
        [b"Beacon", b"NODE1", b"host", b"5000"],
    ]
    async with open_tower() as tower, open_client(tower) as client:
        client.say(*rubbish, [b"B", b"NODE2", b"host", b"5000"])
        assert await client.hear(1) == [[b"B", b"NODE2", b"tcp://host:5000"]]
        assert tower.statistics() == TowerStatistics(beacons=1, discarded=len(rubbish), nodes=1)


@pytest.mark.parametrize(
    ("host", "peer", "endpoint"),
    [
        (b"", "10.0.0.7", "tcp://10.0.0.7:5000"),
        (b"", "::ffff:10.0.0.7", "tcp://10.0.0.7:5000"),
        (b"", "fe80::7", "tcp://[fe80::7]:5000"),
        (b"", "127.0.0.1", "tcp://192.168.1.5:5000"),
        (b"", "127.8.8.8", "tcp://192.168.1.5:5000"),
        (b"", "::1", "tcp://192.168.1.5:5000"),
        (b"", "::ffff:127.0.0.1", "tcp://192.168.1.5:5000"),
        (b"", "", "tcp://192.168.1.5:5000"),
        (b"node.example", "127.0.0.1", "tcp://node.example:5000"),
        (b"127.0.0.1", "10.0.0.7", "tcp://127.0.0.1:5000"),
        (b"[fe80::8]", "10.0.0.7", "tcp://[fe80::8]:5000"),
    ],
)
def test_host_of_a_node(host: bytes, peer: str, endpoint: str) -> None:
    """A node's host is the one in its beacon, otherwise the one it connects from; loopback becomes the tower's host."""
    tower = TowerMachine(Config(), "192.168.1.5", lambda _: True)
    source = MessageSource(peer, "", 1)
    assert tower.forward_beacon([b"B", b"NODE1", host, b"5000"], source, 0.0) == [b"B", b"NODE1", endpoint.encode()]


LOOPBACK_NODE = MessageSource("127.0.0.1", "", 1)


def introduced_host(tower: TowerMachine) -> str:
    """Return the host at which the tower introduces a node that connects over loopback."""
    beacon = tower.forward_beacon([b"B", b"NODE1", b"", b"5000"], LOOPBACK_NODE, 0.0)
    assert beacon is not None
    return beacon[2].decode().removeprefix("tcp://").removesuffix(":5000")


def test_nodes_on_loopback_are_introduced_at_the_address_that_others_reach() -> None:
    tower = TowerMachine(Config(), "127.0.0.1", lambda _: True)
    for own_address in ("", "127.0.0.1", "::1", "no address"):
        assert tower.reached_at(own_address) is None
        assert introduced_host(tower) == "127.0.0.1"
    assert tower.reached_at("::ffff:10.0.0.1") is None
    assert introduced_host(tower) == "10.0.0.1"
    assert tower.reached_at("10.0.0.1") is None


def test_the_presumed_host_is_replaced_by_an_address_that_a_node_has_reached() -> None:
    tower = TowerMachine(Config(), "192.168.1.5", lambda _: True)
    assert tower.reached_at("10.0.0.1") is None
    assert introduced_host(tower) == "10.0.0.1"


def test_a_tower_that_is_reached_at_two_addresses_warns_once() -> None:
    tower = TowerMachine(Config(), "127.0.0.1", lambda _: True)
    assert tower.reached_at("10.0.0.1") is None
    assert tower.reached_at("192.168.1.5") == TowerHostAmbiguous("10.0.0.1", "192.168.1.5")
    assert tower.reached_at("192.168.1.5") is None
    assert introduced_host(tower) == "10.0.0.1"


def test_of_several_addresses_the_presumed_host_is_taken() -> None:
    tower = TowerMachine(Config(), "192.168.1.5", lambda _: True)
    tower.reached_at("172.17.0.1")
    assert tower.reached_at("192.168.1.5") == TowerHostAmbiguous("192.168.1.5", "172.17.0.1")
    assert introduced_host(tower) == "192.168.1.5"


@pytest.mark.parametrize("which", ["sub", "pub"])
async def test_taken_port_is_an_address_in_use_error(which: str) -> None:
    async with open_tower() as tower:
        with pytest.raises(AddressInUseError, match=r"tcp://127\.0\.0\.1:"):
            await serve_tower(tower_config(**{which: tower.sub_endpoint}))


async def test_failed_start_leaves_the_other_port_free() -> None:
    async with open_tower() as tower:
        async with open_tower() as spare:
            free = spare.pub_endpoint
        with pytest.raises(AddressInUseError):
            await serve_tower(tower_config(tower.sub_endpoint, free))
        async with open_tower(tower_config(FREE, free)) as other:
            assert other.pub_endpoint == free


async def test_cancelled_tower_leaves_no_sockets_or_threads() -> None:
    async def cycle() -> None:
        async with open_tower() as tower, open_client(tower):
            pass

    await check_leaves_nothing(cycle)
