"""Measures what many logs and clients cost a broker, beside librdkafka's mock cluster and Tansu.

The mock cluster and Tansu keep everything in memory. The broker stores records in a file log or in SQLite, and waits
for the disk before it acknowledges them. Each system is a process of its own; the systems take turns. Jobs:

- `first`: one record to each of 10,000 new logs in 2,500 topics, until all are acknowledged, with acks=all.
- `topics`: 2,000 topics of five logs, created by one call. The mock cluster cannot do that.
- `idle`: 500 clients that wait for records of a quiet topic, each with one Fetch request after the other. `trio` is a
  server that only waits and answers: what Trio itself costs.
- `memory`: the growth of resident memory during the second half of a million requests, nearly all for metadata.

    python benchmarks/kafka_scale.py [--tansu PROGRAM] [--rounds N] [--jobs JOB ...] [--systems SYSTEM ...]

The seconds depend on what else the machine does; the processor time of the system does so less.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from dafka.kafka.protocol.frames import encode_request
from dafka.kafka.protocol.messages.cluster import MetadataRequest
from dafka.kafka.protocol.messages.logs import FetchPartition, FetchRequest, FetchTopic
from kafka_systems import BARE, BROKERS, MOCK_LOGS, OTHERS, START_S, Measured, Served, serve

ANSWER_S = 300.0

FIRST_TOPICS = 2_500
TOPICS = 2_000
LOGS_PER_TOPIC = 5
CLIENTS = 500
WAIT_MS = 500
SETTLE_S = 3.0
IDLE_S = 10.0
REQUESTS_COUNT = 1_000_000
PIPELINED = 50
FETCH_VERSION = 11
METADATA_VERSION = 9


def connect(servers: str) -> socket.socket:
    host, _, port = servers.rpartition(":")
    return socket.create_connection((host, int(port)), START_S)


def create_topics(served: Served, topics: int, logs: int) -> list[str]:
    """Create topics, and return their names."""
    names = [f"topic-{number}" for number in range(topics)]
    options = {"bootstrap.servers": served.servers}
    if served.name == "mock":
        producer = Producer(options)
        for name in names:
            assert len(producer.list_topics(name, timeout=START_S).topics[name].partitions) == logs
        return names
    admin = AdminClient(options)
    asked = [NewTopic(name, logs, 1) for name in names]
    for each in admin.create_topics(asked, operation_timeout=ANSWER_S, request_timeout=ANSWER_S).values():
        each.result()
    return names


def measure_topics(served: Served) -> float:
    """Return after how many seconds all topics are created."""
    begun = time.perf_counter()
    create_topics(served, TOPICS, LOGS_PER_TOPIC)
    return time.perf_counter() - begun


def measure_first(served: Served) -> float:
    """Return after how many seconds the first record of each log is acknowledged."""
    names = create_topics(served, FIRST_TOPICS, MOCK_LOGS)
    timeout_ms = int(ANSWER_S * 1000)
    producer = Producer({"bootstrap.servers": served.servers, "acks": "all", "message.timeout.ms": timeout_ms})
    outcomes: list[Any] = []
    begun = time.perf_counter()
    for name in names:
        for log in range(MOCK_LOGS):
            producer.produce(name, b"first", partition=log, on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(ANSWER_S) == 0
    assert outcomes == [None] * FIRST_TOPICS * MOCK_LOGS, outcomes
    return time.perf_counter() - begun


def fetch_request(number: int) -> bytes:
    topic = FetchTopic(
        topic="topic-0", partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=2**20)]
    )
    request = FetchRequest(
        replica_id=-1, max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=2**20, session_epoch=-1, topics=[topic]
    )
    return encode_request(request, FETCH_VERSION, number, "idle")


def measure_idle(served: Served) -> float:
    """Return the share of a core that a system uses while clients wait for records, in percent."""
    if served.name != BARE:
        create_topics(served, 1, MOCK_LOGS)
    request = fetch_request(1)
    answered = 0
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(CLIENTS):
            client = stack.enter_context(connect(served.servers))
            client.sendall(request)
            client.setblocking(False)
            selector.register(client, selectors.EVENT_READ)
            time.sleep(WAIT_MS / 1000 / CLIENTS)

        def run_for(duration_s: float) -> None:
            nonlocal answered
            until = time.perf_counter() + duration_s
            while (left := until - time.perf_counter()) > 0:
                for key, _ in selector.select(left):
                    client: Any = key.fileobj
                    answer = client.recv(2**16)
                    assert struct.unpack(">i", answer[:4])[0] == len(answer) - 4, answer
                    client.sendall(request)
                    answered += 1

        run_for(SETTLE_S)
        answered, before = 0, served.processor_s()
        run_for(IDLE_S)
        used = served.processor_s() - before
    # On a busy machine, clients send fewer requests than they would: the share is that of all of them.
    return used / answered * CLIENTS * 1000 / WAIT_MS * 100


def measure_memory(served: Served) -> float:
    """Return by how many MiB resident memory grows during the second half of many requests."""
    create_topics(served, 1, MOCK_LOGS)
    request = encode_request(MetadataRequest(topics=[]), METADATA_VERSION, 1, "memory")
    with connect(served.servers) as client, client.makefile("rb") as answers:

        def ask(count: int) -> None:
            for _ in range(count // PIPELINED):
                client.sendall(request * PIPELINED)
                for _ in range(PIPELINED):
                    answers.read(struct.unpack(">i", answers.read(4))[0])

        ask(REQUESTS_COUNT // 2)
        before = served.resident_mib()
        ask(REQUESTS_COUNT // 2)
        return served.resident_mib() - before


class Job(NamedTuple):
    """What a figure is, and how it is measured."""

    unit: str
    run: Callable[[Served], float]


JOBS = {
    "first": Job("s", measure_first),
    "topics": Job("s", measure_topics),
    "idle": Job("% of a core", measure_idle),
    "memory": Job("MiB more", measure_memory),
}


def can_run(job: str, system: str) -> bool:
    return job == "idle" if system == BARE else system != "mock" or job != "topics"


def measure(job: str, system: str, tansu: str) -> Measured:
    with serve(system, tansu) as served:
        before = served.processor_s()
        figure = JOBS[job].run(served)
        return Measured(figure, served.processor_s() - before)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what many logs and clients cost.")
    parser.add_argument("--tansu", default="", help="the program tansu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=[*JOBS])
    parser.add_argument("--systems", nargs="+", choices=[*BROKERS, *OTHERS, BARE], default=[*BROKERS, *OTHERS, BARE])
    given = parser.parse_args()
    systems = [each for each in given.systems if each != "tansu" or given.tansu]
    for job in given.jobs:
        able = [each for each in systems if can_run(job, each)]
        found: dict[str, list[Measured]] = {system: [] for system in able}
        for _ in range(given.rounds):
            for system in able:
                found[system].append(measure(job, system, given.tansu))
                print(job, system, found[system][-1], file=sys.stderr, flush=True)
        for system, each in found.items():
            figure, processor_s = (statistics.median(values) for values in zip(*each, strict=True))
            print(f"{job:8} {system:8} {figure:9.2f} {JOBS[job].unit:12} {processor_s:8.2f} s of processor time")


if __name__ == "__main__":
    main()
