"""This project: each storage, each dialect, with and without the transport accelerator."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import cache

import attrs
import trio

from dafka import Config, open_consumer, open_producer
from dafka.bench.client import CHUNK_RECORDS, TICK_S, Control, Pace, ReceivedRecords, Task
from dafka.bench.processes import Processes, Server
from dafka.bench.results import BenchError
from dafka.bench.systems.base import WITH_SERVERS, Cluster, ServerCluster, Setup
from dafka.records import Partition, RecordBatch
from dafka.roles import Consumer, Producer
from dafka.storage import open_storage

ACCELERATOR = "DAFKA_ACCELERATOR"
STORAGES = {
    "sqlite": "sqlite:{folder}/store-{number}.db",
    "filelog": "filelog:{folder}/log-{number}",
    "memory": "memory:",
}
FREE = "tcp://127.0.0.1:*"


@attrs.frozen
class DafkaSystem:
    """Attributes:
    storage: sqlite, filelog or memory.
    wire: the dialect.
    accelerator: on or off.
    """

    storage: str
    wire: str
    accelerator: str
    catch_up_records_max: int | None = None

    @property
    def name(self) -> str:
        """In tables."""
        return f"dafka {self.storage} {self.wire} {'compiled' if self.accelerator == 'on' else 'pure'}"

    @property
    def jobs(self) -> frozenset[str]:
        """All of them; what a memory storage holds cannot be laid there beforehand."""
        return WITH_SERVERS | (frozenset() if self.storage == "memory" else {"topics", "partitions"})

    @property
    def stores_max(self) -> int:
        """A libdafka ACK does not name its store."""
        return 1 if self.wire == "libdafka" else 2

    @property
    def variables(self) -> dict[str, str]:
        """Of all its processes."""
        return {ACCELERATOR: self.accelerator}

    def missing(self) -> str:
        """The accelerator may not be there."""
        return accelerator_missing() if self.accelerator == "on" else ""

    @asynccontextmanager
    async def open(self, processes: Processes, setup: Setup) -> AsyncIterator[Cluster]:
        """A tower and stores."""
        tower = await _serve(processes, "tower", "--sub", FREE, "--pub", FREE)
        words = (await tower.read_line()).split()
        settings = {"sub": words[4], "pub": words[-1], "wire": self.wire}
        nodes = ["--tower-sub", settings["sub"], "--tower-pub", settings["pub"], "--wire", self.wire]
        cluster = ServerCluster(processes, "dafka", settings, [])
        for number in range(setup.stores):
            storage = STORAGES[self.storage].format(folder=processes.folder, number=number)
            if setup.fill is not None and not number:
                filled = attrs.evolve(setup.fill, settings={"storage": storage})
                await (await processes.client("the filling", "dafka", "fill", filled)).wait_ended()
            store = await _serve(processes, "store", "--storage", storage, "--advertise", "127.0.0.1", *nodes)
            await store.read_line()
            cluster.servers.append(store)
        cluster.servers.append(tower)
        yield cluster


async def _serve(processes: Processes, role: str, *arguments: str) -> Server:
    return await processes.serve(role, [sys.executable, "-m", "dafka", role, *arguments])


@cache
def accelerator_missing() -> str:
    """Why the accelerator cannot be used here, as `dafka --version` tells; empty where it can."""
    done = subprocess.run(
        [sys.executable, "-m", "dafka", "--version"],
        env={**os.environ, ACCELERATOR: "on"},
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stderr.strip().removeprefix("Error: ")


GIVE_UP_S = 100.0
"""A consumer that does not have all by then tells how far it is, before whoever measures gives up."""


def produce(task: Task, control: Control) -> None:
    """Sends, and waits until all is stored."""
    trio.run(_produce, task, control)


def consume(task: Task, control: Control) -> None:
    """Receives."""
    trio.run(_consume, task, control)


def fill(task: Task, control: Control) -> None:
    """Writes the records into a storage, spread over topics or partitions, without any node."""
    trio.run(_fill, task, control)


def _config(task: Task) -> Config:
    settings = task.settings
    return (
        Config()
        .with_beacon(tower_sub=settings["sub"], tower_pub=settings["pub"], advertise="127.0.0.1")
        .with_node(wire="libdafka" if settings["wire"] == "libdafka" else "rfc46", bind="tcp://127.0.0.1:*")
        .with_producer(min_stores=task.stores)
        .with_consumer(offset_reset="earliest" if task.from_beginning else "latest")
    )


async def _produce(task: Task, control: Control) -> None:
    chunks = task.chunks(CHUNK_RECORDS)
    if task.opens_on_go:
        await trio.to_thread.run_sync(control.wait_go)
    first = time.perf_counter_ns()
    async with open_producer(task.topic_names()[0], _config(task)) as producer:
        if not task.opens_on_go:
            await producer.wait_settled()
            await trio.to_thread.run_sync(control.wait_go)
            first = time.perf_counter_ns()
        await (_send_paced(producer, task) if task.rate else _send(producer, chunks))
        await producer.wait_stored()
        control.done(first=first, last=time.perf_counter_ns())


async def _send(producer: Producer, chunks: Iterable[list[bytes]]) -> None:
    for contents in chunks:
        await producer.send_many(contents)


async def _send_paced(producer: Producer, task: Task) -> None:
    pace = Pace(task)
    while not pace.is_over:
        await producer.send_many(pace.due())
        await trio.sleep(TICK_S)


async def _consume(task: Task, control: Control) -> None:
    if task.opens_on_go:
        await trio.to_thread.run_sync(control.wait_go)
    received = ReceivedRecords(task, time.perf_counter_ns())
    async with open_consumer(task.topic_names(), _config(task)) as consumer:
        if not task.opens_on_go:
            await trio.to_thread.run_sync(control.wait_go)
        with trio.move_on_after(GIVE_UP_S) as scope:
            while not received.is_complete:
                received.take((await consumer.next_batch()).contents)
        if scope.cancelled_caught:
            raise _stalled(received, consumer, task)
        received.report(control)


def _stalled(received: ReceivedRecords, consumer: Consumer, task: Task) -> BenchError:
    """What there is to know of a consumer that waits in vain."""
    counts = consumer.statistics()
    return BenchError(
        f"{received.count:,} of {task.records:,} records came in {GIVE_UP_S:.0f} s: {counts.peers} peers, "
        f"{counts.fetches_sent:,} FETCHes sent, {len(counts.positions):,} partitions known, "
        f"{sum(counts.lag.values()):,} records behind in {len(counts.lag):,} of them, discarded {counts.discarded}"
    )


async def _fill(task: Task, control: Control) -> None:
    first = time.perf_counter_ns()
    topics = task.topic_names()
    partitions = [Partition(topics[number % len(topics)], f"{number:032X}") for number in range(task.partitions)]
    of_each = task.records // task.partitions
    at_once = max(1, CHUNK_RECORDS // of_each)
    async with open_storage(task.settings["storage"]) as storage:
        for start in range(0, task.partitions, at_once):
            chunk = partitions[start : start + at_once]
            for sequence in range(0, of_each, CHUNK_RECORDS):
                contents = task.contents(sequence, min(CHUNK_RECORDS, of_each - sequence))
                await storage.append([RecordBatch(partition, sequence, contents) for partition in chunk])
    control.done(first=first, last=time.perf_counter_ns())
