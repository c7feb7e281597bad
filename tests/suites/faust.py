"""Faust's integration tests with a broker."""

from __future__ import annotations

from tests.suites.running import Outcomes, Run, Suite, run_pytest


def _run(run: Run) -> Outcomes:
    with run.brokers("127.0.0.1:0") as servers:
        broker = f"kafka://{servers}"
        return run_pytest(run, ["tests/integration/broker"], folder=run.checkout, FAUST_TEST_BROKER=broker)


SUITE = Suite("faust-streaming", "`tests/integration/broker`, with one broker", _run)
