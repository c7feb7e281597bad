"""Runs the integration tests of aiokafka and kafka-python against a broker of Dafka.

    python -m tests.kafka.server.suites aiokafka CHECKOUT [ARGUMENT OF PYTEST]...
    python -m tests.kafka.server.suites kafka-python CHECKOUT [ARGUMENT OF PYTEST]...

CHECKOUT is a checkout of the client's repository at the version that `installing` in `tests.kafka.server.matrix` names.
`KAFKA_CLIENTS` names the folder in which that has installed the client. Tests that cannot pass are in `EXPECTED`
with the reason; the exit status is 1 if another one fails, or if one of them passes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from xml.etree import ElementTree

from tests.cli.harness import Dafka
from tests.kafka.server.matrix.installing import install

ROOT = Path(__file__).parents[4]
STAND_IN = Path(__file__).parent / "stand_in"
FOLDERS = {"aiokafka": "tests", "kafka-python": "test"}
_AIOKAFKA = ("admin", "client", "conn", "consumer", "coordinator", "fetcher", "pep492", "producer", "sender")
TESTS = {
    "aiokafka": [f"tests/test_{each}.py" for each in (*_AIOKAFKA, "transactional_consumer", "transactional_producer")],
    "kafka-python": [f"test/integration/test_{each}_integration.py" for each in ("admin", "consumer", "producer")],
}
KAFKA_VERSIONS = {"aiokafka": "2.8.1", "kafka-python": "4.3"}
"""The version of Kafka for which the tests are chosen."""


_DOCKER = "programs in the container give Kafka its certificates; the tests of `tests/kafka/server` cover TLS"

EXPECTED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "aiokafka": {
            "TestConsumerIntegration.test_consumer_compressed_returns_older_msgs": (
                "the broker returns the wanted part of a batch where Kafka returns all of it"
            ),
            "TestConsumerIntegration.test_exclude_internal_topics": (
                "offsets are kept in the topic `$offsets`, which clients do not see, and not in `__consumer_offsets`"
            ),
            "TestConsumerIntegration.test_ssl_consume": _DOCKER,
            "TestKafkaProducerIntegration.test_producer_ssl": _DOCKER,
        },
        "kafka-python": {
            "test_admin_integration.test_alter_partition_reassignments": "there is one broker",
            "test_admin_integration.test_alter_replica_log_dirs": "there is one storage",
            "test_admin_integration.test_create_describe_delete_acls": (
                "permissions belong to users, whom `dafka user` administers"
            ),
            "test_admin_integration.test_describe_metadata_quorum": "there is one broker, and no quorum",
            "test_admin_integration.test_elect_leaders": "there is one broker",
            "test_admin_integration.test_list_partition_reassignments": "there is one broker",
        },
    }
)
"""For each suite, tests by the beginning of their names, and the reason."""


def find_reason(suite: str, test: str) -> str | None:
    """Return why a test cannot pass; None if it should."""
    return next((reason for name, reason in EXPECTED[suite].items() if test.startswith(name)), None)


@contextmanager
def _environment(suite: str, folder: Path) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Yield the environment and the options of pytest with which the tests find a broker."""
    command = [sys.executable, "-m", "dafka"]
    variables = {**os.environ, "DAFKA_COMMAND": json.dumps(command), "PYTHONPATH": f"{STAND_IN}:{folder}"}
    if suite == "aiokafka":
        programs = folder / "programs"
        programs.mkdir()
        (programs / "ktutil").write_text("#!/bin/sh\n", "utf-8")
        (programs / "ktutil").chmod(0o755)
        (folder / "tests" / "ssl_cert").mkdir()
        ini = "[pytest]\nasyncio_mode = auto\nmarkers = ssl: needs certificates\n"
        (folder / "pytest.ini").write_text(ini, "utf-8")
        image = f"--docker-image=dafka:1_{KAFKA_VERSIONS[suite]}"
        yield {**variables, "PATH": f"{programs}:{os.environ['PATH']}"}, ["--no-pull", image]
        return
    (folder / "servers" / KAFKA_VERSIONS[suite] / "kafka-bin").mkdir(parents=True)  # a folder with Kafka is required
    (folder / "pytest.ini").write_text("[pytest]\nlog_level = WARNING\n", "utf-8")
    config = folder / "dafka.toml"
    config.write_text("[kafka]\nsession_timeout_min_ms = 1000\nlog_count = 4\n", "utf-8")
    dafka = Dafka(folder)
    try:
        options = ["--kafka", "127.0.0.1:0", "--storage", f"filelog:{folder}/log", "--config", str(config)]
        up = dafka.start_up(*options)
        servers = up.wait_output(3)[2].split()[-1]
        yield {**variables, "KAFKA_URI": f"kafka://{servers}", "KAFKA_VERSION": KAFKA_VERSIONS[suite]}, []
    finally:
        dafka.close()


def run(suite: str, checkout: Path, clients: Path, arguments: list[str]) -> int:
    install(clients, "suites")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(checkout / FOLDERS[suite], folder / FOLDERS[suite])
        with _environment(suite, folder) as (environment, options):
            tests = [] if any(each.startswith("test") for each in arguments) else TESTS[suite]
            python = str(clients / "suites" / "bin" / "python")
            report = folder / "report.xml"
            command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "--timeout=120"]
            subprocess.run([*command, *options, *arguments, *tests], cwd=folder, env=environment, check=False)
            return _compare(suite, report)


def _compare(suite: str, report: Path) -> int:
    found: dict[str, set[str]] = {"failed": set(), "passed": set(), "skipped": set()}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        kinds = {child.tag for child in case}
        found["failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"].add(name)
    failed, passed = found["failed"], found["passed"] - found["failed"]
    unexpected = [name for name in sorted(failed) if find_reason(suite, name) is None]
    surprising = [name for name in sorted(passed) if find_reason(suite, name) is not None]
    print(f"{len(passed)} passed, {len(failed)} failed, {len(found['skipped'])} skipped")
    for name in unexpected:
        print(f"failed unexpectedly: {name}")
    for name in surprising:
        print(f"passed, but is expected to fail: {name}")
    return 1 if unexpected or surprising or not passed else 0


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in TESTS or not os.environ.get("KAFKA_CLIENTS"):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(run(sys.argv[1], Path(sys.argv[2]), Path(os.environ["KAFKA_CLIENTS"]), sys.argv[3:]))
