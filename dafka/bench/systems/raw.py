"""Bare ZeroMQ through pyzmq: one connection, nothing stored. What stands for a store is the other side of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs

from dafka.bench.processes import Client, Processes, Server, free_port
from dafka.bench.systems.base import EVERYWHERE, Cluster, Setup
from dafka.bench.task import Task


@attrs.frozen
class Raw:
    """The limit of libzmq as Python can use it."""

    name: str = "raw pyzmq"
    jobs: frozenset[str] = EVERYWHERE
    stores_max: int = 1
    late_records_max: int | None = None
    variables: dict[str, str] = attrs.field(factory=dict)

    def missing(self) -> str:
        """It is always there."""
        return ""

    @asynccontextmanager
    async def open(self, processes: Processes, setup: Setup) -> AsyncIterator[Cluster]:
        """Nothing but the endpoints."""
        yield _Cluster(processes)


@attrs.define
class _Cluster:
    _processes: Processes
    servers: list[Server] = attrs.field(factory=list)
    _settings: dict[str, str] = attrs.field(factory=dict)

    async def producer(self, task: Task) -> Client:
        """With nobody to receive, one that does."""
        if not task.consumers:
            self._new_endpoints("consume")
            sink = await self._client("consume", attrs.evolve(task, is_late=False, rate=0))
            await sink.wait_ready()
            await sink.go()
            task = attrs.evolve(task, consumers=1)
        return await self._client("produce", task)

    async def consumer(self, task: Task) -> Client:
        """A late one gets one that sends as soon as it is there."""
        if not self._settings or task.is_late:
            self._new_endpoints("produce")
        if task.is_late:
            source = await self._client("produce", attrs.evolve(task, is_late=True, consumers=1))
            await source.wait_ready()
            await source.go()
        return await self._client("consume", task)

    def _new_endpoints(self, binding: str) -> None:
        """The side that is there first binds: connecting before is tried again only after a while."""
        self._settings = {name: f"tcp://127.0.0.1:{free_port()}" for name in ("records", "acknowledged")}
        self._settings["binding"] = binding

    async def _client(self, role: str, task: Task) -> Client:
        return await self._processes.client(role, "raw", role, attrs.evolve(task, settings=self._settings))
