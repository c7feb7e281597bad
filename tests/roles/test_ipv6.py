"""Clusters over IPv6: towers, nodes, advertised hosts and closed clusters at `::1`."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from dafka import Config, Store, open_consumer, open_producer, serve_store, serve_tower
from dafka.protocol import PeerJoined
from tests.roles.helpers import DEADLINE_S, contents, receive_partition, wait_event

FREE = "tcp://[::1]:*"


def _has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


pytestmark = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")


def plain_config(bind: str = FREE, tower: str = FREE) -> Config:
    return Config().with_tower(sub=tower, pub=tower).with_node(bind=bind).with_store(storage="memory:")


def at_loopback(endpoint: str) -> str:
    return endpoint.replace("[::]", "[::1]")


@asynccontextmanager
async def open_cluster(tower_config: Config, store_config: Config) -> AsyncIterator[tuple[Config, Store]]:
    """Run a tower and a store. Yield the store with its configuration, which names the tower."""
    async with trio.open_nursery() as nursery:
        tower = await nursery.start(serve_tower, tower_config)
        towers = {"tower_sub": at_loopback(tower.sub_endpoint), "tower_pub": at_loopback(tower.pub_endpoint)}
        config = store_config.with_beacon(**towers)
        yield config, await nursery.start(serve_store, config)
        nursery.cancel_scope.cancel()


async def exchange_records(producer_config: Config, consumer_config: Config) -> None:
    with trio.fail_after(DEADLINE_S):
        async with open_consumer(["hello"], consumer_config.with_consumer(offset_reset="earliest")) as consumer:
            async with open_producer("hello", producer_config) as producer:
                await producer.send_many(contents(0, 1000))
                await producer.wait_acknowledged()
            await receive_partition(consumer, 0, 1000)


async def test_plain_cluster_exchanges_records_over_ipv6() -> None:
    async with open_cluster(plain_config(), plain_config()) as (config, store):
        assert store.endpoint.startswith("tcp://[::1]:")
        await exchange_records(config, config)


async def test_node_on_all_interfaces_is_reached_over_ipv6_if_its_tower_is() -> None:
    async with open_cluster(plain_config(), plain_config("tcp://*:*")) as (config, store):
        assert store.endpoint.startswith("tcp://[::]:")
        await exchange_records(config, config)


async def test_advertised_ipv6_address_is_introduced() -> None:
    config = plain_config("tcp://*:*").with_beacon(advertise="[::1]")
    async with open_cluster(plain_config(), config) as (config, store), open_producer("hello", config) as producer:
        joined = await wait_event(producer.events, PeerJoined)
        assert (joined.address, joined.endpoint.endpoint) == (store.address, at_loopback(store.endpoint))
