"""kafka-go's tests. They connect to fixed ports of this machine, of which one has users."""

from __future__ import annotations

from contextlib import ExitStack

from tests.suites.running import Outcomes, Run, Suite, add_users, run_go

USERS = {
    "adminplain": {"SCRAM-SHA-256": "admin-secret", "SCRAM-SHA-512": "admin-secret"},
    "adminscram": {"SCRAM-SHA-256": "admin-secret-256", "SCRAM-SHA-512": "admin-secret-512"},
}
SETTINGS = "[kafka]\nmessage_bytes_max = 67109888\nsession_timeout_min_ms = 1000\n"


def _run(run: Run) -> Outcomes:
    with ExitStack() as stack:
        stack.enter_context(run.brokers("localhost:9092", settings=SETTINGS, first=1))
        users = f'[clients]\nusers = "{add_users(run.folder, USERS)}"\n'
        stack.enter_context(run.brokers("localhost:9093", settings=SETTINGS + users, first=1))
        return run_go(run, ".", KAFKA_VERSION="3.7.0")


SUITE = Suite("kafka-go", "the package `kafka`, with a broker, and one that has users", _run)
