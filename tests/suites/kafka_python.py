"""kafka-python's integration tests."""

from __future__ import annotations

import shutil

from tests.suites.running import Outcomes, Run, Suite, run_pytest

FILES = [f"test/integration/test_{each}_integration.py" for each in ("admin", "consumer", "producer")]
KAFKA_VERSION = "4.3"
"""The version of Kafka for which the tests are chosen."""
SETTINGS = "[kafka]\nsession_timeout_min_ms = 1000\nlog_count = 4\n"


def _run(run: Run) -> Outcomes:
    shutil.copytree(run.checkout / "test", run.folder / "test")
    (run.folder / "servers" / KAFKA_VERSION / "kafka-bin").mkdir(parents=True)  # a folder with Kafka is required
    (run.folder / "pytest.ini").write_text("[pytest]\nlog_level = WARNING\n", "utf-8")
    with run.brokers("127.0.0.1:0", settings=SETTINGS) as servers:
        variables = {"KAFKA_URI": f"kafka://{servers}", "KAFKA_VERSION": KAFKA_VERSION, "PYTHONPATH": str(run.folder)}
        return run_pytest(run, FILES, folder=run.folder, **variables)


SUITE = Suite("kafka-python", "the integration tests, chosen for Kafka 4.3, with one broker", _run)
