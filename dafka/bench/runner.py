"""Runs jobs over systems, round by round, each system's turn after the other's, so that all see the same machine."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import zmq

from dafka import __version__
from dafka.bench.jobs import Job, JobContext
from dafka.bench.processes import open_processes
from dafka.bench.results import BenchError, Failure, Results, Sample
from dafka.bench.systems import Cluster, Setup, System


async def run_jobs(
    jobs: Sequence[Job],
    systems: Sequence[System],
    *,
    records: int,
    rounds: int,
    base: str = "",
    folder: Path | None = None,
    settings: Mapping[str, object] | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Results:
    """Runs every job on every system that can do it, and gives what was found. Raises `BenchError` where none can run.

    Arguments:
        jobs: what to do.
        systems: on what.
        records: how many to move in a job; some jobs move fewer.
        rounds: how often.
        base: the name of the system that ratios are to; empty for the first one that can run.
        folder: where servers keep their records; empty for the system's folder of temporary files.
        settings: what the run was asked for, for the record.
        tell: is given a line when something begins.
    """
    left_out = {system.name: reason for system in systems if (reason := system.missing())}
    running = [system for system in systems if system.name not in left_out]
    if not running:
        raise BenchError("none of the systems can run: " + "; ".join(f"{n}: {why}" for n, why in left_out.items()))
    names = [system.name for system in running]
    if base and base not in names:
        raise BenchError(f"the base {base!r} cannot run or is not among the systems: {', '.join(names)}")
    samples: list[Sample] = []
    failures: list[Failure] = []
    for number in range(1, rounds + 1):
        for job in jobs:
            for system in running:
                if job.name not in system.jobs:
                    continue
                tell(f"round {number} of {rounds}: {job.name}, {system.name}")
                try:
                    found = job.run(JobContext(system, _opener(system, folder), records))
                    samples.extend([Sample(job.name, system.name, number, measured) async for measured in found])
                except BenchError as error:
                    failures.append(Failure(job.name, system.name, number, str(error)))
    return Results(settings or {}, describe_machine(), names, base or names[0], left_out, samples, failures)


def _opener(system: System, folder: Path | None) -> Callable[[Setup], AbstractAsyncContextManager[Cluster]]:
    @asynccontextmanager
    async def opened(setup: Setup) -> AsyncIterator[Cluster]:
        with tempfile.TemporaryDirectory(prefix="dafka-bench-", dir=folder, ignore_cleanup_errors=True) as place:
            async with (
                open_processes(Path(place), system.variables) as processes,
                system.open(processes, setup) as cluster,
            ):
                yield cluster

    return opened


def describe_machine() -> dict[str, object]:
    """What tells this machine from others: its processors, memory and versions."""
    return {
        "processors": os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "libzmq": zmq.zmq_version(),
        "pyzmq": zmq.pyzmq_version(),
        "dafka": __version__,
    }
