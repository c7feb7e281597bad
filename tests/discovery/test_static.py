from __future__ import annotations

import pytest
import trio
import trio.testing

from dafka.config import Config
from dafka.discovery import Advertisement, DiscoveryEvent, Settled, open_discovery
from dafka.endpoints import PeerEndpoint
from dafka.errors import DiscoveryError
from dafka.protocol import PeerJoined
from dafka.testing import check_discovery

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
OWN = Advertisement("A" * 32, "10.0.0.1", 7001)


def config(argument: str) -> Config:
    return Config().with_node(discovery=f"static:{argument}").with_beacon(settle_ms=250)


async def reports_of(argument: str) -> list[tuple[float, DiscoveryEvent]]:
    """Return the events of the first hour, with their times."""
    begin = trio.current_time()
    reports: list[tuple[float, DiscoveryEvent]] = []

    def take(report: DiscoveryEvent) -> None:
        reports.append((trio.current_time() - begin, report))

    async with trio.open_nursery() as nursery:
        await nursery.start(open_discovery(config(argument)).run, OWN, take)
        assert trio.current_time() == begin, "a node starts before it has settled"
        await trio.sleep(3600)
        nursery.cancel_scope.cancel()
    return reports


async def test_static_discovery_keeps_the_contract() -> None:
    endpoints = ["tcp://10.0.0.2:7001", "tcp://[::1]:7001"]
    await check_discovery(
        lambda: open_discovery(config(",".join([*endpoints, "tcp://10.0.0.1:7001"]))),
        OWN,
        peers=[*map(PeerEndpoint, endpoints)],
    )


@pytest.mark.parametrize(
    ("argument", "joined"),
    [
        ("tcp://10.0.0.2:7001, tcp://node.example:7002", ["tcp://10.0.0.2:7001", "tcp://node.example:7002"]),
        ("tcp://10.0.0.2:7001,,tcp://10.0.0.2:7001,", ["tcp://10.0.0.2:7001"]),
        ("tcp://10.0.0.1:7001,tcp://10.0.0.1:7002", ["tcp://10.0.0.1:7002"]),
    ],
    ids=["two", "repeated", "the own one"],
)
async def test_endpoints_join_at_once_and_it_settles_after_the_configured_time(
    argument: str, joined: list[str], autojump_clock: trio.testing.MockClock
) -> None:
    expected = [(0, PeerJoined("", PeerEndpoint(endpoint))) for endpoint in joined]
    assert await reports_of(argument) == [*expected, (0.25, Settled())]


@pytest.mark.parametrize("argument", ["", " , "])
def test_empty_list_is_refused(argument: str) -> None:
    with pytest.raises(DiscoveryError, match="static discovery: expected endpoints, as in static:tcp://"):
        open_discovery(config(argument))


@pytest.mark.parametrize("endpoint", ["10.0.0.1:7001", "tcp://10.0.0.1", "tcp://10.0.0.1:0", "ipc://x", "tcp://a b:1"])
def test_an_invalid_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(DiscoveryError) as caught:
        open_discovery(config(f"tcp://10.0.0.2:7001,{endpoint}"))
    assert str(caught.value) == f"static discovery: expected tcp://HOST:PORT, not {endpoint!r}"


def test_an_unknown_discovery_is_refused_with_the_installed_ones() -> None:
    with pytest.raises(DiscoveryError, match=r"^unknown discovery 'nope': installed are static, tower$"):
        open_discovery(Config().with_node(discovery="nope:x"))


@pytest.mark.parametrize(
    ("has_keys", "argument", "error"),
    [
        (False, f"tcp://10.0.0.2:7001 {KEY}", "a key follows tcp://10.0.0.2:7001, but this node has none"),
        (True, "tcp://10.0.0.2:7001", "expected a space and the node's public key after tcp://10.0.0.2:7001"),
        (True, "tcp://10.0.0.2:7001 short", "expected a space and the node's public key after tcp://10.0.0.2:7001"),
        (True, f"tcp://10.0.0.2 {KEY}", "expected tcp://HOST:PORT, not 'tcp://10.0.0.2'"),
        (True, f"tcp://10.0.0.2:7001 {KEY}", ""),
    ],
)
async def test_in_a_closed_cluster_each_endpoint_has_a_key(
    has_keys: bool, argument: str, error: str, autojump_clock: trio.testing.MockClock
) -> None:
    configured = config(argument)
    if has_keys:
        configured = configured.with_security(key_file="key", authorized_keys="keys")
    if error:
        with pytest.raises(DiscoveryError, match=f"static discovery: {error}"):
            open_discovery(configured)
    else:
        reports: list[DiscoveryEvent] = []
        with trio.move_on_after(1):
            await open_discovery(configured).run(OWN, reports.append)
        assert reports == [PeerJoined("", PeerEndpoint("tcp://10.0.0.2:7001", KEY)), Settled()]
