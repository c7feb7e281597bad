"""Fixtures of all tests, and how `make test` shares the modules out to its workers."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

pytest_plugins = [
    "dafka.testing.plugin",
    "tests.cli.fixtures",
    "tests.spark.fixtures",
    "tests.transport.fixtures",
]

# A worker is given one module after another, in this order and then in that of the names: where a long one came last,
# the other workers would wait for it.
LONGEST_FIRST = (
    "one Spark session",
    "another Spark session",
    "tests/conformance/test_own_roles.py",
    "tests/conformance/test_mutants.py",
    "tests/storage/test_crash_loop.py",
    "tests/spark/test_stream_kills.py",
    "tests/spark/test_write_retries.py",
)

# Modules that one worker runs, since they share what is expensive: by name, patterns of their paths. A Spark session
# is a Java machine: seconds to start, a gigabyte. Spark's modules that are named nowhere need none, or their own.
TOGETHER = {
    "one Spark session": (
        "tests/spark/test_bad_input.py",
        "tests/spark/test_decoding.py",
        "tests/spark/test_dataframes.py",
        "tests/spark/test_pipeline.py",
        "tests/spark/test_session.py",
        "tests/spark/test_spark_page.py",
        "tests/spark/test_stream.py",
    ),
    "another Spark session": (
        "tests/spark/test_cluster_stream.py",
        "tests/spark/test_read_batch.py",
        "tests/spark/test_spark_cli.py",
        "tests/spark/test_spark_errors.py",
        "tests/spark/test_write.py",
    ),
}


# Settings of whoever runs the tests are none of theirs. Which loops are used may be chosen: all holds for both.
FOREIGN = ("DAFKA_", "PYSPARK_", "SPARK_")
CHOSEN = {"DAFKA_ACCELERATOR"}


def pytest_configure() -> None:
    for name in [name for name in os.environ if name.startswith(FOREIGN) and name not in CHOSEN]:
        del os.environ[name]


def unit_of(nodeid: str) -> str:
    """What is run as one: the module's path, or the name in `TOGETHER`."""
    path = nodeid.partition("::")[0]
    together = (name for name, patterns in TOGETHER.items() if any(fnmatchcase(path, pattern) for pattern in patterns))
    return next(together, path)


class UnitScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Modules, and those that belong together."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> UnitScheduling | None:
    return UnitScheduling(config, log) if config.getoption("dist") == "loadfile" else None


# Seconds. One of Spark's that is interrupted takes its session along, and so all tests after it: it is given time.
SPARK_TIMEOUT = 400


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker, the longest come first; by hand, tests run in the order of their names."""
    for item in items:
        if item.nodeid.startswith("tests/spark/") and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT))
    if hasattr(config, "workerinput"):
        places = {unit: place for place, unit in enumerate(LONGEST_FIRST)}
        items.sort(key=lambda item: places.get(unit_of(item.nodeid), len(places)))
