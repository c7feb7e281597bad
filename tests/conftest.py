"""Fixtures for all tests, and what runs together in the workers of `make test`."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import warnings
from collections.abc import Generator, Iterator
from fnmatch import fnmatchcase

import hypothesis
import pytest

from tests.cli.forks import load_once
from tests.leftovers import Before, shares_something
from tests.process_globals import Globals
from tests.workers import Workers

pytest_plugins = [
    "dafka.testing.plugin",
    "tests.cli.fixtures",
    "tests.hangs",
    "tests.spark.fixtures",
    "tests.transport.fixtures",
]

# How long an example takes says nothing about it: other tests run beside it. `make test` draws the same examples each
# time, so that it fails only for what has changed; `make test-long` draws new ones.
hypothesis.settings.register_profile("same", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("new", deadline=None, print_blob=True)
hypothesis.settings.load_profile("same")

# These start first, then the others by name. If a long module came last, the other workers would wait for it. Modules
# that mostly wait for processes take turns with those that only compute, so that both processors have work.
LONGEST_FIRST = (
    "one Spark session",
    "tests/cli/test_lost_brokers.py",
    "tests/broker/core/metadata",
    "one Chromium",
    "another Spark session",
    "tests/conformance/test_own_roles.py",
    "tests/conformance/test_mutants.py",
    "tests/spark/test_stream_kills.py",
    "tests/spark/test_write_retries.py",
    "tests/cli/test_cli_status.py",
    "tests/broker/core/replication",
    "tests/spark/test_publishing.py",
    "tests/storage/test_filelog_power.py",
    "tests/http/queues/test_ledger.py",
    "tests/cli/test_produce_consume.py",
    "tests/http/api/test_permissions.py",
    "tests/http/test_pages.py",
    "tests/storage/cold/test_histories.py",
    "tests/broker/cluster/test_hostile_clients.py",
    "tests/storage/test_histories.py",
    "tests/cli/test_cli_exit_status.py",
    "tests/batches",
    "tests/cli/test_cli_exit_statuses.py",
    "tests/broker/coordinator/test_transaction_world.py",
    "tests/cli/test_cli_bench.py",
    "tests/broker/replication/test_outdated_stores.py",
    "tests/clients/test_processes.py",
    "tests/broker/cluster/test_experiments.py",
    "tests/cli/test_cli_help.py",
    "tests/cli/test_two_machines.py",
)

# Modules that share something expensive, and therefore one worker: by name, patterns of their paths. A Spark session is
# a Java process, which takes seconds to start, and a gigabyte. Other Spark modules need no session, or their own.
TOGETHER = {
    "one Spark session": (
        "tests/spark/test_decoding.py",
        "tests/spark/test_read_batch.py",
        "tests/spark/test_read_broker.py",
        "tests/spark/test_spark_page.py",
        "tests/spark/test_stream.py",
        "tests/spark/test_write.py",
    ),
    "another Spark session": (
        "tests/spark/test_dataframes.py",
        "tests/spark/test_pipeline.py",
        "tests/spark/test_session.py",
        "tests/spark/test_spark_cli.py",
        "tests/spark/test_spark_errors.py",
    ),
    "one Chromium": ("tests/http/console/*",),
}

# Rooms that only compute, without sockets or threads: one worker for each folder, since starting one costs more than
# most of their modules.
COMPUTING = (
    "tests/batches/",
    "tests/broker/core/",
    "tests/config/",
    "tests/http1/",
    "tests/kafka/protocol/",
    "tests/protocol/",
    "tests/wire/",
)

# What `make test` runs of the tests that start Spark: every example of its page, batches, decoding, a stream that
# continues, and writing. The others are long: Spark takes a third of all processor time.
SPARK_IN_SHORT = (
    "tests/spark/test_spark_page.py::*",
    "tests/spark/test_decoding.py::*",
    "tests/spark/test_read_batch.py::*",
    "tests/spark/test_read_broker.py::*",
    "tests/spark/test_stream.py::test_a_query_continues_from_its_checkpoint*",
    "tests/spark/test_write.py::test_each_task_publishes_to_a_partition_of_its_own*",
    "tests/spark/test_write.py::test_a_stream_publishes_each_micro_batch*",
    "tests/spark/test_write.py::test_a_repeated_write_publishes_nothing_twice*",
    "tests/spark/test_write.py::test_whole_records_are_written_and_read_again*",
)
STARTS_SPARK = {"spark", "java"}
"""Fixtures."""


# How many objects are made before those that are unreachable are looked for. Python's default of 700 would have it look
# some million times, and find next to nothing.
GARBAGE_OBJECTS = 20_000

# Tests do not see the settings of the user who runs them. The choice of loops is an exception: all tests hold for both.
FOREIGN = ("DAFKA_", "PYSPARK_", "SPARK_")
CHOSEN = ("DAFKA_ACCELERATOR", "DAFKA_FAULT_")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "run this many modules at once, each in a process of its own (default: 0, all in this process)"
    parser.addoption("--workers", type=int, default=0, help=text)


def pytest_configure(config: pytest.Config) -> None:
    if workers := config.getoption("workers"):
        config.pluginmanager.register(Workers(workers, unit_of, LONGEST_FIRST))
    for name in [name for name in os.environ if name.startswith(FOREIGN) and not name.startswith(CHOSEN)]:
        del os.environ[name]


def unit_of(nodeid: str) -> str:
    """Return what runs as one unit: the module's path, its folder if that only computes, or a name in `TOGETHER`."""
    path = nodeid.partition("::")[0]
    if path.startswith(COMPUTING):
        return path.rpartition("/")[0]
    together = (name for name, patterns in TOGETHER.items() if any(fnmatchcase(path, pattern) for pattern in patterns))
    return next(together, path)


# Seconds. A simulation runs a fixed number of seeds, however long that takes: the limit is for one that hangs.
SIMULATED = ("tests/broker/core/replication/", "tests/simulation/")
SIMULATION_TIMEOUT = 1800

# Seconds. An interrupted Spark test ends its session, and so fails all tests after it. Therefore the limit is long.
SPARK_TIMEOUT = 400


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests that take longer their limits, and mark those of Spark that are long."""
    for item in items:
        if item.nodeid.startswith("tests/spark/") and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT))
        if item.nodeid.startswith(SIMULATED) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SIMULATION_TIMEOUT))
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & STARTS_SPARK and not any(fnmatchcase(item.nodeid, pattern) for pattern in SPARK_IN_SHORT):
            item.add_marker(pytest.mark.long)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import all tests without collecting garbage: next to nothing of what they make goes."""
    gc.disable()
    if session.config.getoption("workers"):
        load_once()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep what is imported from the garbage collector: a collection would take long, and copy it in each worker."""
    Globals.now()  # looks up the constants of all modules, which would take long in each worker
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape what is not UTF-8 in captured output, such as peers' names in log lines: a worker cannot send it."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves something behind. What fixtures of a module started may go on."""
    before = Before(shares=shares_something(request.node))
    yield
    if left := before.end():
        pytest.fail(f"this test left behind: {'; '.join(left)}")


@pytest.fixture
def restored_globals() -> Iterator[None]:
    """For tests that run a command in this process: it sets up logging, signals and imports for one of its own."""
    before = Globals.now()
    yield
    before.restore()


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder of temporary files for this worker alone, whose name is short: sockets have paths of 100 bytes."""
    tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="dafka-") as folder:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="module", autouse=True)
def foreign_clients_leave_nothing() -> Iterator[None]:
    """Collect the sockets that clients of Kafka have left open, before a later module's test is blamed for them."""
    yield
    if {"aiokafka", "kafka"} & sys.modules.keys():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
