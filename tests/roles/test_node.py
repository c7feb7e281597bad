"""The behavior that nodes of all roles share."""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from dafka import Config, open_consumer, open_producer, serve_tower
from dafka.config import BATCH_BYTES_MAX, DialectName
from dafka.discovery import Advertisement
from dafka.endpoints import is_local
from dafka.protocol import (
    EndpointsExposed,
    Event,
    ForeignDialect,
    LoopbackOnly,
    PeerJoined,
    TowerHostUnresolved,
    TowersHeard,
    TowersSilent,
)
from dafka.records import BATCH_OVERHEAD_BYTES
from dafka.roles import Health, trio_context
from dafka.roles import sockets as sockets_module
from dafka.roles.events import EventFeed
from dafka.roles.sockets import node_warnings
from dafka.roles.statistics import BOUNDS_S, Timer
from dafka.testing import Cluster, open_cluster
from dafka.transport.connections import MANY_CONNECTIONS
from dafka.wire import Role
from tests.ports import free_endpoints
from tests.roles.closed_cluster import Keys
from tests.roles.helpers import (
    DEADLINE_S,
    contents,
    open_store,
    receive_partition,
    wait_event,
)
from tests.waiting import wait_until


@pytest.mark.parametrize("own", ["rfc46", "libdafka"])
async def test_other_dialect_is_understood_and_reported_once(own: DialectName, dafka_cluster: Cluster) -> None:
    other: DialectName = "libdafka" if own == "rfc46" else "rfc46"
    config = dafka_cluster.config.with_consumer(offset_reset="earliest")
    consumer_config = config.with_node(wire=own)
    async with (
        dafka_cluster.producer("hello", config.with_node(wire=other)) as producer,
        dafka_cluster.consumer(["hello"], consumer_config) as consumer,
    ):
        await producer.wait_settled()
        await producer.send_many(contents(0, 10))
        await receive_partition(consumer, 0, 10)
        assert await wait_event(consumer.events, ForeignDialect) == ForeignDialect(own, other)
        await producer.send_many(contents(10, 20))
        await receive_partition(consumer, 10, 20)
    assert [type(event) async for event in consumer.events].count(ForeignDialect) == 1


async def test_connections_beyond_the_limit_are_ended() -> None:
    async with open_cluster(Config().with_node(connections_max=16)) as cluster, cluster.producer("hello") as producer:
        nodes: tuple[tuple[str, Callable[[], int]], ...] = (
            (producer.endpoint, lambda: producer.statistics().discarded.get(MANY_CONNECTIONS, 0)),
            (cluster.tower.sub_endpoint, lambda: cluster.tower.statistics().discarded),
            (cluster.tower.pub_endpoint, lambda: cluster.tower.statistics().discarded),
        )
        for endpoint, discarded in nodes:
            await exceed_connections(endpoint, discarded)


async def exceed_connections(endpoint: str, discarded: Callable[[], int]) -> None:
    before = discarded()
    async with AsyncExitStack() as stack:
        for _ in range(20):
            stream = await trio.open_tcp_stream("127.0.0.1", int(endpoint.rpartition(":")[2]))
            await stack.enter_async_context(stream)
        await wait_until(lambda: discarded() > before)


async def test_each_node_logs_that_it_starts_and_stops(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dafka")
    async with open_cluster() as cluster, cluster.producer("hello"), cluster.consumer(["hello"]):
        pass
    logged = [vars(record)["dafka"] for record in caplog.records if "dafka" in vars(record)]
    counts = Counter((each["role"], each["event"]) for each in logged)
    for role in ("tower", "store", "producer", "consumer"):
        assert (counts[role, "started"], counts[role, "stopped"]) == (1, 1), role


async def test_events_end_when_the_node_is_closed() -> None:
    async def collect(events: EventFeed, found: list[Event]) -> None:
        found.extend([event async for event in events])

    waiting: list[Event] = []
    async with open_cluster() as cluster:
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery, cluster.consumer(["hello"]) as consumer:
                nursery.start_soon(collect, consumer.events, waiting)
                await wait_event(consumer.events, PeerJoined)
            async with open_store(cluster.config) as store:
                await wait_event(store.events, TowersHeard)
            for events in (consumer.events, store.events):
                kept = [event async for event in events]
                assert TowersHeard in map(type, kept)
                assert kept == [event async for event in events]
    assert waiting == [event async for event in consumer.events]


@pytest.fixture
def deserted() -> Config:
    """Return the configuration of nodes whose tower does not run."""
    sub, pub = free_endpoints(2)
    config = Config().with_node(bind="tcp://127.0.0.1:*", tower_timeout_ms=100)
    return config.with_beacon(tower_sub=(sub,), tower_pub=(pub,), interval_ms=50)


async def test_silent_and_returning_towers_are_events(deserted: Config) -> None:
    settings = deserted.with_producer(min_stores=0).with_consumer(offset_reset="earliest")
    async with open_producer("hello", settings) as producer, open_consumer(["hello"], settings) as consumer:
        assert (await wait_event(consumer.events, TowersSilent)).seconds >= 0.1
        await wait_event(producer.events, TowersSilent)
        assert {producer, consumer} <= set(trio_context._of_this_process), "a forked process could use them"
        assert producer.health() == Health(unready="no tower is heard")
        assert producer.unheard_towers() == deserted.beacon.tower_pub
        await producer.send(b"0")
        (sub_address,), (pub_address,) = deserted.beacon.tower_sub, deserted.beacon.tower_pub
        async with trio.open_nursery() as nursery:
            tower_config = deserted.with_tower(sub=sub_address, pub=pub_address)
            await nursery.start(serve_tower, tower_config)
            await wait_event(consumer.events, TowersHeard)
            await wait_event(producer.events, TowersHeard)
            await receive_partition(consumer, 0, 1)
            await wait_until(lambda: (consumer.health(), consumer.unheard_towers()) == (Health(), ()))
            nursery.cancel_scope.cancel()


async def test_a_tower_without_an_address_is_looked_up_each_minute_until_it_has_one(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """libzmq repeats the lookup by itself, and says nothing."""
    problems = [*["unknown host"] * 2, ""]
    reports: list[Any] = []

    async def find_problem(host: str) -> str:
        await trio.lowlevel.checkpoint()
        return problems.pop(0)

    monkeypatch.setattr(sockets_module, "find_resolution_problem", find_problem)
    began = trio.current_time()
    node: Any = SimpleNamespace(
        events=SimpleNamespace(put=lambda event: reports.append((trio.current_time() - began, event)))
    )
    await sockets_module.NodeSockets._resolve_tower(node, "tower.example")
    event = TowerHostUnresolved("tower.example", "unknown host")
    assert reports == [(pytest.approx(0), event), (pytest.approx(60), event)]
    towers = ("tcp://tower.example:1", "tcp://127.0.0.1:2", "tcp://[::1]:3", "tcp://b:4")
    config = Config().with_beacon(tower_sub=towers, tower_pub=("tcp://tower.example:2", "ipc:///run/x"))
    assert sockets_module.tower_hosts(config) == ["tower.example", "b"]


EVERYWHERE = "tcp://*:*"


def test_the_default_endpoints_are_local() -> None:
    config = Config()
    for endpoint in (config.node.bind, config.tower.sub, config.tower.pub):
        assert is_local(endpoint)


def warnings(caplog: pytest.LogCaptureFixture) -> list[object]:
    records = [record for record in caplog.records if record.levelno == logging.WARNING]
    found = [record.args[0] for record in records if isinstance(record.args, tuple)]
    return [event for event in found if isinstance(event, (EndpointsExposed, LoopbackOnly))]


async def test_each_role_without_keys_warns_once_if_it_listens_beyond_loopback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_cluster(storage=None) as cluster, trio.open_nursery() as nursery:
        open_config = cluster.config.with_node(bind=EVERYWHERE)
        async with (
            open_store(open_config) as store,
            cluster.producer("t", open_config) as producer,
            cluster.consumer(["t"], open_config) as consumer,
        ):
            far = Config().with_tower(sub=EVERYWHERE, pub=EVERYWHERE)
            tower = await nursery.start(serve_tower, far)
            nodes = [(node.endpoint,) for node in (store, producer, consumer)]
            expected = [EndpointsExposed(endpoints) for endpoints in [*nodes, (tower.sub_endpoint, tower.pub_endpoint)]]
            assert warnings(caplog) == expected
            assert "can read and write everything" in caplog.text
        nursery.cancel_scope.cancel()


async def test_there_is_no_warning_on_loopback_or_with_keys(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    keys = Keys(tmp_path, "node")
    async with open_cluster(), trio.open_nursery() as nursery:
        far = keys.config("tower").with_tower(sub=EVERYWHERE, pub=EVERYWHERE)
        tower = await nursery.start(serve_tower, far)
        ports = [endpoint.rpartition(":")[2] for endpoint in (tower.sub_endpoint, tower.pub_endpoint)]
        config = keys.config("node").with_node(bind=EVERYWHERE)
        sub, pub = (f"tcp://127.0.0.1:{port}" for port in ports)
        async with open_store(config.with_beacon(tower_sub=(sub,), tower_pub=(pub,))):
            assert warnings(caplog) == []
        nursery.cancel_scope.cancel()


def test_a_loopback_node_warns_if_its_tower_is_on_another_machine() -> None:
    config = Config().with_beacon(tower_sub=("tcp://127.0.0.1:5556", "tcp://10.0.0.7:5556"))
    here = "tcp://127.0.0.1:4000"
    assert node_warnings(config, here) == [LoopbackOnly(here, "tcp://10.0.0.7:5556")]
    assert node_warnings(config.with_node(discovery="static:tcp://10.0.0.7:1"), here) == []
    assert node_warnings(Config(), here) == []


IPV4, IPV6 = "tcp://10.0.0.1:5556", "tcp://[fe80::1]:5556"


@pytest.mark.parametrize(
    ("bind", "tower", "advertise", "family", "host"),
    [
        ("tcp://*:*", IPV4, "", "tcp://*:*", ""),
        ("tcp://*:7", IPV6, "", "tcp://[::]:7", ""),
        ("tcp://0.0.0.0:7", IPV6, "", "tcp://0.0.0.0:7", ""),
        ("tcp://[::]:7", IPV4, "", "tcp://[::]:7", ""),
        ("tcp://10.0.0.7:7", IPV6, "", "tcp://10.0.0.7:7", "10.0.0.7"),
        ("tcp://[fe80::7]:7", IPV4, "", "tcp://[fe80::7]:7", "[fe80::7]"),
        ("tcp://10.0.0.7:7", IPV4, "here", "tcp://10.0.0.7:7", "here"),
        ("tcp://*:7", IPV4, "here", "tcp://*:7", "here"),
    ],
)
def test_a_node_listens_where_its_tower_is_and_advertises_the_host_it_listens_at(
    bind: str, tower: str, advertise: str, family: str, host: str
) -> None:
    config = Config().with_node(bind=bind).with_beacon(tower_sub=(IPV4, tower), advertise=advertise)
    assert sockets_module._choose_family(config).bind == family
    static = config.with_node(discovery="static:tcp://10.0.0.1:1")
    assert sockets_module._choose_family(static).bind == bind
    node: Any = SimpleNamespace(_config=config, address="A", _mesh=SimpleNamespace(port=9), _role=Role.STORE)
    expected = Advertisement("A", host, 9, Role.STORE)
    assert sockets_module.NodeSockets._advertisement(node) == expected


def test_a_node_takes_a_batch_of_the_usual_size_and_of_its_largest_record() -> None:
    small, large = (Config().with_node(message_bytes_max=size).node for size in (1024, 2**29))
    assert sockets_module.batch_bytes_max(small) == BATCH_BYTES_MAX
    assert sockets_module.batch_bytes_max(large) == 2**29 + BATCH_OVERHEAD_BYTES


def test_a_histogram_counts_each_duration_in_the_first_bucket_that_it_fits() -> None:
    timer, durations = Timer(), [0.0, *BOUNDS_S, *(each * 1.01 for each in BOUNDS_S), 99.0]
    for seconds in durations:
        timer.add(seconds)
    found = timer.histogram()
    bounds = [-1.0, *found.bounds, math.inf]
    expected = [sum(low < each <= high for each in durations) for low, high in itertools.pairwise(bounds)]
    assert (list(found.counts), found.count) == (expected, len(durations))
    assert found.total == pytest.approx(sum(durations))
