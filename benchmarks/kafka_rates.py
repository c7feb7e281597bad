"""Compares a broker with librdkafka's mock cluster and with Tansu, through confluent-kafka.

The mock cluster and Tansu keep everything in memory. The broker stores records in a file log or in SQLite, and waits
for the disk before it acknowledges them. Each system, and each client, is a process of its own; the systems take turns.
The program prints medians: the figure of each job, the processor time that the system used, and the ratio of the figure
to that of the better of the other two systems in the same round, with its range. Run on a quiet machine:

    python benchmarks/kafka_rates.py [--tansu PROGRAM] [--rounds N] [--system SYSTEM ...] [--job JOB ...]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_systems import BROKERS, MOCK_LOGS, OTHERS, START_S, Measured, Served, serve

LOG_BYTES_MAX = 3_800_000
"""What is written to one log that is read later, in bytes. The mock cluster drops the oldest records above 5 MB."""

MESSAGE_BYTES_MAX = 2 * 10**6
CLIENT_S = 120.0
WARM_UP_RECORDS = 20
PACED_RECORDS_S = 1000
PACED_S = 10


class Job(NamedTuple):
    """What is measured: with records of this size, and as many, or for a time."""

    name: str
    unit: str
    record_bytes: int
    records: int
    is_rate: bool = True


JOBS = (
    Job("produce", "records/s", 100, 1_000_000),
    Job("consume", "records/s", 100, 1_000_000),
    Job("produce", "records/s", 1000, 300_000),
    Job("consume", "records/s", 1000, 300_000),
    Job("produce", "MB/s", 1_000_000, 1000),
    Job("consume", "MB/s", 1_000_000, 1000),
    Job("acknowledged", "ms, p99", 100, PACED_RECORDS_S * PACED_S, is_rate=False),
    Job("delivered", "ms, p99", 100, PACED_RECORDS_S * PACED_S, is_rate=False),
)


class Meter:
    """Measures the time that passes, and the processor time that a system uses, in seconds."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._begun_s = time.perf_counter()
        self._used_s = served.processor_s()

    def elapsed_s(self) -> float:
        """Return the time since the beginning."""
        return time.perf_counter() - self._begun_s

    def used_s(self) -> float:
        """Return the processor time since the beginning."""
        return self._served.processor_s() - self._used_s


class Client:
    """Runs jobs at a system."""

    def __init__(self, served: Served) -> None:
        self._options = {"bootstrap.servers": served.servers, "message.max.bytes": MESSAGE_BYTES_MAX, "log_level": 3}
        self._is_mock = served.name == "mock"
        self._served = served

    def measure(self, job: Job) -> Measured:
        """Return the figure of a job."""
        topic = f"{job.name}-{job.record_bytes}"
        logs = [TopicPartition(topic, 0, 0)]
        if job.name == "consume" and self._is_mock:
            count = -(-job.records * job.record_bytes // LOG_BYTES_MAX)
            logs = [TopicPartition(f"{topic}-{each // MOCK_LOGS}", each % MOCK_LOGS, 0) for each in range(count)]
        self._create({each.topic for each in logs})
        if not job.is_rate:
            return self._measure_latency(job, logs)
        meter = self._send(logs, job.record_bytes, job.records)
        if job.name == "consume":
            meter = self._receive(logs, job.record_bytes, job.records)
        work = job.records * job.record_bytes / 1e6 if job.unit == "MB/s" else job.records
        return Measured(work / meter.elapsed_s(), meter.used_s())

    def _create(self, topics: Iterable[str]) -> None:
        if self._is_mock:
            return  # it creates topics when they are first used
        admin = AdminClient(self._options)
        for created in admin.create_topics([NewTopic(each, 1, 1) for each in topics]).values():
            created.result(START_S)

    def _open_producer(self, **options: Any) -> Producer:
        return Producer({**self._options, "acks": "all", "queue.buffering.max.kbytes": 64 * 1024, **options})

    def _open_consumer(self, logs: list[TopicPartition], **options: Any) -> Consumer:
        consumer = Consumer({**self._options, "group.id": "rates", "enable.auto.commit": False, **options})
        consumer.assign(logs)
        return consumer

    def _send(self, logs: list[TopicPartition], size: int, records: int) -> Meter:
        """Send records to logs, one log after the other, until all are acknowledged."""
        producer, content = self._open_producer(), bytes(range(100)) * (size // 100)
        for topic in {each.topic for each in logs}:
            producer.list_topics(topic, timeout=START_S)
        for _ in range(WARM_UP_RECORDS):  # the first requests make a system load what it needs
            producer.produce("warm-up" if self._is_mock else logs[0].topic, content)
            producer.flush()
        meter = Meter(self._served)
        for number in range(records):
            log = logs[number * len(logs) // records]
            while True:
                try:
                    producer.produce(log.topic, content, partition=log.partition, on_delivery=_check)
                    break
                except BufferError:
                    producer.poll(0.001)
        if producer.flush(CLIENT_S):
            raise TimeoutError(f"records are not acknowledged within {CLIENT_S:.0f} s")
        return meter

    def _receive(self, logs: list[TopicPartition], size: int, records: int) -> Meter:
        """Receive the records of logs. The time begins with the first ones."""
        consumer = self._open_consumer(logs)
        left = records - len(consumer.consume(1, timeout=START_S))
        meter = Meter(self._served)
        while left:
            found = consumer.consume(min(left, 10_000), timeout=1)
            assert all(len(each.value()) == size for each in found[:1]), found[0].error()
            left -= len(found)
            if meter.elapsed_s() > CLIENT_S:
                raise TimeoutError(f"{left} records were not received within {CLIENT_S:.0f} s")
        return meter

    def _measure_latency(self, job: Job, logs: list[TopicPartition]) -> Measured:
        """Return the 99th percentile of the time until a record is acknowledged, or delivered to a consumer."""
        is_delivery = job.name == "delivered"
        (log,), found = logs, list[float]()
        producer = self._open_producer(**{"linger.ms": 0})
        consumer = self._open_consumer(logs, **{"fetch.wait.max.ms": 100}) if is_delivery else None

        def send() -> None:
            sent = time.perf_counter()
            on_delivery = _check if is_delivery else lambda *_: found.append(time.perf_counter() - sent)
            producer.produce(log.topic, repr(sent).ljust(job.record_bytes), partition=0, on_delivery=on_delivery)

        def receive(wait_s: float) -> None:
            producer.poll(0 if is_delivery else wait_s)
            if consumer is not None and (message := consumer.poll(wait_s)) is not None:
                found.append(time.perf_counter() - float(message.value()))

        for _ in range(WARM_UP_RECORDS):
            send()
            producer.flush()
        while len(found) < WARM_UP_RECORDS:
            receive(0.1)
        found.clear()
        meter = Meter(self._served)
        due = time.perf_counter()
        for _ in range(job.records):
            send()
            due += 1 / PACED_RECORDS_S
            receive(0)
            while (left := due - time.perf_counter()) > 0:
                receive(left)
        producer.flush()
        while len(found) < job.records:
            receive(0.1)
        used_s = meter.used_s()
        found.sort()
        return Measured(found[len(found) * 99 // 100] * 1000, used_s)


def _check(error: Any, _message: Any) -> None:
    assert error is None, error


def run_client(job: Job, served: Served) -> Measured:
    """Run a job in a process of its own."""
    program = [sys.executable, __file__, "client", json.dumps(job), json.dumps(served)]
    output = subprocess.run(program, stdout=subprocess.PIPE, check=True, timeout=3 * CLIENT_S).stdout
    return Measured(*json.loads(output))


def describe(job: Job, found: dict[str, list[Measured]]) -> Iterator[str]:
    """Yield the lines of a job."""
    others = [[each.figure for each in found[system]] for system in OTHERS if system in found]
    pick: Callable[..., float] = max if job.is_rate else min
    for system, measured in found.items():
        figure = statistics.median(each.figure for each in measured)
        cost_s = statistics.median(each.processor_s for each in measured)
        work = job.records * job.record_bytes / 1e6 if job.unit == "MB/s" else job.records
        cost = f"{cost_s / work * 1e6:>10,.2f} us/{'MB' if job.unit == 'MB/s' else 'record'}"
        line = f"{job.name:<13}{job.record_bytes:>9} B  {system:<8}{figure:>12,.1f} {job.unit:<10}{cost:<20}"
        if system in BROKERS and others:
            ratios = [mine.figure / pick(theirs) for mine, *theirs in zip(measured, *others, strict=True)]
            line += f"  {statistics.median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})"
        yield line


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tansu", default=shutil.which("tansu"), help="the program of Tansu; default: on the PATH")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--system", nargs="+", choices=(*BROKERS, *OTHERS), default=(*BROKERS, *OTHERS))
    names = [f"{job.name}-{job.record_bytes}" for job in JOBS]
    parser.add_argument("--job", nargs="+", choices=names, default=names)
    parser.add_argument("--scale", type=float, default=1.0, help="the part of the records to send")
    options = parser.parse_args()
    systems = [each for each in options.system if each != "tansu" or options.tansu]
    for name, full in zip(names, JOBS, strict=True):
        if name not in options.job:
            continue
        job = full._replace(records=round(full.records * options.scale))
        found: dict[str, list[Measured]] = {each: [] for each in systems}
        for _ in range(options.rounds):
            for system in systems:
                with serve(system, options.tansu) as served:
                    found[system].append(run_client(job, served))
        print(*describe(job, found), sep="\n", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        described_job, described_system = map(json.loads, sys.argv[2:])
        print(json.dumps(Client(Served(*described_system)).measure(Job(*described_job))))
    else:
        main()
