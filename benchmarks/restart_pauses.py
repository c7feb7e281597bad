"""Measures how long producers wait when the brokers of a cluster are restarted one after the other.

Three brokers of processes of their own, with file logs. Two clients of librdkafka send all the while: one producer with
an id to all logs of a topic, and one that commits a transaction after the other. For each SIGTERM it prints the longest
time between two acknowledgements of the same log, the longest transaction, and how long the process took to end.

    python benchmarks/restart_pauses.py [--logs 24] [--rounds 2] [--folder .]
"""

from __future__ import annotations

import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import trio
from confluent_kafka import KafkaException, Producer

from tests.broker.cluster.brokers import ProcessCluster, open_cluster

TOPIC = "restarts"
INTERVAL_S = 0.005
"""The time between two records of the producer, which go to its logs in turn."""

WARM_UP_S = 5.0
BACK_S = 8.0
"""How long the clients go on after the broker has ended, and again after it is back."""

STOP_S = 60.0


class Clients:
    """The clients. `acknowledged` has the times of the acknowledgements by log, `transactions` begins and ends."""

    def __init__(self, servers: str, logs: int) -> None:
        self.servers = servers
        self.acknowledged: list[list[float]] = [[] for _ in range(logs)]
        self.transactions: list[tuple[float, float]] = []
        self.failed = 0
        self._has_ended = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._produce, self._commit)]

    def start(self) -> None:
        for each in self._threads:
            each.start()

    def end(self) -> None:
        self._has_ended.set()
        for each in self._threads:
            each.join()

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True, "linger.ms": 0})

        def delivered(error: object, message: Any) -> None:
            if error is None:
                self.acknowledged[message.partition()].append(time.perf_counter())
            else:
                self.failed += 1

        sent = 0
        while not self._has_ended.is_set():
            producer.produce(TOPIC, b"x" * 100, partition=sent % len(self.acknowledged), on_delivery=delivered)
            sent += 1
            producer.poll(INTERVAL_S)
        producer.flush(30)

    def _commit(self) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": "restarts", "linger.ms": 0})
        producer.init_transactions(60)
        while not self._has_ended.is_set():
            begun = time.perf_counter()
            producer.begin_transaction()
            producer.produce(TOPIC, b"t" * 100, partition=len(self.transactions) % len(self.acknowledged))
            try:
                producer.commit_transaction(60)
            except KafkaException as error:
                self.failed += 1
                if not error.args[0].txn_requires_abort():
                    raise
                producer.abort_transaction(60)
            self.transactions.append((begun, time.perf_counter()))
            time.sleep(INTERVAL_S)

    def longest_pauses(self, begun: float, ended: float) -> tuple[float, float]:
        """Return the longest time between two acknowledgements of a log, and the longest transaction, in seconds."""
        pauses = [
            after - before
            for times in self.acknowledged
            for before, after in pairwise(times)
            if after > begun and before < ended
        ]
        return max(pauses), max(end - begin for begin, end in self.transactions if end > begun and begin < ended)


async def measure(folder: Path, logs: int, rounds: int) -> None:
    """Restart each broker several times, and print how long the clients have waited."""
    async with open_cluster(folder, settings={}) as cluster:
        await cluster.create_topic(TOPIC, logs)
        clients = Clients(cluster.servers, logs)
        clients.start()
        try:
            await trio.sleep(WARM_UP_S)
            for _ in range(rounds):
                for name in cluster.brokers:
                    await restart(cluster, name, clients, logs)
        finally:
            await trio.to_thread.run_sync(clients.end)
        print(
            f"  {sum(map(len, clients.acknowledged)):,} records, {len(clients.transactions):,} transactions", flush=True
        )
        print(f"  {clients.failed} failed", flush=True)
        begun = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for each in cluster.brokers.values():
                nursery.start_soon(each.node.terminate, STOP_S)
        print(f"  all brokers at once end after {time.perf_counter() - begun:.2f} s", flush=True)


async def restart(cluster: ProcessCluster, name: str, clients: Clients, logs: int) -> None:
    """Restart a broker, and print how long the clients have waited."""
    broker = cluster.brokers[name]
    begun = time.perf_counter()
    await broker.node.terminate(STOP_S)
    ended = time.perf_counter()
    await trio.sleep(BACK_S)
    produced_s, committed_s = clients.longest_pauses(begun, time.perf_counter())
    again = time.perf_counter()
    await cluster.start(broker)
    await cluster.wait_members()
    await cluster.wait_in_sync(TOPIC, logs)
    await trio.sleep(BACK_S)
    back_s, back_committed_s = clients.longest_pauses(again, time.perf_counter())
    print(
        f"  {name}: a log waits {produced_s:5.2f} s, a transaction {committed_s:5.2f} s; the process ends after "
        f"{ended - begun:5.2f} s; when it is back, {back_s:5.2f} s and {back_committed_s:5.2f} s",
        flush=True,
    )


@click.command()
@click.option("--logs", default=24, show_default=True, help="The number of logs of the topic.")
@click.option("--rounds", default=2, show_default=True, help="How often each broker is restarted.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(),
    help="A folder on a disk.",
)
def main(logs: int, rounds: int, folder: Path) -> None:
    """Measure, and print what was found."""
    with tempfile.TemporaryDirectory(prefix=".restart-pauses-", dir=folder) as path:
        trio.run(measure, Path(path).resolve(), logs, rounds)


if __name__ == "__main__":
    main()
