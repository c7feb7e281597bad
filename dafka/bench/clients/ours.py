"""This project's producer and consumer, and the filling of a storage with many partitions."""

from __future__ import annotations

import time
from collections.abc import Iterable

import trio

from dafka import Config, open_consumer, open_producer
from dafka.bench.clients.control import CHUNK_RECORDS, TICK_S, Arrivals, Control, Pace
from dafka.bench.errors import BenchError
from dafka.bench.task import Task
from dafka.records import Partition, RecordBatch
from dafka.roles import Consumer, Producer
from dafka.storage import open_storage

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
    if task.is_late:
        await trio.to_thread.run_sync(control.wait_go)
    first = time.perf_counter_ns()
    async with open_producer(task.topic_names()[0], _config(task)) as producer:
        if not task.is_late:
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
    if task.is_late:
        await trio.to_thread.run_sync(control.wait_go)
    arrivals = Arrivals(task, time.perf_counter_ns())
    async with open_consumer(task.topic_names(), _config(task)) as consumer:
        if not task.is_late:
            await trio.to_thread.run_sync(control.wait_go)
        with trio.move_on_after(GIVE_UP_S) as scope:
            while not arrivals.is_complete:
                arrivals.take((await consumer.next_batch()).contents)
        if scope.cancelled_caught:
            raise _stalled(arrivals, consumer, task)
        arrivals.report(control)


def _stalled(arrivals: Arrivals, consumer: Consumer, task: Task) -> BenchError:
    """What there is to know of a consumer that waits in vain."""
    counts = consumer.statistics()
    return BenchError(
        f"{arrivals.count:,} of {task.records:,} records came in {GIVE_UP_S:.0f} s: {counts.peers} peers, "
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
