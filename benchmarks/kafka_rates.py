"""Compares a broker with librdkafka's mock cluster, which keeps nothing on disk, through confluent-kafka.

Producing and consuming 100-byte records with acks=all, and the time until a single record at 1,000 a second is
acknowledged. The broker, with a file log that waits for the disk, the mock cluster, and the client are processes of
their own. The mock cluster keeps 5 MB of each log, so what is consumed is divided among many logs. Run on a quiet
machine:

    python benchmarks/kafka_rates.py [RECORDS] [ROUNDS] [LOGS]
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from dafka import Config
from dafka.testing import kafka

CONTENT = bytes(range(100))
CONSUMED_LOG_RECORDS = 40_000
MOCK_LOGS = 4
LATENCY_RECORDS_S = 1000
LATENCY_S = 10
SYSTEMS = ("mock", "dafka")


def serve_mock() -> None:
    """Run a mock cluster until killed."""
    producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "replaced"})
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    print(f"{broker.host}:{broker.port}", flush=True)
    signal.pause()


def serve_dafka(folder: str, logs: int) -> None:
    """Run a broker until killed."""
    with kafka(f"filelog:{folder}", Config().with_kafka(log_count=logs)) as broker:
        print(broker.bootstrap_servers, flush=True)
        signal.pause()


@contextmanager
def serve(system: str, logs: int) -> Iterator[str]:
    """Run a system, and yield where clients find it."""
    with tempfile.TemporaryDirectory(prefix=".rates-", dir=Path.cwd()) as folder:
        program = [sys.executable, __file__, "serve", system, folder, str(logs)]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield process.stdout.readline().strip()
            finally:
                process.kill()


def send_all(producer: Any, topic: str, records: int, **options: Any) -> None:
    for _ in range(records):
        while True:
            try:
                producer.produce(topic, CONTENT, **options)
                break
            except BufferError:
                producer.poll(0.001)


def produce(servers: str, records: int) -> float:
    """Return how many records are acknowledged in a second."""
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    send_all(producer, "produced", 1)
    producer.flush()
    began = time.perf_counter()
    send_all(producer, "produced", records)
    assert producer.flush() == 0
    return records / (time.perf_counter() - began)


def prepare(servers: str, topics: int, logs: int) -> None:
    """Write the records to consume."""
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for topic in range(topics):
        for log in range(logs):
            send_all(producer, f"consumed-{topic}", CONSUMED_LOG_RECORDS, partition=log)
    assert producer.flush() == 0


def consume(servers: str, topics: int, logs: int) -> float:
    """Return how many records are read in a second, after the first ones."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(f"consumed-{topic}", log, 0) for topic in range(topics) for log in range(logs)])
    left = topics * logs * CONSUMED_LOG_RECORDS - len(consumer.consume(1, timeout=10))
    records, began = left, time.perf_counter()
    while left:
        left -= len(consumer.consume(min(left, 10_000), timeout=1))
    rate = records / (time.perf_counter() - began)
    consumer.close()
    return rate


def measure_latency(servers: str) -> tuple[float, float]:
    """Return the median and the 99th percentile of the time until a record is acknowledged, in milliseconds."""
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 0})
    found: list[float] = []

    def send() -> None:
        sent = time.perf_counter()
        producer.produce("latency", CONTENT, on_delivery=lambda *_: found.append(time.perf_counter() - sent))

    send()
    producer.flush()
    found.clear()
    due = time.perf_counter()
    for _ in range(LATENCY_RECORDS_S * LATENCY_S):
        send()
        due += 1 / LATENCY_RECORDS_S
        producer.poll(0)
        while (left := due - time.perf_counter()) > 0:
            producer.poll(left)
    producer.flush()
    found.sort()
    return found[len(found) // 2] * 1000, found[len(found) * 99 // 100] * 1000


CLIENTS = {"produce": produce, "prepare": prepare, "consume": consume, "latency": measure_latency}


def run_client(name: str, servers: str, *arguments: int) -> Any:
    program = [sys.executable, __file__, "client", name, servers, *map(str, arguments)]
    return json.loads(subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout)


def main(records: int, rounds: int, logs: int) -> None:
    counts = {"mock": MOCK_LOGS, "dafka": logs}
    total = max(records // CONSUMED_LOG_RECORDS, 1)
    topics = {system: max(total // count, 1) for system, count in counts.items()}
    found: dict[tuple[str, str], list[float]] = {pair: [] for pair in product(("produce", "consume"), SYSTEMS)}
    latencies: dict[str, list[tuple[float, float]]] = {each: [] for each in SYSTEMS}
    for _ in range(rounds):
        for system in SYSTEMS:
            with serve(system, logs) as servers:
                found["produce", system].append(run_client("produce", servers, records))
                run_client("prepare", servers, topics[system], counts[system])
                found["consume", system].append(run_client("consume", servers, topics[system], counts[system]))
                latencies[system].append(tuple(run_client("latency", servers)))
    for name in ("produce", "consume"):
        rates = {system: statistics.median(found[name, system]) for system in SYSTEMS}
        ratios = [mine / mock for mock, mine in zip(*(found[name, each] for each in SYSTEMS), strict=True)]
        print(
            f"{name}: mock cluster {rates['mock']:>9,.0f}/s   dafka {rates['dafka']:>9,.0f}/s   "
            f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})"
        )
    for system in SYSTEMS:
        p50, p99 = (statistics.median(each) for each in zip(*latencies[system], strict=True))
        print(f"acknowledged at {LATENCY_RECORDS_S}/s, {system}: p50 {p50:.2f} ms, p99 {p99:.2f} ms")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        if sys.argv[2] == "mock":
            serve_mock()
        else:
            serve_dafka(sys.argv[3], int(sys.argv[4]))
    elif sys.argv[1:2] == ["client"]:
        print(json.dumps(CLIENTS[sys.argv[2]](sys.argv[3], *map(int, sys.argv[4:]))))  # type: ignore[operator]
    else:
        given = [int(text) for text in sys.argv[1:]]
        main(*(*given, *(1_000_000, 3, 1)[len(given) :]))
