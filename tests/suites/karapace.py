"""Karapace's integration tests with a broker: of backups, the REST proxy, clients, and the election of a master."""

from __future__ import annotations

from tests.suites.running import Outcomes, Run, Suite, run_pytest

FILES = [
    f"tests/integration/{each}"
    for each in (
        "backup",
        "kafka_rest_apis",
        "test_client.py",
        "test_client_id.py",
        "test_client_protobuf.py",
        "test_master_coordinator.py",
    )
]
SETTINGS = '[kafka]\nauto_create_topics = "off"\nsession_timeout_min_ms = 1000\n[store]\nretention_ms = "7d"\n'
"""As the suite sets up Kafka, with the default retention of Kafka."""


def _run(run: Run) -> Outcomes:
    with run.brokers("127.0.0.1:0", settings=SETTINGS) as servers:
        options = ("-n", "3", "--kafka-bootstrap-servers", servers)
        return run_pytest(run, FILES, *options, folder=run.checkout)


SUITE = Suite("Karapace", "the tests of backups and of the REST proxy and of clients, with one broker", _run)
