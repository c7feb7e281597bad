from __future__ import annotations

from pathlib import Path

import pytest
import trio

from dafka import Config
from dafka.errors import StorageError
from dafka.testing import open_cluster


async def test_clusters_do_not_see_each_other() -> None:
    async with open_cluster() as first, open_cluster() as second:
        assert first.store is not None
        assert second.store is not None
        async with first.producer("hello") as producer:
            await producer.send(b"0")
        assert first.store.statistics().records_stored == 1
        assert second.store.statistics().records_stored == 0
        assert first.tower.statistics().nodes == 2
        assert second.tower.statistics().nodes == 1


async def test_everything_listens_on_loopback_whatever_the_config_says() -> None:
    config = Config().with_tower(sub="tcp://*:5556").with_node(bind="tcp://*:7")
    async with open_cluster(config) as cluster, cluster.producer("hello") as producer:
        assert cluster.store is not None
        endpoints = [cluster.tower.sub_endpoint, cluster.tower.pub_endpoint, cluster.store.endpoint, producer.endpoint]
        assert all(endpoint.startswith("tcp://127.0.0.1:") for endpoint in endpoints)
        assert len(set(endpoints)) == 4


async def test_cluster_without_a_store() -> None:
    async with open_cluster(storage=None) as cluster:
        assert cluster.store is None
        with trio.fail_after(20):
            config = cluster.config.with_producer(min_stores=0)
            async with cluster.producer("hello", config) as producer, cluster.consumer(["hello"]) as consumer:
                await producer.send(b"0")
                assert (await consumer.next_record()).value == b"0"


async def test_cluster_with_a_given_storage(tmp_path: Path) -> None:
    storage = f"sqlite:{tmp_path / 'store.db'}"
    async with open_cluster(storage=storage) as cluster, cluster.producer("hello") as producer:
        await producer.send(b"0")
    async with open_cluster(storage=storage) as cluster, cluster.consumer(["hello"]) as consumer:
        with trio.fail_after(20):
            assert (await consumer.next_record()).value == b"0"


async def test_errors_come_out_alone() -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_cluster():
            raise ZeroDivisionError
    with pytest.raises(StorageError):
        async with open_cluster(storage="papyrus:"):
            pass
