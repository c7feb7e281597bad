"""This project: each storage, each dialect, with and without the transport accelerator."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

import attrs

from dafka.bench.processes import Processes, Server
from dafka.bench.systems.base import WITH_SERVERS, Cluster, ServerCluster, Setup

ACCELERATOR = "DAFKA_ACCELERATOR"
STORAGES = {
    "sqlite": "sqlite:{folder}/store-{number}.db",
    "filelog": "filelog:{folder}/log-{number}",
    "memory": "memory:",
}
FREE = "tcp://127.0.0.1:*"


@attrs.frozen
class Ours:
    """Attributes:
    storage: sqlite, filelog or memory.
    wire: the dialect.
    accelerator: on or off.
    """

    storage: str
    wire: str
    accelerator: str
    late_records_max: int | None = None

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
        cluster = ServerCluster(processes, "ours", settings, [])
        for number in range(setup.stores):
            storage = STORAGES[self.storage].format(folder=processes.folder, number=number)
            if setup.fill is not None and not number:
                filled = attrs.evolve(setup.fill, settings={"storage": storage})
                await (await processes.client("the filling", "ours", "fill", filled)).wait_ended()
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
