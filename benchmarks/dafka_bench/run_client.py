"""Run one client of a benchmark: `python -m dafka_bench.run_client MODULE ROLE TASK`."""

import sys
from importlib import import_module

from dafka.errors import DafkaError
from dafka_bench.client import Coordinator, Task


def main(module: str, role: str, task: str) -> None:
    """Run a function of a module of `dafka_bench.systems` with a task in JSON."""
    run = getattr(import_module(f"dafka_bench.systems.{module}"), role)
    try:
        run(Task.from_json(task), Coordinator())
    except (DafkaError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
