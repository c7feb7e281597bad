"""The same jobs over this project and others, beside each other: what `dafka bench` runs.

Every role is a process of its own, as in deployment; the one that measures starts them and reads what they report.
"""

from dafka.bench.jobs import JOBS, Job
from dafka.bench.results import BenchError, Results
from dafka.bench.runner import run_jobs

__all__ = ["JOBS", "BenchError", "Job", "Results", "run_jobs"]
