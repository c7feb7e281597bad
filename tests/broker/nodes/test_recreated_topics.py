"""Topics that are deleted and made again, under brokers that are started again or were away meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka.broker.node import BrokerNode
from tests.broker.nodes.broker_cluster import (
    append,
    open_broker_cluster,
    read,
)

SCHEMES = ["filelog", "sqlite"]


async def recreate(broker: BrokerNode, name: str) -> None:
    if broker.find_topic(name) is not None:
        await broker.delete_topic(name)
    await broker.create_topic(name).wait()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_lone_broker_keeps_the_newest_topic_through_restarts(tmp_path: Path, scheme: str) -> None:
    async with open_broker_cluster(tmp_path, scheme) as cluster:
        for number in range(3):
            broker = await cluster.start("a")
            if number:
                (log,) = broker.logs("orders")
                assert await read(broker, log) == [b"%d" % (number - 1)]
                assert [each for each in broker.topics if each != "orders"] == []
            for _ in range(2):
                await recreate(broker, "orders")
                await recreate(broker, "gone")
            await broker.delete_topic("gone")
            (log,) = broker.logs("orders")
            assert await append(broker, log, b"%d" % number) == 0
            await cluster.stop("a")
