"""Native nodes, Kafka's clients and Spark at one topic of several logs, all at once: they see the same records."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from confluent_kafka import Consumer

from dafka import Config, ProducerRecord, open_consumer, open_producer
from dafka.broker.core.log.partitioner import log_of_address, log_of_key
from dafka.testing import kafka
from tests.kafka.server.clients import AioKafka, Confluent, Message
from tests.spark.queries import HANG_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGS = 12
RECORDS = 400
WRITERS = ("native-1", "native-2", "confluent", "aiokafka")
TOTAL = RECORDS * len(WRITERS)
DEADLINE_S = HANG_S


def make_records(writer: str) -> list[Message]:
    """Return what a writer writes: keys that the others have too, no keys, tombstones, headers and times."""
    return [
        Message(
            None if number % 17 == 5 else f"{writer}-{number}".encode(),
            None if number % 5 == 0 and number % 17 != 5 else b"key-%d" % (number % 23),
            (("writer", writer.encode()), ("number", b"%d" % number), ("empty", None))[: 2 + number % 2],
            1_700_000_000_000 + number,
        )
        for number in range(RECORDS)
    ]


def write_natively(config: Config, writer: str) -> str:
    """Write with a producer of Dafka, in several batches. Return its address."""

    async def write() -> str:
        records = [ProducerRecord(*each) for each in make_records(writer)]
        with trio.fail_after(DEADLINE_S):
            async with open_producer("orders", config) as producer:
                for first in range(0, RECORDS, 50):
                    await producer.send_many(records[first : first + 50])
                    await producer.wait_acknowledged()
                return producer.address
        raise AssertionError

    return trio.run(write)


def read_natively(config: Config) -> dict[tuple[str, int], Message]:
    """Return what a consumer of Dafka gets, by partition and sequence."""

    async def read() -> dict[tuple[str, int], Message]:
        found: dict[tuple[str, int], Message] = {}
        with trio.fail_after(DEADLINE_S):
            async with open_consumer(["orders"], config.with_consumer(offset_reset="earliest")) as consumer:
                while len(found) < TOTAL:
                    for each in await consumer.next_batch():
                        place = each.partition.address, each.sequence
                        assert place not in found
                        found[place] = Message(each.value, each.key, each.headers, each.timestamp or -1)
        return found

    return trio.run(read)


def read_with_confluent(servers: str) -> dict[tuple[int, int], Message]:
    """Return what a client of Kafka gets, by log and offset."""
    settings: dict[str, Any] = {"group.id": "readers", "auto.offset.reset": "earliest"}
    settings |= {"bootstrap.servers": servers, "topic.metadata.refresh.interval.ms": 200}
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])
    found: dict[tuple[int, int], Message] = {}
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < TOTAL:
        assert time.monotonic() < deadline, len(found)
        for each in consumer.consume(500, timeout=0.2):
            if each.error() is None:
                pairs: Any = each.headers() or ()
                place = each.partition() or 0, each.offset() or 0
                assert place not in found
                found[place] = Message(each.value(), each.key(), tuple(pairs), each.timestamp()[1])
    consumer.close()
    return found


def read_with_spark(spark: SparkSession, storage: str, *, may_be_empty: bool = False) -> dict[tuple[str, int], Message]:
    reader = spark.read.format("dafka").option("subscribe", "orders").option("includeHeaders", "true")
    frame = reader.option("failOnDataLoss", "false" if may_be_empty else "true").load(storage)
    rows = frame.selectExpr(
        "partition", "offset", "value", "key", "headers", "unix_millis(timestamp) AS time"
    ).collect()

    def as_message(row: Any) -> Message:
        value, key = (None if each is None else bytes(each) for each in (row.value, row.key))
        headers = tuple((each.key, None if each.value is None else bytes(each.value)) for each in row.headers or ())
        return Message(value, key, headers, row.time)

    return {(row.partition, row.offset): as_message(row) for row in rows}


def test_all_readers_see_the_same_records(spark: SparkSession, tmp_path: Path) -> None:
    storage = f"filelog:{tmp_path}/log"
    with kafka(storage, Config().with_kafka(log_count=LOGS)) as broker, ThreadPoolExecutor(6) as pool:
        servers, config = broker.bootstrap_servers, broker.config
        started, confluent = threading.Barrier(6), Confluent(partitioner="murmur2_random")

        def begin(call: Callable[..., Any], *arguments: Any) -> Any:
            started.wait(DEADLINE_S)
            return call(*arguments)

        native_read = pool.submit(begin, read_natively, config)
        kafka_read = pool.submit(begin, read_with_confluent, servers)
        native = [pool.submit(begin, write_natively, config, writer) for writer in WRITERS[:2]]
        foreign = [
            pool.submit(begin, confluent.write, servers, "orders", make_records("confluent"), "none"),
            pool.submit(begin, AioKafka().write, servers, "orders", make_records("aiokafka"), "gzip"),
        ]
        meanwhile: dict[tuple[str, int], Message] = {}
        while not all(each.done() for each in (*native, *foreign)):
            now = read_with_spark(spark, storage, may_be_empty=True)
            assert meanwhile.items() <= now.items()
            meanwhile = now
        addresses = [each.result(DEADLINE_S) for each in native]
        for each in foreign:
            each.result(DEADLINE_S)
        by_sequence, by_offset = native_read.result(DEADLINE_S), kafka_read.result(DEADLINE_S)
        in_spark = read_with_spark(spark, storage)
    assert meanwhile.items() <= in_spark.items()
    assert in_spark == by_sequence
    written = [each for writer in WRITERS for each in make_records(writer)]
    assert Counter(by_sequence.values()) == Counter(by_offset.values()) == Counter(written)
    check_logs(addresses, by_sequence, by_offset)


def check_logs(
    addresses: list[str], by_sequence: dict[tuple[str, int], Message], by_offset: dict[tuple[int, int], Message]
) -> None:
    """Check that offsets have no gaps, that keys choose logs, and that logs keep the order of each partition."""
    logs: dict[int, list[Message]] = defaultdict(list)
    for (log, offset), each in sorted(by_offset.items()):
        assert offset == len(logs[log])
        logs[log].append(each)
        if each.key is not None:
            assert log == log_of_key(each.key, LOGS)
    position = {each: (log, number) for log, found in logs.items() for number, each in enumerate(found)}
    last: dict[tuple[str, int], int] = {}
    for (address, _), each in sorted(by_sequence.items()):
        log, number = position[each]
        assert last.get((address, log), -1) < number
        last[address, log] = number
        if address in addresses:
            assert each.key is not None or log == log_of_address(address, LOGS)
        else:
            assert address.endswith(f"/{log}")
