"""kafkajs's tests, which jest runs. They connect to fixed ports of this machine, some with TLS and users."""

from __future__ import annotations

import re
from contextlib import ExitStack
from xml.etree.ElementTree import Element

from tests.kafka.server.secured import Authority
from tests.suites.running import Outcomes, Run, Suite, add_users, read_junit

PLAIN = ("localhost:9092", "localhost:9095", "localhost:9098")
USERS = {
    "test": {"SCRAM-SHA-256": "testtest", "SCRAM-SHA-512": "testtest"},
    "testscram": {"SCRAM-SHA-256": "testtestscram=256", "SCRAM-SHA-512": "testtestscram=512"},
}
SETTINGS = "[broker]\nreplicas = 2\n[kafka]\nlog_count = 2\n"


def _name(case: Element) -> str:
    return case.get("name") or ""


def _run(run: Run) -> Outcomes:
    certificate = Authority(run.folder).issue("localhost")
    secured = f'{SETTINGS}[clients]\ntls_certificate = "{certificate}"\n'
    with ExitStack() as stack:
        stack.enter_context(run.brokers(*PLAIN, settings=SETTINGS))
        stack.enter_context(run.brokers("localhost:9093", settings=secured))
        users = f'users = "{add_users(run.folder, USERS)}"\n'
        stack.enter_context(run.brokers("localhost:9094", settings=secured + users))
        options = ["--testNamePattern", "|".join(f"^{re.escape(each)}$" for each in run.tests)] if run.tests else []
        command = ("node_modules/.bin/jest", "--ci", "--forceExit", "--maxWorkers=2", "--no-watchman", *options)
        variables = {
            "KAFKA_VERSION": "2.4",
            "KAFKAJS_DEBUG_PROTOCOL_BUFFERS": "1",
            "JEST_JUNIT_OUTPUT_NAME": run.report.name,
            "JEST_JUNIT_OUTPUT_DIR": str(run.folder),
        }
        run.execute(command, variables, run.checkout)
    return read_junit(run.report, _name)


SUITE = Suite("kafkajs", "all, with three brokers, one with TLS, and one with TLS and users", _run)
