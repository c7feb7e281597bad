"""kafka-go's tests. They connect to fixed ports of this machine, of which one has users."""

from __future__ import annotations

from contextlib import ExitStack

from tests.suites.running import Outcome, Outcomes, Run, Suite, Verdict, add_users, run_go

USERS = {
    "adminplain": {"SCRAM-SHA-256": "admin-secret", "SCRAM-SHA-512": "admin-secret"},
    "adminscram": {"SCRAM-SHA-256": "admin-secret-256", "SCRAM-SHA-512": "admin-secret-512"},
}
SETTINGS = "[kafka]\nmessage_bytes_max = 67109888\n"
CRASHING = {
    f"TestReaderConsumerGroup/{each}"
    for each in (
        "consumer_group_commits_on_close",
        "verify_offset_committed",
        "verify_offset_committed_when_using_interval_committer",
    )
}
"""Tests that call a function that they have not set, which ends the process. They do not run, and count as failed."""


def _run(run: Run) -> Outcomes:
    with ExitStack() as stack:
        stack.enter_context(run.brokers("localhost:9092", settings=SETTINGS, first=1))
        users = f'[clients]\nusers = "{add_users(run.folder, USERS)}"\n'
        stack.enter_context(run.brokers("localhost:9093", settings=SETTINGS + users, first=1))
        skipped = "|".join(f"^{each.replace('/', '$/^')}$" for each in sorted(CRASHING))
        found = run_go(run, ".", "-skip", skipped, KAFKA_VERSION="3.7.0")
        return {**found, **dict.fromkeys(CRASHING, Outcome(Verdict.FAILED))}


SUITE = Suite("kafka-go", "the package `kafka`, with a broker, and one that has users", _run)
