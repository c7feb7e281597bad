"""A cluster in this process: a tower, a store, and as many producers and consumers as a test opens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import attrs
import trio

from dafka.config import Config
from dafka.groups import single_exception
from dafka.records import Partition
from dafka.roles import (
    Consumer,
    Producer,
    Store,
    Tower,
    open_consumer,
    open_producer,
    serve_store,
    serve_tower,
)


@attrs.frozen
class Cluster:
    """Attributes:
    config: for nodes of this cluster; `override` it for particular ones.
    tower: the tower.
    store: the store; None where the cluster was opened without.
    """

    config: Config
    tower: Tower
    store: Store | None

    def producer(self, topic: str, config: Config | None = None) -> AbstractAsyncContextManager[Producer]:
        """`open_producer`, in this cluster."""
        return open_producer(topic, config or self.config)

    def consumer(
        self, topics: Iterable[str], config: Config | None = None, *, positions: Mapping[Partition, int] | None = None
    ) -> AbstractAsyncContextManager[Consumer]:
        """`open_consumer`, in this cluster, from the earliest record on unless `config` says otherwise."""
        earliest = self.config.with_consumer(offset_reset="earliest")
        return open_consumer(topics, config or earliest, positions=positions)


@asynccontextmanager
async def open_cluster(config: Config | None = None, *, storage: str | None = "memory:") -> AsyncIterator[Cluster]:
    """A tower and a store on free loopback ports, for the length of a block; without a store for `storage` None.

    What `config` says of endpoints and of the store's storage is replaced.
    """
    config = (config or Config()).with_tower(sub="tcp://127.0.0.1:*", pub="tcp://127.0.0.1:*")
    with single_exception():
        async with trio.open_nursery() as nursery:
            tower: Tower = await nursery.start(serve_tower, config)
            config = config.with_beacon(tower_sub=(tower.sub_endpoint,), tower_pub=(tower.pub_endpoint,)).with_node(
                bind="tcp://127.0.0.1:*"
            )
            store: Store | None = None
            if storage is not None:
                config = config.with_store(storage=storage)
                store = await nursery.start(serve_store, config)
            yield Cluster(config, tower, store)
            nursery.cancel_scope.cancel()
