"""Topics that brokers need: nodes do not publish to them, and stores keep them whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka import Config, open_producer
from dafka.errors import ConfigError
from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage
from dafka.testing import open_cluster
from tests.roles.helpers import open_store
from tests.waiting import wait_until

SYSTEM = [Partition(topic, "4F0C") for topic in ("$topics", "$logs", "$brokers", "$coordinators")]
GROUP = Partition("$group/billing", "4F0C")
ORDERS = Partition("orders", "4F0C")


@pytest.mark.parametrize("partition", SYSTEM, ids=str)
async def test_nodes_do_not_publish_to_system_topics(partition: Partition) -> None:
    with pytest.raises(ConfigError, match="is a system topic"):
        async with open_producer(partition.topic):
            raise AssertionError("the producer was opened")


async def test_limits_of_a_store_do_not_apply_to_system_topics(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/store.db"
    partitions = [*SYSTEM, GROUP, ORDERS]
    async with open_storage(url) as storage:
        await storage.append([RecordBatch(each, 0, [b"value"] * 10, keys=[b"key"] * 10) for each in partitions])
    config = Config().with_store(retention_records=1, retention_interval_ms=20)
    async with open_cluster(config, storage=None) as cluster, open_store(cluster.config, url) as store:
        await wait_until(lambda: store.statistics().records_dropped >= 18)
    async with open_storage(url, read_only=True) as storage:
        held = await storage.partitions()
        assert [held[each].count for each in SYSTEM] == [10] * len(SYSTEM)
