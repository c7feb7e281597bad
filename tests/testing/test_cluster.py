from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import trio

from dafka import Config
from dafka.errors import AddressInUseError, RecordError, StorageError
from dafka.testing import kafka, open_cluster
from tests.kafka.server.clients import AioKafka, Confluent, Message
from tests.ports import free_port
from tests.waiting import DEADLINE_S, wait_until


async def test_clusters_do_not_see_each_other() -> None:
    async with open_cluster() as first, open_cluster() as second:
        assert first.store is not None
        assert second.store is not None
        async with first.producer("hello") as producer:
            await producer.send(b"0")
            await producer.wait_stored()
            await wait_until(lambda: (first.tower.statistics().nodes, second.tower.statistics().nodes) == (2, 1))
        assert first.store.statistics().records_stored == 1
        assert second.store.statistics().records_stored == 0
        async with first.consumer(["hello"], second.config):  # a configuration that is given applies
            await wait_until(lambda: second.tower.statistics().nodes == 2)


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
        with trio.fail_after(DEADLINE_S):
            config = cluster.config.with_producer(min_stores=0)
            async with cluster.producer("hello", config) as producer, cluster.consumer(["hello"]) as consumer:
                await producer.send(b"0")
                assert (await consumer.next_record()).value == b"0"


async def test_cluster_with_a_given_storage(tmp_path: Path) -> None:
    storage = f"sqlite:{tmp_path / 'store.db'}"
    async with open_cluster(storage=storage) as cluster, cluster.producer("hello") as producer:
        await producer.send(b"0")
    async with open_cluster(storage=storage) as cluster, cluster.consumer(["hello"]) as consumer:
        with trio.fail_after(DEADLINE_S):
            assert (await consumer.next_record()).value == b"0"


async def test_errors_come_out_alone() -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_cluster():
            raise ZeroDivisionError
    with pytest.raises(StorageError):
        async with open_cluster(storage="papyrus:"):
            pass


async def test_a_consumer_begins_where_it_is_opened() -> None:
    """At the first record, unless it has positions or a time."""
    with trio.fail_after(DEADLINE_S):
        async with open_cluster() as cluster:
            async with cluster.producer("hello") as producer:
                for number in range(3):
                    await producer.send(b"%d" % number, timestamp=1000 * (number + 1))
                await producer.wait_stored()
                partition = producer.partition
            async with (
                cluster.consumer(["hello"]) as first,
                cluster.consumer(["hello"], positions={partition: 1}) as second,
                cluster.consumer(["hello"], start=3000) as third,
                cluster.consumer(["hello"], group="readers") as member,
            ):
                found = [(await each.next_record()).value for each in (first, second, third)]
                assert found == [b"0", b"1", b"2"]
                assert (first.group, member.group) == ("", "readers")


async def test_settings_of_a_cluster_and_of_one_node_apply() -> None:
    with trio.fail_after(DEADLINE_S):
        async with open_cluster(Config().with_node(message_bytes_max=5000)) as cluster:
            assert cluster.config.node.message_bytes_max == 5000
            async with cluster.producer("hello", cluster.config.with_node(message_bytes_max=2000)) as producer:
                with pytest.raises(RecordError):
                    await producer.send(bytes(3000))
            async with cluster.producer("hello") as producer:
                await producer.send(bytes(3000))


# A broker for tests of programs that use Kafka


def test_broker_serves_plain_and_asyncio_programs(tmp_path: Path) -> None:
    config = Config().with_producer(silence_ms=77).with_kafka(listen="127.0.0.1:1")
    with kafka(f"filelog:{tmp_path}", config) as running:
        assert running.bootstrap_servers.startswith("127.0.0.1:")
        assert running.config.producer.silence_ms == 77
        assert running.config.kafka == config.kafka
        Confluent().write(running.bootstrap_servers, "orders", [Message(b"a")], "none")
        AioKafka().write(running.bootstrap_servers, "orders", [Message(b"b")], "none")
        found = AioKafka().read(running.bootstrap_servers, "orders", 2)
        assert [each.value for each in found] == [b"a", b"b"]
    with kafka(f"filelog:{tmp_path}") as again:
        assert [each.value for each in AioKafka().read(again.bootstrap_servers, "orders", 2)] == [b"a", b"b"]


def test_a_broker_without_a_storage_keeps_its_records_in_a_folder_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    port = free_port()
    with kafka(config=Config().with_producer(silence_ms=77), port=port) as running:
        assert (running.bootstrap_servers, running.config.producer.silence_ms) == (f"127.0.0.1:{port}", 77)
        (folder,) = tmp_path.iterdir()
        assert folder.name.startswith("dafka-kafka-")
        assert any(folder.iterdir())
    assert not any(tmp_path.iterdir())


def test_taken_port_is_named() -> None:
    with kafka("memory:") as running:
        port = int(running.bootstrap_servers.split(":")[1])
        with pytest.raises(AddressInUseError), kafka("memory:", port=port):
            pass


pytest_plugins = ["pytester"]

EMBEDDER = """
    import dafka
    import pytest
    import trio

    {override}

    @pytest.mark.trio
    async def test_record_goes_through(dafka_cluster):
        with trio.fail_after(60):
            async with dafka.open_producer("orders", dafka_cluster.config) as producer:
                await producer.send(b"tea")
            assert dafka_cluster.store.statistics().records_stored == 1
            assert producer.endpoint != dafka_cluster.store.endpoint
            assert dafka_cluster.config.producer.silence_ms == {silence_ms}
"""

OVERRIDE = """
    @pytest.fixture
    def dafka_config():
        return dafka.Config().with_producer(silence_ms=77)

    def test_broker_has_the_settings(dafka_kafka):
        assert dafka_kafka.bootstrap_servers.startswith("127.0.0.1:")
        assert dafka_kafka.config.producer.silence_ms == 77
"""


def test_embedder_needs_no_trio_mode(pytester: pytest.Pytester) -> None:
    defaults = EMBEDDER.format(override="", silence_ms=5000)
    own = EMBEDDER.format(override=OVERRIDE.strip(), silence_ms=77)
    pytester.makeconftest('pytest_plugins = ["dafka.testing.plugin"]')
    pytester.makepyfile(test_defaults=defaults, test_own_config=own)
    pytester.runpytest_subprocess("-W", "error").assert_outcomes(passed=3)
