"""The interface of a system that is measured, and what several systems share."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from typing import Protocol

import attrs

from dafka_bench.client import Task
from dafka_bench.processes import Client, Processes, Server, free_port


class Cluster(Protocol):
    """The running servers of a system, which start its clients."""

    @property
    def servers(self) -> Sequence[Server]:
        """The running servers: first those that store the records, then the tower of a system that has one."""

    async def producer(self, task: Task) -> Client:
        """Start a producer, or the producers of the job `nodes`, which share a process."""

    async def consumer(self, task: Task) -> Client:
        """Start a consumer."""


@attrs.frozen
class ServerCluster:
    """A cluster whose clients all get the same settings.

    Attributes:
        processes: Starts the clients.
        module: The module of `dafka_bench.systems` with the functions of the clients.
        settings: The settings of the clients, such as the addresses of the servers.
        servers: See `Cluster.servers`.
    """

    processes: Processes
    module: str
    settings: dict[str, str]
    servers: list[Server]

    async def producer(self, task: Task) -> Client:
        """See `Cluster.producer`."""
        return await self._client("produce_together" if task.producers else "produce", task)

    async def consumer(self, task: Task) -> Client:
        """See `Cluster.consumer`."""
        return await self._client("consume", task)

    async def _client(self, role: str, task: Task) -> Client:
        return await self.processes.client(role, self.module, role, attrs.evolve(task, settings=self.settings))


class System(Protocol):
    """A system that can be measured."""

    @property
    def name(self) -> str:
        """Its name in tables."""

    @property
    def jobs(self) -> frozenset[str]:
        """The names of the jobs that it supports."""

    @property
    def stores_max(self) -> int:
        """The maximum number of stores that acknowledge a record."""

    @property
    def catch_up_records_max(self) -> int | None:
        """The number of records that a consumer can catch up on; None for no limit."""

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables of its processes."""

    def unavailable_reason(self) -> str:
        """Return why the system cannot run here, in one sentence; "" if it can."""

    def open(self, processes: Processes, setup: ClusterSetup) -> AbstractAsyncContextManager[Cluster]:
        """Run its servers for a block, with no records except those that `setup` asks for."""


@attrs.frozen
class ClusterSetup:
    """The cluster that a job needs.

    Attributes:
        stores: The number of stores.
        fill: The records that the first store holds from the start; None for none.
    """

    stores: int = 1
    fill: Task | None = None


EVERYWHERE = frozenset({"produce", "live", "catch-up", "latency", "start"})
"""The jobs that every system supports."""
WITH_SERVERS = EVERYWHERE | {"memory", "sizes"}
"""The jobs of systems with servers that store records."""


@attrs.frozen
class Broker:
    """A system with one server program and a Python client library.

    Attributes:
        name: Its name in tables.
        server: The server program.
        package: The distribution of the client library.
        module: The module of the client library, and of `dafka_bench.systems`.
        command: Returns the command of the server, for a port.
        jobs: See `System.jobs`.
        stores_max: See `System.stores_max`.
        catch_up_records_max: See `System.catch_up_records_max`.
        variables: See `System.variables`.
    """

    name: str
    server: str
    package: str
    module: str
    command: Callable[[Processes, int], list[str]]
    jobs: frozenset[str] = WITH_SERVERS
    stores_max: int = 1
    catch_up_records_max: int | None = None
    variables: dict[str, str] = attrs.field(factory=dict)

    def unavailable_reason(self) -> str:
        """See `System.unavailable_reason`."""
        if shutil.which(self.server) is None:
            return f"{self.server} is not installed"
        if find_spec(self.module) is None:
            return f"the Python package {self.package} is not installed: pip install dafka-bench"
        return ""

    @asynccontextmanager
    async def open(self, processes: Processes, setup: ClusterSetup) -> AsyncIterator[Cluster]:
        """See `System.open`. The server listens on a free port."""
        port = free_port()
        server = await processes.serve(self.server, self.command(processes, port))
        await server.wait_listening(port)
        settings = {"url": f"nats://127.0.0.1:{port}", "port": str(port)}
        yield ServerCluster(processes, self.module, settings, [server])
