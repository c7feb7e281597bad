"""A cluster for Spark's tests, which are not asynchronous: it runs in a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from dafka import Config, Partition, Producer, Store, open_producer
from dafka.config import DialectName
from dafka.testing.cluster import open_cluster
from tests.roles.helpers import contents, open_store


class RunningCluster:
    """A tower, and the nodes that a test opens.

    Attributes:
        config: The configuration of nodes of this cluster.
        towers: The value of the data source's option `towers`.
    """

    def __init__(self, portal: BlockingPortal, config: Config) -> None:
        self._portal = portal
        self.config = config
        ports = [each[0].rpartition(":")[2] for each in (config.beacon.tower_sub, config.beacon.tower_pub)]
        self.towers = f"127.0.0.1:{ports[0]}:{ports[1]}"

    def store(self, storage: str = "memory:", **settings: Any) -> AbstractContextManager[Store]:
        """Run a store for the length of a block."""
        return self._portal.wrap_async_context_manager(open_store(self.config.with_store(**settings), storage))

    def producer(self, topic: str = "orders") -> AbstractContextManager[Producer]:
        """Open a producer, for `send`, for the length of a block."""
        return self._portal.wrap_async_context_manager(open_producer(topic, self.config))

    def send(self, producer: Producer, count: int) -> None:
        """Publish more records, whose contents name their sequences, and wait until they are stored."""

        async def send() -> None:
            first = producer.statistics().records
            await producer.send_many(contents(first, first + count))
            await producer.wait_stored()

        self._portal.call(send)

    def publish(self, count: int, topic: str = "orders") -> Partition:
        """Publish a partition with a producer that is then closed, and return it; all its records are stored."""
        with self.producer(topic) as producer:
            self.send(producer, count)
            return producer.partition


@contextmanager
def run_cluster(wire: DialectName = "rfc46") -> Iterator[RunningCluster]:
    """Run a tower without a store."""
    opening = open_cluster(Config().with_node(wire=wire), storage=None)
    with start_blocking_portal("trio") as portal, portal.wrap_async_context_manager(opening) as cluster:
        yield RunningCluster(portal, cluster.config)


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    """Run a tower and a store."""
    with run_cluster() as running, running.store():
        yield running


def tower_option(options: Sequence[str]) -> str:
    """Return the data source's option `towers` for a node's options on the command line."""
    sub, pub = (options[options.index(name) + 1] for name in ("--tower-sub", "--tower-pub"))
    host, _, sub_port = sub.removeprefix("tcp://").rpartition(":")
    return f"{host}:{sub_port}:{pub.rpartition(':')[2]}"
