"""Pytest fixtures for programs that embed dafka, which need pytest-trio, and for programs that use Kafka.

Enable them in the `conftest.py` at the top of your tests:

    pytest_plugins = ["dafka.testing.plugin"]

Use them in a test:

    @pytest.mark.trio
    async def test_order_is_published(dafka_cluster):
        async with dafka_cluster.consumer(["orders"]) as consumer:
            await my_program(dafka_cluster.config)
            record = await consumer.next_record()

    def test_order_is_written(dafka_kafka):
        my_program(dafka_kafka.bootstrap_servers)

To change settings of the cluster's nodes, define a fixture `dafka_config` that returns a `dafka.Config`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from dafka.config import Config
from dafka.testing.cluster import Cluster, open_cluster
from dafka.testing.kafka import RunningKafka, kafka


@pytest.fixture
def dafka_config() -> Config:
    """Return the configuration that `dafka_cluster` is opened with. Override this fixture to change it."""
    return Config()


@pytest.fixture
async def dafka_cluster(dafka_config: Config) -> AsyncIterator[Cluster]:
    """Open a `dafka.testing.Cluster` for one test: a tower, and a store in memory, on free loopback ports."""
    async with open_cluster(dafka_config) as cluster:
        yield cluster


@pytest.fixture
def dafka_kafka(dafka_config: Config) -> Iterator[RunningKafka]:
    """Run a broker for clients of Kafka during one test."""
    with kafka(config=dafka_config) as running:
        yield running
