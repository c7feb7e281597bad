"""The jobs: what is done with a system, and which figures come of it.

Rates are counted from when the producer begins to send, once everybody has found each other, to when the last record
is acknowledged or received. A catch-up is counted from the consumer's first records on, without these: how long it
takes to come by them is the job `start`'s.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import attrs

from dafka.bench.client import SHARES, Task, Usage
from dafka.bench.processes import Client, Done, Server
from dafka.bench.results import BenchError, Measurement
from dafka.bench.systems import Cluster, Setup, System

FAN_OUT = (1, 4, 16)
RATES = (1000, 20_000)
PACED_S = 5
"""How long records are sent at a rate."""
SIZES = {"10 B": 10, "100 B": 100, "1 KiB": 2**10, "64 KiB": 2**16, "1 MiB": 2**20}
SIZED_BYTES_MAX = 128 * 2**20
"""Contents of each size, all together."""
TOPICS = 1000
PARTITIONS = (1, 10, 100, 1000, 10_000)
MILLION = 1_000_000
MIB = 2**20

Figures: TypeAlias = AsyncIterator[Measurement]


@attrs.frozen
class JobContext:
    """What a job gets: the system, a way to open it as often as is needed, and how many records to move."""

    system: System
    open: Callable[[Setup], AbstractAsyncContextManager[Cluster]]
    records: int

    @property
    def catch_up_records(self) -> int:
        """How many records a consumer can catch up on."""
        return min(self.records, self.system.catch_up_records_max or self.records)


@attrs.frozen
class Job:
    """Attributes:
    name: by which it is asked for.
    about: what it does, in a few words.
    run: does it, and gives its figures.
    """

    name: str
    about: str
    run: Callable[[JobContext], Figures]


async def produce(context: JobContext) -> Figures:
    """By one store, and by two where a producer can tell them apart."""
    for stores in range(1, context.system.stores_max + 1):
        async with context.open(Setup(stores)) as cluster:
            done = await _go(await cluster.producer(Task(records=context.records, stores=stores)))
        title = "acknowledged by 1 store" if stores == 1 else f"acknowledged by {stores} stores"
        yield Measurement(title, "records/s", context.records / done.seconds, context.records)


async def live(context: JobContext) -> Figures:
    """The more consumers, the fewer records, so that the deliveries are about as many."""
    for consumers in FAN_OUT:
        records = max(context.records // consumers, 1)
        async with context.open(Setup()) as cluster:
            sent, received = await _send_live(cluster, Task(records=records, consumers=consumers))
        seconds = (max(done.last for done in received) - sent.first) / 1e9
        title = "deliveries to 1 consumer" if consumers == 1 else f"deliveries to {consumers} consumers"
        yield Measurement(title, "records/s", records * consumers / seconds, records)


async def catch_up(context: JobContext) -> Figures:
    """With the producer gone."""
    task = Task(records=context.catch_up_records)
    async with context.open(Setup()) as cluster:
        await _fill(cluster, task)
        done = await _go(await cluster.consumer(_late(task)))
    yield _catch_up_rate("from a store", done, task.records)


async def latency(context: JobContext) -> Figures:
    """From the making of a record to its receipt; a rate that the producer does not keep up with is an error."""
    for rate in RATES:
        task = Task(records=max(1, min(context.records, rate * PACED_S)), rate=rate, consumers=1)
        async with context.open(Setup()) as cluster:
            sent, (received,) = await _send_live(cluster, task)
        if sent.seconds > 2 * task.records / rate + 1:
            raise BenchError(f"{rate:,} records a second are too many: {task.records / sent.seconds:,.0f} were sent")
        for share in SHARES:
            yield Measurement(f"{share} at {rate:,}/s", "ms", received.figures[share] / 1e6, task.records)


async def start(context: JobContext) -> Figures:
    """From opening, without the interpreter's start."""
    task = Task(records=1, opens_on_go=True)
    async with context.open(Setup()) as cluster:
        producer = await cluster.producer(task)
        stored = await _go(producer)
        await producer.wait_ended()
        received = await _go(await cluster.consumer(_late(task)))
    yield Measurement("producer, to its first record stored", "ms", stored.seconds * 1000, 1)
    opened = received.figures["opened"]
    yield Measurement("consumer, to its first record", "ms", (received.last - opened) / 1e6, 1)


async def memory(context: JobContext) -> Figures:
    """Of the producer and the store while records are stored, of the consumer and the store while it catches up."""
    task = Task(records=context.records)
    async with context.open(Setup()) as cluster:
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
    """Records of one size, stored and then caught up on."""
    for title, size in SIZES.items():
        task = Task(records=max(1, min(context.catch_up_records, SIZED_BYTES_MAX // size)), size=size)
        async with context.open(Setup()) as cluster:
            stored = await _fill(cluster, task)
            done = await _go(await cluster.consumer(_late(task)))
        mib = task.records * size / MIB
        yield Measurement(f"{title}, acknowledged", "MiB/s", mib / stored.seconds, task.records)
        caught_up = _catch_up_rate(f"{title}, caught up on", done, task.records)
        yield attrs.evolve(caught_up, unit="MiB/s", value=caught_up.value * size / MIB)


async def topics(context: JobContext) -> Figures:
    """One consumer of many topics, each with one partition, catching up."""
    async for measured in _catch_up_on_many(context, f"{TOPICS:,} topics", topics=TOPICS, partitions=TOPICS):
        yield measured


async def partitions(context: JobContext) -> Figures:
    """One consumer of one topic with ever more partitions, catching up on the same number of records in all."""
    for number in PARTITIONS:
        title = "1 partition" if number == 1 else f"{number:,} partitions"
        async for measured in _catch_up_on_many(context, title, topics=1, partitions=number):
            yield measured


JOBS: dict[str, Job] = {
    job.name: job
    for job in (
        Job("produce", "until every record is acknowledged, by one store and by two", produce),
        Job("live", "to 1, 4 and 16 consumers, with a store attached", live),
        Job("catch-up", "from a store, the producer gone", catch_up),
        Job("latency", "producer to consumer, at 1,000 and at 20,000 records a second", latency),
        Job("start", "from opening a producer or a consumer to its first record", start),
        Job("memory", "peak memory and processor time of each process", memory),
        Job("sizes", "contents of 10 B to 1 MiB", sizes),
        Job("topics", "a consumer of 1,000 topics", topics),
        Job("partitions", "1 to 10,000 partitions", partitions),
    )
}
"""Every job by its name."""


async def _go(client: Client) -> Done:
    await client.wait_ready()
    await client.go()
    return await client.wait_done()


async def _fill(cluster: Cluster, task: Task) -> Done:
    """The producer is gone when this returns."""
    producer = await cluster.producer(task)
    done = await _go(producer)
    await producer.wait_ended()
    return done


async def _send_live(cluster: Cluster, task: Task) -> tuple[Done, list[Done]]:
    """What the producer and the consumers report. These are there before it is."""
    consumers = [await cluster.consumer(task) for _ in range(task.consumers)]
    for consumer in consumers:
        await consumer.wait_ready()
        await consumer.go()
    sent = await _go(await cluster.producer(task))
    return sent, [await consumer.wait_done() for consumer in consumers]


def _late(task: Task) -> Task:
    return attrs.evolve(task, opens_on_go=True, from_beginning=True)


def _catch_up_rate(title: str, done: Done, records: int) -> Measurement:
    """Without the first run, whose way was not seen; of a single run that is all, from opening on."""
    first_count = int(done.figures["first_count"])
    if first_count >= records:
        seconds = (done.last - done.figures["opened"]) / 1e9
        return Measurement(title, "records/s", records / seconds, records)
    return Measurement(title, "records/s", (records - first_count) / done.seconds, records)


def _since(before: Usage, after: Usage) -> Usage:
    """The processor's time between, and the peak until the end."""
    return Usage(after.cpu_s - before.cpu_s, after.peak_bytes)


def _costs(who: str, usage: Usage, records: int) -> list[Measurement]:
    return [
        Measurement(f"{who}: peak", "MiB", usage.peak_bytes / MIB, records),
        Measurement(f"{who}: time", "CPU s per million", usage.cpu_s * MILLION / records, records),
    ]


async def _catch_up_on_many(context: JobContext, title: str, *, topics: int, partitions: int) -> Figures:
    of_each = max(context.records // partitions, 1)
    task = Task(records=of_each * partitions, topics=topics, partitions=partitions)
    async with context.open(Setup(fill=task)) as cluster:
        store: Server = cluster.servers[0]
        done = await _go(await cluster.consumer(_late(task)))
        yield _catch_up_rate(f"{title}, caught up on", done, task.records)
        yield Measurement(
            f"{title}, to the first record", "ms", (done.first - done.figures["opened"]) / 1e6, task.records
        )
        yield Measurement(f"{title}, the store's peak", "MiB", store.usage().peak_bytes / MIB, task.records)
        yield Measurement(f"{title}, the consumer's peak", "MiB", done.usage.peak_bytes / MIB, task.records)
