from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
import trio
import zmq

from dafka import Config, Tower, TowerStatistics, serve_tower
from dafka.errors import AddressInUseError, ConfigError
from dafka.roles import tower as tower_module
from dafka.transport import Socket, open_context
from tests.ports import free_endpoints
from tests.roles.helpers import receive_messages

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
        return await receive_messages(self._subscriber, count)


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
            assert await receive_messages(publisher, 2) == [[b"\1A"], [b"\1B"]]
            yield client
        finally:
            publisher.close(0)
            subscriber.close(0)


async def test_beacons_are_forwarded_to_all_nodes_and_counted() -> None:
    """An empty host over loopback is loopback at a tower on loopback."""
    async with open_tower() as tower, open_client(tower) as first, open_client(tower) as second:
        first.say([b"B", b"NODE1", b"10.0.0.7", b"5000"], [b"B", b"NODE2", b"host", b"65536"], [b"B"])
        first.say([b"B", b"NODE1", b"10.0.0.7", b"5000"], [b"B", b"NODE2", b"", b"5001"])
        forwarded = [[b"B", b"NODE1", b"tcp://10.0.0.7:5000"]] * 2 + [[b"B", b"NODE2", b"tcp://127.0.0.1:5001"]]
        assert await first.hear(3) == forwarded
        assert await second.hear(3) == forwarded
        assert tower.statistics() == TowerStatistics(beacons=3, discarded=2, nodes=2)
        assert tower.discarded() == {"port": 1, "frames": 1}


@pytest.mark.parametrize("which", ["sub", "pub"])
async def test_taken_port_is_an_address_in_use_error(which: str) -> None:
    async with open_tower() as tower:
        with pytest.raises(AddressInUseError, match=r"tcp://127\.0\.0\.1:"):
            await serve_tower(tower_config(**{which: tower.sub_endpoint}))


async def test_failed_start_leaves_the_other_port_free() -> None:
    (free,) = free_endpoints(1)
    async with open_tower() as tower:
        with pytest.raises(AddressInUseError):
            await serve_tower(tower_config(tower.sub_endpoint, free))
        async with open_tower(tower_config(FREE, free)) as other:
            assert other.pub_endpoint == free


@pytest.mark.parametrize(
    ("sub", "pub", "is_valid"),
    [
        ("tcp://127.0.0.1:5556", "tcp://127.0.0.1:5556", False),
        ("tcp://*:5556", "tcp://127.0.0.1:5556", False),
        ("tcp://127.0.0.1:5556", "tcp://[::]:5556", False),
        ("tcp://127.0.0.1:5556", "tcp://127.0.0.2:5556", True),
        ("tcp://127.0.0.1:5556", "tcp://127.0.0.1:5557", True),
        ("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", True),
        ("tcp://*:0", "tcp://*:0", True),
        ("ipc:///run/one", "ipc:///run/one", False),
        ("ipc:///run/one", "ipc:///run/two", True),
    ],
)
def test_a_tower_needs_two_endpoints(sub: str, pub: str, is_valid: bool) -> None:
    with nullcontext() if is_valid else pytest.raises(ConfigError, match="expected two ports, not"):
        tower_module._check_endpoints_differ(Config().with_tower(sub=sub, pub=pub).tower)


def test_the_address_of_a_tower_is_the_one_it_listens_at_or_that_of_the_default_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Probe(nullcontext[Any]):
        has_route = True

        def connect(self, _: object) -> None:
            if not self.has_route:
                raise OSError("Network is unreachable")

        def getsockname(self) -> tuple[str, int]:
            return "10.0.0.7", 9

        def __enter__(self) -> Probe:
            return self

    monkeypatch.setattr(socket, "socket", lambda *_: Probe())
    for endpoint, Probe.has_route, host in (
        ("tcp://127.0.0.1:5556", True, "127.0.0.1"),
        ("tcp://[::1]:5556", True, "[::1]"),
        ("ipc:///run/tower", True, "127.0.0.1"),
        ("tcp://192.0.2.5:5556", True, "192.0.2.5"),
        ("tcp://[2001:db8::1]:5556", True, "[2001:db8::1]"),
        ("tcp://0.0.0.0:5556", True, "10.0.0.7"),
        ("tcp://[::]:5556", True, "10.0.0.7"),
        ("tcp://0.0.0.0:5556", False, "127.0.0.1"),
    ):
        assert tower_module._presume_own_host(endpoint) == host
