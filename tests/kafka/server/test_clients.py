"""Unmodified clients of Kafka, and Dafka's own nodes, read what each other writes: all, committed, or compacted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import trio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from dafka import Config, ProducerRecord, Record, open_consumer, open_producer
from dafka.testing import RunningKafka, kafka
from tests.kafka.server.clients import CLIENTS, AioKafka, Confluent, KafkaPython, Message, read_log
from tests.kafka.server.compaction import run_compacting
from tests.waiting import poll_until

COUNT, KEYS, DEADLINE_S = 100, 20, 60

WRITTEN = [
    ("confluent-kafka", "none", "aiokafka"),
    ("confluent-kafka", "zstd", "kafka-python"),
    ("idempotent confluent-kafka", "gzip", "confluent-kafka"),
    ("aiokafka", "lz4", "kafka-python"),
    ("kafka-python", "snappy", "aiokafka"),
]
"""Who writes, with which compression, and who reads as a member of a group. Dafka's consumer reads everything."""

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

STORAGES = ["filelog:{}/log?segment_bytes=300", "sqlite:{}/broker.db", "memory:"]
EACH_STORAGE = [STORAGES[0], *(pytest.param(each, marks=pytest.mark.long) for each in STORAGES[1:])]


def messages(count: int = COUNT) -> list[Message]:
    return [
        Message(
            b"value %d" % n * (n % 7),
            None if n % 3 else b"key %d" % n,
            (("name", b"%d" % n), ("empty", b"")) if n % 2 else (),
            1_700_000_000_000 + n,
        )
        for n in range(count)
    ]


def read_natively(config: Config, topic: str, count: int) -> list[Record]:
    """Return what a consumer of Dafka gets, up to a number of records."""

    async def read() -> list[Record]:
        found: list[Record] = []
        with trio.fail_after(DEADLINE_S):
            async with open_consumer([topic], config.with_consumer(offset_reset="earliest")) as consumer:
                while len(found) < count:
                    found += await consumer.next_batch()
        return found

    return trio.run(read)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKafka]:
    with kafka(f"filelog:{tmp_path_factory.mktemp('broker')}/log") as running:
        yield running


@pytest.mark.parametrize(("writer", "compression", "reader"), WRITTEN)
def test_clients_and_native_consumers_read_what_clients_write(
    broker: RunningKafka, writer: str, compression: str, reader: str
) -> None:
    topic = f"{writer}-{compression}".replace(" ", "-")
    offsets = CLIENTS[writer].write(broker.bootstrap_servers, topic, messages(), compression)
    assert sorted(offsets) == list(range(COUNT))
    assert CLIENTS[reader].read(broker.bootstrap_servers, topic, COUNT, topic) == messages()
    native = read_natively(broker.config, topic, COUNT)
    assert [Message(each.value, each.key, each.headers, each.timestamp or 0) for each in native] == messages()


def test_clients_read_what_native_producers_write(broker: RunningKafka) -> None:
    async def write() -> None:
        async with open_producer("native", broker.config) as producer:
            records = [ProducerRecord(each.value, each.key, each.headers, each.timestamp) for each in messages()]
            await producer.send_many(records)
            await producer.wait_acknowledged()

    trio.run(write)
    assert Confluent().read(broker.bootstrap_servers, "native", COUNT) == messages()


def test_groups_continue_after_a_restart(tmp_path: Path) -> None:
    client, storage = Confluent(), f"filelog:{tmp_path}/log"
    with kafka(storage) as broker:
        client.write(broker.bootstrap_servers, "orders", messages(100), "none")
        assert client.read(broker.bootstrap_servers, "orders", 40, "group") == messages(100)[:40]
    with kafka(storage) as broker:
        assert client.write(broker.bootstrap_servers, "orders", messages(1), "none") == [100]
        rest = client.read(broker.bootstrap_servers, "orders", 61, "group")
        assert rest[:60] == messages(100)[40:]


def committed(servers: str) -> list[bytes | None]:
    return [value for _, value in read_log(servers, "orders", isolation_level="read_committed").values()]


@pytest.mark.parametrize("storage", EACH_STORAGE[:2])
def test_committed_records_are_read_and_aborted_ones_are_not(storage: str, tmp_path: Path) -> None:
    """Transactions of two producers are open at the same time; each is committed or aborted."""
    random, expected, written = Random(1), [], 0

    def open_producers(servers: str) -> list[Producer]:
        producers = [Producer({"bootstrap.servers": servers, "transactional.id": name}) for name in "ab"]
        for producer in producers:
            producer.init_transactions(DEADLINE_S)
        return producers

    with kafka(storage.format(tmp_path)) as broker:
        servers, producers = broker.bootstrap_servers, open_producers(broker.bootstrap_servers)
        for number in range(5):
            values: list[list[bytes]] = [[], []]
            for producer in producers:
                producer.begin_transaction()
            order = [0, 1] * 5
            random.shuffle(order)
            for each in order:
                values[each].append(b"%d %d %d" % (each, number, len(values[each])))
                producers[each].produce("orders", values[each][-1])
                producers[each].flush(DEADLINE_S)
            written += len(order)
            for each in random.sample([0, 1], 2):
                is_committed = each == number % 2
                end: Callable[[float], None] = (
                    producers[each].commit_transaction if is_committed else producers[each].abort_transaction
                )
                end(DEADLINE_S)
                expected += values[each] if is_committed else []
        assert committed(servers) == expected
        producers[0].begin_transaction()
        producers[0].produce("orders", b"open")
        producers[0].flush(DEADLINE_S)
        assert committed(servers) == expected
        native = read_natively(broker.config, "orders", written + 1)
        assert [record.sequence for record in native] == list(range(written + 1))
        assert native[written].value == b"open"  # no record is the end of a transaction
    with kafka(storage.format(tmp_path)) as broker:
        producer, _ = open_producers(broker.bootstrap_servers)  # aborts what was open
        producer.begin_transaction()
        producer.produce("orders", b"after")
        producer.commit_transaction(DEADLINE_S)
        assert committed(broker.bootstrap_servers) == [*expected, b"after"]


@pytest.mark.parametrize("storage", EACH_STORAGE)
def test_clients_read_the_last_record_of_each_key_at_its_offset(storage: str, tmp_path: Path) -> None:
    count = 8 * KEYS
    with run_compacting(storage.format(tmp_path)) as broker:
        servers = broker.bootstrap_servers
        settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("prices", 1, config=settings)])["prices"].result(DEADLINE_S)
        written = [Message(b"%d" % number, b"key %d" % (number % KEYS)) for number in range(count)]
        for first in range(0, count, KEYS):  # in many small batches
            Confluent().write(servers, "prices", written[first : first + KEYS], "none")
        poll_until(lambda: len(read_log(servers, "prices")) <= 3 * KEYS)
        with broker.compaction_held():
            found = read_log(servers, "prices")
            assert dict(found.values()) == {each.key: each.value for each in written}
            assert all(value == b"%d" % offset for offset, (_, value) in found.items())
            values = [value for _, value in found.values()]
            for client in (AioKafka(), KafkaPython()):
                assert [each.value for each in client.read(servers, "prices", len(found))] == values
            native = read_natively(broker.config, "prices", len(found))
        assert [(record.sequence, record.value) for record in native] == list(zip(found, values, strict=True))
        # Further records get the next offsets.
        assert Confluent().write(servers, "prices", [Message(b"more", b"key 1")], "none") == [count]
    if storage != "memory:":
        with run_compacting(storage.format(tmp_path)) as broker:
            again = read_log(broker.bootstrap_servers, "prices")
            assert again[count] == (b"key 1", b"more")
            assert set(again) <= {*found, count}
