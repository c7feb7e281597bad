"""A broker with its coordinators for tests, in the test's own event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dafka import Config
from dafka.broker.broker import Broker, open_broker
from dafka.broker.connections.security import ServerSecurity
from dafka.testing.cluster import open_cluster

STORAGES = ["memory:", "sqlite:{}/broker.db", "filelog:{}/log"]


@asynccontextmanager
async def open_broker_service(storage: str = "memory:", config: Config | None = None) -> AsyncIterator[Broker]:
    """Run a tower, and a broker with its coordinators, during the block."""
    async with open_cluster(config, storage=None) as cluster:
        settings = cluster.config.with_store(storage=storage)
        async with open_broker(settings, ServerSecurity(settings.clients)) as broker:
            yield broker
