"""Quix Streams' tests. They start Kafka in a container by a program that is replaced here."""

from __future__ import annotations

import json

from tests.suites.running import COMMAND, STAND_IN, Outcomes, Run, Suite, run_pytest

FOLDERS = [
    f"tests/test_quixstreams/{each}"
    for each in (
        "test_app.py",
        "test_checkpointing.py",
        "test_core",
        "test_internal_consumer",
        "test_internal_producer.py",
        "test_kafka",
        "test_models/test_topics",
        "test_state/test_recovery",
    )
]
"""The tests that use a broker."""


def _run(run: Run) -> Outcomes:
    variables = {"DAFKA_COMMAND": json.dumps(COMMAND), "PYTHONPATH": f"{STAND_IN}:{run.checkout}"}
    return run_pytest(run, FOLDERS, folder=run.checkout, **variables)


SUITE = Suite("Quix Streams", "the tests that use a broker, with one broker", _run)
