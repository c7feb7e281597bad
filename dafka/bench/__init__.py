"""Benchmarks that run the same jobs on dafka and other systems: the implementation of `dafka bench`.

Every role runs in a process of its own, as in production. The measuring process starts them and reads their reports.
"""

from dafka.bench.jobs import JOBS, Job
from dafka.bench.nodes import NodesOptions
from dafka.bench.results import BenchError, Results
from dafka.bench.runner import run_jobs

__all__ = ["JOBS", "BenchError", "Job", "NodesOptions", "Results", "run_jobs"]
