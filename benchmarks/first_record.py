"""How soon a newcomer has its first record, beside one bare ZeroMQ connection and subscription.

    python benchmarks/first_record.py [--rounds 20]

From opening a consumer to its first record, with a store that holds records, and with their producer alone; HEADs
come once an hour, so that nothing can wait for one. All in one process.
"""

from __future__ import annotations

import statistics
import time

import click
import trio
import zmq
from rich.console import Console
from rich.table import Table

from dafka import Config, ProducerConfig
from dafka.testing import Cluster, open_cluster

AN_HOUR_MS = 3_600_000
RECORDS = 1000


@click.command()
@click.option("--rounds", default=20, show_default=True)
def main(rounds: int) -> None:
    """Measure, and print a table."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        found.setdefault("bare ZeroMQ connection", []).append(bare_connection())
        found.setdefault("consumer, from a store", []).append(trio.run(from_store))
        found.setdefault("consumer, from a producer", []).append(trio.run(from_producer))
    table = Table("what", "median", "range", title="From opening to the first record, in milliseconds")
    for name, seconds in found.items():
        milliseconds = [each * 1000 for each in seconds]
        spread = f"{min(milliseconds):.1f} - {max(milliseconds):.1f}"
        table.add_row(name, f"{statistics.median(milliseconds):.1f}", spread)
    Console().print(table)


def bare_connection() -> float:
    """Seconds from making a SUB socket to the message that its subscription brought forth."""
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.bind("tcp://127.0.0.1:*")
        started = time.perf_counter()
        with context.socket(zmq.SUB) as subscriber:
            subscriber.subscribe(b"")
            subscriber.connect(publisher.getsockopt_string(zmq.LAST_ENDPOINT))
            publisher.recv()
            publisher.send(b"first")
            subscriber.recv()
            return time.perf_counter() - started


async def from_store() -> float:
    """With the producer gone."""
    async with open_cluster() as cluster:
        async with cluster.producer("t") as producer:
            await producer.send_many([b"%d" % sequence for sequence in range(RECORDS)])
        return await _first_record(cluster)


async def from_producer() -> float:
    """Without a store."""
    settings = ProducerConfig(min_stores=0, head_interval_ms=AN_HOUR_MS)
    async with open_cluster(Config(producer=settings), storage=None) as cluster, cluster.producer("t") as producer:
        await producer.send_many([b"%d" % sequence for sequence in range(RECORDS)])
        await producer.wait_settled()
        return await _first_record(cluster)


async def _first_record(cluster: Cluster) -> float:
    started = time.perf_counter()
    async with cluster.consumer(["t"]) as consumer:
        await consumer.next_record()
        return time.perf_counter() - started


if __name__ == "__main__":
    main()
