"""Running jobs on systems, round by round. The systems take turns, so that all run under the same conditions."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import zmq

from dafka import __version__
from dafka_bench.jobs import Job, JobContext
from dafka_bench.nodes import NodesOptions
from dafka_bench.processes import open_processes
from dafka_bench.results import BenchError, Failure, Results, Sample
from dafka_bench.systems import Cluster, ClusterSetup, System


async def run_jobs(
    jobs: Sequence[Job],
    systems: Sequence[System],
    *,
    records: int,
    rounds: int,
    base: str = "",
    folder: Path | None = None,
    nodes: NodesOptions | None = None,
    settings: Mapping[str, object] | None = None,
    report_progress: Callable[[str], None] = lambda line: None,
) -> Results:
    """Run every job on every system that supports it.

    Args:
        jobs: The jobs to run.
        systems: The systems to measure.
        records: The number of records of a job; some jobs use fewer.
        rounds: The number of rounds.
        base: The name of the system that ratios refer to; empty for the first one that can run.
        folder: The folder for the records of the servers; None for the folder of temporary files.
        nodes: The options of the job `nodes`; the defaults if None.
        settings: The settings of the run, for the results.
        report_progress: Called with a line when a job begins.

    Returns:
        The results.

    Raises:
        BenchError: If no system can run, or the base cannot.
    """
    left_out = {system.name: reason for system in systems if (reason := system.unavailable_reason())}
    running = [system for system in systems if system.name not in left_out]
    if not running:
        raise BenchError("none of the systems can run: " + "; ".join(f"{n}: {why}" for n, why in left_out.items()))
    names = [system.name for system in running]
    date = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    if base and base not in names:
        raise BenchError(f"expected a base among {', '.join(map(repr, names))}, not {base!r}")
    samples: list[Sample] = []
    failures: list[Failure] = []
    for number in range(1, rounds + 1):
        for job in jobs:
            for system in running:
                if job.name not in system.jobs:
                    continue
                report_progress(f"round {number} of {rounds}: {job.name}, {system.name}")
                try:
                    context = JobContext(system, _opener(system, folder), records, nodes or NodesOptions())
                    # Measurements from before a failure are kept.
                    async for measured in job.run(context):
                        samples.append(Sample(job.name, system.name, number, measured))  # noqa: PERF401
                except BenchError as error:
                    failures.append(Failure(job.name, system.name, number, str(error)))
    return Results(settings or {}, describe_machine(), names, base or names[0], left_out, samples, failures, date)


def _opener(system: System, folder: Path | None) -> Callable[[ClusterSetup], AbstractAsyncContextManager[Cluster]]:
    @asynccontextmanager
    async def opened(setup: ClusterSetup) -> AsyncIterator[Cluster]:
        with tempfile.TemporaryDirectory(prefix="dafka-bench-", dir=folder, ignore_cleanup_errors=True) as path:
            async with (
                open_processes(Path(path), system.variables) as processes,
                system.open(processes, setup) as cluster,
            ):
                yield cluster

    return opened


def describe_machine() -> dict[str, object]:
    """Return a description of this machine: its processors, memory and versions."""
    return {
        "processors": os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "libzmq": zmq.zmq_version(),
        "pyzmq": zmq.pyzmq_version(),
        "dafka": __version__,
    }
