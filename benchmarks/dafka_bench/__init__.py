"""Benchmarks that run the same jobs on dafka and other systems: the implementation of `dafka bench`.

Every role runs in a process of its own, as in production. The measuring process starts them and reads their reports.
"""

from dafka_bench.jobs import JOBS, Job
from dafka_bench.nodes import NodesOptions
from dafka_bench.results import BenchError, Results
from dafka_bench.runner import run_jobs

__all__ = ["JOBS", "BenchError", "Job", "NodesOptions", "Results", "run_jobs"]
