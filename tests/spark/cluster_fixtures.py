"""A cluster that runs beside the tests of Spark, in a thread of its own, for tests that know no trio."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from dafka import Config, Partition, Producer, Store, open_producer
from dafka.config import DialectName
from dafka.testing.cluster import open_cluster
from tests.roles.helpers import contents, open_store


class RunningCluster:
    """A tower, and what is opened beside it.

    Attributes:
        config: for nodes of this cluster.
        towers: the option of this name.
    """

    def __init__(self, portal: BlockingPortal, config: Config) -> None:
        self._portal = portal
        self.config = config
        ports = [each[0].rpartition(":")[2] for each in (config.beacon.tower_sub, config.beacon.tower_pub)]
        self.towers = f"127.0.0.1:{ports[0]}:{ports[1]}"

    def store(self, storage: str = "memory:", **settings: Any) -> AbstractContextManager[Store]:
        """A store, for the length of a block."""
        return self._portal.wrap_async_context_manager(open_store(self.config.with_store(**settings), storage))

    def producer(self, topic: str = "orders") -> AbstractContextManager[Producer]:
        """A producer, for `send`."""
        return self._portal.wrap_async_context_manager(open_producer(topic, self.config))

    def send(self, producer: Producer, count: int) -> None:
        """Publishes so many more records, whose contents tell their sequence, and waits until they are stored."""

        async def send() -> None:
            first = producer.statistics().records
            await producer.send_many(contents(first, first + count))
            await producer.wait_stored()

        self._portal.call(send)

    def publish(self, count: int, topic: str = "orders") -> Partition:
        """A partition of so many records, all stored, whose producer is gone."""
        with self.producer(topic) as producer:
            self.send(producer, count)
            return producer.partition


@contextmanager
def run_cluster(wire: DialectName = "rfc46") -> Iterator[RunningCluster]:
    """A tower without a store."""
    opening = open_cluster(Config().with_node(wire=wire), storage=None)
    with start_blocking_portal("trio") as portal, portal.wrap_async_context_manager(opening) as cluster:
        yield RunningCluster(portal, cluster.config)


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    """A tower and a store."""
    with run_cluster() as running, running.store():
        yield running
