"""Unmodified clients of Kafka meet the rules of a topic: append times, compression, keys, and gaps up to its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka.server.clients import CLIENTS, DEADLINE_S, Message, import_kafka, read_log
from tests.kafka.server.compaction import CompactingBroker, run_compacting
from tests.waiting import poll_until

COUNT = 100

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompactingBroker]:
    with run_compacting(f"filelog:{tmp_path_factory.mktemp('broker')}/log") as running:
        yield running


def create(broker: CompactingBroker, topic: str, **settings: str) -> None:
    config = {name.replace("_", "."): value for name, value in settings.items()}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, config=config)])[topic].result(DEADLINE_S)


@pytest.mark.parametrize("writer", CLIENTS)
def test_records_have_the_time_and_the_compression_of_their_topic(broker: CompactingBroker, writer: str) -> None:
    topic = f"rules-{writer}".replace(" ", "-")
    settings = {"compression_type": "lz4", "compression_lz4_level": "12"}
    create(broker, topic, message_timestamp_type="LogAppendTime", **settings)
    sent = [Message(b"value %d" % (number % 9), b"key %d" % number) for number in range(COUNT)]
    began = time.time_ns() // 1_000_000
    assert sorted(CLIENTS[writer].write(broker.bootstrap_servers, topic, sent, "gzip")) == list(range(COUNT))
    for client in CLIENTS.values():
        found = client.read(broker.bootstrap_servers, topic, COUNT)
        assert [each[:2] for each in found] == [each[:2] for each in sent]
        times = [each.timestamp for each in found]
        assert times == sorted(times)
        assert began <= times[0] <= times[-1] <= time.time_ns() // 1_000_000
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "times"})
    at = times[COUNT // 2]
    (place,) = consumer.offsets_for_times([TopicPartition(topic, 0, at)], DEADLINE_S)
    assert place.offset == times.index(at)
    consumer.close()


def test_producers_get_the_append_time(broker: CompactingBroker) -> None:
    create(broker, "answered", message_timestamp_type="LogAppendTime")
    answers: list[tuple[int, int]] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    producer.produce("answered", b"a", timestamp=1000, on_delivery=lambda _, each: answers.append(each.timestamp()))
    assert producer.flush(DEADLINE_S) == 0
    ((kind, time_ms),) = answers
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert time_ms > 1000


def write_confluent(servers: str, key: bytes | None) -> str:
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": servers})
    producer.produce("keyed", b"value", key, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE_S) == 0
    return errors[0].name() if errors[0] else ""


def write_kafka_python(servers: str, key: bytes | None) -> str:
    producer = import_kafka().KafkaProducer(bootstrap_servers=servers)
    try:
        producer.send("keyed", b"value", key).get(DEADLINE_S)
    except import_kafka().errors.KafkaError as error:
        return type(error).__name__
    finally:
        producer.close()
    return ""


def write_aiokafka(servers: str, key: bytes | None) -> str:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    async def write() -> str:
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            try:
                await producer.send_and_wait("keyed", b"value", key)
            except KafkaError as error:
                return str(error) + type(error).__name__
        return ""

    return asyncio.run(asyncio.wait_for(write(), DEADLINE_S))


@pytest.mark.parametrize("write", [write_confluent, write_kafka_python, write_aiokafka])
def test_producers_are_refused_records_without_keys_for_a_compacted_topic(
    broker: CompactingBroker, write: Callable[[str, bytes | None], str]
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    if "keyed" not in admin.list_topics(timeout=DEADLINE_S).topics:
        create(broker, "keyed", cleanup_policy="compact")
    assert write(broker.bootstrap_servers, b"key") == ""
    refused = write(broker.bootstrap_servers, None)
    unknown = "UnknownError"  # aiokafka does not know Kafka's error 87
    assert any(each in refused for each in ("INVALID_RECORD", "InvalidRecord", unknown)), refused
    assert {value for _, value in read_log(broker.bootstrap_servers, "keyed").values()} == {b"value"}


def test_consumers_pass_the_gaps_of_a_small_compacted_topic_up_to_its_end(broker: CompactingBroker) -> None:
    """The last record is of an aborted transaction, so that a gap is at the end of the log."""
    servers, count = broker.bootstrap_servers, 60
    create(broker, "gaps", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", segment_ms="100")
    for first in range(0, count, 20):
        sent = [Message(b"%d" % number, b"key %d" % (number % 3)) for number in range(first, first + 20)]
        CLIENTS["confluent-kafka"].write(servers, "gaps", sent, "none")
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "aborted"})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    for number in range(20):
        producer.produce("gaps", b"aborted", b"key %d" % (number % 3))
    producer.flush(DEADLINE_S)
    producer.abort_transaction(DEADLINE_S)
    poll_until(lambda: len(read_log(servers, "gaps")) <= 5)
    with broker.compaction_held():
        compare_with_gaps(servers, count + 20 + 1)


def compare_with_gaps(servers: str, end: int) -> None:
    """Compare what clients read of a compacted topic up to its end."""
    expected = read_log(servers, "gaps", isolation_level="read_committed")
    assert dict(expected.values()) == {b"key %d" % (number % 3): b"%d" % number for number in range(57, 60)}

    python = import_kafka().KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed")
    place = import_kafka().TopicPartition("gaps", 0)
    python.assign([place])
    python.seek_to_beginning(place)
    found: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while python.position(place) < end:
        assert time.monotonic() < deadline, python.position(place)
        found += [each.offset for each in python.poll(500).get(place, ())]
    python.close()
    assert found == list(expected)

    async def read() -> list[int]:
        from aiokafka import AIOKafkaConsumer
        from aiokafka import TopicPartition as Place

        at, offsets = Place("gaps", 0), []
        async with AIOKafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed") as consumer:
            consumer.assign([at])
            await consumer.seek_to_beginning(at)
            while await consumer.position(at) < end:
                offsets += [each.offset for each in (await consumer.getmany(at, timeout_ms=500)).get(at, ())]
        return offsets

    assert asyncio.run(asyncio.wait_for(read(), DEADLINE_S)) == list(expected)
