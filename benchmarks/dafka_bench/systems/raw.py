"""Plain ZeroMQ through pyzmq: one connection and no storage. The upper limit of any protocol on top of pyzmq.

Records are messages of two frames. A sender publishes to the number of receivers in the task. Each receiver reports
when it has received all records. The process at the other end of the connection takes the place of a store.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import zmq

from dafka_bench.client import CHUNK_RECORDS, TICK_S, TOPIC, Coordinator, Pace, ReceivedRecords, Task
from dafka_bench.processes import Client, Processes, Server, free_port
from dafka_bench.systems.base import EVERYWHERE, Cluster, ClusterSetup


@attrs.frozen
class RawZmq:
    """Plain ZeroMQ, as fast as Python can use it."""

    name: str = "raw pyzmq"
    jobs: frozenset[str] = EVERYWHERE
    stores_max: int = 1
    catch_up_records_max: int | None = None
    variables: dict[str, str] = attrs.field(factory=dict)

    def unavailable_reason(self) -> str:
        """See `System.unavailable_reason`. pyzmq is always installed."""
        return ""

    @asynccontextmanager
    async def open(self, processes: Processes, setup: ClusterSetup) -> AsyncIterator[Cluster]:
        """See `System.open`. There is no server."""
        yield _Cluster(processes)


@attrs.define
class _Cluster:
    _processes: Processes
    servers: list[Server] = attrs.field(factory=list)
    _settings: dict[str, str] = attrs.field(factory=dict)

    async def producer(self, task: Task) -> Client:
        """Start a producer, and a receiver if the task has no consumers."""
        if not task.consumers:
            self._new_endpoints("consume")
            sink = await self._client("consume", attrs.evolve(task, opens_on_go=False, rate=0))
            await sink.wait_ready()
            await sink.go()
            task = attrs.evolve(task, consumers=1)
        return await self._client("produce", task)

    async def consumer(self, task: Task) -> Client:
        """Start a consumer, and a producer if the consumer catches up."""
        if not self._settings or task.opens_on_go:
            self._new_endpoints("produce")
        if task.opens_on_go:
            source = await self._client("produce", attrs.evolve(task, opens_on_go=True, consumers=1))
            await source.wait_ready()
            await source.go()
        return await self._client("consume", task)

    def _new_endpoints(self, binding: str) -> None:
        """Choose new endpoints. The side that starts first binds, because failed connections are retried slowly."""
        self._settings = {name: f"tcp://127.0.0.1:{free_port()}" for name in ("records", "acknowledged")}
        self._settings["binding"] = binding

    async def _client(self, role: str, task: Task) -> Client:
        return await self._processes.client(role, "raw", role, attrs.evolve(task, settings=self._settings))


FRAME = b"M" + TOPIC.encode()
DRAIN_RECORDS_MAX = 1000
"""The maximum number of records received at once."""


def produce(task: Task, coordinator: Coordinator) -> None:
    """Send records once all receivers are connected, and wait until each has received all."""
    chunks = task.make_chunks(CHUNK_RECORDS)
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher, context.socket(zmq.PULL) as acknowledged:
        for socket in (publisher, acknowledged):
            socket.set_hwm(0)
        publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
        if task.opens_on_go:
            coordinator.wait_go()
        first = time.perf_counter_ns()
        _join(publisher, acknowledged, task, "produce")
        for _ in range(task.consumers):
            publisher.recv()
        if not task.opens_on_go:
            coordinator.wait_go()
            first = time.perf_counter_ns()
        if task.rate:
            pace = Pace(task)
            while not pace.is_over:
                _send(publisher, pace.take_due())
                time.sleep(TICK_S)
        else:
            for contents in chunks:
                _send(publisher, contents)
        for _ in range(task.consumers):
            acknowledged.recv()
        coordinator.done(first=first, last=time.perf_counter_ns())


def _send(publisher: zmq.Socket[bytes], contents: Sequence[bytes]) -> None:
    send, more = publisher.send, int(zmq.SNDMORE)
    for content in contents:
        send(FRAME, more)
        send(content)


def consume(task: Task, coordinator: Coordinator) -> None:
    """Receive records, and report to the sender when all have arrived."""
    if task.opens_on_go:
        coordinator.wait_go()
    received = ReceivedRecords(task, time.perf_counter_ns())
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber, context.socket(zmq.PUSH) as acknowledge:
        subscriber.set_hwm(0)
        subscriber.subscribe(b"M")
        _join(subscriber, acknowledge, task, "consume")
        if not task.opens_on_go:
            coordinator.wait_go()
        while not received.is_complete:
            received.add_contents(_drain(subscriber))
        acknowledge.send(b"")
        received.report(coordinator)


def _join(records: zmq.Socket[bytes], acknowledged: zmq.Socket[bytes], task: Task, role: str) -> None:
    for socket, name in ((records, "records"), (acknowledged, "acknowledged")):
        if task.settings["binding"] == role:
            socket.bind(task.settings[name])
        else:
            socket.connect(task.settings[name])


def _drain(subscriber: zmq.Socket[bytes]) -> list[bytes]:
    """Return the contents that have arrived, at least one."""
    receive, now = subscriber.recv, int(zmq.NOBLOCK)
    receive()
    contents = [receive()]
    try:
        while len(contents) < DRAIN_RECORDS_MAX:
            receive(now)
            contents.append(receive())
    except zmq.Again:
        pass
    return contents
