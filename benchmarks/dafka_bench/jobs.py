"""The jobs: the work done with a system, and the measured figures.

Rates are measured from when the producer begins to send, after all nodes have found each other, until the last record
is acknowledged or received. A catch-up is measured from the first batch of records on, without that batch; the time to
the first record is measured by the job `start`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import attrs

from dafka_bench.client import SHARES, Task, Usage
from dafka_bench.nodes import NodesOptions, measure_nodes
from dafka_bench.processes import Client, ClientResult, Server
from dafka_bench.results import BenchError, Measurement
from dafka_bench.systems import Cluster, ClusterSetup, System

FAN_OUT = (1, 4, 16)
"""Numbers of consumers."""

RATES = (1000, 20_000)
"""Rates of the job `latency`, in records per second."""

RATE_S = 5
"""How long records are sent at a rate."""

SIZES = {"10 B": 10, "100 B": 100, "1 KiB": 2**10, "64 KiB": 2**16, "1 MiB": 2**20}

SIZED_BYTES_MAX = 128 * 2**20
"""The maximum total size of the contents of one size, in bytes."""

TOPICS = 1000
PARTITIONS = (1, 10, 100, 1000, 10_000)
MILLION = 1_000_000
MIB = 2**20

Figures: TypeAlias = AsyncIterator[Measurement]


@attrs.frozen
class JobContext:
    """The system, the clusters and the number of records that a job uses.

    Attributes:
        system: The system to measure.
        open: Opens a new cluster of the system.
        records: The number of records to transfer.
        nodes: The options of the job `nodes`.
    """

    system: System
    open: Callable[[ClusterSetup], AbstractAsyncContextManager[Cluster]]
    records: int
    nodes: NodesOptions

    @property
    def catch_up_records(self) -> int:
        """The number of records that a consumer can catch up on."""
        return min(self.records, self.system.catch_up_records_max or self.records)


@attrs.frozen
class Job:
    """A benchmark job.

    Attributes:
        name: Its name on the command line.
        about: A short description.
        run: Runs the job and yields its measurements.
    """

    name: str
    about: str
    run: Callable[[JobContext], Figures]


async def produce(context: JobContext) -> Figures:
    """Produce records that one store acknowledges, and two if a producer can distinguish their acknowledgements."""
    for stores in range(1, context.system.stores_max + 1):
        async with context.open(ClusterSetup(stores)) as cluster:
            done = await _go(await cluster.producer(Task(records=context.records, stores=stores)))
        title = "acknowledged by 1 store" if stores == 1 else f"acknowledged by {stores} stores"
        yield Measurement(title, "records/s", context.records / done.seconds, context.records)


async def live(context: JobContext) -> Figures:
    """Deliver records to live consumers; more consumers get fewer records, so that the deliveries are about as many."""
    for consumers in FAN_OUT:
        records = max(context.records // consumers, 1)
        async with context.open(ClusterSetup()) as cluster:
            sent, received = await _send_live(cluster, Task(records=records, consumers=consumers))
        seconds = (max(done.last for done in received) - sent.first) / 1e9
        title = "deliveries to 1 consumer" if consumers == 1 else f"deliveries to {consumers} consumers"
        yield Measurement(title, "records/s", records * consumers / seconds, records)


async def catch_up(context: JobContext) -> Figures:
    """Read records from a store after the producer has ended."""
    task = Task(records=context.catch_up_records)
    async with context.open(ClusterSetup()) as cluster:
        await _fill(cluster, task)
        done = await _go(await cluster.consumer(_late(task)))
    yield _catch_up_rate("from a store", done, task.records)


async def latency(context: JobContext) -> Figures:
    """Measure the time from making a record to receiving it. A rate that the producer cannot reach is an error."""
    for rate in RATES:
        task = Task(records=max(1, min(context.records, rate * RATE_S)), rate=rate, consumers=1)
        async with context.open(ClusterSetup()) as cluster:
            sent, (received,) = await _send_live(cluster, task)
        if sent.seconds > 2 * task.records / rate + 1:
            raise BenchError(
                f"expected {rate:,} records per second, but the producer sent {task.records / sent.seconds:,.0f}"
            )
        for share in SHARES:
            yield Measurement(f"{share} at {rate:,}/s", "ms", received.figures[share] / 1e6, task.records)


async def start(context: JobContext) -> Figures:
    """Measure the time from opening a producer or consumer to its first record, without starting the interpreter."""
    task = Task(records=1, opens_on_go=True)
    async with context.open(ClusterSetup()) as cluster:
        producer = await cluster.producer(task)
        stored = await _go(producer)
        await producer.wait_ended()
        received = await _go(await cluster.consumer(_late(task)))
    yield Measurement("producer, to its first record stored", "ms", stored.seconds * 1000, 1)
    opened = received.figures["opened"]
    yield Measurement("consumer, to its first record", "ms", (received.last - opened) / 1e6, 1)


async def memory(context: JobContext) -> Figures:
    """Measure processes while records are stored, and while a consumer catches up."""
    task = Task(records=context.records)
    async with context.open(ClusterSetup()) as cluster:
        store = cluster.servers[0]
        before = store.usage()
        produced = await _fill(cluster, task)
        for measured in _costs("producer", produced.usage, task.records):
            yield measured
        stored = store.usage()
        for measured in _costs("store, storing", _since(before, stored), task.records):
            yield measured
        late = attrs.evolve(task, records=context.catch_up_records)
        done = await _go(await cluster.consumer(_late(late)))
        for measured in _costs("consumer, catching up", done.usage, late.records):
            yield measured
        for measured in _costs("store, being read", _since(stored, store.usage()), late.records):
            yield measured


async def sizes(context: JobContext) -> Figures:
    """Store records of one size, then catch up on them."""
    for title, size in SIZES.items():
        task = Task(records=max(1, min(context.catch_up_records, SIZED_BYTES_MAX // size)), size=size)
        async with context.open(ClusterSetup()) as cluster:
            stored = await _fill(cluster, task)
            done = await _go(await cluster.consumer(_late(task)))
        mib = task.records * size / MIB
        yield Measurement(f"{title}, acknowledged", "MiB/s", mib / stored.seconds, task.records)
        caught_up = _catch_up_rate(f"{title}, caught up on", done, task.records)
        yield attrs.evolve(caught_up, unit="MiB/s", value=caught_up.value * size / MIB)


async def topics(context: JobContext) -> Figures:
    """Measure one consumer of many topics that catches up, with one partition each."""
    async for measured in _catch_up_on_many(context, f"{TOPICS:,} topics", topics=TOPICS, partitions=TOPICS):
        yield measured


async def partitions(context: JobContext) -> Figures:
    """Measure one consumer that catches up, with more and more partitions and the same total number of records."""
    for number in PARTITIONS:
        title = "1 partition" if number == 1 else f"{number:,} partitions"
        async for measured in _catch_up_on_many(context, title, topics=1, partitions=number):
            yield measured


async def nodes(context: JobContext) -> Figures:
    """Start many producers at once, and measure their cost. The job ends with the first number that fails."""
    for producers in context.nodes.producers:
        async with context.open(ClusterSetup(context.nodes.stores)) as cluster:
            async for measured in measure_nodes(cluster, producers, context.nodes):
                yield measured


JOBS: dict[str, Job] = {
    job.name: job
    for job in (
        Job("produce", "until every record is acknowledged, by one store and by two", produce),
        Job("live", "delivery to 1, 4 and 16 consumers, with a store attached", live),
        Job("catch-up", "reading from a store after the producer has ended", catch_up),
        Job("latency", "producer to consumer, at 1,000 and 20,000 records per second", latency),
        Job("start", "from opening a producer or a consumer to its first record", start),
        Job("memory", "peak memory and processor time of each process", memory),
        Job("sizes", "contents of 10 B to 1 MiB", sizes),
        Job("topics", "one consumer of 1,000 topics", topics),
        Job("partitions", "1 to 10,000 partitions", partitions),
        Job("nodes", "many producers that start at once, idle and sending", nodes),
    )
}
"""Every job by its name."""


async def _go(client: Client) -> ClientResult:
    await client.wait_ready()
    await client.go()
    return await client.wait_done()


async def _fill(cluster: Cluster, task: Task) -> ClientResult:
    """Produce records; the producer has ended when this returns."""
    producer = await cluster.producer(task)
    done = await _go(producer)
    await producer.wait_ended()
    return done


async def _send_live(cluster: Cluster, task: Task) -> tuple[ClientResult, list[ClientResult]]:
    """Produce records for consumers that are already running, and return the reports of all."""
    consumers = [await cluster.consumer(task) for _ in range(task.consumers)]
    for consumer in consumers:
        await consumer.wait_ready()
        await consumer.go()
    sent = await _go(await cluster.producer(task))
    return sent, [await consumer.wait_done() for consumer in consumers]


def _late(task: Task) -> Task:
    return attrs.evolve(task, opens_on_go=True, from_beginning=True)


def _catch_up_rate(title: str, done: ClientResult, records: int) -> Measurement:
    """Return the rate without the first batch, whose transfer was not observed; for a single batch, from opening on."""
    first_count = int(done.figures["first_count"])
    if first_count >= records:
        seconds = (done.last - done.figures["opened"]) / 1e9
        return Measurement(title, "records/s", records / seconds, records)
    return Measurement(title, "records/s", (records - first_count) / done.seconds, records)


def _since(before: Usage, after: Usage) -> Usage:
    """Return the processor time between two points, and the peak memory at the second."""
    return Usage(after.cpu_s - before.cpu_s, after.peak_bytes)


def _costs(process: str, usage: Usage, records: int) -> list[Measurement]:
    return [
        Measurement(f"{process}: peak", "MiB", usage.peak_bytes / MIB, records),
        Measurement(f"{process}: time", "CPU s per million", usage.cpu_s * MILLION / records, records),
    ]


async def _catch_up_on_many(context: JobContext, title: str, *, topics: int, partitions: int) -> Figures:
    of_each = max(context.records // partitions, 1)
    task = Task(records=of_each * partitions, topics=topics, partitions=partitions)
    async with context.open(ClusterSetup(fill=task)) as cluster:
        store: Server = cluster.servers[0]
        done = await _go(await cluster.consumer(_late(task)))
        yield _catch_up_rate(f"{title}, caught up on", done, task.records)
        yield Measurement(
            f"{title}, to the first record", "ms", (done.first - done.figures["opened"]) / 1e6, task.records
        )
        yield Measurement(f"{title}, the store's peak", "MiB", store.usage().peak_bytes / MIB, task.records)
        yield Measurement(f"{title}, the consumer's peak", "MiB", done.usage.peak_bytes / MIB, task.records)
