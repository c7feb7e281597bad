"""Dafka: with each storage, each dialect, and with and without the transport accelerator."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import cast

import attrs
import trio

from dafka import Config, open_consumer, open_producer
from dafka.records import Partition, RecordBatch
from dafka.roles import Consumer, Producer
from dafka.storage import open_storage
from dafka_bench.client import CHUNK_RECORDS, PACE, TICK_S, Coordinator, Pace, ReceivedRecords, Task
from dafka_bench.processes import Processes, Server
from dafka_bench.results import BenchError
from dafka_bench.systems.base import WITH_SERVERS, Cluster, ClusterSetup, ServerCluster

ACCELERATOR = "DAFKA_ACCELERATOR"
STORAGES = {
    "sqlite": "sqlite:{folder}/store-{number}.db",
    "filelog": "filelog:{folder}/log-{number}",
    "memory": "memory:",
}
FREE = "tcp://127.0.0.1:*"


@attrs.frozen
class DafkaSystem:
    """Dafka with one storage, dialect and accelerator setting.

    Attributes:
        storage: `sqlite`, `filelog` or `memory`.
        wire: The dialect.
        accelerator: `on` or `off`.
        catch_up_records_max: See `System.catch_up_records_max`.
    """

    storage: str
    wire: str
    accelerator: str
    catch_up_records_max: int | None = None

    @property
    def name(self) -> str:
        """See `System.name`."""
        return f"dafka {self.storage} {self.wire} {'compiled' if self.accelerator == 'on' else 'pure'}"

    @property
    def jobs(self) -> frozenset[str]:
        """See `System.jobs`. A memory storage cannot be filled in advance."""
        return WITH_SERVERS | {"nodes"} | (frozenset() if self.storage == "memory" else {"topics", "partitions"})

    @property
    def stores_max(self) -> int:
        """See `System.stores_max`. An ACK of libdafka does not name its store."""
        return 1 if self.wire == "libdafka" else 2

    @property
    def variables(self) -> dict[str, str]:
        """See `System.variables`."""
        return {ACCELERATOR: self.accelerator}

    def unavailable_reason(self) -> str:
        """See `System.unavailable_reason`."""
        return accelerator_unavailable_reason() if self.accelerator == "on" else ""

    @asynccontextmanager
    async def open(self, processes: Processes, setup: ClusterSetup) -> AsyncIterator[Cluster]:
        """See `System.open`. Runs a tower and the stores."""
        tower = await _serve(processes, "tower", "--sub", FREE, "--pub", FREE)
        words = (await tower.read_line()).split()
        settings = {"sub": words[4], "pub": words[-1], "wire": self.wire}
        nodes = ["--tower-sub", settings["sub"], "--tower-pub", settings["pub"], "--wire", self.wire]
        cluster = ServerCluster(processes, "dafka", settings, [])
        for number in range(setup.stores):
            storage = STORAGES[self.storage].format(folder=processes.folder, number=number)
            if setup.fill is not None and not number:
                filled = attrs.evolve(setup.fill, settings={"storage": storage})
                await (await processes.client("the process that fills the store", "dafka", "fill", filled)).wait_ended()
            store = await _serve(processes, "store", "--storage", storage, "--advertise", "127.0.0.1", *nodes)
            await store.read_line()
            cluster.servers.append(store)
        cluster.servers.append(tower)
        yield cluster


async def _serve(processes: Processes, role: str, *arguments: str) -> Server:
    return await processes.serve(role, [sys.executable, "-m", "dafka", role, *arguments])


@cache
def accelerator_unavailable_reason() -> str:
    """Return why the accelerator cannot be used, as `dafka --version` reports it; "" if it can."""
    done = subprocess.run(
        [sys.executable, "-m", "dafka", "--version"],
        env={**os.environ, ACCELERATOR: "on"},
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stderr.strip().removeprefix("Error: ")


GIVE_UP_S = 100.0
"""A consumer that has not received all records by then reports its state, before the measuring process gives up."""


def produce(task: Task, coordinator: Coordinator) -> None:
    """Send records, and wait until all are stored."""
    trio.run(_produce, task, coordinator)


def consume(task: Task, coordinator: Coordinator) -> None:
    """Receive records."""
    trio.run(_consume, task, coordinator)


def produce_together(task: Task, coordinator: Coordinator) -> None:
    """Run several producers in one loop."""
    trio.run(_produce_together, task, coordinator)


def fill(task: Task, coordinator: Coordinator) -> None:
    """Append records to a storage directly, spread over topics and partitions."""
    trio.run(_fill, task, coordinator)


def _config(task: Task) -> Config:
    settings = task.settings
    return (
        Config()
        .with_beacon(tower_sub=settings["sub"], tower_pub=settings["pub"], advertise="127.0.0.1")
        .with_node(wire="libdafka" if settings["wire"] == "libdafka" else "rfc46", bind="tcp://127.0.0.1:*")
        .with_producer(min_stores=task.stores)
        .with_consumer(offset_reset="earliest" if task.from_beginning else "latest")
    )


async def _produce(task: Task, coordinator: Coordinator) -> None:
    chunks = task.make_chunks(CHUNK_RECORDS)
    if task.opens_on_go:
        await trio.to_thread.run_sync(coordinator.wait_go)
    first = time.perf_counter_ns()
    async with open_producer(task.topic_names()[0], _config(task)) as producer:
        if not task.opens_on_go:
            await producer.wait_settled()
            await trio.to_thread.run_sync(coordinator.wait_go)
            first = time.perf_counter_ns()
        await (_send_paced(producer, task) if task.rate else _send(producer, chunks))
        await producer.wait_stored()
        coordinator.done(first=first, last=time.perf_counter_ns())


async def _produce_together(task: Task, coordinator: Coordinator) -> None:
    paced = trio.Event()
    producers: list[Producer] = []
    await trio.to_thread.run_sync(coordinator.wait_go)
    async with trio.open_nursery() as nursery:
        for number in range(task.producers):
            nursery.start_soon(_produce_beside, number, task, coordinator, producers, paced)
        while command := await trio.to_thread.run_sync(coordinator.read_command, abandon_on_cancel=True):
            if command == PACE:
                paced.set()
            else:
                counts = [producer.statistics() for producer in producers]
                coordinator.report_acknowledged(sum(count.next_sequence - count.unacknowledged for count in counts))
        nursery.cancel_scope.cancel()


async def _produce_beside(
    number: int, task: Task, coordinator: Coordinator, producers: list[Producer], paced: trio.Event
) -> None:
    """Run one of several producers: it sends one record, and at a rate after `paced`."""
    content = task.make_contents(0, 1)[0]
    async with open_producer(task.topic_names()[0], _config(task)) as producer:
        producers.append(producer)
        await producer.send(content)
        await producer.wait_stored()
        coordinator.report_first_stored()
        await paced.wait()
        due = trio.current_time() + number / task.producers / task.rate
        while True:
            await trio.sleep_until(due)
            await producer.send(content)
            due += 1 / task.rate


async def _send(producer: Producer, chunks: Iterable[list[bytes]]) -> None:
    for contents in chunks:
        await producer.send_many(contents)


async def _send_paced(producer: Producer, task: Task) -> None:
    pace = Pace(task)
    while not pace.is_over:
        await producer.send_many(pace.take_due())
        await trio.sleep(TICK_S)


async def _consume(task: Task, coordinator: Coordinator) -> None:
    if task.opens_on_go:
        await trio.to_thread.run_sync(coordinator.wait_go)
    received = ReceivedRecords(task, time.perf_counter_ns())
    async with open_consumer(task.topic_names(), _config(task)) as consumer:
        if not task.opens_on_go:
            await trio.to_thread.run_sync(coordinator.wait_go)
        with trio.move_on_after(GIVE_UP_S) as scope:
            while not received.is_complete:
                received.add_contents(cast(Sequence[bytes], (await consumer.next_batch()).values))
        if scope.cancelled_caught:
            raise _stalled(received, consumer, task)
        received.report(coordinator)


def _stalled(received: ReceivedRecords, consumer: Consumer, task: Task) -> BenchError:
    """Return an error that describes the state of a consumer that does not receive all records."""
    counts = consumer.statistics()
    return BenchError(
        f"{received.count:,} of {task.records:,} records received in {GIVE_UP_S:.0f} s: {counts.peers} peers, "
        f"{counts.fetches_sent:,} FETCHes sent, {len(counts.positions):,} partitions known, "
        f"{sum(counts.lag.values()):,} records behind in {len(counts.lag):,} of them, discarded {counts.discarded}"
    )


async def _fill(task: Task, coordinator: Coordinator) -> None:
    first = time.perf_counter_ns()
    topics = task.topic_names()
    partitions = [Partition(topics[number % len(topics)], f"{number:032X}") for number in range(task.partitions)]
    of_each = task.records // task.partitions
    at_once = max(1, CHUNK_RECORDS // of_each)
    async with open_storage(task.settings["storage"]) as storage:
        for start in range(0, task.partitions, at_once):
            chunk = partitions[start : start + at_once]
            for sequence in range(0, of_each, CHUNK_RECORDS):
                contents = task.make_contents(sequence, min(CHUNK_RECORDS, of_each - sequence))
                await storage.append([RecordBatch(partition, sequence, contents) for partition in chunk])
    coordinator.done(first=first, last=time.perf_counter_ns())
