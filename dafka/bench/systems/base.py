"""What a job needs of a system, whichever it is."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from typing import Protocol

import attrs

from dafka.bench.client import Task
from dafka.bench.processes import Client, Processes, Server, free_port


class Cluster(Protocol):
    """A system's servers, running, and how to start its clients."""

    @property
    def servers(self) -> Sequence[Server]:
        """The running servers, the one that keeps records first."""

    async def producer(self, task: Task) -> Client:
        """Starts a producer."""

    async def consumer(self, task: Task) -> Client:
        """Starts a consumer."""


@attrs.frozen
class ServerCluster:
    """The cluster of a system with servers, whose clients all get the same settings.

    Attributes:
        module: of `dafka.bench.run_client`.
        settings: where the servers are, and what else clients need.
        servers: see `Cluster.servers`.
    """

    processes: Processes
    module: str
    settings: dict[str, str]
    servers: list[Server]

    async def producer(self, task: Task) -> Client:
        """See `Cluster.producer`."""
        return await self._client("produce", task)

    async def consumer(self, task: Task) -> Client:
        """See `Cluster.consumer`."""
        return await self._client("consume", task)

    async def _client(self, role: str, task: Task) -> Client:
        return await self.processes.client(role, self.module, role, attrs.evolve(task, settings=self.settings))


class System(Protocol):
    """Something to measure."""

    @property
    def name(self) -> str:
        """In tables."""

    @property
    def jobs(self) -> frozenset[str]:
        """The names of the jobs that it can do."""

    @property
    def stores_max(self) -> int:
        """By how many stores it can have records acknowledged."""

    @property
    def catch_up_records_max(self) -> int | None:
        """How many records a consumer can catch up on; None for any number."""

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables that its processes need."""

    def missing(self) -> str:
        """Why it cannot run here, in one sentence; empty where it can."""

    def open(self, processes: Processes, setup: Setup) -> AbstractAsyncContextManager[Cluster]:
        """Starts its servers, with nothing in them but what is asked for, for the length of a block."""


@attrs.frozen
class Setup:
    """Attributes:
    stores: how many to run.
    fill: records that the first one holds from the start, or None.
    """

    stores: int = 1
    fill: Task | None = None


EVERYWHERE = frozenset({"produce", "live", "catch-up", "latency", "start"})
"""The jobs that every system does."""
WITH_SERVERS = EVERYWHERE | {"memory", "sizes"}
"""The jobs of systems with servers, which hold records."""


@attrs.frozen
class Broker:
    """Attributes:
    server: the server's program.
    package: the client library's distribution.
    module: its module, and the name of ours that drives it.
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

    def missing(self) -> str:
        """The server or the library may not be installed."""
        if shutil.which(self.server) is None:
            return f"{self.server} is not installed"
        if find_spec(self.module) is None:
            return f"the Python package {self.package} is not installed: pip install 'dafka[bench]'"
        return ""

    @asynccontextmanager
    async def open(self, processes: Processes, setup: Setup) -> AsyncIterator[Cluster]:
        """The server, listening at a free port."""
        port = free_port()
        server = await processes.serve(self.server, self.command(processes, port))
        await server.wait_listening(port)
        settings = {"url": f"nats://127.0.0.1:{port}", "port": str(port)}
        yield ServerCluster(processes, self.module, settings, [server])
