"""A cluster for programs that do not run on Trio."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dafka import Config, blocking


@pytest.fixture
def config() -> Iterator[Config]:
    """Run a tower and a store in memory; return the configuration of nodes in their cluster."""
    config = Config().with_tower(sub="tcp://127.0.0.1:*", pub="tcp://127.0.0.1:*").with_node(bind="tcp://127.0.0.1:*")
    with blocking.serve_tower(config) as tower:
        config = config.with_beacon(tower_sub=(tower.sub_endpoint,), tower_pub=(tower.pub_endpoint,), interval_ms=100)
        config = config.with_store(storage="memory:").with_consumer(offset_reset="earliest")
        with blocking.serve_store(config):
            yield config
