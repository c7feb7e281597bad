"""FastStream's tests of its clients aiokafka and confluent-kafka. They connect to port 9092 of this machine."""

from __future__ import annotations

from tests.suites.running import Outcomes, Run, Suite, run_pytest

FILES = [f"tests/brokers/{each}" for each in ("kafka", "confluent")]


def _run(run: Run) -> Outcomes:
    with run.brokers("localhost:9092"):
        return run_pytest(run, FILES, "-m", "kafka or confluent", folder=run.checkout)


SUITE = Suite("FastStream", "`tests/brokers/kafka` and `tests/brokers/confluent`, with one broker", _run)
