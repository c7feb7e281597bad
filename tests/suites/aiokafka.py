"""aiokafka's integration tests, which start Kafka in a container by a program that is replaced here."""

from __future__ import annotations

import json
import os
import shutil

from tests.suites.running import COMMAND, STAND_IN, Outcomes, Run, Suite, run_pytest

_NAMES = ("admin", "client", "conn", "consumer", "coordinator", "fetcher", "pep492", "producer", "sender")
FILES = [f"tests/test_{each}.py" for each in (*_NAMES, "transactional_consumer", "transactional_producer")]
KAFKA_VERSION = "2.8.1"
"""The version of Kafka for which the tests are chosen."""


def _run(run: Run) -> Outcomes:
    shutil.copytree(run.checkout / "tests", run.folder / "tests")
    programs = run.folder / "programs"
    programs.mkdir()
    (programs / "ktutil").write_text("#!/bin/sh\n", "utf-8")
    (programs / "ktutil").chmod(0o755)
    (run.folder / "tests" / "ssl_cert").mkdir()
    ini = "[pytest]\nasyncio_mode = auto\nmarkers = ssl: needs certificates\n"
    (run.folder / "pytest.ini").write_text(ini, "utf-8")
    return run_pytest(
        run,
        FILES,
        f"--docker-image=dafka:1_{KAFKA_VERSION}",
        "--no-pull",
        folder=run.folder,
        DAFKA_COMMAND=json.dumps(COMMAND),
        PYTHONPATH=f"{STAND_IN}:{run.folder}",
        PATH=f"{programs}:{os.environ['PATH']}",
    )


SUITE = Suite("aiokafka", "the integration tests, chosen for Kafka 2.8, with one broker", _run)
