"""A cluster in the current process: a tower, a store, and the producers and consumers that a test opens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import attrs
import trio

from dafka.config import Config
from dafka.exceptions import unwrap_group
from dafka.records import Partition
from dafka.roles import Consumer, Producer, Store, Time, Tower, open_consumer, open_producer, serve_store, serve_tower


@attrs.frozen
class Cluster:
    """A running cluster. `open_cluster` creates it.

    Attributes:
        config: The configuration for nodes of this cluster. Change a copy of it for particular nodes.
        tower: The tower.
        store: The store; None if the cluster was opened without one.
    """

    config: Config
    tower: Tower
    store: Store | None

    def producer(self, topic: str, config: Config | None = None) -> AbstractAsyncContextManager[Producer]:
        """Open a producer in this cluster, as `dafka.open_producer` does.

        Args:
            topic: The topic to publish to.
            config: The configuration. Default: that of the cluster.

        Returns:
            A context manager that opens the producer.
        """
        return open_producer(topic, config or self.config)

    def consumer(
        self,
        topics: Iterable[str],
        config: Config | None = None,
        *,
        positions: Mapping[Partition, int] | None = None,
        start: Time | None = None,
        group: str | None = None,
    ) -> AbstractAsyncContextManager[Consumer]:
        """Open a consumer in this cluster, as `dafka.open_consumer` does.

        Args:
            topics: The topics to consume.
            config: The configuration. Default: that of the cluster, with `offset_reset = "earliest"`.
            positions: The sequence to start at, by partition.
            start: The time from which to receive records.
            group: The name of a group to be a member of.

        Returns:
            A context manager that opens the consumer.
        """
        earliest = self.config.with_consumer(offset_reset="earliest")
        return open_consumer(topics, config or earliest, positions=positions, start=start, group=group)


@asynccontextmanager
async def open_cluster(config: Config | None = None, *, storage: str | None = "memory:") -> AsyncIterator[Cluster]:
    """Run a tower and a store on free loopback ports while the block runs.

    Args:
        config: The configuration of all nodes. Its endpoints and the store's storage are replaced.
        storage: The URL of the store's storage; None for a cluster without a store.

    Yields:
        The cluster.
    """
    config = (config or Config()).with_tower(sub="tcp://127.0.0.1:*", pub="tcp://127.0.0.1:*")
    with unwrap_group():
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
