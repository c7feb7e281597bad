"""The tests of `@platformatic/kafka`, which Node.js runs. They connect to fixed ports of this machine."""

from __future__ import annotations

import re
from contextlib import ExitStack
from xml.etree.ElementTree import Element

from tests.suites.running import Outcomes, Run, Suite, add_users, read_junit

CLUSTER = ("localhost:9011", "localhost:9012", "localhost:9013")
USERS = {"admin": {"SCRAM-SHA-256": "admin", "SCRAM-SHA-512": "admin"}}
FILES = ("test/*.test.ts", "test/*/*.test.ts", "test/*/*/*.test.ts")
SETTINGS = "[kafka]\nsession_timeout_min_ms = 1000\nconsumer_heartbeat_interval_ms = 200\n"


def _name(case: Element) -> str:
    file = (case.get("file") or "").partition("/test/")[2]
    return f"{file}: {case.get('name')}"


def _run(run: Run) -> Outcomes:
    files = sorted({f"test/{each.partition(': ')[0]}" for each in run.tests}) or FILES
    names = [f"--test-name-pattern=^{re.escape(each.partition(': ')[2])}$" for each in run.tests]
    found = [str(path.relative_to(run.checkout)) for pattern in files for path in run.checkout.glob(pattern)]
    with ExitStack() as stack:
        stack.enter_context(run.brokers(*CLUSTER, settings=SETTINGS, first=1))
        stack.enter_context(run.brokers("localhost:9001", settings=SETTINGS, first=1))
        users = f'[clients]\nreauthenticate_ms = 5000\nusers = "{add_users(run.folder, USERS)}"\n'
        stack.enter_context(run.brokers("localhost:9002", settings=SETTINGS + users, first=1))
        report = f"--test-reporter-destination={run.report}"
        command = ("node", "--test", "--test-concurrency=2", "--test-reporter=junit", report, *names, *found)
        run.execute(command, {}, run.checkout)
    return read_junit(run.report, _name)


SUITE = Suite("@platformatic/kafka", "all, with three brokers, with one, and with one that has users", _run)
