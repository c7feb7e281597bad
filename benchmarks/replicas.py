"""Measures what replicas cost.

For 1 to 4 brokers that keep all logs, one after another in each round: how many records a second confluent-kafka gets
acknowledged with acks=all, and how much processor time all brokers take for a record. The ratio is that of a record's
cost with R replicas to R times its cost with one. Brokers, with file logs that wait for the disk, and clients are
processes of their own. Run on a quiet machine:

    python benchmarks/replicas.py [RECORDS] [ROUNDS] [LOGS] [BATCH] [RATE]

A batch of the producer has BATCH records, however busy the machine is: what a batch costs weighs more in small ones.
With RATE, that many records are sent in a second; else as many as are taken. The faster a broker is, the more batches
it makes durable together, so that a record costs less: only at the same rate do brokers do the same work.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import trio
from confluent_kafka import Producer

from tests.broker.cluster.brokers import ProcessCluster, open_cluster

BROKERS = (1, 2, 3, 4)
CONTENT = bytes(range(100))
LINGER_MS = 200


class Measured(NamedTuple):
    """Records a second, and microseconds of processor time of all brokers for a record."""

    rate: float
    cost_us: float


def produce(servers: str, topic: str, logs: int, records: int, batch: int, rate: int) -> float:
    """Send batches to all logs in turn, of the same size however busy the machine is.

    Args:
        servers: The brokers.
        topic: The topic.
        logs: The number of its logs.
        records: The number of records.
        batch: The number of records in a batch.
        rate: The number of records to send in a second; 0 for as many as the brokers take.

    Returns:
        How many records are acknowledged in a second.
    """
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.num.messages": batch,
        }
    )
    for log in range(logs):
        producer.produce(topic, CONTENT, partition=log)
    assert producer.flush(60) == 0
    began = time.perf_counter()
    for number in range(records):
        if rate and number % batch == 0:
            time.sleep(max(began + number / rate - time.perf_counter(), 0.0))
        while True:
            try:
                producer.produce(topic, CONTENT, partition=number // batch % logs)
                break
            except BufferError:
                producer.poll(0.001)
    assert producer.flush(300) == 0
    return records / (time.perf_counter() - began)


def processor_s(cluster: ProcessCluster) -> float:
    """Return the processor time that all brokers have taken, in seconds."""
    found = 0
    for broker in cluster.brokers.values():
        fields = Path(f"/proc/{broker.node.process_id}/stat").read_text().rpartition(")")[2].split()
        found += int(fields[11]) + int(fields[12])
    return found / os.sysconf("SC_CLK_TCK")


async def measure_cost(brokers: int, records: int, logs: int, batch: int, rate: int) -> Measured:
    """Measure brokers that each keep all logs."""
    with tempfile.TemporaryDirectory(prefix=".replicas-", dir=Path.cwd()) as folder:
        async with open_cluster(Path(folder), brokers, settings={}) as cluster:
            await cluster.create_topic("measured", logs, brokers)
            await run_client(cluster, logs, records // 10, batch, rate)
            before = processor_s(cluster)
            reached = await run_client(cluster, logs, records, batch, rate)
            return Measured(reached, (processor_s(cluster) - before) / records * 1e6)


async def run_client(cluster: ProcessCluster, logs: int, records: int, batch: int, rate: int) -> float:
    program = [sys.executable, __file__, "client", cluster.servers, "measured", *map(str, (logs, records, batch, rate))]
    found = await trio.run_process(program, capture_stdout=True)
    return float(json.loads(found.stdout))


def main(records: int, rounds: int, logs: int, batch: int, rate: int) -> None:
    found: dict[int, list[Measured]] = {brokers: [] for brokers in BROKERS}
    for _ in range(rounds):
        for brokers in BROKERS:
            found[brokers].append(trio.run(measure_cost, brokers, records, logs, batch, rate))
    sizes = f"{records:,} records of {len(CONTENT)} bytes, {batch:,} in a batch"
    print(f"{sizes}, {logs} logs, acks=all, medians of {rounds} rounds")
    for brokers in BROKERS:
        reached = statistics.median(each.rate for each in found[brokers])
        cost = statistics.median(each.cost_us for each in found[brokers])
        ratios = [each.cost_us / alone.cost_us / brokers for each, alone in zip(found[brokers], found[1], strict=True)]
        spread = f"({min(ratios):.2f} - {max(ratios):.2f})"
        print(
            f"{brokers} replicas: {reached:>9,.0f} records/s, {cost:6.2f} us of processor time for a record, "
            f"{cost / brokers:6.2f} us for each replica, ratio {statistics.median(ratios):.2f} {spread}"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        print(json.dumps(produce(sys.argv[2], sys.argv[3], *map(int, sys.argv[4:8]))))
    else:
        given = [int(text) for text in sys.argv[1:]]
        main(*(*given, *(500_000, 3, 12, 5000, 0)[len(given) :]))
